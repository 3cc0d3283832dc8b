// Dot-product attention, forward. Lanes are queries (query_lanes.hpp).
//
//     for blocks of queries (a task), in groups of up to three vectors:
//         for blocks of keys they may attend to:
//             Sᵀ = K · Qᵀ                       from registers to the L1 cache, with the maximum of each lane
//             Pᵀ = e^(Sᵀ − highest so far)      sums are rescaled only if the highest score increases
//             O += P · V                        in the output, if its rows are whole vectors
//         context = O / Σ P
//
// If one block holds all keys, Pᵀ is divided by its sum before the product, and O is the context.
#include <cstring>

#include "base/dtype.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/query_lanes.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128;

// Workspace of a group of queries.
struct GroupState {
    float* qt;               // (width, group): queries, transposed and scaled
    float *highest, *total;  // (group)
    float* accumulator;      // (rows, ld): Σ weight · value
    bool empty;              // nothing is accumulated yet
    bool normalized;         // weights are divided by their sum: the accumulator is the context
    bool finite_queries;     // checked if there is a mask
};

// A block of keys, ready to be read.
struct KeyBlock {
    MatrixView k, v;
    int64_t first;
    int count;
};

// Workspace that all groups of a task share.
struct TaskBuffers {
    float* s;         // (key_block, group): scores, then weights
    ptrdiff_t ld;     // row stride of the accumulator
    int value_width;  // whole vectors
};

// Multiplies the sums of earlier blocks by e^(old highest − new highest).
void rescale(const Group& group, const GroupState& state, const vec* factors, const TaskBuffers& buffers) {
    float row_factors[max_vectors * lanes];
    for (int j = 0; j < group.vectors; ++j) {
        store(row_factors + j * lanes, factors[j]);
        store(state.total + j * lanes, load(state.total + j * lanes) * factors[j]);
    }
    for (int i = 0; i < group.rows; ++i)
        for (int c = 0; c < buffers.value_width; c += lanes)
            store(state.accumulator + i * buffers.ld + c, load(state.accumulator + i * buffers.ld + c) * row_factors[i]);
}

// Replaces scores by weights, divided by their sum if this is the only block.
template <int NV, bool MASKED>
void softmax_block(float* s, int keys, const vec* maxima, const Group& group, const GroupState& state,
                   const TaskBuffers& buffers) {
    vec base[NV], total[NV], factors[NV];
    bool increased = false;
    for (int j = 0; j < NV; ++j) {
        const vec old_max = state.empty ? splat(-infinity) : load(state.highest + j * lanes);
        const vec new_max = maximum(old_max, maxima[j]);
        base[j] = MASKED ? (new_max == splat(-infinity) ? vec{} : new_max) : new_max;
        increased |= !state.empty && any(new_max > old_max);
        factors[j] = old_max == splat(-infinity) ? vec{} : exponential(old_max - base[j]);
        store(state.highest + j * lanes, new_max);
    }
    if (increased) rescale(group, state, factors, buffers);
    // Several independent sums hide the latency of additions
    constexpr int accumulators = NV == 1 ? 4 : NV == 2 ? 2 : 1;
    vec sums[accumulators][NV] = {};
    const auto exponentiate = [&](int key, int accumulator) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* scores = s + (key * NV + j) * lanes;
            const vec x = load(scores);
            vec p = exponential(x - base[j]);
            if (MASKED) p = x == splat(-infinity) ? vec{} : p;
            sums[accumulator][j] += p;
            store(scores, p);
        }
    };
    int key = 0;
    for (; key + accumulators <= keys; key += accumulators)
#pragma GCC unroll 4
        for (int i = 0; i < accumulators; ++i) exponentiate(key + i, i);
    for (; key < keys; ++key) exponentiate(key, 0);
    for (int j = 0; j < NV; ++j) {
        total[j] = state.empty ? vec{} : load(state.total + j * lanes);
        for (int i = 0; i < accumulators; ++i) total[j] += sums[i][j];
        store(state.total + j * lanes, total[j]);
    }
    if (!state.normalized) return;
    for (int j = 0; j < NV; ++j) total[j] = total[j] == vec{} ? vec{} : 1.0f / total[j];
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(s + (i * NV + j) * lanes, load(s + (i * NV + j) * lanes) * total[j]);
}

