// Few queries and many keys: lanes are channels, and each row of keys and values is read once, in place.
#pragma once

#include "base/dtype.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

inline constexpr int kv_block = 128;          // keys per block
inline constexpr int prefetch_distance = 16;  // rows

// Hardware prefetching stops at the end of a page, so rows are prefetched explicitly.
template <typename T>
REGARD_INLINE void prefetch(const T* row, int width) {
    for (int c = 0; c < width; c += 64 / int(sizeof(T))) __builtin_prefetch(row + c, 0, 3);
}

// Computes the products of R rows of x (row stride ld, whole vectors) and the rows of a head from `first` on: (R, kv_block).
template <int R, Dtype D>
void score_rows(const HeadRows& rows, int64_t first, int count, int width, const float* x, ptrdiff_t ld, float* s) {
    const int full_width = width / lanes * lanes;
    for (int n = 0; n < count; n += lanes) {
        vec total[R][lanes] = {};
        for (int j = 0; j < lanes && n + j < count; ++j) {
            const auto* row = rows.row_at<D>(first + n + j);
            prefetch(row + prefetch_distance * rows.row, width);
            vec sum[R] = {};
            for (int c = 0; c < full_width; c += lanes) {
                const vec y = DtypeTraits<D>::read(row + c);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) sum[r] += y * load(x + r * ld + c);
            }
            if (full_width < width) {
                const vec y = DtypeTraits<D>::read(row + full_width, width - full_width);
                for (int r = 0; r < R; ++r) sum[r] += y * load(x + r * ld + full_width);
            }
            for (int r = 0; r < R; ++r) total[r][j] = sum[r];
        }
        for (int r = 0; r < R; ++r) store(s + r * kv_block + n, horizontal_sums(total[r]));
    }
}

// Adds NV vectors of Σ_j p_rj · row_j to R sums. Rows alternate between two accumulators, which hides the latency.
template <int R, int NV, Dtype D>
void accumulate_vectors(const HeadRows& rows, int64_t first, int count, int c, const float* p, float* sums, ptrdiff_t ld) {
    vec even[R][NV] = {}, odd[R][NV] = {};
    int j = 0;
    for (; j + 2 <= count; j += 2) {
        const auto *x = rows.row_at<D>(first + j) + c, *y = rows.row_at<D>(first + j + 1) + c;
#pragma GCC unroll 4
        for (int n = 0; n < NV; ++n) {
            const vec x_value = DtypeTraits<D>::read(x + n * lanes), y_value = DtypeTraits<D>::read(y + n * lanes);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                even[r][n] += x_value * splat(p[r * kv_block + j]);
                odd[r][n] += y_value * splat(p[r * kv_block + j + 1]);
            }
        }
        prefetch(x + prefetch_distance * rows.row, NV * lanes);
        prefetch(y + prefetch_distance * rows.row, NV * lanes);
    }
    for (int n = 0; n < NV; ++n)
        for (int r = 0; r < R; ++r) {
            if (j < count)
                even[r][n] += DtypeTraits<D>::read(rows.row_at<D>(first + j) + c + n * lanes) * splat(p[r * kv_block + j]);
            float* sum = sums + r * ld + c + n * lanes;
            store(sum, load(sum) + (even[r][n] + odd[r][n]));
        }
}

// Adds Σ_j p_rj · row_j to R sums, all channels.
template <int R, Dtype D>
void accumulate_rows(const HeadRows& rows, int64_t first, int count, int width, const float* p, float* sums, ptrdiff_t ld) {
    constexpr int max_nv = R <= 2 ? 4 : 2;
    int c = 0;
    for (; c + max_nv * lanes <= width; c += max_nv * lanes) accumulate_vectors<R, max_nv, D>(rows, first, count, c, p, sums, ld);
    for (; c + lanes <= width; c += lanes) accumulate_vectors<R, 1, D>(rows, first, count, c, p, sums, ld);
    if (c == width) return;
    for (int j = 0; j < count; ++j) {
        const vec x = DtypeTraits<D>::read(rows.row_at<D>(first + j) + c, width - c);
        for (int r = 0; r < R; ++r) store(sums + r * ld + c, load(sums + r * ld + c) + x * splat(p[r * kv_block + j]));
    }
}

// Calls f for groups of up to four rows, with their number as a compile-time constant and the first row.
template <typename F>
REGARD_INLINE void for_groups_of_four(int rows, F f) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>{}, r);
    if (rows - r == 3) f(std::integral_constant<int, 3>{}, r);
    if (rows - r == 2) f(std::integral_constant<int, 2>{}, r);
    if (rows - r == 1) f(std::integral_constant<int, 1>{}, r);
}

}  // namespace regard::REGARD_ISA
