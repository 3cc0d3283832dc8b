// The checksums of a PNG: Adler-32 (RFC 1950), of a stream of zlib, and CRC-32, of a chunk.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels.hpp"
#include "simd.hpp"

namespace regard::REGARD_ISA {

// a = 1 + Σ x_p and b = Σ (n − p) · x_p + n, modulo 65521. A lane sums every `lanes`-th byte: its sum is `once`, the sum of
// its sums before each step `often`, and so byte p = lanes·i + l of n = lanes·steps counts n − p = lanes·(steps − 1 − i) + lanes − l.
uint32_t adler(uint32_t before, const uint8_t* x, size_t n) {
    constexpr uint32_t prime = 65521;
    constexpr size_t most = 4096;  // steps: 255 · most² / 2 < 2^32
    uint64_t a = before & 0xffff, b = before >> 16;
    while (n) {
        const size_t steps = std::min(n / lanes, most);
        uvec once{}, often{};
        for (size_t i = 0; i < steps; ++i) {
            often += once;
            once += load_bytes(x + i * lanes);
        }
        b += steps * lanes * a;
        for (int l = 0; l < lanes; ++l) {
            b += uint64_t(lanes) * often[l] + uint64_t(lanes - l) * once[l];
            a += once[l];
        }
        x += steps * lanes;
        n -= steps * lanes;
        if (n < size_t(lanes))
            for (; n; --n) b += a += *x++;
        a %= prime;
        b %= prime;
    }
    return uint32_t(b << 16 | a);
}

namespace {

// A CRC is the remainder of the message, a polynomial over the two numbers 0 and 1, by x^32 + x^26 + … + 1. The highest
// power stands in the lowest bit.
constexpr uint32_t divisor = 0xEDB88320;
constexpr uint32_t times_x(uint32_t p) { return p >> 1 ^ (p & 1 ? divisor : 0); }

// remainders[k][b]: of the byte b with k more bytes behind it.
constexpr auto remainders = [] {
    std::array<std::array<uint32_t, 256>, 8> found{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t p = byte;
        for (int bit = 0; bit < 8; ++bit) p = times_x(p);
        found[0][byte] = p;
    }
    for (int k = 1; k < 8; ++k)
        for (int byte = 0; byte < 256; ++byte) found[k][byte] = found[k - 1][byte] >> 8 ^ found[0][found[k - 1][byte] & 0xff];
    return found;
}();

// Eight bytes at a time (Kounavis and Berry 2008).
uint32_t remainder(uint32_t r, const uint8_t* x, size_t n) {
    for (; n >= 8; n -= 8, x += 8) {
        const uint8_t head[4] = {uint8_t(x[0] ^ r), uint8_t(x[1] ^ r >> 8), uint8_t(x[2] ^ r >> 16), uint8_t(x[3] ^ r >> 24)};
        r = 0;
        for (int k = 0; k < 4; ++k) r ^= remainders[7 - k][head[k]] ^ remainders[3 - k][x[4 + k]];
    }
    for (; n; --n) r = r >> 8 ^ remainders[0][(r ^ *x++) & 0xff];
    return r;
}

#ifdef __PCLMUL__
// x^n modulo the divisor, as a factor of 64 bits: a product of mirrored numbers has one bit less than the mirrored product.
constexpr uint64_t power(int n) {
    uint32_t p = 0x80000000;
    for (; n; --n) p = times_x(p);
    return uint64_t(p) << 1;
}

// 16 bytes with `bits` more behind them ≡ 16 other bytes without (Gopal et al. 2009).
template <int BITS>
REGARD_INLINE __m128i forward(__m128i p) {
    const __m128i factors = _mm_set_epi64x(int64_t(power(BITS - 32)), int64_t(power(BITS + 32)));
    return _mm_xor_si128(_mm_clmulepi64_si128(p, factors, 0x00), _mm_clmulepi64_si128(p, factors, 0x11));
}
#endif

}  // namespace

uint32_t crc(uint32_t before, const uint8_t* x, size_t n) {
    uint32_t r = ~before;
#ifdef __PCLMUL__
    constexpr int streams = 4;
    constexpr size_t step = 16 * streams;
    if (n >= step) {
        const auto get = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
        __m128i p[streams];
        for (int s = 0; s < streams; ++s) p[s] = get(x + 16 * s);
        p[0] = _mm_xor_si128(p[0], _mm_cvtsi32_si128(int(r)));
        for (x += step, n -= step; n >= step; x += step, n -= step)
            for (int s = 0; s < streams; ++s) p[s] = _mm_xor_si128(forward<8 * step>(p[s]), get(x + 16 * s));
        for (int s = 1; s < streams; ++s) p[s] = _mm_xor_si128(forward<128>(p[s - 1]), p[s]);
        uint8_t left[16];
        std::memcpy(left, &p[streams - 1], sizeof left);
        r = remainder(0, left, sizeof left);
    }
#endif
    return ~remainder(r, x, n);
}

}  // namespace regard::REGARD_ISA
