#include "dispatch/dispatch.hpp"

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

Runnable::Runnable() {
    all[count++] = &baseline::table;
#ifdef REGARD_X86
    __builtin_cpu_init();
    const bool fma = __builtin_cpu_supports("fma");
    if (fma && __builtin_cpu_supports("avx2")) all[count++] = &avx2::table;
    if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        all[count++] = &avx512::table;
#endif
    const char* cap = std::getenv("REGARD_MAX_CPU_ISA");
    for (int i = 0; cap && i < count; ++i)
        if (!std::strcmp(cap, all[i]->name)) count = i + 1;
}

namespace calls {

namespace {

constexpr int64_t exponentials_per_task = 64;  // rows

int64_t shares(int64_t rows, int64_t each) { return (rows + each - 1) / each; }

bool run(const Kernels& kernels, const Exponentials& job, int threads) {
    const int64_t tasks = shares(job.batches * job.heads * job.rows, exponentials_per_task);
    parallel(kernels.exponentials, &job, tasks, exponentials_per_task, threads);
    return !*job.beyond;
}

// Computes the exponentials of queries and keys and replaces the inputs by them.
struct Both {
    Exponentials queries, keys;

    Both(Dot& of, const Weights& weights, const Room& room, int32_t* beyond)
        : queries{of.batches, of.heads, of.queries, of.width, of.q, weights.view(), room.queries, beyond},
          keys{of.batches, of.heads / of.groups, of.keys, of.width, of.k, {}, room.keys, beyond} {
        if (room.queries) of.q = query_exponentials(of, room.queries);
        if (room.keys) of.k = key_exponentials(of, room.keys);
    }
    // Those that have room; the others are for the tasks to make.
    bool run(const Kernels& kernels, bool ready, int threads) const {
        return (!queries.e || calls::run(kernels, queries, threads)) && (!keys.e || ready || calls::run(kernels, keys, threads));
    }
};

}  // namespace

View query_exponentials(const Dot& of, const float* room) {
    const int64_t row = query_row(of.width);
    return {room, of.heads * of.queries * row, of.queries * row, row};
}

View key_exponentials(const Dot& of, const float* room) {
    const int64_t row = key_row(of.width);
    return {room, of.heads / of.groups * of.keys * row, of.keys * row, row};
}

bool dot_forward(const Kernels& kernels, DotForward job, int64_t rows_per_task, int threads) {
    const Dot& of = job.of;
    int32_t lost = 0;
    job.lost = &lost;
    if (of.queries <= few_queries)
        parallel(kernels.dot_few, &job, of.batches * of.heads / of.groups, of.queries, threads, small_of(of.number));
    else
        parallel(kernels.dot_forward, &job, of.batches * of.heads * shares(of.queries, rows_per_task), rows_per_task, threads, small_of(of.number));
    return !lost;
}

bool dot_backward(const Kernels& kernels, DotBackward job, int threads) {
    const Dot& of = job.of;
    int32_t lost = 0;
    job.lost = &lost;
    Kernel* const kernel = of.queries <= few_queries ? kernels.dot_few_backward : kernels.dot_backward;
    parallel(kernel, &job, of.batches * of.heads * job.parts, of.queries, threads, small_of(of.number));
    return !lost;
}

bool additive_forward(const Kernels& kernels, AdditiveForward job, const View& w, const Room& room, int64_t rows_per_task,
                      int threads) {
    Dot& of = job.of.of;
    int32_t beyond = 0;
    const Weights weights(w, of, kernels.lanes);
    if (!weights.in_range) return false;
    const Both both(of, weights, room, &beyond);
    job.of.w = weights.view();
    job.of.queries = room.queries ? nullptr : &both.queries;
    job.of.keys = room.keys ? nullptr : &both.keys;
    job.beyond = &beyond;
    if (!both.run(kernels, room.ready, threads)) return false;
    parallel(kernels.additive_forward, &job, of.batches * of.heads * shares(of.queries, rows_per_task), rows_per_task, threads, Small::zero);
    return !beyond;
}

void additive_backward(const Kernels& kernels, AdditiveBackward job, const View& w, const Raw& raw, int threads) {
    Dot of = job.of.of;
    const Weights weights(w, of, kernels.lanes);
    const Both both(of, weights, {nullptr, nullptr}, nullptr);
    job.of.w = weights.view();
    job.of.queries = raw.queries ? &both.queries : nullptr;
    job.of.keys = raw.keys ? &both.keys : nullptr;
    parallel(kernels.additive_backward, &job, of.batches * of.heads * job.parts, of.queries, threads, Small::zero);
}

bool observe(const Kernels& kernels, Observe job, const std::optional<View>& w, const Room& room, int threads) {
    Dot& of = job.of.of;
    const int64_t tasks = of.batches * of.heads * tasks_of_head(job);
    int32_t beyond = 0;
    std::optional<Weights> weights;
    job.of.w = {};
    if (w) {
        weights.emplace(*w, of, kernels.lanes);
        if (!weights->in_range || !Both(of, *weights, room, &beyond).run(kernels, room.ready, threads)) return false;
        job.of.w = weights->view();
    }
    parallel(kernels.observe, &job, tasks, job.per_task, threads, Small::zero);
    return true;
}

void best(const Kernels& kernels, const Best& job, int threads) {
    constexpr int64_t rows_per_task = 16;
    parallel(kernels.best, &job, shares(job.rows, rows_per_task), rows_per_task, threads);
}

namespace {

// Four tasks for each thread even out what else the cores do; more would leave more sums to be added up.
int64_t rows_between(int64_t rows, int threads) { return std::max<int64_t>(16, shares(rows, 4 * int64_t(threads))); }

template <class Job>
void between(Kernel* kernel, const Job& job, int threads) {
    const int64_t each = rows_between(job.rows, threads);
    parallel(kernel, &job, shares(job.rows, each), each, threads);
}

}  // namespace

int64_t tasks_between(int64_t rows, int threads) { return shares(rows, rows_between(rows, threads)); }
void gelu(const Kernels& kernels, const Gelu& job, int threads) { between(kernels.gelu, job, threads); }
void add_norm(const Kernels& kernels, const AddNorm& job, int threads) { between(kernels.add_norm, job, threads); }
void add_norm_backward(const Kernels& kernels, const AddNormBackward& job, int threads) {
    between(kernels.add_norm_backward, job, threads);
}

}  // namespace calls

}  // namespace regard
