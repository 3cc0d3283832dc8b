// Scaled dot products: backward. The queries stand in the lanes (query_lanes.hpp).
//
//     for some groups of queries:                                    one task: all of one head, or a share of its keys
//         for blocks of keys, and each group that may attend to them:
//             Sᵀ  = K · Qᵀ,   Pᵀ  = e^(Sᵀ − highest) / total          scores once more, weights as they were
//             dPᵀ = V · dOᵀ,  dSᵀ = scale · Pᵀ · (dPᵀ − δ)            δ = Σ dO · O = Σ P · dP, query by query
//             dV += Pᵀ · dO,  dK += dSᵀ · Q,  dQ += dS · K
//
// Only Q and dO are transposed, once per group. Everything else is read in place, and gradients are accumulated in
// place: their rows are padded to whole vectors. Gradients that must be rounded are accumulated in the task's own memory
// and written once.
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
constexpr int most_queries = most_vectors * lanes;
constexpr int together = 4;  // groups that take a block of keys while it, and its gradients, are near

// Rows of a gradient, from the first that belongs to the task: added up in their place, or in the task's own memory if they
// are to be rounded.
class Gradient {
    void* place;
    ptrdiff_t place_row;
    Number number;

   public:
    int64_t rows;
    ptrdiff_t width;  // whole vectors
    float* data;
    ptrdiff_t row;    // from one row to the next

    Gradient(void* place, ptrdiff_t place_row, Number number, int64_t rows, ptrdiff_t width, Scratch& scratch)
        : place(place), place_row(place_row), number(number), rows(rows), width(width), data(static_cast<float*>(place)), row(place_row) {
        if (number == Number::float32) return;
        data = scratch.take(rows * width);
        row = width;
    }
    float* at(int64_t i) const { return data + i * row; }
    void clear(int64_t from, int64_t to) const { REGARD_ISA::clear(at(from), to - from, width, row); }
    bool finite(int64_t columns) const { return REGARD_ISA::finite(data, rows, int(columns), row); }
    void write() const {
        if (number == Number::bfloat16) write_rows<Number::bfloat16>(data, row, rows, int(width), place, place_row);
        if (number == Number::float16) write_rows<Number::float16>(data, row, rows, int(width), place, place_row);
    }
};

// One head, or a share of its keys.
struct Head {
    Share own;
    const DotBackward* job;
    const Dot* of;
    Source q, k, v, grad;
    const float *context, *highest, *total;
    Gradient dq, dk, dv;              // rows of dk and dv count from the first key of the share
    float scale;                      // of Q as it is packed: softcap's division included
    float *p, *ds, *slope;            // (key_block, group); slope: of the softcap
    float *k_room, *v_room;           // copies of rows that cannot be read in place
};

// Data of a group of queries.
struct Queries {
    Group group;
    Columns own;  // the keys of the task that one of them may attend to
    bool whole;   // one block holds all keys that they may attend to at all: δ can be found there
    bool fresh;   // dQ is not set yet
    Rectangle q, grad;
    float *qt, *gt, *base, *share, *delta;  // (width, group), (value width, group), (group) three times; share: 1 / total
    float *q_room, *grad_room;      // copies of rows that cannot be read in place
};

// δ from the context: Σ dO · O.
void find_delta(const Head& head, const Queries& queries) {
    const Group& group = queries.group;
    const Rectangle& grads = queries.grad;
    const int width = int(head.of->value_width);
    for (int i = 0; i < group.rows; ++i) {
        const float *grad = grads.data + i * grads.row, *context = head.context + (group.row + i) * head.job->context.row;
        vec sums{};
        for (int c = 0; c < width; c += lanes) {
            const int some = int(least(lanes, width - c));
            sums += load_some(grad + c, some) * load_some(context + c, some);
        }
        queries.delta[i] = sum(sums);
    }
}

