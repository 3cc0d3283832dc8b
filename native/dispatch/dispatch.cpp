#include "dispatch/dispatch.hpp"

#ifdef REGARD_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "additive/additive_weights.hpp"
#include "base/parallel.hpp"

namespace regard {

namespace baseline {
extern const Kernels table;
}
#ifdef REGARD_X86
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

#ifdef REGARD_X86
namespace {

// `__builtin_cpu_supports` of Clang does not know it.
bool supports_f16c() {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

}  // namespace
#endif

SupportedIsas::SupportedIsas() {
    all[count++] = &baseline::table;
#ifdef REGARD_X86
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("fma") && supports_f16c();
    if (fma && __builtin_cpu_supports("avx2")) all[count++] = &avx2::table;
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        all[count++] = &avx512::table;
#endif
    const char* max_isa = std::getenv("REGARD_MAX_CPU_ISA");
    for (int i = 0; max_isa && i < count; ++i)
        if (!std::strcmp(max_isa, all[i]->name)) count = i + 1;
}

namespace calls {

namespace {

constexpr int64_t exponentials_per_task = 64;  // rows

int64_t ceil_div(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }

bool run(const Kernels& kernels, const Exponentials& job, int threads) {
    const int64_t tasks = ceil_div(job.batches * job.heads * job.rows, exponentials_per_task);
    parallel(kernels.exponentials, &job, tasks, exponentials_per_task, threads);
    return !*job.out_of_range;
}

// Computes the exponentials of queries and keys and replaces the inputs by them.
struct QueryKeyExponentials {
    Exponentials queries, keys;

