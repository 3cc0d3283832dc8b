// Conversion between the storage dtypes (float32, bfloat16, float16) and float32, in which every kernel computes.
#pragma once

#include <type_traits>

#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

using half_vec = uint16_t __attribute__((vector_size(2 * REGARD_LANES), aligned(2), may_alias));

// Loads the first n lanes; the others are 0. Reads nothing past n.
REGARD_INLINE half_vec load_partial(const uint16_t* p, int n) {
    if (n == lanes) return *reinterpret_cast<const half_vec*>(p);
    half_vec x{};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return x;
}

REGARD_INLINE vec from_bfloat16(half_vec x) { return reinterpret_cast<vec>(__builtin_convertvector(x, uvec) << 16); }

// float16: an instruction where there is one (dispatch.cpp requires it), else integer arithmetic.
#if defined(__AVX512F__)
REGARD_INLINE vec from_float16(half_vec x) { return reinterpret_cast<vec>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(x))); }
REGARD_INLINE half_vec to_float16(vec x) {
    return reinterpret_cast<half_vec>(_mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
REGARD_INLINE vec from_float16(half_vec x) { return reinterpret_cast<vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(x))); }
REGARD_INLINE half_vec to_float16(vec x) {
    return reinterpret_cast<half_vec>(_mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
}
#else
// Multiplying by 2^112 changes the exponent bias from 15 to 127, also for subnormal numbers. ∞ and NaN keep an exponent of
// all ones.
REGARD_INLINE vec from_float16(half_vec x) {
    const uvec bits = __builtin_convertvector(x, uvec), magnitude_bits = (bits & 0x7fff) << 13;
    const vec rescaled = reinterpret_cast<vec>(magnitude_bits) * 0x1p112f;
    const uvec magnitude = reinterpret_cast<uvec>(rescaled) | (magnitude_bits >= (0x7c00u << 13) ? uvec{} + 0x7f800000u : uvec{});
    return reinterpret_cast<vec>(magnitude | ((bits & 0x8000) << 16));
}

// Rounds like `to_bfloat16`, with the exponent bias changed back from 127 to 15. Below 2^-14, adding ½ does the rounding:
// the last bit of the sum is worth 2^-24, like that of a subnormal float16. From 2^16 on the result is ∞ or NaN; a number
// that rounds up to 2^16 becomes ∞ through the carry.
REGARD_INLINE half_vec to_float16(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x), magnitude_bits = bits & 0x7fffffff;
    const uvec normal = (magnitude_bits + 0xfff + ((magnitude_bits >> 13) & 1) - (112u << 23)) >> 13;
    const uvec small = reinterpret_cast<uvec>(reinterpret_cast<vec>(magnitude_bits) + 0.5f) - 0x3f000000u;
    const uvec large = magnitude_bits > 0x7f800000 ? uvec{} + 0x7e00u : uvec{} + 0x7c00u;
    const uvec magnitude = magnitude_bits < (113u << 23) ? small : magnitude_bits >= (143u << 23) ? large : normal;
    return __builtin_convertvector(magnitude | ((bits >> 16) & 0x8000), half_vec);
}
#endif

REGARD_INLINE vec to_float32(half_vec x, Dtype dtype) { return dtype == Dtype::bfloat16 ? from_bfloat16(x) : from_float16(x); }

// Rounds to nearest, ties to even: adds half a unit in the last place, less one bit if the kept part is even, and
// truncates.
REGARD_INLINE half_vec to_bfloat16(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? uvec{} + 0x7fc0u : rounded, half_vec);
}

// Element type of a dtype, and how a vector of it is read and written.
template <Dtype D>
struct DtypeTraits {
    using Element = std::conditional_t<D == Dtype::float32, float, uint16_t>;

    static REGARD_INLINE vec read(const Element* p, int n = lanes) {
        if constexpr (D == Dtype::float32)
            return load_partial(p, n);
        else
            return to_float32(load_partial(p, n), D);
    }
    static REGARD_INLINE void write(Element* p, vec x) {
        if constexpr (D == Dtype::float32)
            store(p, x);
        else
            *reinterpret_cast<half_vec*>(p) = D == Dtype::bfloat16 ? to_bfloat16(x) : to_float16(x);
    }
};

// The rows of one head.
struct HeadRows {
    const void* data;
    ptrdiff_t row;  // in elements
    Dtype dtype;

    template <Dtype D>
    const typename DtypeTraits<D>::Element* row_at(int64_t index) const {
        return static_cast<const typename DtypeTraits<D>::Element*>(data) + index * row;
    }
};

inline HeadRows head_rows(const View& x, Dtype dtype, int64_t batch, int64_t head) {
    const ptrdiff_t start = batch * x.batch + head * x.head;
    return {reinterpret_cast<const char*>(x.data) + start * ptrdiff_t(element_size(dtype)), x.row, dtype};
}

// Writes rows of floats as rows of dtype D, in whole vectors.
template <Dtype D>
inline void write_rows(const float* input, ptrdiff_t ld, int64_t rows, int width, void* output_data, ptrdiff_t row) {
    auto* output = static_cast<typename DtypeTraits<D>::Element*>(output_data);
    for (int64_t i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes) DtypeTraits<D>::write(output + i * row + c, load(input + i * ld + c));
}

// Calls f with the dtype as a compile-time constant.
template <typename F>
REGARD_INLINE void dispatch_dtype(Dtype dtype, F f) {
    if (dtype == Dtype::float32)
        f(std::integral_constant<Dtype, Dtype::float32>{});
    else if (dtype == Dtype::bfloat16)
        f(std::integral_constant<Dtype, Dtype::bfloat16>{});
    else
        f(std::integral_constant<Dtype, Dtype::float16>{});
}

inline void convert_rows(const HeadRows& input, int64_t first, int rows, int width, float* output, ptrdiff_t ld) {
    for (int i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes) {
            const int count = width - c < lanes ? width - c : lanes;
            store(output + i * ld + c, to_float32(load_partial(input.row_at<Dtype::float16>(first + i) + c, count), input.dtype));
        }
}

// Returns rows as float32: the rows themselves if possible, else a copy in `buffer`. PADDED: rows can be read in whole
// vectors.
template <bool PADDED>
inline MatrixView readable_rows(const HeadRows& input, int64_t first, int rows, int width, float* buffer) {
    if (input.dtype != Dtype::float32) {
        convert_rows(input, first, rows, width, buffer, round_up(width));
        return {buffer, round_up(width)};
    }
    const float* data = input.row_at<Dtype::float32>(first);
    if (!PADDED) return {data, input.row};
    return readable_rows(data, input.row, rows, width, buffer);
}

}  // namespace regard::REGARD_ISA
