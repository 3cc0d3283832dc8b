// Scaled dot products: backward.
//
//     for blocks of keys:                                            one task: all of one head
//         Kt, Vt = the block's keys and values, transposed
//         for blocks of queries that may attend to them:
//             S  = Q · Kt,  P = e^(S − lse)                           scores once more, weights as they were
//             dP = dO · Vt,  dS = P · (dP − δ)                        δ = Σ dO · O, row by row
//             dV += Pᵀ · dO,  dK += dSᵀ · Q,  dQ += dS · K
//
// P and dS are read transposed where they are the left factor: `product` broadcasts it, so that costs nothing.
#include <cstring>

#include "gemm.hpp"
#include "kernels.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 64, query_block = 96;

// What one head works with; widths are padded to whole vectors.
struct Head {
    const Dot* of;
    int64_t batch, head;
    int width, value_width;
    float *kt, *vt, *p, *ds, *dk, *dv, *q, *grad, *k;  // blocks
    float *delta, *base;                                // (query_block)
    float* dq;                                          // (Tq, width)
};

// Weights from scores, dS from dP, in place: p holds S, ds holds dP.
template <bool MASKED>
void weigh(const Head& head, int rows, int cols) {
    const int whole = round_up(cols);
    const float softcap = head.of->softcap;
    for (int i = 0; i < rows; ++i) {
        float *p = head.p + i * key_block, *ds = head.ds + i * key_block;
        const vec base = splat(head.base[i]), delta = splat(head.delta[i]);
        for (int j = 0; j < whole; j += lanes) {
            const vec s = load(p + j);
            vec weight = exponential(s - base);
            vec grad = weight * (load(ds + j) - delta);
            if (softcap > 0) grad = grad * (1.0f - s * s / (softcap * softcap));  // d cap·tanh(x) = 1 − tanh²
            if (MASKED) {
                const ivec gone = s == splat(-infinity);
                weight = gone ? vec{} : weight;
                grad = gone ? vec{} : grad;  // selected: dP may be anything where a key is masked out
            }
            store(p + j, weight);
            store(ds + j, grad);
        }
        for (int j = cols; j < whole; ++j) p[j] = ds[j] = 0;
    }
}

// Queries and the gradient of their context, with δ and the log-sum-exp to subtract.
void take_queries(const DotBackward& job, const Head& head, int64_t row, int rows) {
    const Dot& of = job.of;
    const float scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
    pack_rows(of.q.data + head.batch * of.q.batch + head.head * of.q.head + row * of.q.row, of.q.row, rows, int(of.width),
              head.q, head.width, scale);
    const float* grad = job.grad.data + head.batch * job.grad.batch + head.head * job.grad.head + row * job.grad.row;
    pack_rows(grad, job.grad.row, rows, int(of.value_width), head.grad, head.value_width, 1.0f);
    const float* lse = job.lse + (head.batch * of.heads + head.head) * of.queries + row;
    const float* context = job.context.data + head.batch * job.context.batch + head.head * job.context.head +
                           row * job.context.row;
    for (int i = 0; i < rows; ++i) {
        vec sums{};
        int c = 0;
        for (; c + lanes <= of.value_width; c += lanes)
            sums += load(head.grad + i * head.value_width + c) * load(context + i * job.context.row + c);
        float delta = sum(sums);
        for (; c < of.value_width; ++c) delta += head.grad[i * head.value_width + c] * context[i * job.context.row + c];
        head.delta[i] = delta;
        head.base[i] = lse[i] == -infinity ? 0.0f : lse[i];
    }
}

void block_backward(const Head& head, const Place& at, const Block& block) {
    const Dot& of = *head.of;
    const int rows = block.rows, cols = block.cols;
    product<false>(rows, cols, head.width, {head.q, head.width, 1}, head.kt, key_block, head.p, key_block);
    product<false>(rows, cols, head.value_width, {head.grad, head.value_width, 1}, head.vt, key_block, head.ds, key_block);
    if (of.softcap > 0) cap(head.p, key_block, rows, cols, of.softcap);
    if (inside(of, at, block)) {
        weigh<false>(head, rows, cols);
    } else {
        mask_block(of, at, block, head.p, key_block);
        weigh<true>(head, rows, cols);
    }
    product<true>(cols, head.value_width, rows, {head.p, 1, key_block}, head.grad, head.value_width, head.dv,
                  head.value_width);
    product<true>(cols, head.width, rows, {head.ds, 1, key_block}, head.q, head.width, head.dk, head.width);
    product<true>(rows, head.width, cols, {head.ds, key_block, 1}, head.k, head.width,
                  head.dq + block.row * head.width, head.width);
}