void take_queries(const Head& head, Queries& queries) {
    const Dot& of = *head.of;
    const Group& group = queries.group;
    const int width = int(of.width), value_width = int(of.value_width);
    queries.q = rectangle<true>(head.q, group.row, group.rows, width, queries.q_room);
    queries.grad = rectangle<true>(head.grad, group.row, group.rows, value_width, queries.grad_room);
    pack_transposed(queries.q.data, queries.q.row, group.rows, width, queries.qt, group.width(), head.scale);
    pack_transposed(queries.grad.data, queries.grad.row, group.rows, value_width, queries.gt, group.width());
    for (int i = 0; i < group.rows; i += lanes) {
        const int some = int(least(lanes, group.rows - i));
        const vec highest = load_some(head.highest + group.row + i, some), total = load_some(head.total + group.row + i, some);
        store(queries.base + i, highest == splat(-infinity) ? vec{} : highest);
        store(queries.share + i, total == vec{} ? vec{} : 1.0f / total);
    }
    if (!queries.whole) find_delta(head, queries);
}

// Weights divided by their sum, and dS in place of dP with the δ that belongs to them; `delta` is not yet divided.
template <int NV>
REGARD_INLINE void settle(float* p, float* ds, int keys, float scale, vec (&total)[NV], vec (&delta)[NV]) {
    for (int j = 0; j < NV; ++j) {
        total[j] = total[j] == vec{} ? vec{} : 1.0f / total[j];
        delta[j] *= total[j] * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int at = (i * NV + j) * lanes;
            const vec weight = load(p + at) * total[j];
            store(p + at, weight);
            store(ds + at, weight * (load(ds + at) * scale - delta[j]));
        }
}

// Weights in place of scores, dS in place of dP. WHOLE: the block holds all keys. The weights are then divided by their own
// sum, and δ is found from them.
template <int NV, bool MASKED, bool WHOLE>
void weigh(const Head& head, const Queries& queries, int keys) {
    const float scale = head.of->scale, softcap = head.of->softcap;
    vec base[NV], share[NV], delta[NV], total[NV] = {};
    for (int j = 0; j < NV; ++j) {
        base[j] = load(queries.base + j * lanes);
        share[j] = load(queries.share + j * lanes);
        delta[j] = WHOLE ? vec{} : load(queries.delta + j * lanes) * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int at = (i * NV + j) * lanes;
            const vec s = load(head.p + at);
            vec weight = exponential(s - base[j]), grad = load(head.ds + at);
            if (!WHOLE) weight *= share[j];
            if (!WHOLE) grad = weight * (grad * scale - delta[j]);
            if (!WHOLE && softcap > 0) grad = grad * load(head.slope + at);
            if (MASKED) {
                const ivec gone = s == splat(-infinity);
                weight = gone ? vec{} : weight;
                grad = gone ? vec{} : grad;  // selected: dP may be anything where a key is masked out
            }
            store(head.p + at, weight);
            if (MASKED || !WHOLE) store(head.ds + at, grad);
            if (!WHOLE) continue;
            total[j] += weight;
            delta[j] += weight * grad;
        }
    if (WHOLE) settle<NV>(head.p, head.ds, keys, scale, total, delta);
}

// Scores, already divided by the cap → cap · tanh(scores), and its slope, 1 − tanh², before a mask adds anything.
void cap_and_slope(const Field& at, float softcap, float* s, float* slope) {
    for (int i = 0; i < at.cols * at.group.width(); i += lanes) {
        const vec bent = hyperbolic_tangent(load(s + i));
        store(s + i, softcap * bent);
        store(slope + i, 1.0f - bent * bent);
    }
}

// Weights and dS of a block. `open`: nothing of it is masked.
template <int NV>
void differentiate(const Head& head, const Queries& queries, const Field& at, const Rectangle& k, bool open) {
    const Dot& of = *head.of;
    const Rectangle v = rectangle<false>(head.v, at.col, at.cols, int(of.value_width), head.v_room);
    const int width = NV * lanes;
    if (open) {
        product<false>(at.cols, width, int(of.width), {k.data, k.row, 1}, queries.qt, width, head.p, width);
        product<false>(at.cols, width, int(of.value_width), {v.data, v.row, 1}, queries.gt, width, head.ds, width);
    } else {
        score_some<NV>(of, at, k, int(of.width), queries.qt, head.p);
        score_some<NV>(of, at, v, int(of.value_width), queries.gt, head.ds);
    }
    if (of.softcap > 0) cap_and_slope(at, of.softcap, head.p, head.slope);
    if (!open) mask_field(of, at, head.p);
    if (queries.whole)
        open ? weigh<NV, false, true>(head, queries, at.cols) : weigh<NV, true, true>(head, queries, at.cols);
    else
        open ? weigh<NV, false, false>(head, queries, at.cols) : weigh<NV, true, false>(head, queries, at.cols);
}

