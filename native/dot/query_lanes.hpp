// Scores with the queries in the lanes: Sᵀ = K · Qᵀ, a row for each key, a column for each query of a group.
//
// The softmax of a row of scores is then computed lane by lane, for `lanes` queries at a time, without a sum across a
// vector. Only the queries are transposed, once; keys and values are read in place. As the left factor of a product the
// weights are broadcast one by one, so their transposed layout has no cost there.
#pragma once

#include <cmath>

#include "base/gemm_microkernel.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

inline constexpr int most_vectors = 3;  // of queries in a group

// Some queries of a head, side by side in the lanes of up to three vectors.
struct Group {
    int64_t row;
    int rows, vectors;

    int width() const { return vectors * lanes; }
};

// Calls f with the number of vectors of a group as a constant.
template <typename F>
REGARD_INLINE void by_vectors(const Group& group, F f) {
    if (group.vectors == 3)
        f(std::integral_constant<int, 3>{});
    else if (group.vectors == 2)
        f(std::integral_constant<int, 2>{});
    else
        f(std::integral_constant<int, 1>{});
}

// The queries of a task in groups of nearly equal size: group `index` of them.
struct Groups {
    int64_t row;
    int rows, count, vectors;

    Groups(int64_t row, int rows) : row(row), rows(rows) {
        const int all = round_up(rows) / lanes;
        count = (all + most_vectors - 1) / most_vectors;
        vectors = (all + count - 1) / count;
    }
    Group operator[](int index) const {
        const int first = index * vectors * lanes;
        const int some = int(least(rows - first, vectors * lanes));
        return {row + first, some, round_up(some) / lanes};
    }
};

// A block of the transposed scores: some keys, a group of queries.
struct Field {
    int64_t batch, head;
    Group group;
    int64_t col;
    int cols;

    Place place() const { return {batch, head, group.row, group.rows}; }
    Block block() const { return {group.row, group.rows, col, cols}; }
};

