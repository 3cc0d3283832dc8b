// Packed sequences: each is a problem of its own, cut out of the memory that all share. The kernels know nothing of it.
//
//     unit     a task of a kernel on one sequence, as if that were alone
//     bundle   units of about one share of all work: what a thread takes at a time, the longest sequences first
#include <algorithm>
#include <vector>

#include "base/parallel.hpp"
#include "dispatch/dispatch.hpp"

namespace regard::calls {

namespace {

constexpr int64_t bundles_per_thread = 16;
constexpr int64_t fixed_cost = 8;  // of a row and of a column of scores, in scores

// One sequence: which of them it is, where its rows begin, and how many there are.
struct Entry {
    int64_t sequence, query, queries, key, keys;

    int64_t work() const { return queries ? (queries + fixed_cost) * (keys + fixed_cost) : 0; }
};

std::vector<Entry> entries_of(const Packed& packed) {
    std::vector<Entry> entries;
    entries.reserve(packed.count);
    Entry next{0, 0, 0, 0, 0};
    for (int64_t b = 0; b < packed.count; ++b) {
        next = {b, next.query + next.queries, packed.queries[b], next.key + next.keys, packed.keys[b]};
        entries.push_back(next);
    }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.work() > b.work(); });
    return entries;
}

View from(const View& x, int64_t row, Number number = Number::float32) {
    View cut = x;
    cut.data = reinterpret_cast<const float*>(reinterpret_cast<const char*>(x.data) + row * x.row * ptrdiff_t(size_of(number)));
    return cut;
}
Output from(const Output& x, int64_t row, Number number = Number::float32) {
    Output cut = x;
    cut.data = x.at(0, 0, row, number);
    return cut;
}

Dot cut(const Dot& of, const Entry& entry) {
    Dot one = of;
    one.batches = 1;
    one.queries = entry.queries;
    one.keys = entry.keys;
    one.q = from(of.q, entry.query, of.number);
    one.k = from(of.k, entry.key, of.number);
    one.v = from(of.v, entry.key, of.number);
    if (of.mask.offset) one.mask.offset = of.mask.offset + entry.sequence;
    return one;
}
template <typename T>
Softmax<T> cut(const Softmax<T>& softmax, const Entry& entry) {
    return {from(softmax.highest, entry.query), from(softmax.total, entry.query)};
}
DotForward cut(const DotForward& job, const Entry& entry) {
    return {cut(job.of, entry), from(job.context, entry.query), cut(job.softmax, entry), job.lost};
}
DotBackward cut(const DotBackward& job, const Entry& entry) {
    DotBackward one = job;
    one.of = cut(job.of, entry);
    one.grad = from(job.grad, entry.query);
    one.context = from(job.context, entry.query);
    one.softmax = cut(job.softmax, entry);
    one.dq = from(job.dq, entry.query, job.dq_number);
    one.dk = from(job.dk, entry.key, job.dk_number);
    one.dv = from(job.dv, entry.key, job.dk_number);
    return one;
}

struct Unit {
    int64_t entry, task;
};

template <typename Job>
struct Bundles {
    const Job& job;
    Kernel *many, *few;  // for sequences of more than few_queries, and of no more
    std::vector<Entry> entries;
    std::vector<Unit> units{};
    std::vector<int64_t> starts{0};  // of bundles, and the end

    // tasks(entry): how many a sequence is cut into
    template <typename F>
    void make(int threads, F tasks) {
        double all = 0, filled = 0;
        for (const Entry& entry : entries) all += double(entry.work());
        const double share = all / double(std::max(threads, 1) * bundles_per_thread);
        for (size_t e = 0; e < entries.size() && entries[e].queries; ++e) {
            const int64_t count = tasks(entries[e]);
            const double each = double(entries[e].work()) / double(count);
            for (int64_t task = 0; task < count; ++task) {
                units.push_back({int64_t(e), task});
                if ((filled += each) < share) continue;
                starts.push_back(int64_t(units.size()));
                filled = 0;
            }
        }
        if (starts.back() < int64_t(units.size())) starts.push_back(int64_t(units.size()));
    }

    static void run(const void* given, int64_t bundle, Scratch& scratch) {
        const Bundles& all = *static_cast<const Bundles*>(given);
        for (int64_t n = all.starts[bundle]; n < all.starts[bundle + 1]; ++n) {
            const auto [entry, task] = all.units[n];
            const Job one = cut(all.job, all.entries[entry]);
            scratch.release();
            (one.of.queries <= few_queries ? all.few : all.many)(&one, task, scratch);
        }
    }
    void work(int64_t rows, int threads) const {
        parallel(run, this, int64_t(starts.size()) - 1, rows, threads, small_of(job.of.number));
    }
};

}  // namespace

bool packed_forward(const Kernels& kernels, DotForward job, const Packed& packed, int64_t rows_per_task, int threads) {
    int32_t lost = 0;
    job.lost = &lost;
    Bundles<DotForward> bundles{job, kernels.dot_forward, kernels.dot_few, entries_of(packed)};
    bundles.make(threads, [&](const Entry& entry) {
        return entry.queries <= few_queries ? job.of.heads / job.of.groups
                                            : job.of.heads * ((entry.queries + rows_per_task - 1) / rows_per_task);
    });
    bundles.work(rows_per_task, threads);
    return !lost;
}

bool packed_backward(const Kernels& kernels, DotBackward job, const Packed& packed, int threads) {
    int32_t lost = 0;
    job.lost = &lost;
    Bundles<DotBackward> bundles{job, kernels.dot_backward, kernels.dot_few_backward, entries_of(packed)};
    bundles.make(threads, [&](const Entry&) { return job.of.heads * job.parts; });
    bundles.work(job.of.queries, threads);
    return !lost;
}

}  // namespace regard::calls