// C = or += A · B
void add(bool fresh, int rows, int width, int depth, const Matrix& a, const Rectangle& b, float* c, ptrdiff_t row) {
    if (fresh)
        product<false>(rows, width, depth, a, b.data, b.row, c, row);
    else
        product<true>(rows, width, depth, a, b.data, b.row, c, row);
}

// Which gradients nothing has been added to yet.
struct Fresh {
    bool queries, keys;
};

// Gradients from the weights and dS of a block. A strip of keys takes only the queries that may attend to it, a strip of
// queries only the keys; an open block is one strip.
void collect(const Head& head, const Queries& queries, const Field& at, const Rectangle& k, bool open, Fresh fresh) {
    const Dot& of = *head.of;
    const ptrdiff_t ld = at.group.width();
    const int width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    const int keys = open ? at.cols : strip(at.cols), rows = open ? at.group.rows : strip(at.group.rows);
    for (int n = 0; n < at.cols; n += keys) {
        const int some = int(least(keys, at.cols - n));
        const Span own = open ? Span{0, at.group.rows} : queries_of(of, at, n, some);
        const ptrdiff_t corner = n * ld + own.first, key = at.col + n - head.own.first;
        add(fresh.keys, some, value_width, own.last - own.first, {head.p + corner, ld, 1},
            {queries.grad.data + own.first * queries.grad.row, queries.grad.row}, head.dv.at(key), head.dv.row);
        add(fresh.keys, some, width, own.last - own.first, {head.ds + corner, ld, 1},
            {queries.q.data + own.first * queries.q.row, queries.q.row}, head.dk.at(key), head.dk.row);
    }
    for (int m = 0; m < at.group.rows; m += rows) {
        const int some = int(least(rows, at.group.rows - m));
        const Span own = open ? Span{0, at.cols} : keys_of(of, at, m, some);
        add(fresh.queries, some, width, own.last - own.first, {head.ds + own.first * ld + m, 1, ld},
            {k.data + own.first * k.row, k.row}, head.dq.at(at.group.row + m), head.dq.row);
    }
}

// A group against the part of a block of keys that it may attend to. `first`: it is the head's first group.
void meet(const Head& head, Queries& queries, int64_t col, int64_t stop, const Rectangle& block, bool first) {
    const int64_t from = most(col, queries.own.first), to = least(stop, queries.own.last);
    if (from >= to) return;
    const Field at{head.own.batch, head.own.head, queries.group, from, int(to - from)};
    const bool open = inside(*head.of, at.place(), at.block());
    const Rectangle k{block.data + (from - col) * block.row, block.row};
    by_vectors(queries.group, [&](auto vectors) { differentiate<vectors()>(head, queries, at, k, open); });
    collect(head, queries, at, k, open, {queries.fresh, first});
    queries.fresh = false;
}

// Divides the keys from `first` to `last` into blocks of nearly equal size.
struct Cut {
    int64_t first, last, step;

    Cut(int64_t first, int64_t last) : first(first), last(last) {
        const int64_t blocks = (last - first + key_block - 1) / key_block;
        step = blocks ? (last - first + blocks - 1) / blocks : 1;
    }
    bool in_one(const Columns& own) const {
        return own.first >= own.last || (own.first - first) / step == (own.last - 1 - first) / step;
    }
};

