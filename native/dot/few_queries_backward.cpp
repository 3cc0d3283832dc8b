// Scaled dot products: backward, for the few queries of a decoding step. The channels stand in the lanes (few_queries.hpp).
//
//     for blocks of keys:                                  one task: a head, or a share of its keys
//         S  = Q · Kᵀ,   P  = e^(S − highest) / total
//         dP = dO · Vᵀ,  dS = scale · P · (dP − δ)         δ = Σ dO · O, query by query
//         dV = Pᵀ · dO,  dK = dSᵀ · Q,  dQ += dS · K       a row of dV and dK is written once, rounded if it is to be
#include <cstring>

#include "base/dtype.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/few_queries.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int most_rows_of_few = 4;

struct Few {
    const DotBackward* job;
    int64_t batch, head, part, first, last;       // its keys
    int rows, width, value_width;                 // widths in whole vectors
    Source k, v;
    float *q, *scaled, *grad, *dq;                // (rows, width) twice, (rows, value_width), (rows, width)
    float *p, *ds, *slope;                        // (rows, few_block); slope: of the softcap
    float base[most_rows_of_few], share[most_rows_of_few], delta[most_rows_of_few];  // share: 1 / total
    vec trace{};                                  // 0 · dK, added up: NaN where something is not finite
};

void take_queries(Few& few) {
    const DotBackward& job = *few.job;
    const Dot& of = job.of;
    const int width = int(of.width), value_width = int(of.value_width);
    const Rectangle q = rectangle<false>(source(of.q, of.number, few.batch, few.head), 0, few.rows, width, few.scaled);
    pack_rows(q.data, q.row, few.rows, width, few.q, few.width, 1.0f);
    pack_rows(few.q, few.width, few.rows, width, few.scaled, few.width, of.softcap > 0 ? of.scale / of.softcap : of.scale);
    const float *grad = job.grad.at(few.batch, few.head), *context = job.context.at(few.batch, few.head);
    pack_rows(grad, job.grad.row, few.rows, value_width, few.grad, few.value_width, 1.0f);
    for (int r = 0; r < few.rows; ++r) {
        float delta = 0;
        for (int c = 0; c < value_width; ++c) delta += grad[r * job.grad.row + c] * context[r * job.context.row + c];
        const float highest = job.softmax.highest.at(few.batch, few.head)[r], total = job.softmax.total.at(few.batch, few.head)[r];
        few.delta[r] = delta * of.scale;
        few.base[r] = highest == -infinity ? 0.0f : highest;
        few.share[r] = total == 0 ? 0.0f : 1.0f / total;
    }
    std::memset(few.dq, 0, sizeof(float) * few.rows * few.width);
}

// Weights of one query in place of its scores, dS in place of dP.
void weigh(const Few& few, int row, int keys) {
    const Dot& of = few.job->of;
    float *p = few.p + row * few_block, *ds = few.ds + row * few_block;
    for (int j = 0; j < keys; j += lanes) {
        const vec s = load(p + j);
        const ivec gone = s == splat(-infinity);
        const vec weight = exponential(s - few.base[row]) * few.share[row];
        vec grad = weight * (load(ds + j) * of.scale - few.delta[row]);
        if (of.softcap > 0) grad = grad * load(few.slope + row * few_block + j);
        store(p + j, gone ? vec{} : weight);
        store(ds + j, gone ? vec{} : grad);  // selected: dP may be anything where a key is masked out
    }
}

// The slope is that of the capped scores, before a mask adds anything.
void cap_and_slope(const Few& few, int keys) {
    const float softcap = few.job->of.softcap;
    cap(few.p, few_block, few.rows, keys, softcap);
    for (int r = 0; r < few.rows; ++r)
        for (int j = 0; j < keys; j += lanes) {
            const vec bent = load(few.p + r * few_block + j) * (1.0f / softcap);
            store(few.slope + r * few_block + j, 1.0f - bent * bent);
        }
}

