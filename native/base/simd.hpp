// Vectors of floats, one source for every instruction set.
//
// Each kernel file is compiled once per instruction set, with that set's compiler flags and REGARD_ISA naming it. The
// vector type, and so every loop, takes its width from the flags. Everything lives in a namespace of that name: two
// builds of one function must never meet in the linker, which would keep one of them for all machines.
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

REGARD_INLINE vec splat(float x) { return x - vec{}; }  // x + 0 would be an addition, for the sake of −0
REGARD_INLINE vec load(const float* p) { return *reinterpret_cast<const unaligned*>(p); }
REGARD_INLINE void store(float* p, vec x) { *reinterpret_cast<unaligned*>(p) = x; }

// The first n of a vector's lanes; the rest is 0, and nothing beyond n is read or written.
REGARD_INLINE vec load_some(const float* p, int n) {
    if (n == lanes) return load(p);
    float x[lanes] = {};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return load(x);
}
REGARD_INLINE void store_some(float* p, vec x, int n) {
    if (n == lanes) return store(p, x);
    float y[lanes];
    store(y, x);
    for (int i = 0; i < n; ++i) p[i] = y[i];
}

// Bytes ↔ numbers within 0 … 255. By name, as the compiler makes of its own conversion one instruction per byte.
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

REGARD_INLINE vec select(ivec yes, vec a, vec b) { return yes ? a : b; }
REGARD_INLINE vec maximum(vec a, vec b) { return a > b ? a : b; }
REGARD_INLINE vec minimum(vec a, vec b) { return a < b ? a : b; }

REGARD_INLINE bool any(ivec yes) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)yes, (__m512i)yes) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)yes) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps((__m128)yes) != 0;
#else
    int32_t found = 0;
    for (int i = 0; i < lanes; ++i) found |= yes[i];
    return found != 0;
#endif
}

REGARD_INLINE ivec lane_numbers() {
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

// x = n·ln 2 + r, |r| ≤ ln 2 / 2, so that e^x = 2^n · e^r; and e^r = 1 + r + r²·beyond.
// That polynomial of degree 6 is fitted for the least relative error: 4e-9. Taylor's own would be off by 1.6e-7 at the ends
// of r, always to one side, and sums over many rows would show it.
struct Reduced {
    vec shifted, n, r, beyond;

    // 2^n: the low bits of `shifted` are n. Unsigned, as those of NaN may overflow.
    REGARD_INLINE vec power() const { return reinterpret_cast<vec>((reinterpret_cast<uvec>(shifted) << 23) + (127u << 23)); }
};

REGARD_INLINE Reduced reduced(vec x) {
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
// Below −87.3 the result is that of −87.3, about 1e-38: who needs an exact 0 for −∞ selects it. NaN stays NaN.
REGARD_INLINE vec exponential(vec x) {
    const Reduced of = reduced(maximum(splat(-87.3f), x));  // in this order NaN passes
    vec p = of.beyond * of.r + 1.0f;
    p = p * of.r + 1.0f;
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, of.n);
#else
    return p * of.power();
#endif
}

// log x for normal x > 0: x = 2^n · m, m in [√½, √2), log x = n·ln 2 + 2·atanh((m − 1) / (m + 1)).
// The series of atanh up to z^9, |z| ≤ 0.172: remainder below 2·z^11 / 11 < 8e-10. Of other x it is any number: bits wrap.
REGARD_INLINE vec logarithm(vec x) {
    const uvec bits = reinterpret_cast<uvec>(x);
    const ivec n = reinterpret_cast<ivec>(bits - 0x3f3504f3u) >> 23;  // so that m lies around 1
    const vec m = reinterpret_cast<vec>(bits - (reinterpret_cast<uvec>(n) << 23));
    const vec z = (m - 1.0f) / (m + 1.0f), zz = z * z;
    vec p = splat(2.0f / 9);
    p = p * zz + 2.0f / 7;
    p = p * zz + 2.0f / 5;
    p = p * zz + 2.0f / 3;
    p = p * zz + 2.0f;
    return __builtin_convertvector(n, vec) * 0.693147180559945f + z * p;
}

// tanh x. Up to |x| = 5/8 an odd polynomial, fitted for the least relative error (4.4e-9); beyond, 1 − 2 / (1 + e^{2|x|}).
REGARD_INLINE vec hyperbolic_tangent(vec x) {
    const vec size = maximum(x, -x), z = x * x;
    vec p = splat(-5.704986770719576e-3f);
    p = p * z + 2.063908700435317e-2f;
    p = p * z - 5.3739714995638364e-2f;
    p = p * z + 0.13331442196822185f;
    p = p * z - 0.3333328194194687f;
    const vec small = x + x * z * p;
    const vec large = 1.0f - 2.0f / (1.0f + exponential(minimum(splat(20.0f), 2.0f * size)));  // 1 from there on
    return size < splat(0.625f) ? small : (x < vec{} ? -large : large);
}

// 1 / x for normal x: the hardware's estimate and one Newton step, y ← y·(2 − x·y), which squares the relative error.
// AVX-512: 2^-14 → 2^-28; AVX and SSE: 1.5·2^-12 → 2.25·2^-24 and the rounding of the step. Elsewhere: a division.
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
