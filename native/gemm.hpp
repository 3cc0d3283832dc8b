// A matrix product small enough to stand in registers: the one building block of every kernel here.
//
//     C[m][n] (+)= Σ_k A[m][k] · B[k][n]
//
// A is read one number at a time and broadcast, so its strides are free: a transposed A costs nothing. B is read as
// vectors along n and wants unit stride there.
//
// A tile of MR × NV vectors of C lives in registers. AVX-512 has 32 of them: 12 × 2 leaves room for two vectors of B and
// the broadcast; AVX2 and SSE have 16: 6 × 2. Twelve or more independent sums hide the latency of two FMA ports.
#pragma once

#include "simd.hpp"

namespace regard::REGARD_ISA {

#if REGARD_LANES == 16
inline constexpr int most_rows = 12;
#else
inline constexpr int most_rows = 6;
#endif

struct Matrix {
    const float* data;
    ptrdiff_t row, col;  // strides, in floats
};

template <int MR, int NV>
REGARD_INLINE void multiply(const Matrix a, const float* b, ptrdiff_t ldb, int depth, vec (&c)[MR][NV]) {
    const float* left = a.data;
    for (int k = 0; k < depth; ++k) {
        vec right[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) right[j] = load(b + j * lanes);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
            const vec x = splat(left[i * a.row]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) c[i][j] += x * right[j];
        }
        left += a.col;
        b += ldb;
    }
}

// One tile of C, either set or added to. `c` has rows of stride ldc.
template <int MR, int NV, bool ADD>
__attribute__((noinline)) void tile(Matrix a, const float* b, ptrdiff_t ldb, int depth, float* c, ptrdiff_t ldc) {
    vec sums[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) sums[i][j] = ADD ? load(c + i * ldc + j * lanes) : vec{};
    multiply<MR, NV>(a, b, ldb, depth, sums);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(c + i * ldc + j * lanes, sums[i][j]);
}

template <bool ADD>
using Tile = void (*)(Matrix, const float*, ptrdiff_t, int, float*, ptrdiff_t);

template <int NV, bool ADD>
REGARD_INLINE Tile<ADD> tile_of(int rows) {
    static constexpr Tile<ADD> table[] = {
        tile<1, NV, ADD>, tile<2, NV, ADD>,  tile<3, NV, ADD>,  tile<4, NV, ADD>,
        tile<5, NV, ADD>, tile<6, NV, ADD>,
#if REGARD_LANES == 16
        tile<7, NV, ADD>, tile<8, NV, ADD>, tile<9, NV, ADD>, tile<10, NV, ADD>, tile<11, NV, ADD>, tile<12, NV, ADD>,
#endif
    };
    return table[rows - 1];
}

// How many rows to take at once, so that strips are nearly equal: 16 rows are 8 + 8, not 12 + 4.
REGARD_INLINE int strip(int rows) {
    const int strips = (rows + most_rows - 1) / most_rows;
    return (rows + strips - 1) / strips;
}

// C (rows × cols) = or += A (rows × depth) · B (depth × cols). B and C have room for cols rounded up to whole vectors.
template <bool ADD>
inline void product(int rows, int cols, int depth, Matrix a, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc) {
    if (rows <= 0) return;
    const int step = strip(rows);
    for (int n = 0; n < cols; n += 2 * lanes) {
        const bool two = cols - n > lanes;
        for (int m = 0; m < rows; m += step) {
            const int some = rows - m < step ? rows - m : step;
            const Matrix part{a.data + m * a.row, a.row, a.col};
            (two ? tile_of<2, ADD>(some) : tile_of<1, ADD>(some))(part, b + n, ldb, depth, c + m * ldc + n, ldc);
        }
    }
}

}  // namespace regard::REGARD_ISA