// Rows j of (R, few_block)ᵀ · (R, width), each written once; returns 0 in every lane in which all were finite, else NaN.
template <int R, Number G>
vec spread(const float* by, int keys, const float* x, int width, typename Kind<G>::Element* to, ptrdiff_t row) {
    vec trace{};
    for (int j = 0; j < keys; ++j)
        for (int c = 0; c < width; c += lanes) {
            vec sum = splat(by[j]) * load(x + c);
#pragma GCC unroll 4
            for (int r = 1; r < R; ++r) sum += splat(by[r * few_block + j]) * load(x + r * width + c);
            trace += sum * 0.0f;
            Kind<G>::write(to + j * row + c, sum);
        }
    return trace;
}

// A block of keys of kind N, whose gradients are of kind G.
template <int R, Number N, Number G>
void meet(Few& few, int64_t first, int keys) {
    using Element = typename Kind<G>::Element;
    const DotBackward& job = *few.job;
    const Dot& of = job.of;
    meet_rows<R, N>(few.k, first, keys, int(of.width), few.scaled, few.width, few.p);
    meet_rows<R, N>(few.v, first, keys, int(of.value_width), few.grad, few.value_width, few.ds);
    const Place at{few.batch, few.head, 0, R};
    const Block block{0, R, first, keys};
    if (of.softcap > 0) cap_and_slope(few, keys);
    if (!inside(of, at, block)) mask_block(of, at, block, few.p, few_block);
    for (int r = 0; r < R; ++r) weigh(few, r, keys);
    spread<R, G>(few.p, keys, few.grad, few.value_width, job.dv.at<Element>(few.batch, few.head, first), job.dv.row);
    few.trace += spread<R, G>(few.ds, keys, few.q, few.width, job.dk.at<Element>(few.batch, few.head, first), job.dk.row);
    gather_rows<R, N>(few.k, first, keys, int(of.width), few.ds, few.dq, few.width);
}

Few make_few(const DotBackward& job, int64_t task, Scratch& scratch) {
    const Dot& of = job.of;
    const auto [batch, head, part, first, last] = Share(of, job.parts, task);
    const int rows = int(of.queries), width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    return {&job, batch, head, part, first, last, rows, width, value_width,
            source(of.k, of.number, batch, head / of.groups), source(of.v, of.number, batch, head / of.groups),
            scratch.take(rows * width), scratch.take(rows * width), scratch.take(rows * value_width),
            scratch.take(rows * width), scratch.take(rows * few_block), scratch.take(rows * few_block),
            scratch.take(rows * few_block), {}, {}, {}};
}

// Zeros in rows `first` … `last` − 1 of dK and dV.
void clear(const Few& few, int64_t first, int64_t last) {
    const DotBackward& job = *few.job;
    const Dot& of = job.of;
    const int64_t size = size_of(job.dk_number);
    for (int64_t row = first; row < last; ++row) {
        std::memset(job.dk.at(few.batch, few.head, row, job.dk_number), 0, padded(of.width) * size);
        std::memset(job.dv.at(few.batch, few.head, row, job.dk_number), 0, padded(of.value_width) * size);
    }
}

// All keys from `first` on, block by block.
template <Number N, Number G>
void meet_all(Few& few, const Columns& own) {
    by_fours(few.rows, [&](auto some, int) {
        for (int64_t first = own.first; first < own.last; first += few_block)
            meet<some(), N, G>(few, first, int(least(own.last - first, few_block)));
    });
}

}  // namespace

void dot_few_backward(const void* given, int64_t task, Scratch& scratch) {
    const DotBackward& job = *static_cast<const DotBackward*>(given);
    const Dot& of = job.of;
    Few few = make_few(job, task, scratch);
    take_queries(few);
    Columns own = columns_of(of, few.batch, 0, of.queries);
    own.first = least(most(own.first, few.first), few.last);
    own.last = most(own.first, least(own.last, few.last));
    clear(few, few.first, own.first);
    clear(few, own.last, few.last);
    by_number(of.number, [&](auto number) {
        constexpr Number wide = Number::float32;
        job.dk_number == wide ? meet_all<number(), wide>(few, own) : meet_all<number(), number()>(few, own);
    });
    by_number(job.dq_number, [&](auto number) {
        auto* dq = job.dq.at<typename Kind<number()>::Element>(few.batch, few.head, 0) + few.part * job.dq_part;
        write_rows<number()>(few.dq, few.width, few.rows, few.width, dq, job.dq.row);
    });
    const bool kept = sum(few.trace) == 0 && finite(few.dq, few.rows, int(of.width), few.width);
    if (of.mask.any && !kept) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
