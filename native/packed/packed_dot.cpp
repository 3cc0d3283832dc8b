// Packed sequences: each one is a separate problem for the kernels, which need no support for packing.
//
//     unit     one task of a kernel on one sequence
//     bundle   consecutive units of about equal total cost, run by one thread; the most expensive sequences come first
#include <algorithm>
#include <vector>

#include "base/parallel.hpp"
#include "dispatch/dispatch.hpp"

namespace regard::calls {

namespace {

constexpr int64_t bundles_per_thread = 16;
constexpr int64_t fixed_cost = 8;  // overhead of a row or column of scores, as a number of scores

// Index of a sequence, its first query and key, and its lengths.
struct Sequence {
    int64_t index, query, queries, key, keys;

    int64_t cost() const { return queries ? (queries + fixed_cost) * (keys + fixed_cost) : 0; }
};

std::vector<Sequence> sequences_of(const Packed& packed) {
    std::vector<Sequence> sequences;
    sequences.reserve(packed.count);
    Sequence next{0, 0, 0, 0, 0};
    for (int64_t b = 0; b < packed.count; ++b) {
        next = {b, next.query + next.queries, packed.queries[b], next.key + next.keys, packed.keys[b]};
        sequences.push_back(next);
    }
    std::stable_sort(sequences.begin(), sequences.end(),
                     [](const Sequence& a, const Sequence& b) { return a.cost() > b.cost(); });
    return sequences;
}

// Returns x from `row` on.
View skip_rows(const View& x, int64_t row, Dtype dtype = Dtype::float32) {
    View shifted = x;
    shifted.data =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(x.data) + row * x.row * ptrdiff_t(element_size(dtype)));
    return shifted;
}
Output skip_rows(const Output& x, int64_t row, Dtype dtype = Dtype::float32) {
    Output shifted = x;
    shifted.data = x.at(0, 0, row, dtype);
    return shifted;
}

// Returns the part of a job that concerns one sequence.
Dot sequence_job(const Dot& dot, const Sequence& sequence) {
    Dot result = dot;
    result.batches = 1;
    result.queries = sequence.queries;
    result.keys = sequence.keys;
    result.q = skip_rows(dot.q, sequence.query, dot.dtype);
    result.k = skip_rows(dot.k, sequence.key, dot.dtype);
    result.v = skip_rows(dot.v, sequence.key, dot.dtype);
    if (dot.mask.offset) result.mask.offset = dot.mask.offset + sequence.index;
    return result;
}
template <typename T>
Softmax<T> sequence_job(const Softmax<T>& softmax, const Sequence& sequence) {
    return {skip_rows(softmax.highest, sequence.query), skip_rows(softmax.total, sequence.query)};
}
DotForward sequence_job(const DotForward& job, const Sequence& sequence) {
    return {sequence_job(job.dot, sequence), skip_rows(job.context, sequence.query), sequence_job(job.softmax, sequence),
            job.non_finite};
}
DotBackward sequence_job(const DotBackward& job, const Sequence& sequence) {
    DotBackward result = job;
    result.dot = sequence_job(job.dot, sequence);
    result.grad = skip_rows(job.grad, sequence.query);
    result.context = skip_rows(job.context, sequence.query);
    result.softmax = sequence_job(job.softmax, sequence);
    result.dq = skip_rows(job.dq, sequence.query, job.dq_dtype);
    result.dk = skip_rows(job.dk, sequence.key, job.dkv_dtype);
    result.dv = skip_rows(job.dv, sequence.key, job.dkv_dtype);
    return result;
}

struct Unit {
    int64_t sequence, task;
};

template <typename Job>
struct Bundles {
    const Job& job;
    Kernel *kernel, *few_queries_kernel;  // the latter for sequences of up to few_queries queries
    std::vector<Sequence> sequences;
    std::vector<Unit> units{};
    std::vector<int64_t> starts{0};  // first unit of each bundle, and the end

    // tasks(sequence): number of tasks of a sequence
    template <typename F>
    void build(int threads, F tasks) {
        double total_cost = 0, bundle_cost = 0;
        for (const Sequence& sequence : sequences) total_cost += double(sequence.cost());
        const double cost_per_bundle = total_cost / double(std::max(threads, 1) * bundles_per_thread);
        for (size_t e = 0; e < sequences.size() && sequences[e].queries; ++e) {
            const int64_t count = tasks(sequences[e]);
            const double task_cost = double(sequences[e].cost()) / double(count);
            for (int64_t task = 0; task < count; ++task) {
                units.push_back({int64_t(e), task});
                if ((bundle_cost += task_cost) < cost_per_bundle) continue;
                starts.push_back(int64_t(units.size()));
                bundle_cost = 0;
            }
        }
        if (starts.back() < int64_t(units.size())) starts.push_back(int64_t(units.size()));
    }

    static void run(const void* arguments, int64_t bundle, Workspace& workspace) {
        const Bundles& bundles = *static_cast<const Bundles*>(arguments);
        for (int64_t n = bundles.starts[bundle]; n < bundles.starts[bundle + 1]; ++n) {
            const auto [sequence, task] = bundles.units[n];
            const Job job = sequence_job(bundles.job, bundles.sequences[sequence]);
            workspace.release();
            (job.dot.queries <= few_queries ? bundles.few_queries_kernel : bundles.kernel)(&job, task, workspace);
        }
    }
    void run_all(int64_t rows, int threads) const {
        parallel(run, this, int64_t(starts.size()) - 1, rows, threads, denormals_of(job.dot.dtype));
    }
};

}  // namespace

bool packed_forward(const Kernels& kernels, DotForward job, const Packed& packed, int64_t rows_per_task, int threads) {
    int32_t non_finite = 0;
    job.non_finite = &non_finite;
    Bundles<DotForward> bundles{job, kernels.dot_forward, kernels.few_queries_forward, sequences_of(packed)};
    bundles.build(threads, [&](const Sequence& sequence) {
        return sequence.queries <= few_queries ? job.dot.heads / job.dot.groups
                                               : job.dot.heads * ((sequence.queries + rows_per_task - 1) / rows_per_task);
    });
    bundles.run_all(rows_per_task, threads);
    return !non_finite;
}

bool packed_backward(const Kernels& kernels, DotBackward job, const Packed& packed, int threads) {
    int32_t non_finite = 0;
    job.non_finite = &non_finite;
    Bundles<DotBackward> bundles{job, kernels.dot_backward, kernels.few_queries_backward, sequences_of(packed)};
    bundles.build(threads, [&](const Sequence&) { return job.dot.heads * job.parts; });
    bundles.run_all(job.dot.queries, threads);
    return !non_finite;
}

}  // namespace regard::calls