// O = P · V or O += P · V, for some rows of a group and the keys from `first` to `last` of a block.
void accumulate_values(const TaskBuffers& buffers, const GroupState& state, const Group& group, int row, int rows,
                       const MatrixView& v, int first, int last) {
    const Matrix weights{buffers.s + first * group.width() + row, 1, group.width()};
    float* output = state.accumulator + row * buffers.ld;
    if (state.empty)
        product<false>(rows, buffers.value_width, last - first, weights, v.data + first * v.row, v.row, output, buffers.ld);
    else
        product<true>(rows, buffers.value_width, last - first, weights, v.data + first * v.row, v.row, output, buffers.ld);
}

// Attention of a group of queries to a block of keys: scores, softmax, accumulation of values.
template <int NV>
void forward_block(const Dot& dot, const LaneBlock& block, const KeyBlock& keys, const GroupState& state,
                   const TaskBuffers& buffers) {
    const ptrdiff_t start = block.col - keys.first;
    const MatrixView k{keys.k.data + start * keys.k.row, keys.k.row}, v{keys.v.data + start * keys.v.row, keys.v.row};
    vec maxima[NV];
    if (unmasked(dot, block.queries(), block.extent())) {
        score_block<NV>(k, block.cols, int(dot.width), state.qt, buffers.s, maxima);
        if (dot.softcap > 0) {
            apply_softcap(buffers.s, 0, 1, block.cols * block.group.width(), dot.softcap);
            lane_maxima<NV>(buffers.s, block.cols, maxima);
        }
        softmax_block<NV, false>(buffers.s, block.cols, maxima, block.group, state, buffers);
        return accumulate_values(buffers, state, block.group, 0, block.group.rows, v, 0, block.cols);
    }
    score_masked_block<NV>(dot, block, k, int(dot.width), state.qt, buffers.s);
    if (dot.softcap > 0) apply_softcap(buffers.s, 0, 1, block.cols * block.group.width(), dot.softcap);
    mask_lane_block(dot, block, buffers.s);
    lane_maxima<NV>(buffers.s, block.cols, maxima);
    softmax_block<NV, true>(buffers.s, block.cols, maxima, block.group, state, buffers);
    const int step = strip(block.group.rows);
    for (int m = 0; m < block.group.rows; m += step) {  // each strip uses only the keys to which it may attend
        const int rows = int(min(block.group.rows - m, step));
        const Span visible = visible_columns(dot, block, m, rows);
        accumulate_values(buffers, state, block.group, m, rows, v, visible.first, visible.last);
    }
}

// Writes the context and the softmax of a group. Returns whether the context is finite.
bool finish(const DotForward& job, const QueryBlock& query_block, const Group& group, const GroupState& state,
            const TaskBuffers& buffers) {
    const Dot& dot = job.dot;
    float* highest = job.softmax.highest.at<float>(query_block.batch, query_block.head, group.row);
    float* total = job.softmax.total.at<float>(query_block.batch, query_block.head, group.row);
    if (state.empty) {
        std::memset(state.total, 0, sizeof(float) * group.width());
        for (int i = 0; i < group.rows; ++i)
            std::memset(state.accumulator + i * buffers.ld, 0, sizeof(float) * buffers.value_width);
    }
    float inverse_total[max_vectors * lanes];
    for (int i = 0; i < group.rows; i += lanes) {
        const vec totals = load(state.total + i);
        const int count = int(min(lanes, group.rows - i));
        store_partial(highest + i, totals == vec{} ? splat(-infinity) : load(state.highest + i), count);
        store_partial(total + i, totals, count);
        store(inverse_total + i, totals == vec{} ? splat(1.0f) : 1.0f / totals);
    }
    float* context = job.context.at<float>(query_block.batch, query_block.head, group.row);
    if (state.normalized && state.accumulator == context)
        return !dot.mask.any || finite(context, group.rows, int(dot.value_width), buffers.ld);
    vec finite_check{};
    for (int i = 0; i < group.rows; ++i) {
        const vec factor = splat(state.normalized ? 1.0f : inverse_total[i]);
        for (int c = 0; c < dot.value_width; c += lanes) {
            const vec x = load(state.accumulator + i * buffers.ld + c) * factor;
            finite_check += x * 0.0f;
            store_partial(context + i * job.context.row + c, x, int(min(lanes, dot.value_width - c)));
        }
    }
    return sum(finite_check) == 0;
}

