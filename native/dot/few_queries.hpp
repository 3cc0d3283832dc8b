// Few queries and many keys: lanes are channels, and rows are read once, in place.
#pragma once

#include "base/dtype.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

inline constexpr int few_block = 128;  // keys at a time
inline constexpr int ahead = 16;       // rows between what is read and what is asked for

// Streams stop at the end of a page: rows are asked for before the hardware would think of them.
template <typename T>
REGARD_INLINE void fetch(const T* row, int width) {
    for (int c = 0; c < width; c += 64 / int(sizeof(T))) __builtin_prefetch(row + c, 0, 3);
}

// Products of R rows of x (`ld` apart, whole vectors) with the rows of a head from `first` on: (R, few_block).
template <int R, Number N>
void meet_rows(const Source& of, int64_t first, int count, int width, const float* x, ptrdiff_t ld, float* s) {
    const int whole = width / lanes * lanes;
    for (int n = 0; n < count; n += lanes) {
        vec total[R][lanes] = {};
        for (int j = 0; j < lanes && n + j < count; ++j) {
            const auto* row = of.row_of<N>(first + n + j);
            fetch(row + ahead * of.row, width);
            vec sum[R] = {};
            for (int c = 0; c < whole; c += lanes) {
                const vec y = Kind<N>::read(row + c);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) sum[r] += y * load(x + r * ld + c);
            }
            if (whole < width) {
                const vec y = Kind<N>::read(row + whole, width - whole);
                for (int r = 0; r < R; ++r) sum[r] += y * load(x + r * ld + whole);
            }
            for (int r = 0; r < R; ++r) total[r][j] = sum[r];
        }
        for (int r = 0; r < R; ++r) store(s + r * few_block + n, sums_of(total[r]));
    }
}

// NV vectors of Σ_j p_rj · row_j added to R sums: two rows at a time, so that one sum need not wait for another.
template <int R, int NV, Number N>
void gather(const Source& of, int64_t first, int count, int c, const float* p, float* sums, ptrdiff_t ld) {
    vec even[R][NV] = {}, odd[R][NV] = {};
    int j = 0;
    for (; j + 2 <= count; j += 2) {
        const auto *x = of.row_of<N>(first + j) + c, *y = of.row_of<N>(first + j + 1) + c;
#pragma GCC unroll 4
        for (int n = 0; n < NV; ++n) {
            const vec one = Kind<N>::read(x + n * lanes), two = Kind<N>::read(y + n * lanes);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                even[r][n] += one * splat(p[r * few_block + j]);
                odd[r][n] += two * splat(p[r * few_block + j + 1]);
            }
        }
        fetch(x + ahead * of.row, NV * lanes);
        fetch(y + ahead * of.row, NV * lanes);
    }
    for (int n = 0; n < NV; ++n)
        for (int r = 0; r < R; ++r) {
            if (j < count) even[r][n] += Kind<N>::read(of.row_of<N>(first + j) + c + n * lanes) * splat(p[r * few_block + j]);
            float* to = sums + r * ld + c + n * lanes;
            store(to, load(to) + (even[r][n] + odd[r][n]));
        }
}

// All channels of it.
template <int R, Number N>
void gather_rows(const Source& of, int64_t first, int count, int width, const float* p, float* sums, ptrdiff_t ld) {
    constexpr int most = R <= 2 ? 4 : 2;
    int c = 0;
    for (; c + most * lanes <= width; c += most * lanes) gather<R, most, N>(of, first, count, c, p, sums, ld);
    for (; c + lanes <= width; c += lanes) gather<R, 1, N>(of, first, count, c, p, sums, ld);
    if (c == width) return;
    for (int j = 0; j < count; ++j) {
        const vec x = Kind<N>::read(of.row_of<N>(first + j) + c, width - c);
        for (int r = 0; r < R; ++r) store(sums + r * ld + c, load(sums + r * ld + c) + x * splat(p[r * few_block + j]));
    }
}

// Calls f with up to four rows at a time: how many, as a constant, and the first.
template <typename F>
REGARD_INLINE void by_fours(int rows, F f) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) f(std::integral_constant<int, 4>{}, r);
    if (rows - r == 3) f(std::integral_constant<int, 3>{}, r);
    if (rows - r == 2) f(std::integral_constant<int, 2>{}, r);
    if (rows - r == 1) f(std::integral_constant<int, 1>{}, r);
}

}  // namespace regard::REGARD_ISA
