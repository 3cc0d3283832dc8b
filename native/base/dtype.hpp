// Rows of numbers of any kind as rows of float32, block by block, and back.
#pragma once

#include <type_traits>

#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

using half_vec = uint16_t __attribute__((vector_size(2 * REGARD_LANES), aligned(2), may_alias));

// The first n of a vector's lanes; the rest is 0, and nothing beyond n is read.
REGARD_INLINE half_vec load_some(const uint16_t* p, int n) {
    if (n == lanes) return *reinterpret_cast<const half_vec*>(p);
    half_vec x{};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return x;
}

REGARD_INLINE vec from_bfloat16(half_vec x) { return reinterpret_cast<vec>(__builtin_convertvector(x, uvec) << 16); }

// The exponent moves by 127 − 15: a product does it, for subnormal numbers as well; ∞ and NaN keep all ones.
REGARD_INLINE vec from_float16(half_vec x) {
    const uvec bits = __builtin_convertvector(x, uvec), size = (bits & 0x7fff) << 13;
    const vec moved = reinterpret_cast<vec>(size) * 0x1p112f;
    const uvec found = reinterpret_cast<uvec>(moved) | (size >= (0x7c00u << 13) ? uvec{} + 0x7f800000u : uvec{});
    return reinterpret_cast<vec>(found | ((bits & 0x8000) << 16));
}

REGARD_INLINE vec widened(half_vec x, Number number) {
    return number == Number::bfloat16 ? from_bfloat16(x) : from_float16(x);
}

// To the nearest, ties to even: adding half a unit of what is cut off, less one bit if the rest is even, carries into it.
REGARD_INLINE half_vec to_bfloat16(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? uvec{} + 0x7fc0u : rounded, half_vec);
}

// The same, with the exponent moved back by 127 − 15. Below 2^-14 the sum with ½ does the rounding: its last bit is worth
// 2^-24, as that of a subnormal number is. From 2^16 on all is ∞, or NaN; what rounds up to 2^16 gets there by its carry.
REGARD_INLINE half_vec to_float16(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x), size = bits & 0x7fffffff;
    const uvec normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    const uvec small = reinterpret_cast<uvec>(reinterpret_cast<vec>(size) + 0.5f) - 0x3f000000u;
    const uvec large = size > 0x7f800000 ? uvec{} + 0x7e00u : uvec{} + 0x7c00u;
    const uvec found = size < (113u << 23) ? small : size >= (143u << 23) ? large : normal;
    return __builtin_convertvector(found | ((bits >> 16) & 0x8000), half_vec);
}

// One kind of number at compile time: what a row holds, and how a vector of it is read and written.
template <Number N>
struct Kind {
    using Element = std::conditional_t<N == Number::float32, float, uint16_t>;

    static REGARD_INLINE vec read(const Element* p, int n = lanes) {
        if constexpr (N == Number::float32)
            return load_some(p, n);
        else
            return widened(load_some(p, n), N);
    }
    static REGARD_INLINE void write(Element* p, vec x) {
        if constexpr (N == Number::float32)
            store(p, x);
        else
            *reinterpret_cast<half_vec*>(p) = N == Number::bfloat16 ? to_bfloat16(x) : to_float16(x);
    }
};

// The rows of one head.
struct Source {
    const void* data;
    ptrdiff_t row;  // in elements
    Number number;

    template <Number N>
    const typename Kind<N>::Element* row_of(int64_t at) const {
        return static_cast<const typename Kind<N>::Element*>(data) + at * row;
    }
};

inline Source source(const View& x, Number number, int64_t batch, int64_t head) {
    const ptrdiff_t start = batch * x.batch + head * x.head;
    return {reinterpret_cast<const char*>(x.data) + start * ptrdiff_t(size_of(number)), x.row, number};
}

// Rows of floats as rows of N, in whole vectors.
template <Number N>
inline void write_rows(const float* from, ptrdiff_t ld, int64_t rows, int width, void* to, ptrdiff_t row) {
    auto* at = static_cast<typename Kind<N>::Element*>(to);
    for (int64_t i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes) Kind<N>::write(at + i * row + c, load(from + i * ld + c));
}

// Calls f with the kind of number as a constant.
template <typename F>
REGARD_INLINE void by_number(Number number, F f) {
    if (number == Number::float32)
        f(std::integral_constant<Number, Number::float32>{});
    else if (number == Number::bfloat16)
        f(std::integral_constant<Number, Number::bfloat16>{});
    else
        f(std::integral_constant<Number, Number::float16>{});
}

inline void widen(const Source& from, int64_t first, int rows, int width, float* to, ptrdiff_t ld) {
    for (int i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes) {
            const int some = width - c < lanes ? width - c : lanes;
            store(to + i * ld + c, widened(load_some(from.row_of<Number::float16>(first + i) + c, some), from.number));
        }
}

// Returns some rows as floats: in place if possible, else a copy in `room`. WHOLE: in whole vectors.
template <bool WHOLE>
inline Rectangle rectangle(const Source& from, int64_t first, int rows, int width, float* room) {
    if (from.number != Number::float32) {
        widen(from, first, rows, width, room, round_up(width));
        return {room, round_up(width)};
    }
    const float* data = from.row_of<Number::float32>(first);
    if (!WHOLE) return {data, from.row};
    return rectangle(data, from.row, rows, width, room);
}

}  // namespace regard::REGARD_ISA
