// Vectors of floats: one source for all instruction sets.
//
// Each kernel file is compiled once per instruction set, with the compiler flags of the set and its name in REGARD_ISA. The
// flags determine the width of the vector type. Everything is in a namespace of that name: the linker would keep only one of
// two functions with the same name, for all machines.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#define REGARD_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define REGARD_LANES 8
#elif defined(__SSE2__)
#include <immintrin.h>
#define REGARD_LANES 4
#else
#define REGARD_LANES 4
#endif

#define REGARD_INLINE inline __attribute__((always_inline))

namespace regard::REGARD_ISA {

inline constexpr int lanes = REGARD_LANES;
using vec = float __attribute__((vector_size(4 * REGARD_LANES)));
using ivec = int32_t __attribute__((vector_size(4 * REGARD_LANES)));
using uvec = uint32_t __attribute__((vector_size(4 * REGARD_LANES)));
using unaligned = float __attribute__((vector_size(4 * REGARD_LANES), aligned(4), may_alias));

inline constexpr float infinity = __builtin_inff(), least_normal = __FLT_MIN__;

REGARD_INLINE vec splat(float x) { return x - vec{}; }  // not x + vec{}: −0 + 0 is 0, so the compiler could not omit the addition
REGARD_INLINE vec load(const float* p) { return *reinterpret_cast<const unaligned*>(p); }
REGARD_INLINE void store(float* p, vec x) { *reinterpret_cast<unaligned*>(p) = x; }

// Loads or stores the first n lanes. Lanes that are not loaded are 0; nothing past n is read or written.
REGARD_INLINE vec load_partial(const float* p, int n) {
    if (n == lanes) return load(p);
    float x[lanes] = {};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
}
REGARD_INLINE void store_partial(float* p, vec x, int n) {
    if (n == lanes) return store(p, x);
    float y[lanes];
    store(y, x);
    for (int i = 0; i < n; ++i) p[i] = y[i];
}

// Conversion between bytes and integers 0 … 255. Uses intrinsics, because the compiler would convert byte by byte.
REGARD_INLINE uvec load_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (uvec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
    return (uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
    uint8_t x[lanes];
    __builtin_memcpy(x, p, lanes);
    return uvec{x[0], x[1], x[2], x[3]};
#endif
}
REGARD_INLINE void store_bytes(uint8_t* p, ivec x) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
#elif defined(__AVX2__)
    const __m256i all = (__m256i)x;
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#else
    for (int i = 0; i < lanes; ++i) p[i] = uint8_t(x[i]);
#endif
}

REGARD_INLINE vec select(ivec mask, vec a, vec b) { return mask ? a : b; }
REGARD_INLINE vec maximum(vec a, vec b) { return a > b ? a : b; }
REGARD_INLINE vec minimum(vec a, vec b) { return a < b ? a : b; }

REGARD_INLINE bool any(ivec mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t bits = 0;
    for (int i = 0; i < lanes; ++i) bits |= mask[i];
    return bits != 0;
#endif
}

REGARD_INLINE ivec lane_indices() {
    ivec x{};
    for (int i = 0; i < lanes; ++i) x[i] = i;
    return x;
}

REGARD_INLINE float sum(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x);
#else
    for (int step = lanes / 2; step; step /= 2)
        for (int i = 0; i < step; ++i) x[i] += x[i + step];
    return x[0];
#endif
}
REGARD_INLINE float highest(vec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(x);
#else
    for (int step = lanes / 2; step; step /= 2)
        for (int i = 0; i < step; ++i) x[i] = x[i] > x[i + step] ? x[i] : x[i + step];
    return x[0];
#endif
}

// x = n·ln 2 + r, |r| ≤ ln 2 / 2, so that e^x = 2^n · e^r; and e^r = 1 + r + r²·tail.
// The polynomial of degree 6 minimizes the relative error: 4e-9. The error of the Taylor polynomial would be 1.6e-7 at the
// ends of r, always with the same sign, which would be visible in sums over many rows.
struct RangeReduction {
    vec shifted, n, r, tail;

