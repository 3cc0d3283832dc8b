// Packing of matrices for `product`: transposed, scaled, or padded to whole vectors.
#pragma once

#include <cstring>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

REGARD_INLINE int round_up(int n) { return (n + lanes - 1) / lanes * lanes; }

// Copies rows × width, times `scale`. Rows of `output` are filled with zeros up to ld.
inline void pack_rows(const float* input, ptrdiff_t stride, int rows, int width, float* output, ptrdiff_t ld, float scale) {
    for (int i = 0; i < rows; ++i) {
        int c = 0;
        for (; c + lanes <= width; c += lanes) store(output + i * ld + c, load(input + i * stride + c) * scale);
        for (; c < width; ++c) output[i * ld + c] = input[i * stride + c] * scale;
        for (; c < ld; ++c) output[i * ld + c] = 0;
    }
}

// Transposes lanes × lanes floats by log2(lanes) rounds of interleaving: rows i and i + n/2 become rows 2i and 2i + 1.
#if REGARD_LANES == 16
#define REGARD_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define REGARD_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif REGARD_LANES == 8
#define REGARD_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define REGARD_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define REGARD_LOW 0, 4, 1, 5
#define REGARD_HIGH 2, 6, 3, 7
#endif
REGARD_INLINE void transpose(vec (&x)[lanes]) {
#pragma GCC unroll 4
    for (int round = 1; round < lanes; round *= 2) {
        vec y[lanes];
#pragma GCC unroll 8
        for (int i = 0; i < lanes / 2; ++i) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + lanes / 2], REGARD_LOW);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + lanes / 2], REGARD_HIGH);
        }
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) x[i] = y[i];
    }
}

// Returns the horizontal sum of each of `lanes` vectors. Each round halves the number of vectors: two are interleaved and
// added.
REGARD_INLINE vec horizontal_sums(vec (&x)[lanes]) {
#pragma GCC unroll 4
    for (int half = lanes / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            x[i] =
                __builtin_shufflevector(x[i], x[i + half], REGARD_LOW) + __builtin_shufflevector(x[i], x[i + half], REGARD_HIGH);
    return x[0];
}

// Deinterleaves 2 · lanes contiguous numbers into those at even and at odd positions.
#if REGARD_LANES == 16
#define REGARD_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define REGARD_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif REGARD_LANES == 8
#define REGARD_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define REGARD_ODD 1, 3, 5, 7, 9, 11, 13, 15
#else
#define REGARD_EVEN 0, 2, 4, 6
#define REGARD_ODD 1, 3, 5, 7
#endif
REGARD_INLINE vec evens(vec a, vec b) { return __builtin_shufflevector(a, b, REGARD_EVEN); }
REGARD_INLINE vec odds(vec a, vec b) { return __builtin_shufflevector(a, b, REGARD_ODD); }

// Writes the transpose of rows × width, times `scale`, with row stride ld; rows are padded with zeros to whole vectors.
inline void pack_transposed(const float* input, ptrdiff_t stride, int rows, int width, float* output, ptrdiff_t ld,
                            float scale = 1.0f) {
    for (int i = 0; i < rows; i += lanes) {
        const int row_count = rows - i < lanes ? rows - i : lanes;
        for (int c = 0; c < width; c += lanes) {
            const int channel_count = width - c < lanes ? width - c : lanes;
            const float* corner = input + i * stride + c;
            vec x[lanes];
            if (row_count == lanes && channel_count == lanes) {
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) x[j] = load(corner + j * stride) * scale;
            } else {
                for (int j = 0; j < lanes; ++j)
                    x[j] = j < row_count ? load_partial(corner + j * stride, channel_count) * scale : vec{};
            }
            transpose(x);
            if (channel_count == lanes) {
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) store(output + (c + j) * ld + i, x[j]);
            } else {
                for (int j = 0; j < channel_count; ++j) store(output + (c + j) * ld + i, x[j]);
            }
        }
    }
}

// Returns whether all elements are finite: 0 · ∞ and 0 · NaN are NaN. ld is the row stride.
inline bool finite(const float* x, int64_t rows, int width, ptrdiff_t ld) {
    vec products{}, more_products{};  // two dependency chains hide the latency
    float tail = 0;
    for (int64_t i = 0; i < rows; ++i) {
        int c = 0;
        for (; c + 2 * lanes <= width; c += 2 * lanes) {
            products += load(x + i * ld + c) * 0.0f;
            more_products += load(x + i * ld + c + lanes) * 0.0f;
        }
        for (; c + lanes <= width; c += lanes) products += load(x + i * ld + c) * 0.0f;
        for (; c < width; ++c) tail += x[i * ld + c] * 0.0f;
    }
    return sum(products + more_products) + tail == 0;
}

// Sets rows with stride ld to 0. A negative number of rows is treated as 0.
inline void clear(float* x, int64_t rows, ptrdiff_t width, ptrdiff_t ld) {
    for (int64_t i = 0; i < rows; ++i) std::memset(x + i * ld, 0, sizeof(float) * width);
}

struct MatrixView {
    const float* data;
    ptrdiff_t row;
};

// Returns rows that can be read in whole vectors: the rows themselves if the width is a multiple of `lanes`, else a padded
// copy in `buffer`.
inline MatrixView readable_rows(const float* input, ptrdiff_t stride, int rows, int width, float* buffer) {
    if (width % lanes == 0) return {input, stride};
    pack_rows(input, stride, rows, width, buffer, round_up(width), 1.0f);
    return {buffer, round_up(width)};
}

}  // namespace regard::REGARD_ISA
