// Dot-product attention, backward. Lanes are queries (query_lanes.hpp).
//
//     for some groups of queries:                                    one task: one head, or a part of its keys
//         for blocks of keys, and each group that may attend to them:
//             Sᵀ  = K · Qᵀ,   Pᵀ  = e^(Sᵀ − highest) / total          scores and weights, recomputed
//             dPᵀ = V · dOᵀ,  dSᵀ = scale · Pᵀ · (dPᵀ − δ)            δ = Σ dO · O = Σ P · dP, query by query
//             dV += Pᵀ · dO,  dK += dSᵀ · Q,  dQ += dS · K
//
// Only Q and dO are transposed, once per group. Everything else is read in place, and gradients are accumulated in
// place: their rows are padded to whole vectors. Gradients in half precision are accumulated in the workspace and
// written once.
#include <initializer_list>

#include "base/dtype.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/query_lanes.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 72;
constexpr int max_queries = max_vectors * lanes;
constexpr int groups_per_pass = 4;  // groups that use a block of keys while it and its gradients are in the cache

// Rows of a gradient, from the first row of the task on. They are accumulated in the output, or in the workspace if the output
// is half precision.
class Gradient {
    void* output;
    ptrdiff_t output_row;
    Dtype dtype;

   public:
    int64_t rows;
    ptrdiff_t width;  // whole vectors
    float* data;
    ptrdiff_t row;  // row stride

    Gradient(void* output, ptrdiff_t output_row, Dtype dtype, int64_t rows, ptrdiff_t width, Workspace& workspace)
        : output(output), output_row(output_row), dtype(dtype), rows(rows), width(width), data(static_cast<float*>(output)),
          row(output_row) {
        if (dtype == Dtype::float32) return;
        data = workspace.allocate(rows * width);
        row = width;
    }
    float* at(int64_t i) const { return data + i * row; }
    void clear(int64_t from, int64_t to) const { REGARD_ISA::clear(at(from), to - from, width, row); }
    bool finite(int64_t columns) const { return REGARD_ISA::finite(data, rows, int(columns), row); }
    void write() const {
        if (dtype == Dtype::bfloat16) write_rows<Dtype::bfloat16>(data, row, rows, int(width), output, output_row);
        if (dtype == Dtype::float16) write_rows<Dtype::float16>(data, row, rows, int(width), output, output_row);
    }
};

// One head, or a part of its keys.
struct Head {
    KeyPart part;
    const DotBackward* job;
    const Dot* dot;
    HeadRows q, k, v, grad;
    const float *context, *highest, *total;
    Gradient dq, dk, dv;         // rows of dk and dv count from the first key of the part
    float scale;                 // factor of packed queries, divided by softcap if there is one
    float *p, *ds, *slope;       // (key_block, group); slope: derivative of the soft cap
    float *k_buffer, *v_buffer;  // copies of rows that cannot be read in place
};

// Data of a group of queries.
struct QueryGroup {
    Group group;
    KeyRange visible;   // keys of the task to which any of them may attend
    bool single_block;  // one block holds all visible keys: δ can be computed from it
    bool overwrite;     // dQ is not written yet
    MatrixView q, grad;
    float *qt, *gt, *base, *inverse_total, *delta;  // (width, group), (value width, group), (group) three times
    float *q_buffer, *grad_buffer;                  // copies of rows that cannot be read in place
};

// Computes δ = Σ dO · O from the context.
void compute_delta(const Head& head, const QueryGroup& queries) {
    const Group& group = queries.group;
    const MatrixView& grads = queries.grad;
    const int width = int(head.dot->value_width);
    for (int i = 0; i < group.rows; ++i) {
        const float *grad = grads.data + i * grads.row, *context = head.context + (group.row + i) * head.job->context.row;
        vec sums{};
        for (int c = 0; c < width; c += lanes) {
            const int count = int(min(lanes, width - c));
            sums += load_partial(grad + c, count) * load_partial(context + c, count);
        }
        queries.delta[i] = sum(sums);
    }
}

void load_queries(const Head& head, QueryGroup& queries) {
    const Dot& dot = *head.dot;
    const Group& group = queries.group;
    const int width = int(dot.width), value_width = int(dot.value_width);
    queries.q = readable_rows<true>(head.q, group.row, group.rows, width, queries.q_buffer);
    queries.grad = readable_rows<true>(head.grad, group.row, group.rows, value_width, queries.grad_buffer);
    pack_transposed(queries.q.data, queries.q.row, group.rows, width, queries.qt, group.width(), head.scale);
    pack_transposed(queries.grad.data, queries.grad.row, group.rows, value_width, queries.gt, group.width());
    for (int i = 0; i < group.rows; i += lanes) {
        const int count = int(min(lanes, group.rows - i));
        const vec highest = load_partial(head.highest + group.row + i, count),
                  total = load_partial(head.total + group.row + i, count);
        store(queries.base + i, highest == splat(-infinity) ? vec{} : highest);
        store(queries.inverse_total + i, total == vec{} ? vec{} : 1.0f / total);
    }
    if (!queries.single_block) compute_delta(head, queries);
}

