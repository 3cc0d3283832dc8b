// Scores with queries as lanes: Sᵀ = K · Qᵀ, with a row for each key and a column for each query of a group.
//
// The softmax is then computed lane by lane, for `lanes` queries at a time, without horizontal sums. Only the queries are
// transposed, once; keys and values are read in place. As the left operand of a product the weights are broadcast one by one,
// so their transposed layout has no cost.
#pragma once

#include <cmath>

#include "base/gemm_microkernel.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

inline constexpr int max_vectors = 3;  // vectors of queries in a group

// Consecutive queries of a head, in the lanes of up to three vectors.
struct Group {
    int64_t row;
    int rows, vectors;

    int width() const { return vectors * lanes; }
};

// Calls f with the number of vectors of a group as a compile-time constant.
template <typename F>
REGARD_INLINE void dispatch_vectors(const Group& group, F f) {
    if (group.vectors == 3)
        f(std::integral_constant<int, 3>{});
    else if (group.vectors == 2)
        f(std::integral_constant<int, 2>{});
    else
        f(std::integral_constant<int, 1>{});
}

// Divides the queries of a task into groups of nearly equal size.
struct Groups {
    int64_t row;
    int rows, count, vectors;

    Groups(int64_t row, int rows) : row(row), rows(rows) {
        const int total_vectors = round_up(rows) / lanes;
        count = (total_vectors + max_vectors - 1) / max_vectors;
        vectors = (total_vectors + count - 1) / count;
    }
    Group operator[](int index) const {
        const int first = index * vectors * lanes;
        const int count = int(min(rows - first, vectors * lanes));
        return {row + first, count, round_up(count) / lanes};
    }
};

// A block of the transposed scores: a range of keys and a group of queries.
struct LaneBlock {
    int64_t batch, head;
    Group group;
    int64_t col;
    int cols;

    QueryBlock queries() const { return {batch, head, group.row, group.rows}; }
    Block extent() const { return {group.row, group.rows, col, cols}; }
};

// Computes a tile of scores and updates the maximum of each lane. ld: row stride of qt and s.
template <int MR, int NV>
__attribute__((noinline)) void score_tile(const float* k, ptrdiff_t row, const float* qt, int depth, float* s, ptrdiff_t ld,
                                          vec* maxima) {
    vec sums[MR][NV] = {};
    multiply<MR, NV, false>(k, row, qt, ld, depth, sums);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(s + i * ld + j * lanes, sums[i][j]);
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
        vec running[2] = {maxima[j], sums[0][j]};  // two dependency chains hide the latency
#pragma GCC unroll 16
        for (int i = 1; i < MR; ++i) running[i % 2] = maximum(running[i % 2], sums[i][j]);
        maxima[j] = maximum(running[0], running[1]);
    }
}

using ScoreTile = void (*)(const float*, ptrdiff_t, const float*, int, float*, ptrdiff_t, vec*);

template <int NV>
REGARD_INLINE ScoreTile score_tile_of(int keys) {
    static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
        return std::array<ScoreTile, sizeof...(I)>{score_tile<I + 1, NV>...};
    }(std::make_integer_sequence<int, tile_rows<NV>>{});
    return table[keys - 1];
}

// Computes the scores of a block in which every pair may attend, and the maximum of each lane.
template <int NV>
void score_block(const MatrixView& k, int keys, int depth, const float* qt, float* s, vec* maxima) {
    const int step = strip(keys, tile_rows<NV>);
    for (int j = 0; j < NV; ++j) maxima[j] = splat(-infinity);
    for (int m = 0; m < keys; m += step)
        score_tile_of<NV>(int(min(keys - m, step)))(k.data + m * k.row, k.row, qt, depth, s + m * NV * lanes, NV * lanes, maxima);
}

// Computes the scores of a partly masked block. Vectors in which every query is too early for a key are skipped;
// `mask_lane_block` sets them to −∞.
template <int NV>
void score_masked_block(const Dot& dot, const LaneBlock& block, const MatrixView& k, int depth, const float* qt, float* s) {
    const int step = strip(block.cols, tile_rows<NV>);
    const int64_t first_row_shift =
        dot.mask.right + offset_of(dot, block.batch) + block.group.row;  // queries from j − this on may attend to key j
    for (int m = 0; m < block.cols; m += step) {
        const int count = int(min(block.cols - m, step)),
                  first = int(min(max(0, block.col + m - first_row_shift) / lanes, NV - 1));
        const ScoreTile tile = NV - first == 3   ? score_tile_of<NV == 3 ? 3 : 1>(count)
                               : NV - first == 2 ? score_tile_of<NV >= 2 ? 2 : 1>(count)
                                                 : score_tile_of<1>(count);
        vec unused[NV];
        for (int j = 0; j < NV; ++j) unused[j] = vec{};
        tile(k.data + m * k.row, k.row, qt + first * lanes, depth, s + m * NV * lanes + first * lanes, NV * lanes, unused);
    }
}