size_t head_room(const Dot& of) {
    const size_t width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    return (width + value_width) * key_block * 2 + width * key_block + 2 * query_block * key_block +
           query_block * (width + value_width + 2) + of.queries * width + 16 * 32;
}

Head make_head(const Dot& of, int64_t task, Scratch& scratch) {
    Head head{};
    head.of = &of;
    head.batch = task / of.heads;
    head.head = task % of.heads;
    head.width = round_up(int(of.width));
    head.value_width = round_up(int(of.value_width));
    head.kt = scratch.take(head.width * key_block);
    head.vt = scratch.take(head.value_width * key_block);
    head.dk = scratch.take(head.width * key_block);
    head.dv = scratch.take(head.value_width * key_block);
    head.k = scratch.take(head.width * key_block);
    head.p = scratch.take(query_block * key_block);
    head.ds = scratch.take(query_block * key_block);
    head.q = scratch.take(query_block * head.width);
    head.grad = scratch.take(query_block * head.value_width);
    head.delta = scratch.take(query_block);
    head.base = scratch.take(query_block);
    head.dq = scratch.take(of.queries * head.width);
    std::memset(head.kt, 0, sizeof(float) * head.width * key_block);
    std::memset(head.vt, 0, sizeof(float) * head.value_width * key_block);
    std::memset(head.dq, 0, sizeof(float) * of.queries * head.width);
    return head;
}

}  // namespace

void dot_backward(const void* given, int64_t task, Scratch& scratch) {
    const DotBackward& job = *static_cast<const DotBackward*>(given);
    const Dot& of = job.of;
    const Head head = make_head(of, task, scratch);
    const int64_t shared = head.head / of.groups;
    const float* k = of.k.data + head.batch * of.k.batch + shared * of.k.head;
    const float* v = of.v.data + head.batch * of.v.batch + shared * of.v.head;
    float* dk = job.dk + task * of.keys * of.width;
    float* dv = job.dv + task * of.keys * of.value_width;
    // q was packed times its scale, softcap's division included: dK takes the factor from there, dQ at the end
    const float scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
    const float again = of.softcap > 0 ? of.softcap : 1.0f;
    bool finite = true;
    for (int64_t first = 0; first < of.keys; first += key_block) {
        const int cols = int(least(of.keys - first, key_block));
        pack_transposed(k + first * of.k.row, of.k.row, cols, int(of.width), head.kt, key_block);
        pack_transposed(v + first * of.v.row, of.v.row, cols, int(of.value_width), head.vt, key_block);
        pack_rows(k + first * of.k.row, of.k.row, cols, int(of.width), head.k, head.width, 1.0f);
        std::memset(head.dk, 0, sizeof(float) * cols * head.width);
        std::memset(head.dv, 0, sizeof(float) * cols * head.value_width);
        for (int64_t row = 0; row < of.queries; row += query_block) {
            const Place at{head.batch, head.head, row, int(least(of.queries - row, query_block))};
            const Block block{row, at.rows, first, cols};
            if (outside(of, at, block)) continue;
            take_queries(job, head, row, at.rows);
            block_backward(head, at, block);
        }
        finite &= unpack_rows(head.dk, head.width, cols, int(of.width), dk + first * of.width, again);
        finite &= unpack_rows(head.dv, head.value_width, cols, int(of.value_width), dv + first * of.value_width, 1.0f);
    }
    float* dq = job.dq + task * of.queries * of.width;
    finite &= unpack_rows(head.dq, head.width, int(of.queries), int(of.width), dq, scale * again);
    if (!finite) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

size_t dot_backward_room(const void* given, int64_t) { return head_room(static_cast<const DotBackward*>(given)->of); }

}  // namespace regard::REGARD_ISA
