// Adler-32 (RFC 1950), the checksum of a stream of zlib, by vectors.
#include <algorithm>

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

}  // namespace regard::REGARD_ISA