// Divides weights by their sum and replaces dP by dS. `delta` is not yet divided by the sum.
template <int NV>
REGARD_INLINE void normalize_block(float* p, float* ds, int keys, float scale, vec (&total)[NV], vec (&delta)[NV]) {
    for (int j = 0; j < NV; ++j) {
        total[j] = total[j] == vec{} ? vec{} : 1.0f / total[j];
        delta[j] *= total[j] * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int index = (i * NV + j) * lanes;
            const vec weight = load(p + index) * total[j];
            store(p + index, weight);
            store(ds + index, weight * (load(ds + index) * scale - delta[j]));
        }
}

// Replaces scores by weights and dP by dS. SINGLE_BLOCK: the block holds all keys. The weights are then divided by their own
// sum, and δ is computed from them.
template <int NV, bool MASKED, bool SINGLE_BLOCK>
void softmax_backward_block(const Head& head, const QueryGroup& queries, int keys) {
    const float scale = head.dot->scale, softcap = head.dot->softcap;
    vec base[NV], inverse_total[NV], delta[NV], total[NV] = {};
    for (int j = 0; j < NV; ++j) {
        base[j] = load(queries.base + j * lanes);
        inverse_total[j] = load(queries.inverse_total + j * lanes);
        delta[j] = SINGLE_BLOCK ? vec{} : load(queries.delta + j * lanes) * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int index = (i * NV + j) * lanes;
            const vec s = load(head.p + index);
            vec weight = exponential(s - base[j]), grad = load(head.ds + index);
            if (!SINGLE_BLOCK) weight *= inverse_total[j];
            if (!SINGLE_BLOCK) grad = weight * (grad * scale - delta[j]);
            if (!SINGLE_BLOCK && softcap > 0) grad = grad * load(head.slope + index);
            if (MASKED) {
                const ivec masked = s == splat(-infinity);
                weight = masked ? vec{} : weight;
                grad = masked ? vec{} : grad;  // selected, not multiplied: dP of a masked key may be NaN
            }
            store(head.p + index, weight);
            if (MASKED || !SINGLE_BLOCK) store(head.ds + index, grad);
            if (!SINGLE_BLOCK) continue;
            total[j] += weight;
            delta[j] += weight * grad;
        }
    if (SINGLE_BLOCK) normalize_block<NV>(head.p, head.ds, keys, scale, total, delta);
}

// Replaces scores, already divided by softcap, by softcap · tanh(score), and computes the slope 1 − tanh². A float mask is
// added later and does not change the slope.
void cap_and_slope(const LaneBlock& block, float softcap, float* s, float* slope) {
    for (int i = 0; i < block.cols * block.group.width(); i += lanes) {
        const vec capped_tanh = hyperbolic_tangent(load(s + i));
        store(s + i, softcap * capped_tanh);
        store(slope + i, 1.0f - capped_tanh * capped_tanh);
    }
}

// Computes the weights and dS of a block.
template <int NV>
void score_gradients(const Head& head, const QueryGroup& queries, const LaneBlock& block, const MatrixView& k,
                     bool unmasked_block) {
    const Dot& dot = *head.dot;
    const MatrixView v = readable_rows<false>(head.v, block.col, block.cols, int(dot.value_width), head.v_buffer);
    const int width = NV * lanes;
    if (unmasked_block) {
        product<false>(block.cols, width, int(dot.width), {k.data, k.row, 1}, queries.qt, width, head.p, width);
        product<false>(block.cols, width, int(dot.value_width), {v.data, v.row, 1}, queries.gt, width, head.ds, width);
    } else {
        score_masked_block<NV>(dot, block, k, int(dot.width), queries.qt, head.p);
        score_masked_block<NV>(dot, block, v, int(dot.value_width), queries.gt, head.ds);
    }
    if (dot.softcap > 0) cap_and_slope(block, dot.softcap, head.p, head.slope);
    if (!unmasked_block) mask_lane_block(dot, block, head.p);
    if (queries.single_block)
        unmasked_block ? softmax_backward_block<NV, false, true>(head, queries, block.cols)
                       : softmax_backward_block<NV, true, true>(head, queries, block.cols);
    else
        unmasked_block ? softmax_backward_block<NV, false, false>(head, queries, block.cols)
                       : softmax_backward_block<NV, true, false>(head, queries, block.cols);
}

