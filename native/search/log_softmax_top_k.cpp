// The best of each row of logits, as log-probabilities: one look for the best, one for the sum.
#include "base/kernel_table.hpp"
#include "base/simd.hpp"
#include "base/top_k.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int vectors = 4, block = vectors * lanes;  // looked at together: few blocks hold one of the best

void look_through(const float* x, int64_t first, int64_t last, const Ranked& found) {
    for (int64_t id = first; id < last; ++id)
        if (x[id] > found.lowest()) found.insert(x[id], id);
}

void find(const float* x, int64_t size, const Ranked& found) {
    for (int64_t id = 0; id < found.count; ++id) found.settle(id, x[id], id);
    int64_t id = found.count;
    for (; id + block <= size; id += block) {
        const vec a = maximum(load(x + id), load(x + id + lanes)), b = maximum(load(x + id + 2 * lanes), load(x + id + 3 * lanes));
        if (!any(maximum(a, b) > splat(found.lowest()))) continue;
        for (int64_t part = id; part < id + block; part += lanes)
            if (any(load(x + part) > splat(found.lowest()))) look_through(x, part, part + lanes, found);
    }
    look_through(x, id, size, found);
}

// Σ e^(x − most)
float sum_of_exponentials(const float* x, int64_t size, float most) {
    vec sums[vectors]{};
    int64_t at = 0;
    for (; at + block <= size; at += block)
        for (int i = 0; i < vectors; ++i) sums[i] += exponential(load(x + at + i * lanes) - most);
    for (; at < size; at += lanes) {
        const int some = int(size - at < lanes ? size - at : lanes);
        sums[0] += select(lane_numbers() < some, exponential(load_some(x + at, some) - most), vec{});
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void best(const void* given, int64_t task, Scratch& scratch) {
    const Best& job = *static_cast<const Best*>(given);
    const int64_t first = task * scratch.rows_per_task, past = first + scratch.rows_per_task;
    for (int64_t r = first; r < (past < job.rows ? past : job.rows); ++r) {
        const float* x = job.logits + r * job.row;
        const Ranked found{job.values + r * job.count, job.ids + r * job.count, job.count};
        find(x, job.size, found);
        const float most = found.values[0], rest = __builtin_logf(sum_of_exponentials(x, job.size, most));
        for (int64_t i = 0; i < job.count; ++i) found.values[i] = found.values[i] - most - rest;
    }
}

}  // namespace regard::REGARD_ISA
