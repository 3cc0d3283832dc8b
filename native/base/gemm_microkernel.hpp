// GEMM microkernel: a matrix product whose result fits in registers. All other kernels are built on it.
//
//     C[m][n] (+)= Σ_k A[m][k] · B[k][n]
//
// A is read one element at a time and broadcast, so any strides are equally fast: a transposed A has no extra cost. B is
// read as vectors along n and needs unit stride there.
//
// A tile of MR × NV vectors of C is kept in registers. AVX-512 has 32: a tile of 12 × 2 leaves registers for two vectors of
// B and the broadcast, 8 × 3 for three. AVX2 and SSE have 16: 6 × 2 and 4 × 3. Twelve or more independent sums hide the
// latency of two FMA ports.
#pragma once

#include <array>
#include <utility>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

#if REGARD_LANES == 16
inline constexpr int max_rows = 12;
#else
inline constexpr int max_rows = 6;
#endif

// The left operand, row-major (col = 1) or transposed (row = 1).
struct Matrix {
    const float* data;
    ptrdiff_t row, col;  // strides, in floats
};

// Row pointers of a tile of the left operand. One pointer per row would need more registers than there are, so three rows
// share one: the second and third row are one and two strides away.
template <int MR, bool TRANSPOSED>
struct LeftOperand {
    static constexpr int base_pointers = TRANSPOSED ? 1 : (MR + 2) / 3;
    const float* base[base_pointers];
    ptrdiff_t stride;

    REGARD_INLINE LeftOperand(const float* a, ptrdiff_t stride) : stride(stride) {
#pragma GCC unroll 8
        for (int i = 0; i < base_pointers; ++i) {
            base[i] = a + 3 * i * stride;
            asm("" : "+r"(base[i]));  // otherwise the compiler would use a register per row again
        }
    }
    // Element of row i, `ahead` columns after the current one.
    REGARD_INLINE float operator()(int i, int ahead) const {
        return TRANSPOSED ? base[0][ahead * stride + i] : base[i / 3][i % 3 * stride + ahead];
    }
    REGARD_INLINE void advance(int columns) {
#pragma GCC unroll 8
        for (int i = 0; i < base_pointers; ++i) base[i] += TRANSPOSED ? columns * stride : columns;
    }
};

template <int MR, int NV, bool TRANSPOSED>
REGARD_INLINE void multiply(const float* a, ptrdiff_t stride, const float* b, ptrdiff_t ldb, int depth, vec (&c)[MR][NV]) {
    LeftOperand<MR, TRANSPOSED> left(a, stride);
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
    constexpr int columns_per_step = TRANSPOSED ? 1 : 4;  // columns between two updates of the pointers
    int k = 0;
    for (; k + columns_per_step <= depth; k += columns_per_step) {
#pragma GCC unroll 4
        for (int ahead = 0; ahead < columns_per_step; ++ahead) step(ahead);
        left.advance(columns_per_step);
    }
    for (; k < depth; ++k) {
        step(0);
        left.advance(1);
    }
}

// Computes or updates one tile of C, with row stride ldc. The arguments are scalars on purpose: a struct of three words would
// be passed on the stack, written word by word and read as a vector, and store forwarding would fail.
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

// Maximum number of rows of a tile that is NV vectors wide.
template <int NV>
inline constexpr int tile_rows = NV == 1 ? (lanes == 16 ? 16 : 12) : 2 * max_rows / NV;

template <int NV, bool ADD, bool TRANSPOSED>
REGARD_INLINE Tile tile_of(int rows) {
    static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
        return std::array<Tile, sizeof...(I)>{tile<I + 1, NV, ADD, TRANSPOSED>...};
    }(std::make_integer_sequence<int, tile_rows<NV>>{});
    return table[rows - 1];
}

// Number of rows per strip, so that strips are nearly equal: 16 rows are 8 + 8, not 12 + 4.
REGARD_INLINE int strip(int rows, int max_per_strip = max_rows) {
    const int strips = (rows + max_per_strip - 1) / max_per_strip;
    return (rows + strips - 1) / strips;
}

// Computes a panel of C: all rows, NV vectors of columns.
template <int NV, bool ADD>
inline void panel(int rows, int depth, const Matrix& a, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc) {
    const int step = strip(rows, tile_rows<NV>);
    const ptrdiff_t stride = a.row == 1 ? a.col : a.row;
    for (int m = 0; m < rows; m += step) {
        const int count = rows - m < step ? rows - m : step;
        const Tile tile = a.row == 1 ? tile_of<NV, ADD, true>(count) : tile_of<NV, ADD, false>(count);
        tile(a.data + m * a.row, stride, b, ldb, depth, c + m * ldc, ldc);
    }
}

// C (rows × cols) = or += A (rows × depth) · B (depth × cols). Rows of B and C are padded to
// whole vectors.
template <bool ADD>
inline void product(int rows, int cols, int depth, const Matrix& a, const float* b, ptrdiff_t ldb, float* c, ptrdiff_t ldc) {
    if (rows <= 0) return;
    for (int n = 0; n < cols;) {
        const int vectors_left = (cols - n + lanes - 1) / lanes;
        const int vectors = vectors_left == 3 ? 3 : vectors_left == 1 ? 1 : 2;
        if (vectors == 3)
            panel<3, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        else if (vectors == 2)
            panel<2, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        else
            panel<1, ADD>(rows, depth, a, b + n, ldb, c + n, ldc);
        n += vectors * lanes;
    }
}

}  // namespace regard::REGARD_ISA