// C = A · B or C += A · B
void accumulate_product(bool overwrite, int rows, int width, int depth, const Matrix& a, const MatrixView& b, float* c,
                        ptrdiff_t row) {
    if (overwrite)
        product<false>(rows, width, depth, a, b.data, b.row, c, row);
    else
        product<true>(rows, width, depth, a, b.data, b.row, c, row);
}

// Gradients that are not written yet.
struct Overwrite {
    bool queries, keys;
};

// Accumulates gradients from the weights and dS of a block. A strip of keys uses only the queries that may attend to it, and a
// strip of queries only the keys to which it may attend. An unmasked block is one strip.
void accumulate_gradients(const Head& head, const QueryGroup& queries, const LaneBlock& block, const MatrixView& k,
                          bool unmasked_block, Overwrite overwrite) {
    const Dot& dot = *head.dot;
    const ptrdiff_t ld = block.group.width();
    const int width = round_up(int(dot.width)), value_width = round_up(int(dot.value_width));
    const int keys = unmasked_block ? block.cols : strip(block.cols),
              rows = unmasked_block ? block.group.rows : strip(block.group.rows);
    for (int n = 0; n < block.cols; n += keys) {
        const int count = int(min(keys, block.cols - n));
        const Span visible = unmasked_block ? Span{0, block.group.rows} : visible_queries(dot, block, n, count);
        const ptrdiff_t corner = n * ld + visible.first, key = block.col + n - head.part.first;
        accumulate_product(overwrite.keys, count, value_width, visible.last - visible.first, {head.p + corner, ld, 1},
                           {queries.grad.data + visible.first * queries.grad.row, queries.grad.row}, head.dv.at(key),
                           head.dv.row);
        accumulate_product(overwrite.keys, count, width, visible.last - visible.first, {head.ds + corner, ld, 1},
                           {queries.q.data + visible.first * queries.q.row, queries.q.row}, head.dk.at(key), head.dk.row);
    }
    for (int m = 0; m < block.group.rows; m += rows) {
        const int count = int(min(rows, block.group.rows - m));
        const Span visible = unmasked_block ? Span{0, block.cols} : visible_columns(dot, block, m, count);
        accumulate_product(overwrite.queries, count, width, visible.last - visible.first,
                           {head.ds + visible.first * ld + m, 1, ld}, {k.data + visible.first * k.row, k.row},
                           head.dq.at(block.group.row + m), head.dq.row);
    }
}

// Gradients of a group and the visible part of a block of keys. `first`: it is the first group of the head.
void backward_block(const Head& head, QueryGroup& queries, int64_t col, int64_t stop, const MatrixView& k_block, bool first) {
    const int64_t from = max(col, queries.visible.first), to = min(stop, queries.visible.last);
    if (from >= to) return;
    const LaneBlock lane_block{head.part.batch, head.part.head, queries.group, from, int(to - from)};
    const bool unmasked_block = unmasked(*head.dot, lane_block.queries(), lane_block.extent());
    const MatrixView k{k_block.data + (from - col) * k_block.row, k_block.row};
    dispatch_vectors(queries.group,
                     [&](auto vectors) { score_gradients<vectors()>(head, queries, lane_block, k, unmasked_block); });
    accumulate_gradients(head, queries, lane_block, k, unmasked_block, {queries.overwrite, first});
    queries.overwrite = false;
}

// Divides the keys from `first` to `last` into blocks of nearly equal size.
struct KeyBlocks {
    int64_t first, last, step;

    KeyBlocks(int64_t first, int64_t last) : first(first), last(last) {
        const int64_t blocks = (last - first + key_block - 1) / key_block;
        step = blocks ? (last - first + blocks - 1) / blocks : 1;
    }
    bool in_one_block(const KeyRange& range) const {
        return range.first >= range.last || (range.first - first) / step == (range.last - 1 - first) / step;
    }
};