// Rows of qt and s are ld apart.
template <int MR, int NV>
__attribute__((noinline)) void score_tile(const float* k, ptrdiff_t row, const float* qt, int depth, float* s, ptrdiff_t ld,
                                          vec* most) {
    vec sums[MR][NV] = {};
    multiply<MR, NV, false>(k, row, qt, ld, depth, sums);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(s + i * ld + j * lanes, sums[i][j]);
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
        vec high[2] = {most[j], sums[0][j]};  // two chains: one would take its latency MR times
#pragma GCC unroll 16
        for (int i = 1; i < MR; ++i) high[i % 2] = maximum(high[i % 2], sums[i][j]);
        most[j] = maximum(high[0], high[1]);
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

// Scores of a block of keys that every query of the group may attend to, and the highest of each lane.
template <int NV>
void score_block(const Rectangle& k, int keys, int depth, const float* qt, float* s, vec* most) {
    const int step = strip(keys, tile_rows<NV>);
    for (int j = 0; j < NV; ++j) most[j] = splat(-infinity);
    for (int m = 0; m < keys; m += step)
        score_tile_of<NV>(int(least(keys - m, step)))(k.data + m * k.row, k.row, qt, depth, s + m * NV * lanes, NV * lanes, most);
}

// Scores of a block that is masked in part. Vectors of queries that all stand before a key are left out: `mask_field` fills
// them in.
template <int NV>
void score_some(const Dot& of, const Field& at, const Rectangle& k, int depth, const float* qt, float* s) {
    const int step = strip(at.cols, tile_rows<NV>);
    const int64_t lag = of.mask.right + offset_of(of, at.batch) + at.group.row;  // key j is for queries from j − lag on
    for (int m = 0; m < at.cols; m += step) {
        const int some = int(least(at.cols - m, step)), first = int(least(most(0, at.col + m - lag) / lanes, NV - 1));
        const ScoreTile tile = NV - first == 3   ? score_tile_of<NV == 3 ? 3 : 1>(some)
                               : NV - first == 2 ? score_tile_of<NV >= 2 ? 2 : 1>(some)
                                                 : score_tile_of<1>(some);
        vec unused[NV];
        for (int j = 0; j < NV; ++j) unused[j] = vec{};
        tile(k.data + m * k.row, k.row, qt + first * lanes, depth, s + m * NV * lanes + first * lanes, NV * lanes,
             unused);
    }
}

// The dense mask of `lanes` queries from `row` on and `lanes` keys from `col` on, one vector per key.
inline void dense_square(const Dot& of, const Field& at, int first, int key, vec (&x)[lanes]) {
    const Mask& mask = of.mask;
    const int rows = int(least(lanes, at.group.rows - first)), cols = int(least(lanes, at.cols - key));
    for (int i = 0; i < lanes; ++i) x[i] = vec{};
    for (int i = 0; i < rows; ++i) {
        const ptrdiff_t start = at.batch * mask.batch + at.head * mask.head + (at.group.row + first + i) * mask.row +
                                (at.col + key) * mask.col;
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

inline void mask_dense(const Dot& of, const Field& at, float* s) {
    for (int v = 0; v < at.group.vectors; ++v)
        for (int key = 0; key < at.cols; key += lanes) {
            vec x[lanes];
            dense_square(of, at, v * lanes, key, x);
            for (int j = 0; j < least(lanes, at.cols - key); ++j) {
                float* to = s + (key + j) * at.group.width() + v * lanes;
                store(to, x[j] == splat(-infinity) ? x[j] : load(to) + x[j]);
            }
        }
}

// The queries of a group that may attend to one of some keys, by position.
struct Span {
    int first, last;
};

inline Span queries_of(const Dot& of, const Field& at, int key, int keys) {
    const int64_t offset = offset_of(of, at.batch) + at.group.row, col = at.col + key;
    const int64_t first = least(most(0, col - of.mask.right - offset), at.group.rows);
    return {int(first), int(most(first, least(at.group.rows, col + keys + of.mask.left - offset)))};
}

// The keys of a block that one of some queries may attend to.
inline Span keys_of(const Dot& of, const Field& at, int row, int rows) {
    const Columns own = columns_of(of, at.batch, at.group.row + row, rows);
    const int64_t first = least(most(own.first - at.col, 0), at.cols);
    return {int(first), int(most(first, least(own.last - at.col, at.cols)))};
}

// −∞ where a query may not attend, by position, length and dense mask.
inline void mask_field(const Dot& of, const Field& at, float* s) {
    if (of.mask.kind != MaskKind::none) mask_dense(of, at, s);
    const int64_t offset = offset_of(of, at.batch) + at.group.row, length = length_of(of, at.batch);
    const int width = at.group.width();
    for (int j = 0; j < at.cols; ++j) {
        const int64_t key = at.col + j;  // queries first … last of the group may attend to it
        const int64_t first = key < length ? most(0, key - of.mask.right - offset) : width;
        const int64_t last = least(width - 1, key + of.mask.left - offset);
        if (first <= 0 && last >= width - 1) continue;
        for (int i = 0; i < width; i += lanes) {
            const ivec lane = lane_numbers() + i;
            float* to = s + j * width + i;
            store(to, lane >= int(least(first, width)) && lane <= int(most(last, -1)) ? load(to) : splat(-infinity));
        }
    }
}

template <int NV>
void highest_of(const float* s, int keys, vec* most) {
    vec high[NV];
    for (int j = 0; j < NV; ++j) high[j] = splat(-infinity);
    for (int i = 0; i < keys; ++i)
        for (int j = 0; j < NV; ++j) high[j] = maximum(high[j], load(s + (i * NV + j) * lanes));
    for (int j = 0; j < NV; ++j) most[j] = high[j];
}

}  // namespace regard::REGARD_ISA
