// Dot-product attention, forward, for few queries, as in a decoding step. Lanes are channels (few_queries.hpp).
//
//     for blocks of keys:                                  one task: a head of keys, and all query heads that share it
//         for a few queries at a time:
//             S  = Q · Kᵀ                                  a vector of partial sums per key; `lanes` keys are summed together
//             P  = e^(S − highest so far)
//             O += P · V
//     context = O / Σ P
//
// Each key and value is used once per query, so memory bandwidth is the limit. Nothing is copied or transposed, and query heads
// that share a key head read it together.
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

constexpr int max_rows_per_pass = 4;

// The queries of a task. Row r is query r % queries of head r / queries among the heads that share the keys.
struct FewQueries {
    const DotForward* job;
    int64_t batch, kv_head;
    int rows, width, value_width;  // widths in whole vectors
    HeadRows k, v;
    float *q, *s;                          // (rows, width), (max_rows_per_pass, kv_block)
    float *highest, *total, *accumulator;  // (rows), (rows), (rows, value_width)

    QueryBlock query_block(int row) const {
        const Dot& dot = job->dot;
        return {batch, kv_head * dot.groups + row / dot.queries, row % dot.queries, 1};
    }
};

// Replaces the scores of one query by unnormalized weights, and rescales its sums if the highest score increases.
void softmax_row(const FewQueries& state, int row, float* s, int keys) {
    const int padded_keys = round_up(keys);
    for (int j = keys; j < padded_keys; ++j) s[j] = -infinity;
    vec maxima = load(s);
    for (int j = lanes; j < padded_keys; j += lanes) maxima = maximum(maxima, load(s + j));
    const float old_max = state.highest[row], new_max = std::fmax(old_max, highest(maxima));
    const float base = new_max == -infinity ? 0.0f : new_max;
    if (new_max > old_max) {
        const float rescale = old_max == -infinity ? 0.0f : std::exp(old_max - new_max);
        float* sums = state.accumulator + row * state.value_width;
        for (int c = 0; c < state.value_width; c += lanes) store(sums + c, load(sums + c) * rescale);
        state.total[row] *= rescale;
        state.highest[row] = new_max;
    }
    vec total{};
    for (int j = 0; j < padded_keys; j += lanes) {
        const vec x = load(s + j);
        const vec p = x == splat(-infinity) ? vec{} : exponential(x - base);
        total += p;
        store(s + j, p);
    }
    state.total[row] += sum(total);
}

// Attention of R queries from `row` on to a block of keys: scores, softmax, accumulation of values.
template <int R, Dtype D>
void forward_block(const FewQueries& state, int row, int64_t first, int keys) {
    const Dot& dot = state.job->dot;
    score_rows<R, D>(state.k, first, keys, int(dot.width), state.q + row * state.width, state.width, state.s);
    for (int r = 0; r < R; ++r) {
        const QueryBlock query_block = state.query_block(row + r);
        const Block block{query_block.row, 1, first, keys};
        float* s = state.s + r * kv_block;
        // With a mask, ∞ in an attended query or key makes a context NaN, also if its score is −∞ or capped
        if (dot.mask.any && !finite(s, 1, keys, 0)) __atomic_store_n(state.job->non_finite, 1, __ATOMIC_RELAXED);
        if (dot.softcap > 0) apply_softcap(s, kv_block, 1, keys, dot.softcap);
        if (!unmasked(dot, query_block, block)) mask_block(dot, query_block, block, s, kv_block);
        softmax_row(state, row + r, s, keys);
    }
    accumulate_rows<R, D>(state.v, first, keys, int(dot.value_width), state.s, state.accumulator + row * state.value_width,
                          state.value_width);
}

void load_queries(const FewQueries& state) {
    const Dot& dot = state.job->dot;
    const float scale = dot.softcap > 0 ? dot.scale / dot.softcap : dot.scale;
    for (int r = 0; r < state.rows; ++r) {
        const QueryBlock query_block = state.query_block(r);
        float* q_row = state.q + r * state.width;
        const MatrixView q = readable_rows<false>(head_rows(dot.q, dot.dtype, query_block.batch, query_block.head),
                                                  query_block.row, 1, int(dot.width), q_row);
        pack_rows(q.data, q.row, 1, int(dot.width), q_row, state.width, scale);
        state.highest[r] = -infinity;
        state.total[r] = 0;
    }
    std::memset(state.accumulator, 0, sizeof(float) * state.rows * state.value_width);
}

bool finish(const FewQueries& state) {
    const Dot& dot = state.job->dot;
    float finite_check = 0;
    for (int r = 0; r < state.rows; ++r) {
        const QueryBlock query_block = state.query_block(r);
        float* context = state.job->context.at<float>(query_block.batch, query_block.head, query_block.row);
        const float total = state.total[r], inverse_total = total == 0 ? 0.0f : 1.0f / total;
        *state.job->softmax.highest.at<float>(query_block.batch, query_block.head, query_block.row) = state.highest[r];
        *state.job->softmax.total.at<float>(query_block.batch, query_block.head, query_block.row) = total;
        for (int c = 0; c < dot.value_width; ++c) {
            const float x = state.accumulator[r * state.value_width + c] * inverse_total;
            context[c] = x;
            finite_check += x * 0.0f;
        }
    }
    return finite_check == 0;
}

}  // namespace

void few_queries_forward(const void* arguments, int64_t task, Workspace& workspace) {
    const DotForward& job = *static_cast<const DotForward*>(arguments);
    const Dot& dot = job.dot;
    const int64_t kv_heads = dot.heads / dot.groups, batch = task / kv_heads, kv_head = task % kv_heads;
    const int rows = int(dot.groups * dot.queries), width = round_up(int(dot.width)),
              value_width = round_up(int(dot.value_width));
    const FewQueries state{&job,
                           batch,
                           kv_head,
                           rows,
                           width,
                           value_width,
                           head_rows(dot.k, dot.dtype, batch, kv_head),
                           head_rows(dot.v, dot.dtype, batch, kv_head),
                           workspace.allocate(size_t(rows) * width),
                           workspace.allocate(max_rows_per_pass * kv_block),
                           workspace.allocate(rows),
                           workspace.allocate(rows),
                           workspace.allocate(size_t(rows) * value_width)};
    load_queries(state);
    const KeyRange columns = visible_keys(dot, batch, 0, dot.queries);
    dispatch_dtype(dot.dtype, [&](auto dtype) {
        for (int64_t first = columns.first; first < columns.last; first += kv_block) {
            const int keys = int(min(columns.last - first, kv_block));
            for_groups_of_four(rows,
                               [&](auto row_count, int row) { forward_block<row_count(), dtype()>(state, row, first, keys); });
        }
    });
    if (!finish(state)) __atomic_store_n(job.non_finite, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