// Gradients of some groups of queries and all keys. `first`: the first group of the head is among them; it overwrites the
// gradients of its keys, and the others add to them.
void groups_backward(const Head& head, QueryGroup* groups, int count, bool first) {
    const Dot& dot = *head.dot;
    int64_t start = head.part.last, stop = head.part.first;
    for (int g = 0; g < count; ++g) {
        KeyRange visible = visible_keys(dot, head.part.batch, groups[g].group.row, groups[g].group.rows);
        groups[g].single_block = visible.first >= head.part.first && visible.last <= head.part.last && dot.softcap == 0;
        visible.first = min(max(visible.first, head.part.first), head.part.last);
        visible.last = max(visible.first, min(visible.last, head.part.last));
        groups[g].visible = visible;
        groups[g].overwrite = true;
        if (visible.first == visible.last) continue;
        start = min(start, visible.first);
        stop = max(stop, visible.last);
    }
    if (first)  // the first group overwrites only the gradients of its visible keys
        for (const Gradient* gradient : {&head.dk, &head.dv}) {
            gradient->clear(0, groups[0].visible.first - head.part.first);
            gradient->clear(groups[0].visible.last - head.part.first, gradient->rows);
        }
    const KeyBlocks blocks(start, max(start, stop));
    for (int g = 0; g < count; ++g) {
        groups[g].single_block &= blocks.in_one_block(groups[g].visible);
        load_queries(head, groups[g]);
    }
    for (int64_t col = blocks.first; col < blocks.last; col += blocks.step) {
        const int64_t end = min(col + blocks.step, blocks.last);
        const MatrixView k = readable_rows<true>(head.k, col, int(end - col), int(dot.width), head.k_buffer);
        for (int g = 0; g < count; ++g) backward_block(head, groups[g], col, end, k, first && g == 0);
    }
    for (int g = 0; g < count; ++g)
        if (groups[g].overwrite) head.dq.clear(groups[g].group.row, groups[g].group.row + groups[g].group.rows);
}

Head make_head(const DotBackward& job, int64_t task, Workspace& workspace) {
    const Dot& dot = job.dot;
    const KeyPart part(dot, job.parts, task);
    const int64_t batch = part.batch, head = part.head, kv_head = head / dot.groups, keys = part.last - part.first;
    const ptrdiff_t width = padded(dot.width), value_width = padded(dot.value_width);
    char* const dq = static_cast<char*>(job.dq.at(batch, head, 0, job.dq_dtype)) +
                     part.part * job.dq_part * ptrdiff_t(element_size(job.dq_dtype));
    return {
        .part = part,
        .job = &job,
        .dot = &dot,
        .q = head_rows(dot.q, dot.dtype, batch, head),
        .k = head_rows(dot.k, dot.dtype, batch, kv_head),
        .v = head_rows(dot.v, dot.dtype, batch, kv_head),
        .grad = head_rows(job.grad, Dtype::float32, batch, head),
        .context = job.context.at(batch, head),
        .highest = job.softmax.highest.at(batch, head),
        .total = job.softmax.total.at(batch, head),
        .dq = {dq, job.dq.row, job.dq_dtype, dot.queries, width, workspace},
        .dk = {job.dk.at(batch, head, part.first, job.dkv_dtype), job.dk.row, job.dkv_dtype, keys, width, workspace},
        .dv = {job.dv.at(batch, head, part.first, job.dkv_dtype), job.dv.row, job.dkv_dtype, keys, value_width, workspace},
        .scale = dot.softcap > 0 ? dot.scale / dot.softcap : dot.scale,
        .p = workspace.allocate(key_block * max_queries),
        .ds = workspace.allocate(key_block * max_queries),
        .slope = workspace.allocate(key_block * max_queries),
        .k_buffer = workspace.allocate(key_block * width),
        .v_buffer = workspace.allocate(key_block * value_width),
    };
}

}  // namespace

void dot_backward(const void* arguments, int64_t task, Workspace& workspace) {
    const DotBackward& job = *static_cast<const DotBackward*>(arguments);
    const Dot& dot = job.dot;
    const Head head = make_head(job, task, workspace);
    QueryGroup pass[groups_per_pass];
    for (QueryGroup& queries : pass) {
        queries.qt = workspace.allocate(max_queries * head.dk.width);
        queries.gt = workspace.allocate(max_queries * head.dv.width);
        queries.base = workspace.allocate(max_queries);
        queries.inverse_total = workspace.allocate(max_queries);
        queries.delta = workspace.allocate(max_queries);
        queries.q_buffer = workspace.allocate(max_queries * head.dk.width);
        queries.grad_buffer = workspace.allocate(max_queries * head.dv.width);
    }
    const Groups groups(0, int(dot.queries));
    for (int g = 0; g < groups.count; g += groups_per_pass) {
        const int count = int(min(groups_per_pass, groups.count - g));
        for (int i = 0; i < count; ++i) pass[i].group = groups[g + i];
        groups_backward(head, pass, count, g == 0);
    }
    for (const Gradient* gradient : {&head.dq, &head.dk, &head.dv}) gradient->write();
    // Non-finite masked keys affect dQ, and the queries of masked keys affect dK
    const bool finite = !dot.mask.any || (head.dq.finite(dot.width) && head.dk.finite(dot.width));
    if (!finite) __atomic_store_n(job.non_finite, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