// Some groups of queries, all keys. `first`: the head's first group is among them, and sets what others add to.
void groups_backward(const Head& head, Queries* some, int count, bool first) {
    const Dot& of = *head.of;
    int64_t start = head.own.last, stop = head.own.first;
    for (int g = 0; g < count; ++g) {
        Columns own = columns_of(of, head.own.batch, some[g].group.row, some[g].group.rows);
        some[g].whole = own.first >= head.own.first && own.last <= head.own.last && of.softcap == 0;
        own.first = least(most(own.first, head.own.first), head.own.last);
        own.last = most(own.first, least(own.last, head.own.last));
        some[g].own = own;
        some[g].fresh = true;
        if (own.first == own.last) continue;
        start = least(start, own.first);
        stop = most(stop, own.last);
    }
    if (first)  // the first group sets the gradients of its keys; the others are added to nothing
        for (const Gradient* x : {&head.dk, &head.dv}) {
            x->clear(0, some[0].own.first - head.own.first);
            x->clear(some[0].own.last - head.own.first, x->rows);
        }
    const Cut cut(start, most(start, stop));
    for (int g = 0; g < count; ++g) {
        some[g].whole &= cut.in_one(some[g].own);
        take_queries(head, some[g]);
    }
    for (int64_t col = cut.first; col < cut.last; col += cut.step) {
        const int64_t end = least(col + cut.step, cut.last);
        const Rectangle k = rectangle<true>(head.k, col, int(end - col), int(of.width), head.k_room);
        for (int g = 0; g < count; ++g) meet(head, some[g], col, end, k, first && g == 0);
    }
    for (int g = 0; g < count; ++g)
        if (some[g].fresh) head.dq.clear(some[g].group.row, some[g].group.row + some[g].group.rows);
}

Head make_head(const DotBackward& job, int64_t task, Scratch& scratch) {
    const Dot& of = job.of;
    const Share own(of, job.parts, task);
    const int64_t batch = own.batch, at = own.head, shared = at / of.groups, keys = own.last - own.first;
    const ptrdiff_t width = padded(of.width), value_width = padded(of.value_width);
    char* const dq = static_cast<char*>(job.dq.at(batch, at, 0, job.dq_number)) + own.part * job.dq_part * ptrdiff_t(size_of(job.dq_number));
    return {
        .own = own,
        .job = &job,
        .of = &of,
        .q = source(of.q, of.number, batch, at),
        .k = source(of.k, of.number, batch, shared),
        .v = source(of.v, of.number, batch, shared),
        .grad = source(job.grad, Number::float32, batch, at),
        .context = job.context.at(batch, at),
        .highest = job.softmax.highest.at(batch, at),
        .total = job.softmax.total.at(batch, at),
        .dq = {dq, job.dq.row, job.dq_number, of.queries, width, scratch},
        .dk = {job.dk.at(batch, at, own.first, job.dk_number), job.dk.row, job.dk_number, keys, width, scratch},
        .dv = {job.dv.at(batch, at, own.first, job.dk_number), job.dv.row, job.dk_number, keys, value_width, scratch},
        .scale = of.softcap > 0 ? of.scale / of.softcap : of.scale,
        .p = scratch.take(key_block * most_queries),
        .ds = scratch.take(key_block * most_queries),
        .slope = scratch.take(key_block * most_queries),
        .k_room = scratch.take(key_block * width),
        .v_room = scratch.take(key_block * value_width),
    };
}

}  // namespace

void dot_backward(const void* given, int64_t task, Scratch& scratch) {
    const DotBackward& job = *static_cast<const DotBackward*>(given);
    const Dot& of = job.of;
    const Head head = make_head(job, task, scratch);
    Queries some[together];
    for (Queries& queries : some) {
        queries.qt = scratch.take(most_queries * head.dk.width);
        queries.gt = scratch.take(most_queries * head.dv.width);
        queries.base = scratch.take(most_queries);
        queries.share = scratch.take(most_queries);
        queries.delta = scratch.take(most_queries);
        queries.q_room = scratch.take(most_queries * head.dk.width);
        queries.grad_room = scratch.take(most_queries * head.dv.width);
    }
    const Groups groups(0, int(of.queries));
    for (int g = 0; g < groups.count; g += together) {
        const int count = int(least(together, groups.count - g));
        for (int i = 0; i < count; ++i) some[i].group = groups[g + i];
        groups_backward(head, some, count, g == 0);
    }
    for (const Gradient* x : {&head.dq, &head.dk, &head.dv}) x->write();
    // Non-finite masked keys affect dQ, and the queries of masked keys affect dK
    const bool kept = !of.mask.any || (head.dq.finite(of.width) && head.dk.finite(of.width));
    if (!kept) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
