// Scaled dot products: backward. The queries stand in the lanes (lanes.hpp).
//
//     for groups of queries:                                         one task: all of one head, or a share of its keys
//         for blocks of keys they may attend to:
//             Sᵀ  = K · Qᵀ,   Pᵀ  = e^(Sᵀ − lse)                      scores once more, weights as they were
//             dPᵀ = V · dOᵀ,  dSᵀ = scale · Pᵀ · (dPᵀ − δ)            δ = Σ dO · O = Σ P · dP, query by query
//             dV += Pᵀ · dO,  dK += dSᵀ · Q,  dQ += dS · K
//
// Only Q and dO are transposed, once per group. Everything else is read where it lies, and gradients are added up where
// they belong: their rows have room for whole vectors.
#include <cstring>

#include "gemm.hpp"
#include "kernels.hpp"
#include "lanes.hpp"
#include "numbers.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 72;
constexpr int most_queries = most_vectors * lanes;

// One head, or a share of its keys.
struct Head {
    const DotBackward* job;
    const Dot* of;
    int64_t batch, head;
    int64_t first, last;              // its keys
    Source q, k, v, grad;
    const float *context, *lse;
    float *dq, *dk, *dv;
    ptrdiff_t width, value_width;     // of rows of dq and dk, of dv
    float scale;                      // of Q as it is packed: softcap's division included
    float *qt, *gt, *p, *ds;          // (width, group), (value width, group), (key_block, group) twice
    float *base, *delta;              // (group)
    float *q_room, *grad_room, *k_room, *v_room;  // copies of rows that cannot be read where they lie
};

// What a group of queries brings along.
struct Queries {
    Group group;
    Rectangle q, grad;
    bool whole;  // one block holds all of their keys: δ can be found there
};

// δ from the context: Σ dO · O.
void find_delta(const Head& head, const Group& group, const Rectangle& grads) {
    const int width = int(head.of->value_width);
    for (int i = 0; i < group.rows; ++i) {
        const float *grad = grads.data + i * grads.row, *context = head.context + (group.row + i) * head.job->context.row;
        vec sums{};
        for (int c = 0; c < width; c += lanes) {
            const int some = int(least(lanes, width - c));
            sums += load_some(grad + c, some) * load_some(context + c, some);
        }
        head.delta[i] = sum(sums);
    }
}

Queries take_queries(const Head& head, const Group& group, bool whole) {
    const Dot& of = *head.of;
    const int width = int(of.width), value_width = int(of.value_width);
    const Queries queries{group, rectangle<true>(head.q, group.row, group.rows, width, head.q_room),
                          rectangle<true>(head.grad, group.row, group.rows, value_width, head.grad_room), whole};
    pack_transposed(queries.q.data, queries.q.row, group.rows, width, head.qt, group.width(), head.scale);
    pack_transposed(queries.grad.data, queries.grad.row, group.rows, value_width, head.gt, group.width());
    for (int i = 0; i < group.rows; i += lanes) {
        const vec lse = load_some(head.lse + group.row + i, int(least(lanes, group.rows - i)));
        store(head.base + i, lse == splat(-infinity) ? vec{} : lse);
    }
    if (!whole) find_delta(head, group, queries.grad);
    return queries;
}

// Weights in place of scores, dS in place of dP.
template <int NV, bool MASKED>
void weigh(const Head& head, int keys) {
    const float scale = head.of->scale, softcap = head.of->softcap;
    vec base[NV], delta[NV];
    for (int j = 0; j < NV; ++j) {
        base[j] = load(head.base + j * lanes);
        delta[j] = load(head.delta + j * lanes) * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int at = (i * NV + j) * lanes;
            const vec s = load(head.p + at);
            vec weight = exponential(s - base[j]);
            vec grad = weight * (load(head.ds + at) * scale - delta[j]);
            if (softcap > 0) grad = grad * (1.0f - s * s / (softcap * softcap));  // d cap·tanh(x) = 1 − tanh²
            if (MASKED) {
                const ivec gone = s == splat(-infinity);
                weight = gone ? vec{} : weight;
                grad = gone ? vec{} : grad;  // selected: dP may be anything where a key is masked out
            }
            store(head.p + at, weight);
            store(head.ds + at, grad);
        }
}

