// The highest log-probabilities of each row of logits: one pass for the top k, one for the sum of exponentials.
#include "base/kernel_table.hpp"
#include "base/simd.hpp"
#include "base/top_k.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int vectors = 4, block = vectors * lanes;  // compared at once: few blocks contain one of the top k

void insert_larger(const float* x, int64_t first, int64_t last, const TopK& top) {
    for (int64_t id = first; id < last; ++id)
        if (x[id] > top.lowest()) top.insert(x[id], id);
}

void select_top_k(const float* x, int64_t size, const TopK& top) {
    for (int64_t id = 0; id < top.count; ++id) top.insert_at(id, x[id], id);
    int64_t id = top.count;
    for (; id + block <= size; id += block) {
        const vec a = maximum(load(x + id), load(x + id + lanes)),
                  b = maximum(load(x + id + 2 * lanes), load(x + id + 3 * lanes));
        if (!any(maximum(a, b) > splat(top.lowest()))) continue;
        for (int64_t start = id; start < id + block; start += lanes)
            if (any(load(x + start) > splat(top.lowest()))) insert_larger(x, start, start + lanes, top);
    }
    insert_larger(x, id, size, top);
}

// Σ e^(x − maximum_value)
float sum_of_exponentials(const float* x, int64_t size, float maximum_value) {
    vec sums[vectors]{};
    int64_t index = 0;
    for (; index + block <= size; index += block)
        for (int i = 0; i < vectors; ++i) sums[i] += exponential(load(x + index + i * lanes) - maximum_value);
    for (; index < size; index += lanes) {
        const int count = int(size - index < lanes ? size - index : lanes);
        sums[0] += select(lane_indices() < count, exponential(load_partial(x + index, count) - maximum_value), vec{});
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace

void log_softmax_top_k(const void* arguments, int64_t task, Workspace& workspace) {
    const LogSoftmaxTopK& job = *static_cast<const LogSoftmaxTopK*>(arguments);
    const int64_t first = task * workspace.rows_per_task, last = first + workspace.rows_per_task;
    for (int64_t r = first; r < (last < job.rows ? last : job.rows); ++r) {
        const float* x = job.logits + r * job.row;
        const TopK top{job.values + r * job.count, job.ids + r * job.count, job.count};
        select_top_k(x, job.size, top);
        const float maximum_value = top.values[0], log_sum = __builtin_logf(sum_of_exponentials(x, job.size, maximum_value));
        for (int64_t i = 0; i < job.count; ++i) top.values[i] = top.values[i] - maximum_value - log_sum;
    }
}

}  // namespace regard::REGARD_ISA