// Attention of a group of queries to the visible part of a block of keys.
void forward_visible_keys(const Dot& dot, const QueryBlock& query_block, const Group& group, const KeyBlock& keys,
                          GroupState& state, const TaskBuffers& buffers) {
    const KeyRange visible = visible_keys(dot, query_block.batch, group.row, group.rows);
    const int64_t start = max(visible.first, keys.first), stop = min(visible.last, keys.first + keys.count);
    if (start >= stop) return;
    const LaneBlock block{query_block.batch, query_block.head, group, start, int(stop - start)};
    state.normalized = visible.first >= keys.first && visible.last <= keys.first + keys.count;
    dispatch_vectors(group, [&](auto vectors) { forward_block<vectors()>(dot, block, keys, state, buffers); });
    state.empty = false;
}

// Allocates the states of the groups of a task and packs their queries. `copy_buffer` is large enough for the rows of a group.
GroupState* make_states(const DotForward& job, const QueryBlock& query_block, const Groups& groups, float* copy_buffer,
                        Workspace& workspace) {
    const Dot& dot = job.dot;
    const int width = int(dot.width);
    const HeadRows q = head_rows(dot.q, dot.dtype, query_block.batch, query_block.head);
    GroupState* states = reinterpret_cast<GroupState*>(workspace.allocate(groups.count * sizeof(GroupState) / sizeof(float)));
    const bool in_place = dot.value_width % lanes == 0;
    for (int g = 0; g < groups.count; ++g) {
        const Group group = groups[g];
        GroupState& state = states[g];
        state.qt = workspace.allocate(width * group.width());
        state.highest = workspace.allocate(group.width());
        state.total = workspace.allocate(group.width());
        state.accumulator = in_place ? job.context.at<float>(query_block.batch, query_block.head, group.row)
                                     : workspace.allocate(group.rows * round_up(int(dot.value_width)));
        state.empty = true;
        state.normalized = false;
        const MatrixView rows = readable_rows<false>(q, group.row, group.rows, width, copy_buffer);
        state.finite_queries = !dot.mask.any || finite(rows.data, group.rows, width, rows.row);
        pack_transposed(rows.data, rows.row, group.rows, width, state.qt, group.width(),
                        dot.softcap > 0 ? dot.scale / dot.softcap : dot.scale);
    }
    return states;
}

}  // namespace

void dot_forward(const void* arguments, int64_t task, Workspace& workspace) {
    const DotForward& job = *static_cast<const DotForward*>(arguments);
    const Dot& dot = job.dot;
    const QueryBlock query_block = block_of_task(dot, task, workspace.rows_per_task);
    const int width = int(dot.width), value_width = round_up(int(dot.value_width));
    const ptrdiff_t ld = value_width == dot.value_width ? job.context.row : value_width;
    const TaskBuffers buffers{workspace.allocate(key_block * max_vectors * lanes), ld, value_width};
    float* k_buffer = workspace.allocate(key_block * round_up(width));
    float* v_buffer = workspace.allocate(key_block * value_width);
    const Groups groups(query_block.row, query_block.rows);
    GroupState* states = make_states(job, query_block, groups, k_buffer, workspace);
    const HeadRows k = head_rows(dot.k, dot.dtype, query_block.batch, query_block.head / dot.groups);
    const HeadRows v = head_rows(dot.v, dot.dtype, query_block.batch, query_block.head / dot.groups);
    const KeyRange columns = visible_keys(dot, query_block);
    const int64_t range = columns.last - columns.first, blocks = (range + key_block - 1) / key_block;
    const int64_t step = blocks ? (range + blocks - 1) / blocks : 1;
    // With a mask, ∞ in an attended query or key makes a context NaN, also if its score is −∞ or capped
    bool all_finite = true;
    for (int64_t first = columns.first; first < columns.last; first += step) {
        const int count = int(min(columns.last - first, step));
        const KeyBlock keys{readable_rows<false>(k, first, count, width, k_buffer),
                            readable_rows<true>(v, first, count, int(dot.value_width), v_buffer), first, count};
        if (dot.mask.any) all_finite &= finite(keys.k.data, count, width, keys.k.row);
        for (int g = 0; g < groups.count; ++g) forward_visible_keys(dot, query_block, groups[g], keys, states[g], buffers);
    }
    for (int g = 0; g < groups.count; ++g)
        all_finite &= finish(job, query_block, groups[g], states[g], buffers) && states[g].finite_queries;
    if (!all_finite) __atomic_store_n(job.non_finite, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