// The same where the block holds all keys. The weights are made to add up to 1 once more, as the log-sum-exp of large scores
// is rounded by more than a weight is; δ is found from them.
template <int NV, bool MASKED>
void weigh_whole(const Head& head, int keys) {
    const float scale = head.of->scale;
    vec base[NV], total[NV] = {}, delta[NV] = {};
    for (int j = 0; j < NV; ++j) base[j] = load(head.base + j * lanes);
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int at = (i * NV + j) * lanes;
            const vec s = load(head.p + at);
            vec weight = exponential(s - base[j]), grad = load(head.ds + at);
            if (MASKED) {
                const ivec gone = s == splat(-infinity);
                weight = gone ? vec{} : weight;
                grad = gone ? vec{} : grad;  // selected: dP may be anything where a key is masked out
                store(head.ds + at, grad);
            }
            store(head.p + at, weight);
            total[j] += weight;
            delta[j] += weight * grad;
        }
    vec share[NV];
    for (int j = 0; j < NV; ++j) {
        share[j] = total[j] == vec{} ? vec{} : 1.0f / total[j];
        delta[j] *= share[j] * scale;
    }
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            const int at = (i * NV + j) * lanes;
            const vec weight = load(head.p + at) * share[j];
            store(head.p + at, weight);
            store(head.ds + at, weight * (load(head.ds + at) * scale - delta[j]));
        }
}

// Weights and dS of a block. `open`: nothing of it is masked.
template <int NV>
void differentiate(const Head& head, const Queries& queries, const Field& at, const Rectangle& k, bool open) {
    const Dot& of = *head.of;
    const Rectangle v = rectangle<false>(head.v, at.col, at.cols, int(of.value_width), head.v_room);
    const int width = NV * lanes;
    if (open) {
        product<false>(at.cols, width, int(of.width), {k.data, k.row, 1}, head.qt, width, head.p, width);
        product<false>(at.cols, width, int(of.value_width), {v.data, v.row, 1}, head.gt, width, head.ds, width);
    } else {
        score_some<NV>(of, at, k, int(of.width), head.qt, head.p);
        score_some<NV>(of, at, v, int(of.value_width), head.gt, head.ds);
    }
    if (of.softcap > 0) cap_field(at, of.softcap, head.p);
    if (!open) mask_field(of, at, head.p);
    if (queries.whole)
        open ? weigh_whole<NV, false>(head, at.cols) : weigh_whole<NV, true>(head, at.cols);
    else
        open ? weigh<NV, false>(head, at.cols) : weigh<NV, true>(head, at.cols);
}

// Rows of gradients, and how far apart they are.
struct Target {
    float* data;
    int width;  // whole vectors
    ptrdiff_t row;
};

// C = or += A · B
void add(bool fresh, int rows, int depth, const Matrix& a, const Rectangle& b, const Target& c) {
    if (fresh)
        product<false>(rows, c.width, depth, a, b.data, b.row, c.data, c.row);
    else
        product<true>(rows, c.width, depth, a, b.data, b.row, c.data, c.row);
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
        const ptrdiff_t corner = n * ld + own.first, key = at.col + n;
        add(fresh.keys, some, own.last - own.first, {head.p + corner, ld, 1},
            {queries.grad.data + own.first * queries.grad.row, queries.grad.row},
            {head.dv + key * head.value_width, value_width, head.value_width});
        add(fresh.keys, some, own.last - own.first, {head.ds + corner, ld, 1},
            {queries.q.data + own.first * queries.q.row, queries.q.row}, {head.dk + key * head.width, width, head.width});
    }
    for (int m = 0; m < at.group.rows; m += rows) {
        const int some = int(least(rows, at.group.rows - m));
        const Span own = open ? Span{0, at.cols} : keys_of(of, at, m, some);
        add(fresh.queries, some, own.last - own.first, {head.ds + own.first * ld + m, 1, ld},
            {k.data + own.first * k.row, k.row}, {head.dq + (at.group.row + m) * head.width, width, head.width});
    }
}

void clear(float* x, int64_t rows, ptrdiff_t width) {
    if (rows > 0) std::memset(x, 0, sizeof(float) * rows * width);
}

