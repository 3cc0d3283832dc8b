// e^{2x} of queries and keys, once per row.
#include "additive_scores.hpp"
#include "kernels.hpp"

namespace regard::REGARD_ISA {

namespace {

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

// One row, and whether no x is beyond range. `over`: null for a key.
bool exponential_row(const float* x, int width, const float* over, float* e) {
    const int whole = int(padded(width));
    float* scaled = e + whole + beside;
    vec largest{};
    ivec beyond{};
    for (int c = 0; c < whole; c += lanes) {
        const int some = int(most(0, least(lanes, width - c)));
        const vec a = some == lanes ? load(x + c) : load_some(x + c, some);
        beyond |= ~(maximum(a, -a) <= splat(43.0f));  // so that NaN is beyond
        vec y = precise_exponential(minimum(splat(86.0f), maximum(splat(-86.0f), a + a)));
        if (some < lanes)
            for (int i = some; i < lanes; ++i) y[i] = 0;
        largest = maximum(largest, y);
        store(e + c, y);
        if (over) store(scaled + c, y * load(over + c));
    }
    e[whole] = highest(largest);
    return !any(beyond);
}

}  // namespace

void exponentials(const void* given, int64_t task, Scratch& scratch) {
    const Exponentials& job = *static_cast<const Exponentials*>(given);
    const int64_t width = job.width, row = job.w.data ? query_row(width) : key_row(width);
    const int64_t first = task * scratch.rows_per_task;
    const int64_t last = least(first + scratch.rows_per_task, job.batches * job.heads * job.rows);
    bool served = true;
    for (int64_t n = first; n < last; ++n) {
        const int64_t batch = n / job.rows / job.heads, head = n / job.rows % job.heads;
        const float* x = job.x.data + batch * job.x.batch + head * job.x.head + n % job.rows * job.x.row;
        const float* w = job.w.data ? job.w.data + batch * job.w.batch + head * job.w.head + padded(width) : nullptr;
        served &= exponential_row(x, int(width), w, job.e + n * row);
    }
    if (!served) *job.beyond = 1;
}

size_t exponentials_room(const void*, int64_t) { return 0; }

}  // namespace regard::REGARD_ISA
