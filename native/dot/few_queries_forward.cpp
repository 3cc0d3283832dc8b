// Scaled dot products: forward, for the few queries of a decoding step. The channels stand in the lanes.
//
//     for blocks of keys:                                  one task: a head of keys, and all query heads that share it
//         for a few queries at a time:
//             S  = Q · Kᵀ                                  a vector of sums per key, `lanes` of them added up together
//             P  = e^(S − highest so far)
//             O += P · V
//     context = O / Σ P
//
// Every key and value is used once per query: what limits is how fast they can be read. Nothing is copied or transposed,
// and query heads that share a key head read it once.
#include <cmath>
#include <cstring>

#include "base/dtype.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/few_queries.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int most_together = 4;

// The queries of a task: row r is query r % queries of the r / queries-th head that shares the keys.
struct Few {
    const DotForward* job;
    int64_t batch, shared;
    int rows, width, value_width;  // widths in whole vectors
    Source k, v;
    float *q, *s;                             // (rows, width), (most_together, few_block)
    float *highest, *total, *summed;          // (rows), (rows), (rows, value_width)

    Place place(int row) const {
        const Dot& of = job->of;
        return {batch, shared * of.groups + row / of.queries, row % of.queries, 1};
    }
};

// Weights of one query in place of its scores, and its sums brought to the new highest score.
void weigh(const Few& few, int row, float* s, int keys) {
    const int whole = round_up(keys);
    for (int j = keys; j < whole; ++j) s[j] = -infinity;
    vec peak = load(s);
    for (int j = lanes; j < whole; j += lanes) peak = maximum(peak, load(s + j));
    const float before = few.highest[row], now = std::fmax(before, highest(peak));
    const float base = now == -infinity ? 0.0f : now;
    if (now > before) {
        const float shrink = before == -infinity ? 0.0f : std::exp(before - now);
        float* sums = few.summed + row * few.value_width;
        for (int c = 0; c < few.value_width; c += lanes) store(sums + c, load(sums + c) * shrink);
        few.total[row] *= shrink;
        few.highest[row] = now;
    }
    vec total{};
    for (int j = 0; j < whole; j += lanes) {
        const vec x = load(s + j);
        const vec p = x == splat(-infinity) ? vec{} : exponential(x - base);
        total += p;
        store(s + j, p);
    }
    few.total[row] += sum(total);
}

// R queries from `row` on against a block of keys.
template <int R, Number N>
void meet(const Few& few, int row, int64_t first, int keys) {
    const Dot& of = few.job->of;
    meet_rows<R, N>(few.k, first, keys, int(of.width), few.q + row * few.width, few.width, few.s);
    for (int r = 0; r < R; ++r) {
        const Place at = few.place(row + r);
        const Block block{at.row, 1, first, keys};
        float* s = few.s + r * few_block;
        if (of.softcap > 0) cap(s, few_block, 1, keys, of.softcap);
        if (!inside(of, at, block)) mask_block(of, at, block, s, few_block);
        weigh(few, row + r, s, keys);
    }
    gather_rows<R, N>(few.v, first, keys, int(of.value_width), few.s, few.summed + row * few.value_width, few.value_width);
}

void take_queries(const Few& few) {
    const Dot& of = few.job->of;
    const float scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
    for (int r = 0; r < few.rows; ++r) {
        const Place at = few.place(r);
        float* to = few.q + r * few.width;
        const Rectangle q = rectangle<false>(source(of.q, of.number, at.batch, at.head), at.row, 1, int(of.width), to);
        pack_rows(q.data, q.row, 1, int(of.width), to, few.width, scale);
        few.highest[r] = -infinity;
        few.total[r] = 0;
    }
    std::memset(few.summed, 0, sizeof(float) * few.rows * few.value_width);
}

bool finish(const Few& few) {
    const Dot& of = few.job->of;
    float trace = 0;
    for (int r = 0; r < few.rows; ++r) {
        const Place at = few.place(r);
        float* context = few.job->context.at<float>(at.batch, at.head, at.row);
        const float total = few.total[r], share = total == 0 ? 0.0f : 1.0f / total;
        *few.job->softmax.highest.at<float>(at.batch, at.head, at.row) = few.highest[r];
        *few.job->softmax.total.at<float>(at.batch, at.head, at.row) = total;
        for (int c = 0; c < of.value_width; ++c) {
            const float x = few.summed[r * few.value_width + c] * share;
            context[c] = x;
            trace += x * 0.0f;
        }
    }
    return trace == 0;
}

}  // namespace

void dot_few(const void* given, int64_t task, Scratch& scratch) {
    const DotForward& job = *static_cast<const DotForward*>(given);
    const Dot& of = job.of;
    const int64_t shared_heads = of.heads / of.groups, batch = task / shared_heads, shared = task % shared_heads;
    const int rows = int(of.groups * of.queries), width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    const Few few{&job, batch, shared, rows, width, value_width, source(of.k, of.number, batch, shared),
                  source(of.v, of.number, batch, shared), scratch.take(size_t(rows) * width),
                  scratch.take(most_together * few_block), scratch.take(rows), scratch.take(rows),
                  scratch.take(size_t(rows) * value_width)};
    take_queries(few);
    const Columns columns = columns_of(of, batch, 0, of.queries);
    by_number(of.number, [&](auto number) {
        for (int64_t first = columns.first; first < columns.last; first += few_block) {
            const int keys = int(least(columns.last - first, few_block));
            by_fours(rows, [&](auto some, int row) { meet<some(), number()>(few, row, first, keys); });
        }
    });
    if (!finish(few)) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
