// Dot-product attention, backward, for few queries, as in a decoding step. Lanes are channels (few_queries.hpp).
//
//     for blocks of keys:                                  one task: a head, or a part of its keys
//         S  = Q · Kᵀ,   P  = e^(S − highest) / total
//         dP = dO · Vᵀ,  dS = scale · P · (dP − δ)         δ = Σ dO · O, query by query
//         dV = Pᵀ · dO,  dK = dSᵀ · Q,  dQ += dS · K       rows of dV and dK are written once, in their dtype
#include <cstring>

#include "base/dtype.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/few_queries.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int max_query_rows = 4;

struct FewQueries {
    const DotBackward* job;
    int64_t batch, head, part, first, last;  // keys first … last − 1
    int rows, width, value_width;            // widths in whole vectors
    HeadRows k, v;
    float *q, *scaled, *grad, *dq;  // (rows, width) twice, (rows, value_width), (rows, width)
    float *p, *ds, *slope;          // (rows, kv_block); slope: derivative of the soft cap
    float base[max_query_rows], inverse_total[max_query_rows], delta[max_query_rows];
    vec finite_check{};  // Σ 0 · dK: NaN if an element is not finite
};

void load_queries(FewQueries& state) {
    const DotBackward& job = *state.job;
    const Dot& dot = job.dot;
    const int width = int(dot.width), value_width = int(dot.value_width);
    const MatrixView q =
        readable_rows<false>(head_rows(dot.q, dot.dtype, state.batch, state.head), 0, state.rows, width, state.scaled);
    pack_rows(q.data, q.row, state.rows, width, state.q, state.width, 1.0f);
    pack_rows(state.q, state.width, state.rows, width, state.scaled, state.width,
              dot.softcap > 0 ? dot.scale / dot.softcap : dot.scale);
    const float *grad = job.grad.at(state.batch, state.head), *context = job.context.at(state.batch, state.head);
    pack_rows(grad, job.grad.row, state.rows, value_width, state.grad, state.value_width, 1.0f);
    for (int r = 0; r < state.rows; ++r) {
        float delta = 0;
        for (int c = 0; c < value_width; ++c) delta += grad[r * job.grad.row + c] * context[r * job.context.row + c];
        const float highest = job.softmax.highest.at(state.batch, state.head)[r],
                    total = job.softmax.total.at(state.batch, state.head)[r];
        state.delta[r] = delta * dot.scale;
        state.base[r] = highest == -infinity ? 0.0f : highest;
        state.inverse_total[r] = total == 0 ? 0.0f : 1.0f / total;
    }
    std::memset(state.dq, 0, sizeof(float) * state.rows * state.width);
}

// Replaces the scores of one query by weights, and dP by dS.
void softmax_backward_row(const FewQueries& state, int row, int keys) {
    const Dot& dot = state.job->dot;
    float *p = state.p + row * kv_block, *ds = state.ds + row * kv_block;
    for (int j = 0; j < keys; j += lanes) {
        const vec s = load(p + j);
        const ivec masked = s == splat(-infinity);
        const vec weight = exponential(s - state.base[row]) * state.inverse_total[row];
        vec grad = weight * (load(ds + j) * dot.scale - state.delta[row]);
        if (dot.softcap > 0) grad = grad * load(state.slope + row * kv_block + j);
        store(p + j, masked ? vec{} : weight);
        store(ds + j, masked ? vec{} : grad);  // selected, not multiplied: dP of a masked key may be NaN
    }
}

// Applies the soft cap and computes its slope. A float mask is added later and does not change the slope.
void cap_and_slope(const FewQueries& state, int keys) {
    const float softcap = state.job->dot.softcap;
    apply_softcap(state.p, kv_block, state.rows, keys, softcap);
    for (int r = 0; r < state.rows; ++r)
        for (int j = 0; j < keys; j += lanes) {
            const vec capped_tanh = load(state.p + r * kv_block + j) * (1.0f / softcap);
            store(state.slope + r * kv_block + j, 1.0f - capped_tanh * capped_tanh);
        }
}

// Writes rows j of (R, kv_block)ᵀ · (R, width), each once. Returns 0 in lanes in which all were finite, else NaN.
template <int R, Dtype G>
vec write_gradient_rows(const float* weights, int keys, const float* x, int width, typename DtypeTraits<G>::Element* output,
                        ptrdiff_t row) {
    vec finite_check{};
    for (int j = 0; j < keys; ++j)
        for (int c = 0; c < width; c += lanes) {
            vec sum = splat(weights[j]) * load(x + c);
#pragma GCC unroll 4
            for (int r = 1; r < R; ++r) sum += splat(weights[r * kv_block + j]) * load(x + r * width + c);
            finite_check += sum * 0.0f;
            DtypeTraits<G>::write(output + j * row + c, sum);
        }
    return finite_check;
}