    // 2^n: the low bits of `shifted` are n. Unsigned, because the shift may overflow for NaN.
    REGARD_INLINE vec power() const { return reinterpret_cast<vec>((reinterpret_cast<uvec>(shifted) << 23) + (127u << 23)); }
};

REGARD_INLINE RangeReduction reduce_range(vec x) {
    constexpr float log2e = 1.44269504088896341f;
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    constexpr float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to the nearest integer
    const vec shifted = x * log2e + magic;
    const vec n = shifted - magic;
    vec r = x - n * ln2_high;
    r = r - n * ln2_low;
    vec p = splat(0x1.6a244cp-10f);
    p = p * r + 0x1.1239d4p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    return {shifted, n, r, p};
}

// e^x for x ≤ 88, within 2 units in the last place (measured over every float).
// Below −87.3 the result is that of −87.3, about 1e-38; callers that need exactly 0 for −∞ select it. NaN stays NaN.
REGARD_INLINE vec exponential(vec x) {
    const RangeReduction argument = reduce_range(maximum(splat(-87.3f), x));  // in this order NaN is propagated
    vec p = argument.tail * argument.r + 1.0f;
    p = p * argument.r + 1.0f;
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, argument.n);
#else
    return p * argument.power();
#endif
}

// log x for normal x > 0: x = 2^n · m, m in [√½, √2), log x = n·ln 2 + 2·atanh((m − 1) / (m + 1)).
// Series of atanh up to z^9, |z| ≤ 0.172: the remainder is below 2·z^11 / 11 < 8e-10. For other x the result is undefined.
REGARD_INLINE vec logarithm(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x);
    const ivec n = reinterpret_cast<ivec>(bits - 0x3f3504f3u) >> 23;  // so that m is near 1
    const vec m = reinterpret_cast<vec>(bits - (reinterpret_cast<uvec>(n) << 23));
    const vec z = (m - 1.0f) / (m + 1.0f), zz = z * z;
    vec p = splat(2.0f / 9);
    p = p * zz + 2.0f / 7;
    p = p * zz + 2.0f / 5;
    p = p * zz + 2.0f / 3;
    p = p * zz + 2.0f;
    return __builtin_convertvector(n, vec) * 0.693147180559945f + z * p;
}

// tanh x. Up to |x| = 5/8 an odd polynomial with minimal relative error (4.4e-9); above, 1 − 2 / (1 + e^{2|x|}).
REGARD_INLINE vec hyperbolic_tangent(vec x) {
    const vec magnitude = maximum(x, -x), z = x * x;
    vec p = splat(-5.704986770719576e-3f);
    p = p * z + 2.063908700435317e-2f;
    p = p * z - 5.3739714995638364e-2f;
    p = p * z + 0.13331442196822185f;
    p = p * z - 0.3333328194194687f;
    const vec small = x + x * z * p;
    const vec large = 1.0f - 2.0f / (1.0f + exponential(minimum(splat(20.0f), 2.0f * magnitude)));  // 1 above that
    return magnitude < splat(0.625f) ? small : (x < vec{} ? -large : large);
}

// 1 / x for normal x: the hardware estimate and one Newton step, y ← y·(2 − x·y), which squares the relative error.
// AVX-512: 2^-14 → 2^-28; AVX and SSE: 1.5·2^-12 → 2.25·2^-24, plus the rounding of the step. Other machines: a division.
REGARD_INLINE vec reciprocal(vec x) {
#if defined(__AVX512F__)
    const vec y = _mm512_rcp14_ps(x);
#elif defined(__AVX2__)
    const vec y = _mm256_rcp_ps(x);
#elif defined(__SSE2__)
    const vec y = _mm_rcp_ps(x);
#else
    return 1.0f / x;
#endif
#if defined(__SSE2__)
    return y * (2.0f - x * y);
#endif
}

}  // namespace regard::REGARD_ISA
