// The walk over a rectangle of scores, block by block, that every view is made of.
//
//     for bands of queries:
//         for blocks of keys they may attend to:
//             for strips of a few queries:
//                 S = scores, −∞ where a pair may not attend and in the columns that fill the last vector
//                 see(block, S)
#pragma once

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/score_epilogue.hpp"
#include "views/views.hpp"

namespace regard::REGARD_ISA {

inline constexpr int band_rows = 192, key_block = 128;

// Rows and columns of one head.
struct Part {
    int64_t batch, head, row, row_end, col, col_end;
};

// Scores of blocks of one head, row by row, `key_block` apart.
class Scorer {
    const Additive& job;
    const Dot& of;
    Place at;
    float *q, *kt;
    const float *queries, *keys;

    bool additive() const { return job.w.data; }

   public:
    Scorer(const Additive& job, int64_t batch, int64_t head, Scratch& scratch)
        : job(job), of(job.of), at{batch, head, 0, 0}, q(scratch.take(band_rows * of.width)),
          kt(scratch.take(key_block * of.width)), queries(of.q.at(batch, head)), keys(of.k.at(batch, head / of.groups)) {}

    void take_queries(const Place& band) {
        at = band;
        if (additive()) return;
        const float scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
        pack_rows(queries + at.row * of.q.row, of.q.row, at.rows, int(of.width), q, of.width, scale);
    }
    void take_keys(int64_t col, int cols) {
        if (additive()) return;
        pack_transposed(keys + col * of.k.row, of.k.row, cols, int(of.width), kt, key_block);
    }

    void operator()(const Block& block, float* s) const {
        const int width = int(of.width);
        if (additive())
            score(head_of(job, at), of, at, block, s, key_block);
        else
            product<false>(block.rows, block.cols, width, {q + (block.row - at.row) * width, width, 1}, kt, key_block, s,
                           key_block);
        if (of.softcap > 0) cap(s, key_block, block.rows, block.cols, of.softcap);
        if (!inside(of, at, block)) mask_block(of, at, block, s, key_block);
        for (int i = 0; i < block.rows; ++i)
            for (int j = block.cols; j < round_up(block.cols); ++j) s[i * key_block + j] = -infinity;
    }
};

// SEE offers `strips`, how many strips of the matrix product it wants to see at once; `keys(col, cols)`, called before
// the blocks of these columns; and the call above.
template <typename SEE>
void walk(const Additive& job, const Part& part, Scratch& scratch, SEE& see) {
    const Dot& of = job.of;
    Scorer scores(job, part.batch, part.head, scratch);
    float* s = scratch.take(SEE::strips * most_rows * key_block);
    for (int64_t row = part.row; row < part.row_end; row += band_rows) {
        const Place at{part.batch, part.head, row, int(least(part.row_end - row, band_rows))};
        const Columns columns = columns_of(of, at);
        const int64_t last = least(columns.last, part.col_end);
        int64_t col = most(columns.first, part.col);
        if (col < last) scores.take_queries(at);
        for (; col < last; col += key_block) {
            const int cols = int(least(last - col, key_block)), step = SEE::strips * strip(at.rows);
            scores.take_keys(col, cols);
            see.keys(col, cols);
            for (int m = 0; m < at.rows; m += step) {
                const Block block{row + m, int(least(at.rows - m, step)), col, cols};
                if (outside(of, at, block)) continue;
                scores(block, s);
                see(block, s);
            }
        }
    }
}

// e^x for x ≤ 0 or near it; 0 below the smallest normal number, and so for −∞.
REGARD_INLINE vec weight(vec x) { return x < splat(-87.3f) ? vec{} : exponential(x); }

// Data that all views of one head share.
struct Sight {
    const Observe& job;
    float *highest, *total;  // of its rows
    float* out;
    static constexpr int strips = 1;

    Sight(const Observe& job, const Part& part)
        : job(job), highest(job.highest + (part.batch * job.of.of.heads + part.head) * job.of.of.queries),
          total(job.total + (part.batch * job.of.of.heads + part.head) * job.of.of.queries),
          out(job.out + (part.batch * job.of.of.heads + part.head) * job.out_head) {}

    void keys(int64_t, int) {}
    float* row(int64_t i) const { return out + i * job.out_row; }

    // Scores of a row → logarithms of its weights. First the highest is subtracted, then the logarithm of the total: their
    // sum would be rounded like the highest.
    struct Row {
        vec base, log_total;

        REGARD_INLINE vec operator()(vec s) const { return (s - base) - log_total; }
    };
    Row logs(int64_t i) const { return {splat(highest[i]), splat(total[i])}; }

    // Weights in place of the scores of a block.
    void weigh(const Block& block, float* s) const {
        for (int i = 0; i < block.rows; ++i) {
            const Row log = logs(block.row + i);
            float* row = s + i * key_block;
            for (int j = 0; j < block.cols; j += lanes) store(row + j, weight(log(load(row + j))));
        }
    }
};

}  // namespace regard::REGARD_ISA
