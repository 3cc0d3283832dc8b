// Computes e^{2x} of queries and keys, once per row.
#include "additive/additive_scores.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

// e^x with a relative error up to 1.5 · 2^-24 (measured: 1.41) for |x| ≤ 86; undefined above. The polynomial of `exponential`,
// evaluated so that only the last sum, 1 + (r + …), has a significant rounding error. The error enters all scores of a row.
REGARD_INLINE vec precise_exponential(vec x) {
    const RangeReduction argument = reduce_range(x);
    return ((argument.tail * (argument.r * argument.r) + argument.r) + 1.0f) * argument.power();
}

// Maxima of a row: the largest e^{2x}, and the largest |x| as bits. In the order of bits, NaN is above every number.
struct RowMaxima {
    vec largest{};
    ivec magnitude{};
};

REGARD_INLINE vec exponential_and_maxima(vec x, RowMaxima& maxima) {
    const ivec magnitude = reinterpret_cast<ivec>(x) & 0x7fffffff;
    maxima.magnitude = magnitude > maxima.magnitude ? magnitude : maxima.magnitude;
    const vec y = precise_exponential(x + x);
    maxima.largest = maximum(y, maxima.largest);
    return y;
}

// Computes one row and returns whether every x is in range. QUERY: also writes the products with `inverse_w`.
template <bool QUERY>
REGARD_INLINE bool exponential_row(const float* x, int width, const float* inverse_w, float* e) {
    const int padded_width = int(padded(width));
    float* scaled = e + padded_width + maximum_slot;
    RowMaxima maxima;
    int c = 0;
    for (; c + lanes <= width; c += lanes) {
        const vec y = exponential_and_maxima(load(x + c), maxima);
        store(e + c, y);
        if (QUERY) store(scaled + c, y * load(inverse_w + c));
    }
    for (; c < padded_width; c += lanes) {
        const int count = int(max(0, width - c));
        vec y = exponential_and_maxima(load_partial(x + c, count), maxima);  // `largest` is then at least 1, which is harmless
        for (int i = count; i < lanes; ++i) y[i] = 0;
        store(e + c, y);
        if (QUERY) store(scaled + c, y * load(inverse_w + c));
    }
    e[padded_width] = highest(maxima.largest);
    return !any(maxima.magnitude > reinterpret_cast<ivec>(splat(43.0f)));
}

// Replaces an out-of-range key to which no query attends by e^{2·0}, so that its products with 0 are 0.
void neutral_key(int width, float* e) {
    const int padded_width = int(padded(width));
    for (int c = 0; c < padded_width; ++c) e[c] = c < width ? 1.0f : 0.0f;
    e[padded_width] = 1.0f;
}

}  // namespace

bool exponential_rows(const Exponentials& job, int64_t first, int64_t last, float* e) {
    const bool queries = job.w.data;
    const int64_t width = job.width, stride = queries ? query_row(width) : key_row(width);
    bool all_in_range = true;
    for (int64_t n = first; n < last;) {
        const int64_t entry = n / job.rows, batch = entry / job.heads, head = entry % job.heads, row = n % job.rows;
        const int64_t rows = min(last - n, job.rows - row);  // rows of one head
        const float* x = job.x.at(batch, head, row);
        const float* inverse_w = queries ? job.w.at(batch, head) + padded(width) : nullptr;
        for (int64_t i = 0; i < rows; ++i, e += stride) {
            const bool in_range = queries ? exponential_row<true>(x + i * job.x.row, int(width), inverse_w, e)
                                          : exponential_row<false>(x + i * job.x.row, int(width), inverse_w, e);
            if (!in_range && !queries && !job.out_of_range) neutral_key(int(width), e);
            all_in_range &= in_range;
        }
        n += rows;
    }
    return all_in_range;
}

void exponentials(const void* arguments, int64_t task, Workspace& workspace) {
    const Exponentials& job = *static_cast<const Exponentials*>(arguments);
    const int64_t first = task * workspace.rows_per_task;
    const int64_t last = min(first + workspace.rows_per_task, job.batches * job.heads * job.rows);
    float* e = job.e + first * (job.w.data ? query_row(job.width) : key_row(job.width));
    if (!exponential_rows(job, first, last, e)) __atomic_store_n(job.out_of_range, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
