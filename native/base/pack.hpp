// Copies that make a matrix ready for `product`: transposed, scaled, or padded to whole vectors.
#pragma once

#include <cstring>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

REGARD_INLINE int round_up(int n) { return (n + lanes - 1) / lanes * lanes; }

// rows × width, times a number, with room for whole vectors in each row of `to`.
inline void pack_rows(const float* from, ptrdiff_t stride, int rows, int width, float* to, ptrdiff_t ld, float times) {
    for (int i = 0; i < rows; ++i) {
        int c = 0;
        for (; c + lanes <= width; c += lanes) store(to + i * ld + c, load(from + i * stride + c) * times);
        for (; c < width; ++c) to[i * ld + c] = from[i * stride + c] * times;
        for (; c < ld; ++c) to[i * ld + c] = 0;
    }
}

// A square of vectors, transposed by log2(lanes) rounds of interleaving: rows i and i + n/2 become rows 2i and 2i + 1.
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

// `lanes` vectors → the vector of their sums: each round halves the vectors by adding halves of two, side by side.
REGARD_INLINE vec sums_of(vec (&x)[lanes]) {
#pragma GCC unroll 4
    for (int half = lanes / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            x[i] = __builtin_shufflevector(x[i], x[i + half], REGARD_LOW) + __builtin_shufflevector(x[i], x[i + half], REGARD_HIGH);
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

// rows × width → width × rows, times a number, rows of `to` of stride ld; rows are filled with zeros up to whole vectors.
inline void pack_transposed(const float* from, ptrdiff_t stride, int rows, int width, float* to, ptrdiff_t ld,
                            float times = 1.0f) {
    for (int i = 0; i < rows; i += lanes) {
        const int some = rows - i < lanes ? rows - i : lanes;
        for (int c = 0; c < width; c += lanes) {
            const int deep = width - c < lanes ? width - c : lanes;
            const float* corner = from + i * stride + c;
            vec x[lanes];
            if (some == lanes && deep == lanes) {
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) x[j] = load(corner + j * stride) * times;
            } else {
                for (int j = 0; j < lanes; ++j) x[j] = j < some ? load_some(corner + j * stride, deep) * times : vec{};
            }
            transpose(x);
            if (deep == lanes) {
#pragma GCC unroll 16
                for (int j = 0; j < lanes; ++j) store(to + (c + j) * ld + i, x[j]);
            } else {
                for (int j = 0; j < deep; ++j) store(to + (c + j) * ld + i, x[j]);
            }
        }
    }
}

// Whether all numbers are finite: 0 times anything else is NaN. Rows are ld apart.
inline bool finite(const float* x, int64_t rows, int width, ptrdiff_t ld) {
    vec trace{};
    float rest = 0;
    for (int64_t i = 0; i < rows; ++i) {
        int c = 0;
        for (; c + lanes <= width; c += lanes) trace += load(x + i * ld + c) * 0.0f;
        for (; c < width; ++c) rest += x[i * ld + c] * 0.0f;
    }
    return sum(trace) + rest == 0;
}

// Rows, `ld` apart, set to 0; fewer than none are none.
inline void clear(float* x, int64_t rows, ptrdiff_t width, ptrdiff_t ld) {
    for (int64_t i = 0; i < rows; ++i) std::memset(x + i * ld, 0, sizeof(float) * width);
}

struct Rectangle {
    const float* data;
    ptrdiff_t row;
};

// Rows that can be read in whole vectors: as they are where the width allows, else a padded copy in `room`.
inline Rectangle rectangle(const float* from, ptrdiff_t stride, int rows, int width, float* room) {
    if (width % lanes == 0) return {from, stride};
    pack_rows(from, stride, rows, width, room, round_up(width), 1.0f);
    return {room, round_up(width)};
}

}  // namespace regard::REGARD_ISA