    QueryKeyExponentials(Dot& dot, const Weights& weights, const ExponentialBuffers& buffers, int32_t* out_of_range)
        : queries{dot.batches, dot.heads, dot.queries, dot.width, dot.q, weights.view(), buffers.queries, out_of_range},
          keys{dot.batches, dot.heads / dot.groups, dot.keys, dot.width, dot.k, {}, buffers.keys, out_of_range} {
        if (buffers.queries) dot.q = query_exponentials(dot, buffers.queries);
        if (buffers.keys) dot.k = key_exponentials(dot, buffers.keys);
    }
    // Fills the buffers. Exponentials without a buffer are computed by the tasks.
    bool run(const Kernels& kernels, bool ready, int threads) const {
        return (!queries.e || calls::run(kernels, queries, threads)) && (!keys.e || ready || calls::run(kernels, keys, threads));
    }
};

}  // namespace

View query_exponentials(const Dot& dot, const float* buffer) {
    const int64_t row = query_row(dot.width);
    return {buffer, dot.heads * dot.queries * row, dot.queries * row, row};
}

View key_exponentials(const Dot& dot, const float* buffer) {
    const int64_t row = key_row(dot.width);
    return {buffer, dot.heads / dot.groups * dot.keys * row, dot.keys * row, row};
}

bool dot_forward(const Kernels& kernels, DotForward job, int64_t rows_per_task, int threads) {
    const Dot& dot = job.dot;
    int32_t non_finite = 0;
    job.non_finite = &non_finite;
    if (dot.queries <= few_queries)
        parallel(kernels.few_queries_forward, &job, dot.batches * dot.heads / dot.groups, dot.queries, threads,
                 denormals_of(dot.dtype));
    else
        parallel(kernels.dot_forward, &job, dot.batches * dot.heads * ceil_div(dot.queries, rows_per_task), rows_per_task,
                 threads, denormals_of(dot.dtype));
    return !non_finite;
}

bool dot_backward(const Kernels& kernels, DotBackward job, int threads) {
    const Dot& dot = job.dot;
    int32_t non_finite = 0;
    job.non_finite = &non_finite;
    Kernel* const kernel = dot.queries <= few_queries ? kernels.few_queries_backward : kernels.dot_backward;
    parallel(kernel, &job, dot.batches * dot.heads * job.parts, dot.queries, threads, denormals_of(dot.dtype));
    return !non_finite;
}

bool additive_forward(const Kernels& kernels, AdditiveForward job, const View& w, const ExponentialBuffers& buffers,
                      int64_t rows_per_task, int threads) {
    Dot& dot = job.additive.dot;
    int32_t out_of_range = 0;
    const Weights weights(w, dot, kernels.lanes);
    if (!weights.in_range) return false;
    const QueryKeyExponentials exponentials(dot, weights, buffers, &out_of_range);
    job.additive.w = weights.view();
    job.additive.queries = buffers.queries ? nullptr : &exponentials.queries;
    job.additive.keys = buffers.keys ? nullptr : &exponentials.keys;
    job.out_of_range = &out_of_range;
    if (!exponentials.run(kernels, buffers.ready, threads)) return false;
    parallel(kernels.additive_forward, &job, dot.batches * dot.heads * ceil_div(dot.queries, rows_per_task), rows_per_task,
             threads, Denormals::flush);
    return !out_of_range;
}

void additive_backward(const Kernels& kernels, AdditiveBackward job, const View& w, const Raw& raw, int threads) {
    Dot dot = job.additive.dot;
    const Weights weights(w, dot, kernels.lanes);
    const QueryKeyExponentials exponentials(dot, weights, {nullptr, nullptr}, nullptr);
    job.additive.w = weights.view();
    job.additive.queries = raw.queries ? &exponentials.queries : nullptr;
    job.additive.keys = raw.keys ? &exponentials.keys : nullptr;
    parallel(kernels.additive_backward, &job, dot.batches * dot.heads * job.parts, dot.queries, threads, Denormals::flush);
}

bool compute_view(const Kernels& kernels, ViewJob job, const std::optional<View>& w, const ExponentialBuffers& buffers,
                  int threads) {
    Dot& dot = job.additive.dot;
    const int64_t tasks = dot.batches * dot.heads * tasks_of_head(job);
    int32_t out_of_range = 0;
    std::optional<Weights> weights;
    job.additive.w = {};
    if (w) {
        weights.emplace(*w, dot, kernels.lanes);
        if (!weights->in_range ||
            !QueryKeyExponentials(dot, *weights, buffers, &out_of_range).run(kernels, buffers.ready, threads))
            return false;
        job.additive.w = weights->view();
    }
    parallel(kernels.compute_view, &job, tasks, job.per_task, threads, Denormals::flush);
    return true;
}

void log_softmax_top_k(const Kernels& kernels, const LogSoftmaxTopK& job, int threads) {
    constexpr int64_t rows_per_task = 16;
    parallel(kernels.log_softmax_top_k, &job, ceil_div(job.rows, rows_per_task), rows_per_task, threads);
}

namespace {

// Four tasks per thread balance the load; more would give more partial sums to add.
int64_t fused_rows_per_task(int64_t rows, int threads) { return std::max<int64_t>(16, ceil_div(rows, 4 * int64_t(threads))); }

template <class Job>
void run_fused(Kernel* kernel, const Job& job, int threads) {
    const int64_t per_task = fused_rows_per_task(job.rows, threads);
    parallel(kernel, &job, ceil_div(job.rows, per_task), per_task, threads);
}

}  // namespace

int64_t fused_tasks(int64_t rows, int threads) { return ceil_div(rows, fused_rows_per_task(rows, threads)); }
void gelu(const Kernels& kernels, const Gelu& job, int threads) { run_fused(kernels.gelu, job, threads); }
void add_norm(const Kernels& kernels, const AddNorm& job, int threads) { run_fused(kernels.add_norm, job, threads); }
void add_norm_backward(const Kernels& kernels, const AddNormBackward& job, int threads) {
    run_fused(kernels.add_norm_backward, job, threads);
}

}  // namespace calls

}  // namespace regard
