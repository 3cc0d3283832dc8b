// Visits a rectangle of the scores block by block. Every view is built on it.
//
//     for bands of queries:
//         for blocks of keys they may attend to:
//             for strips of a few queries:
//                 S = scores; −∞ for masked pairs and in the padding of the last vector
//                 view(block, S)
#pragma once

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/score_epilogue.hpp"
#include "views/views.hpp"

namespace regard::REGARD_ISA {

inline constexpr int band_rows = 192, key_block = 128;

// A rectangle of the scores of one head.
struct Region {
    int64_t batch, head, row, row_end, col, col_end;
};

// Computes the scores of blocks of one head, with row stride key_block.
class Scorer {
    const Additive& job;
    const Dot& dot;
    QueryBlock query_block;
    float *q, *kt;
    const float *queries, *keys;

    bool additive() const { return job.w.data; }

   public:
    Scorer(const Additive& job, int64_t batch, int64_t head, Workspace& workspace)
        : job(job), dot(job.dot), query_block{batch, head, 0, 0}, q(workspace.allocate(band_rows * dot.width)),
          kt(workspace.allocate(key_block * dot.width)), queries(dot.q.at(batch, head)),
          keys(dot.k.at(batch, head / dot.groups)) {}

    void load_queries(const QueryBlock& band) {
        query_block = band;
        if (additive()) return;
        const float scale = dot.softcap > 0 ? dot.scale / dot.softcap : dot.scale;
        pack_rows(queries + query_block.row * dot.q.row, dot.q.row, query_block.rows, int(dot.width), q, dot.width, scale);
    }
    void load_keys(int64_t col, int cols) {
        if (additive()) return;
        pack_transposed(keys + col * dot.k.row, dot.k.row, cols, int(dot.width), kt, key_block);
    }

    void operator()(const Block& block, float* s) const {
        const int width = int(dot.width);
        if (additive())
            score_block(head_of(job, query_block), dot, query_block, block, s, key_block);
        else
            product<false>(block.rows, block.cols, width, {q + (block.row - query_block.row) * width, width, 1}, kt, key_block, s,
                           key_block);
        if (dot.softcap > 0) apply_softcap(s, key_block, block.rows, block.cols, dot.softcap);
        if (!unmasked(dot, query_block, block)) mask_block(dot, query_block, block, s, key_block);
        for (int i = 0; i < block.rows; ++i)
            for (int j = block.cols; j < round_up(block.cols); ++j) s[i * key_block + j] = -infinity;
    }
};

// VIEW has `strips`, the number of strips of the matrix product per call; `load_columns(col, cols)`, called before the blocks
// of these columns; and the call operator above.
template <typename VIEW>
void visit_scores(const Additive& job, const Region& region, Workspace& workspace, VIEW& view) {
    const Dot& dot = job.dot;
    Scorer scores(job, region.batch, region.head, workspace);
    float* s = workspace.allocate(VIEW::strips * max_rows * key_block);
    for (int64_t row = region.row; row < region.row_end; row += band_rows) {
        const QueryBlock query_block{region.batch, region.head, row, int(min(region.row_end - row, band_rows))};
        const KeyRange columns = visible_keys(dot, query_block);
        const int64_t col_end = min(columns.last, region.col_end);
        int64_t col = max(columns.first, region.col);
        if (col < col_end) scores.load_queries(query_block);
        for (; col < col_end; col += key_block) {
            const int cols = int(min(col_end - col, key_block)), step = VIEW::strips * strip(query_block.rows);
            scores.load_keys(col, cols);
            view.load_columns(col, cols);
            for (int m = 0; m < query_block.rows; m += step) {
                const Block block{row + m, int(min(query_block.rows - m, step)), col, cols};
                if (fully_masked(dot, query_block, block)) continue;
                scores(block, s);
                view(block, s);
            }
        }
    }
}

// e^x for x up to about 0; 0 below the smallest normal number and for −∞.
REGARD_INLINE vec weight(vec x) { return x < splat(-87.3f) ? vec{} : exponential(x); }

// Base of all views: row statistics and output of one head.
struct ViewBase {
    const ViewJob& job;
    float *highest, *total;  // of the rows of the head
    float* out;
    static constexpr int strips = 1;

    ViewBase(const ViewJob& job, const Region& region)
        : job(job), highest(job.highest + (region.batch * job.additive.dot.heads + region.head) * job.additive.dot.queries),
          total(job.total + (region.batch * job.additive.dot.heads + region.head) * job.additive.dot.queries),
          out(job.out + (region.batch * job.additive.dot.heads + region.head) * job.out_head) {}

    void load_columns(int64_t, int) {}
    float* row(int64_t i) const { return out + i * job.out_row; }

    // Maps the scores of a row to the logarithms of its weights. The highest score and the logarithm of the total are subtracted
    // one after the other: their sum would have the rounding error of the highest score.
    struct LogWeights {
        vec base, log_total;

        REGARD_INLINE vec operator()(vec s) const { return (s - base) - log_total; }
    };
    LogWeights log_weights(int64_t i) const { return {splat(highest[i]), splat(total[i])}; }

    // Replaces the scores of a block by weights.
    void softmax_block(const Block& block, float* s) const {
        for (int i = 0; i < block.rows; ++i) {
            const LogWeights log_weight = log_weights(block.row + i);
            float* row = s + i * key_block;
            for (int j = 0; j < block.cols; j += lanes) store(row + j, weight(log_weight(load(row + j))));
        }
    }
};

}  // namespace regard::REGARD_ISA