// Loads the dense mask of `lanes` queries and `lanes` keys, one vector per key, as a term to add: 0 or −∞ if it is boolean.
inline void load_dense_mask(const Dot& dot, const LaneBlock& block, int first, int key, vec (&x)[lanes]) {
    const Mask& mask = dot.mask;
    const int rows = int(min(lanes, block.group.rows - first)), cols = int(min(lanes, block.cols - key));
    for (int i = 0; i < lanes; ++i) x[i] = vec{};
    for (int i = 0; i < rows; ++i) {
        const ptrdiff_t start = block.batch * mask.batch + block.head * mask.head + (block.group.row + first + i) * mask.row +
                                (block.col + key) * mask.col;
        float row[lanes] = {};
        if (mask.kind == MaskKind::added)
            for (int j = 0; j < cols; ++j) row[j] = static_cast<const float*>(mask.dense)[start + j * mask.col];
        else
            for (int j = 0; j < cols; ++j)
                row[j] = static_cast<const uint8_t*>(mask.dense)[start + j * mask.col] ? 0.0f : -infinity;
        x[i] = load(row);
    }
    transpose(x);
}

inline void mask_dense(const Dot& dot, const LaneBlock& block, float* s) {
    for (int v = 0; v < block.group.vectors; ++v)
        for (int key = 0; key < block.cols; key += lanes) {
            vec x[lanes];
            load_dense_mask(dot, block, v * lanes, key, x);
            for (int j = 0; j < min(lanes, block.cols - key); ++j) {
                float* scores = s + (key + j) * block.group.width() + v * lanes;
                store(scores, x[j] == splat(-infinity) ? x[j] : load(scores) + x[j]);
            }
        }
}

// A range of rows or columns of a block.
struct Span {
    int first, last;
};

// Queries of a group that may attend to any of some keys, by position.
inline Span visible_queries(const Dot& dot, const LaneBlock& block, int key, int keys) {
    const int64_t offset = offset_of(dot, block.batch) + block.group.row, col = block.col + key;
    const int64_t first = min(max(0, col - dot.mask.right - offset), block.group.rows);
    return {int(first), int(max(first, min(block.group.rows, col + keys + dot.mask.left - offset)))};
}

// Keys of a block to which any of some queries may attend.
inline Span visible_columns(const Dot& dot, const LaneBlock& block, int row, int rows) {
    const KeyRange visible = visible_keys(dot, block.batch, block.group.row + row, rows);
    const int64_t first = min(max(visible.first - block.col, 0), block.cols);
    return {int(first), int(max(first, min(visible.last - block.col, block.cols)))};
}

// Sets scores to −∞ if the query may not attend to the key, by position, length or dense mask, and adds a float mask.
inline void mask_lane_block(const Dot& dot, const LaneBlock& block, float* s) {
    if (dot.mask.kind != MaskKind::none) mask_dense(dot, block, s);
    const int64_t offset = offset_of(dot, block.batch) + block.group.row, length = length_of(dot, block.batch);
    const int width = block.group.width();
    for (int j = 0; j < block.cols; ++j) {
        const int64_t key = block.col + j;  // queries first … last of the group may attend to this key
        const int64_t first = key < length ? max(0, key - dot.mask.right - offset) : width;
        const int64_t last = min(width - 1, key + dot.mask.left - offset);
        if (first <= 0 && last >= width - 1) continue;
        for (int i = 0; i < width; i += lanes) {
            const ivec lane = lane_indices() + i;
            float* scores = s + j * width + i;
            store(scores, lane >= int(min(first, width)) && lane <= int(max(last, -1)) ? load(scores) : splat(-infinity));
        }
    }
}

template <int NV>
void lane_maxima(const float* s, int keys, vec* maxima) {
    vec running[NV];
    for (int j = 0; j < NV; ++j) running[j] = splat(-infinity);
    for (int i = 0; i < keys; ++i)
        for (int j = 0; j < NV; ++j) running[j] = maximum(running[j], load(s + (i * NV + j) * lanes));
    for (int j = 0; j < NV; ++j) maxima[j] = running[j];
}

}  // namespace regard::REGARD_ISA