// All keys of a group of queries. `first`: it is the first group, and sets what others add to.
void group_backward(const Head& head, const Group& group, bool first) {
    const Dot& of = *head.of;
    Columns own = columns_of(of, head.batch, group.row, group.rows);
    const bool all = own.first >= head.first && own.last <= head.last;
    own = {least(most(own.first, head.first), head.last), least(own.last, head.last)};
    own.last = most(own.first, own.last);
    const int64_t range = own.last - own.first, blocks = (range + key_block - 1) / key_block;
    if (first) {
        for (const auto& [x, width] : {std::pair{head.dk, head.width}, std::pair{head.dv, head.value_width}}) {
            clear(x + head.first * width, own.first - head.first, width);
            clear(x + own.last * width, head.last - own.last, width);
        }
    }
    if (!blocks) return clear(head.dq + group.row * head.width, group.rows, head.width);
    const Queries queries = take_queries(head, group, all && blocks == 1 && of.softcap == 0);
    const int64_t step = (range + blocks - 1) / blocks;
    for (int64_t col = own.first; col < own.last; col += step) {
        const Field at{head.batch, head.head, group, col, int(least(own.last - col, step))};
        const bool open = inside(of, at.place(), at.block());
        const Rectangle k = rectangle<true>(head.k, col, at.cols, int(of.width), head.k_room);
        if (group.vectors == 3)
            differentiate<3>(head, queries, at, k, open);
        else if (group.vectors == 2)
            differentiate<2>(head, queries, at, k, open);
        else
            differentiate<1>(head, queries, at, k, open);
        collect(head, queries, at, k, open, {col == own.first, first});
    }
}

size_t room_of(const Dot& of) {
    const size_t width = padded(of.width), value_width = padded(of.value_width);
    return 2 * most_queries * (width + value_width) + key_block * (width + value_width) + 2 * key_block * most_queries + 2 * most_queries +
           16 * 32;
}

Head make_head(const DotBackward& job, int64_t task, Scratch& scratch) {
    const Dot& of = job.of;
    const int64_t entry = task / job.parts, part = task % job.parts, share = (of.keys + job.parts - 1) / job.parts;
    const int64_t batch = entry / of.heads, at = entry % of.heads, shared = at / of.groups;
    Head head{};
    head.job = &job;
    head.of = &of;
    head.batch = batch;
    head.head = at;
    head.first = least(part * share, of.keys);
    head.last = least(head.first + share, of.keys);
    head.q = source(of.q, of.number, batch, at);
    head.k = source(of.k, of.number, batch, shared);
    head.v = source(of.v, of.number, batch, shared);
    head.grad = source(job.grad, Number::float32, batch, at);
    head.context = job.context.data + batch * job.context.batch + at * job.context.head;
    head.lse = job.lse + entry * of.queries;
    head.width = padded(of.width);
    head.value_width = padded(of.value_width);
    head.dq = job.dq + task * of.queries * head.width;
    head.dk = job.dk + entry * of.keys * head.width;
    head.dv = job.dv + entry * of.keys * head.value_width;
    head.scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
    head.qt = scratch.take(most_queries * head.width);
    head.gt = scratch.take(most_queries * head.value_width);
    head.p = scratch.take(key_block * most_queries);
    head.ds = scratch.take(key_block * most_queries);
    head.base = scratch.take(most_queries);
    head.delta = scratch.take(most_queries);
    head.q_room = scratch.take(most_queries * head.width);
    head.grad_room = scratch.take(most_queries * head.value_width);
    head.k_room = scratch.take(key_block * head.width);
    head.v_room = scratch.take(key_block * head.value_width);
    return head;
}

}  // namespace

void dot_backward(const void* given, int64_t task, Scratch& scratch) {
    const DotBackward& job = *static_cast<const DotBackward*>(given);
    const Dot& of = job.of;
    const Head head = make_head(job, task, scratch);
    const Groups groups(0, int(of.queries));
    for (int g = 0; g < groups.count; ++g) group_backward(head, groups[g], g == 0);
    if (!of.mask.any) return;
    // What may be lost: a masked key meets the gradient of its queries in dQ, a query that of its masked keys in dK
    const bool kept = finite(head.dq, of.queries, int(of.width), head.width) &&
                      finite(head.dk + head.first * head.width, head.last - head.first, int(of.width), head.width);
    if (!kept) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

size_t dot_backward_room(const void* given, int64_t) { return room_of(static_cast<const DotBackward*>(given)->of); }

}  // namespace regard::REGARD_ISA
