// e^{2x} of queries and keys, once per row.
#include "additive.hpp"
#include "kernels.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

constexpr float large_exponential = 46340.0f;  // just below 2^15.5

// e^x within 1.5 · 2^-24 (measured 1.42), for |x| ≤ 86: the polynomial of `exponential` one degree longer, and added up so
// that only its last sum, 1 + (r + …), rounds visibly. This error enters all scores of a row, so it is worth the care.
REGARD_INLINE vec precise_exponential(vec x) {
    constexpr float log2e = 1.44269504088896341f;
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    constexpr float magic = 12582912.0f;
    const vec shifted = x * log2e + magic;
    const vec n = shifted - magic;
    vec r = x - n * ln2_high;
    r = r - n * ln2_low;
    vec p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    const ivec exponent = (reinterpret_cast<ivec>(shifted) << 23) + (127 << 23);
    return p * reinterpret_cast<vec>(exponent);
}

void exponentials(const void* given, int64_t task, Scratch& scratch) {
    const Exponentials& job = *static_cast<const Exponentials*>(given);
    const int64_t first = task * scratch.rows_per_task, width = job.width, ld = padded(width);
    const int64_t last = least(first + scratch.rows_per_task, job.batches * job.heads * job.rows);
    vec largest{};
    ivec beyond{};
    for (int64_t n = first; n < last; ++n) {
        const int64_t entry = n / job.rows;
        const float* x = job.x.data + entry / job.heads * job.x.batch + entry % job.heads * job.x.head + n % job.rows * job.x.row;
        float* e = job.e + n * ld;
        for (int64_t c = 0; c < ld; c += lanes) {
            const int some = int(most(0, least(lanes, width - c)));
            const vec a = some == lanes ? load(x + c) : load_some(x + c, some);
            beyond |= ~(maximum(a, -a) <= splat(43.0f));  // so that NaN is beyond
            vec y = precise_exponential(minimum(splat(86.0f), maximum(splat(-86.0f), a + a)));
            if (some < lanes)
                for (int i = some; i < lanes; ++i) y[i] = 0;
            largest = maximum(largest, y);
            store(e + c, y);
        }
    }
    if (any(beyond)) *job.beyond = 1;
    if (any(largest > splat(large_exponential))) *job.large = 1;
}

size_t exponentials_room(const void*, int64_t) { return 0; }

}  // namespace regard::REGARD_ISA
