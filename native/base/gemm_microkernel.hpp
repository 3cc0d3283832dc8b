// A matrix product small enough to stand in registers: the one building block of every kernel here.
//
//     C[m][n] (+)= Σ_k A[m][k] · B[k][n]
//
// A is read one number at a time and broadcast, so its strides are free: a transposed A costs nothing. B is read as
// vectors along n and wants unit stride there.
//
// A tile of MR × NV vectors of C lives in registers. AVX-512 has 32 of them: 12 × 2 leaves room for two vectors of B and
// the broadcast, 8 × 3 for three; AVX2 and SSE have 16: 6 × 2 and 4 × 3. Twelve or more independent sums hide the latency
// of two FMA ports.
#pragma once

#include <array>
#include <utility>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

#if REGARD_LANES == 16
inline constexpr int most_rows = 12;
#else
inline constexpr int most_rows = 6;
#endif

// The left factor, one of two kinds: its columns lie together (col = 1), as a matrix usually does, or its rows do
// (row = 1), transposed.
struct Matrix {
    const float* data;
    ptrdiff_t row, col;  // strides, in floats
};

// Row pointers of a tile of the left factor. Rows far apart would each need an address, more than there are registers: three
// rows share one, and the second and third are one and two strides away.
template <int MR, bool TRANSPOSED>
struct Left {
    static constexpr int addresses = TRANSPOSED ? 1 : (MR + 2) / 3;
    const float* at[addresses];
    ptrdiff_t stride;

    REGARD_INLINE Left(const float* a, ptrdiff_t stride) : stride(stride) {
#pragma GCC unroll 8
        for (int i = 0; i < addresses; ++i) {
            at[i] = a + 3 * i * stride;
            asm("" : "+r"(at[i]));  // else the compiler sees through it, and spends a register per row again
        }
    }
    // Row i of the column `ahead` of the present one.
    REGARD_INLINE float operator()(int i, int ahead) const {
        return TRANSPOSED ? at[0][ahead * stride + i] : at[i / 3][i % 3 * stride + ahead];
    }
    REGARD_INLINE void skip(int columns) {
#pragma GCC unroll 8
        for (int i = 0; i < addresses; ++i) at[i] += TRANSPOSED ? columns * stride : columns;
    }
};

template <int MR, int NV, bool TRANSPOSED>
REGARD_INLINE void multiply(const float* a, ptrdiff_t stride, const float* b, ptrdiff_t ldb, int depth, vec (&c)[MR][NV]) {
    Left<MR, TRANSPOSED> left(a, stride);
    const auto step = [&](int ahead) __attribute__((always_inline)) {
        vec right[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) right[j] = load(b + j * lanes);
        b += ldb;
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
            const vec x = splat(left(i, ahead));
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) c[i][j] += x * right[j];
        }
    };
    constexpr int together = TRANSPOSED ? 1 : 4;  // columns between two moves of the addresses
    int k = 0;
    for (; k + together <= depth; k += together) {
#pragma GCC unroll 4
        for (int ahead = 0; ahead < together; ++ahead) step(ahead);
        left.skip(together);
    }
    for (; k < depth; ++k) {
        step(0);
        left.skip(1);
    }
}

// One tile of C, either set or added to; its rows are ldc apart. The arguments are single words on purpose: a structure of
// three would go by the stack, written in parts and read whole, which waits for everything before it to be stored.
template <int MR, int NV, bool ADD, bool TRANSPOSED>
__attribute__((noinline)) void tile(const float* a, ptrdiff_t stride, const float* b, ptrdiff_t ldb, int depth, float* c,
                                    ptrdiff_t ldc) {
    vec sums[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) sums[i][j] = ADD ? load(c + i * ldc + j * lanes) : vec{};
    multiply<MR, NV, TRANSPOSED>(a, stride, b, ldb, depth, sums);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(c + i * ldc + j * lanes, sums[i][j]);
}

using Tile = void (*)(const float*, ptrdiff_t, const float*, ptrdiff_t, int, float*, ptrdiff_t);

// The most rows of a tile that is NV vectors wide.
template <int NV>
inline constexpr int tile_rows = NV == 1 ? (lanes == 16 ? 16 : 12) : 2 * most_rows / NV;

template <int NV, bool ADD, bool TRANSPOSED>
REGARD_INLINE Tile tile_of(int rows) {
    static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
        return std::array<Tile, sizeof...(I)>{tile<I + 1, NV, ADD, TRANSPOSED>...};
    }(std::make_integer_sequence<int, tile_rows<NV>>{});
    return table[rows - 1];
}

// Number of rows per strip, so that strips are nearly equal: 16 rows are 8 + 8, not 12 + 4.
REGARD_INLINE int strip(int rows, int most = most_rows) {
    const int strips = (rows + most - 1) / most;
    return (rows + strips - 1) / strips;
}

// NV vectors of columns.
template <int NV, bool ADD>
inline void panel(int rows, int depth, const Matrix& a, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc) {
    const int step = strip(rows, tile_rows<NV>);
    const ptrdiff_t stride = a.row == 1 ? a.col : a.row;
    for (int m = 0; m < rows; m += step) {
        const int some = rows - m < step ? rows - m : step;
        const Tile tile = a.row == 1 ? tile_of<NV, ADD, true>(some) : tile_of<NV, ADD, false>(some);
        tile(a.data + m * a.row, stride, b, ldb, depth, c + m * ldc, ldc);
    }
}

// C (rows × cols) = or += A (rows × depth) · B (depth × cols). B and C have room for cols rounded up to whole vectors.
template <bool ADD>
inline void product(int rows, int cols, int depth, const Matrix& a, const float* b, ptrdiff_t ldb, float* c,
                    ptrdiff_t ldc) {
    if (rows <= 0) return;
    for (int n = 0; n < cols;) {
        const int left = (cols - n + lanes - 1) / lanes;
        const int take = left == 3 ? 3 : left == 1 ? 1 : 2;
        if (take == 3)
            panel<3, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        else if (take == 2)
            panel<2, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        else
            panel<1, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        n += take * lanes;
    }
}

}  // namespace regard::REGARD_ISA