// Gradients of a block of keys of dtype D; dk and dv have dtype G.
template <int R, Dtype D, Dtype G>
void backward_block(FewQueries& state, int64_t first, int keys) {
    using Element = typename DtypeTraits<G>::Element;
    const DotBackward& job = *state.job;
    const Dot& dot = job.dot;
    score_rows<R, D>(state.k, first, keys, int(dot.width), state.scaled, state.width, state.p);
    score_rows<R, D>(state.v, first, keys, int(dot.value_width), state.grad, state.value_width, state.ds);
    const QueryBlock query_block{state.batch, state.head, 0, R};
    const Block block{0, R, first, keys};
    if (dot.softcap > 0) cap_and_slope(state, keys);
    if (!unmasked(dot, query_block, block)) mask_block(dot, query_block, block, state.p, kv_block);
    for (int r = 0; r < R; ++r) softmax_backward_row(state, r, keys);
    write_gradient_rows<R, G>(state.p, keys, state.grad, state.value_width, job.dv.at<Element>(state.batch, state.head, first),
                              job.dv.row);
    state.finite_check += write_gradient_rows<R, G>(state.ds, keys, state.q, state.width,
                                                    job.dk.at<Element>(state.batch, state.head, first), job.dk.row);
    accumulate_rows<R, D>(state.k, first, keys, int(dot.width), state.ds, state.dq, state.width);
}

FewQueries make_state(const DotBackward& job, int64_t task, Workspace& workspace) {
    const Dot& dot = job.dot;
    const auto [batch, head, part, first, last] = KeyPart(dot, job.parts, task);
    const int rows = int(dot.queries), width = round_up(int(dot.width)), value_width = round_up(int(dot.value_width));
    return {&job,
            batch,
            head,
            part,
            first,
            last,
            rows,
            width,
            value_width,
            head_rows(dot.k, dot.dtype, batch, head / dot.groups),
            head_rows(dot.v, dot.dtype, batch, head / dot.groups),
            workspace.allocate(rows * width),
            workspace.allocate(rows * width),
            workspace.allocate(rows * value_width),
            workspace.allocate(rows * width),
            workspace.allocate(rows * kv_block),
            workspace.allocate(rows * kv_block),
            workspace.allocate(rows * kv_block),
            {},
            {},
            {}};
}

// Sets rows `first` … `last` − 1 of dK and dV to 0.
void clear(const FewQueries& state, int64_t first, int64_t last) {
    const DotBackward& job = *state.job;
    const Dot& dot = job.dot;
    const int64_t size = element_size(job.dkv_dtype);
    for (int64_t row = first; row < last; ++row) {
        std::memset(job.dk.at(state.batch, state.head, row, job.dkv_dtype), 0, padded(dot.width) * size);
        std::memset(job.dv.at(state.batch, state.head, row, job.dkv_dtype), 0, padded(dot.value_width) * size);
    }
}

// Gradients of all visible keys, block by block.
template <Dtype D, Dtype G>
void backward_keys(FewQueries& state, const KeyRange& visible) {
    for_groups_of_four(state.rows, [&](auto row_count, int) {
        for (int64_t first = visible.first; first < visible.last; first += kv_block)
            backward_block<row_count(), D, G>(state, first, int(min(visible.last - first, kv_block)));
    });
}

}  // namespace

void few_queries_backward(const void* arguments, int64_t task, Workspace& workspace) {
    const DotBackward& job = *static_cast<const DotBackward*>(arguments);
    const Dot& dot = job.dot;
    FewQueries state = make_state(job, task, workspace);
    load_queries(state);
    KeyRange visible = visible_keys(dot, state.batch, 0, dot.queries);
    visible.first = min(max(visible.first, state.first), state.last);
    visible.last = max(visible.first, min(visible.last, state.last));
    clear(state, state.first, visible.first);
    clear(state, visible.last, state.last);
    dispatch_dtype(dot.dtype, [&](auto dtype) {
        constexpr Dtype float32 = Dtype::float32;
        job.dkv_dtype == float32 ? backward_keys<dtype(), float32>(state, visible)
                                 : backward_keys<dtype(), dtype()>(state, visible);
    });
    dispatch_dtype(job.dq_dtype, [&](auto dtype) {
        auto* dq = job.dq.at<typename DtypeTraits<dtype()>::Element>(state.batch, state.head, 0) + state.part * job.dq_part;
        write_rows<dtype()>(state.dq, state.width, state.rows, state.width, dq, job.dq.row);
    });
    const bool all_finite = sum(state.finite_check) == 0 && finite(state.dq, state.rows, int(dot.width), state.width);
    if (dot.mask.any && !all_finite) __atomic_store_n(job.non_finite, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
