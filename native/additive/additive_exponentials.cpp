// e^{2x} of queries and keys, once per row.
#include "additive/additive_scores.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

// e^x within 1.5 · 2^-24 (measured 1.41), for |x| ≤ 86, and anything beyond: the polynomial of `exponential`, added up so that
// only its last sum, 1 + (r + …), rounds visibly. This error enters all scores of a row, so it is worth the care.
REGARD_INLINE vec precise_exponential(vec x) {
    const Reduced of = reduced(x);
    return ((of.beyond * (of.r * of.r) + of.r) + 1.0f) * of.power();
}

// Maxima of a row: the largest e^{2x}, and the largest |x| as bits, in whose order NaN is above every number.
struct Seen {
    vec largest{};
    ivec size{};
};

REGARD_INLINE vec see(vec x, Seen& seen) {
    const ivec size = reinterpret_cast<ivec>(x) & 0x7fffffff;
    seen.size = size > seen.size ? size : seen.size;
    const vec y = precise_exponential(x + x);
    seen.largest = maximum(y, seen.largest);
    return y;
}

// One row, and whether no x is beyond range. QUERY: also times `over`.
template <bool QUERY>
REGARD_INLINE bool exponential_row(const float* x, int width, const float* over, float* e) {
    const int whole = int(padded(width));
    float* scaled = e + whole + beside;
    Seen seen;
    int c = 0;
    for (; c + lanes <= width; c += lanes) {
        const vec y = see(load(x + c), seen);
        store(e + c, y);
        if (QUERY) store(scaled + c, y * load(over + c));
    }
    for (; c < whole; c += lanes) {
        const int some = int(most(0, width - c));
        vec y = see(load_some(x + c, some), seen);  // `largest` is then 1 or more, which does no harm
        for (int i = some; i < lanes; ++i) y[i] = 0;
        store(e + c, y);
        if (QUERY) store(scaled + c, y * load(over + c));
    }
    e[whole] = highest(seen.largest);
    return !any(seen.size > reinterpret_cast<ivec>(splat(43.0f)));
}

// A key that no query attends to, in place of one that is out of range: e^{2·0}, so that 0 times it is 0.
void neutral_key(int width, float* e) {
    const int whole = int(padded(width));
    for (int c = 0; c < whole; ++c) e[c] = c < width ? 1.0f : 0.0f;
    e[whole] = 1.0f;
}

}  // namespace

bool exponential_rows(const Exponentials& job, int64_t first, int64_t last, float* e) {
    const bool queries = job.w.data;
    const int64_t width = job.width, stride = queries ? query_row(width) : key_row(width);
    bool served = true;
    for (int64_t n = first; n < last;) {
        const int64_t entry = n / job.rows, batch = entry / job.heads, head = entry % job.heads, row = n % job.rows;
        const int64_t rows = least(last - n, job.rows - row);  // of one head
        const float* x = job.x.at(batch, head, row);
        const float* over = queries ? job.w.at(batch, head) + padded(width) : nullptr;
        for (int64_t i = 0; i < rows; ++i, e += stride) {
            const bool within = queries ? exponential_row<true>(x + i * job.x.row, int(width), over, e)
                                        : exponential_row<false>(x + i * job.x.row, int(width), over, e);
            if (!within && !queries && !job.beyond) neutral_key(int(width), e);
            served &= within;
        }
        n += rows;
    }
    return served;
}

void exponentials(const void* given, int64_t task, Scratch& scratch) {
    const Exponentials& job = *static_cast<const Exponentials*>(given);
    const int64_t first = task * scratch.rows_per_task;
    const int64_t last = least(first + scratch.rows_per_task, job.batches * job.heads * job.rows);
    float* e = job.e + first * (job.w.data ? query_row(job.width) : key_row(job.width));
    if (!exponential_rows(job, first, last, e)) __atomic_store_n(job.beyond, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
