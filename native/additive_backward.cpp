// Additive attention, backward: scores again, then the gradients of a block.
#include <cmath>
#include <cstring>

#include "additive_scores.hpp"
#include "gemm.hpp"
#include "kernels.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int row_strip = 32, grad_block = 128;

// What the gradients of one strip of queries against one block of keys need. Row strides are `width` for dq and dk.
struct Tile {
    const float *q, *k;
    ptrdiff_t q_row, k_row;
    const float* ds;  // of stride grad_block
    float *dq, *dk, *dw;
    int width;
    ptrdiff_t row;  // of dq and dk
};

// Σ ds·r·(1 − r) to dq and dk, Σ ds·r to dw; the factors 4w and −2 come at the end. 1 − r is x·r − r, x = 1/r: written so,
// it is as exact near 0, where tanh is −1, as r is near 0. QUERIES × KEYS pairs share a reciprocal; there are QUERIES
// queries and `keys` keys, a multiple of KEYS.
template <bool CLAMP, int QUERIES, int KEYS>
__attribute__((noinline)) void spread(const Tile at, int keys) {
    for (int c = 0; c < at.width; c += lanes) {
        vec q[QUERIES], dq[QUERIES], dw[QUERIES];
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            q[i] = load(at.q + i * at.q_row + c);
            dq[i] = load(at.dq + i * at.row + c);
            dw[i] = i ? vec{} : load(at.dw + c);
        }
        for (int j = 0; j < keys; j += KEYS) {
            vec x[QUERIES * KEYS], r[QUERIES * KEYS], dk[KEYS];
#pragma GCC unroll 4
            for (int n = 0; n < KEYS; ++n) {
                const vec k = load(at.k + (j + n) * at.k_row + c);
                dk[n] = load(at.dk + (j + n) * at.row + c);
#pragma GCC unroll 4
                for (int i = 0; i < QUERIES; ++i) x[n * QUERIES + i] = denominator<CLAMP>(q[i], k);
            }
            invert(x, r);
#pragma GCC unroll 4
            for (int n = 0; n < KEYS; ++n) {
#pragma GCC unroll 4
                for (int i = 0; i < QUERIES; ++i) {
                    const vec y = r[n * QUERIES + i], slope = y * (x[n * QUERIES + i] * y - y);
                    const vec ds = splat(at.ds[i * grad_block + j + n]);
                    dq[i] += ds * slope;
                    dk[n] += ds * slope;
                    dw[i] += ds * y;
                }
                store(at.dk + (j + n) * at.row + c, dk[n]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            store(at.dq + i * at.row + c, dq[i]);
            if (i) dw[0] += dw[i];
        }
        store(at.dw + c, dw[0]);
    }
}

// Fewer than four queries share their reciprocals among keys.
template <bool CLAMP>
void spread_some(Tile at, int queries, int keys) {
    if (queries == 4) return spread<CLAMP, 4, 1>(at, keys);
    if (queries == 3) return spread<CLAMP, 3, 1>(at, keys);
    const int group = queries == 2 ? 2 : 4, whole = keys / group * group;
    if (whole) queries == 2 ? spread<CLAMP, 2, 2>(at, whole) : spread<CLAMP, 1, 4>(at, whole);
    at.k += whole * at.k_row;
    at.dk += whole * at.row;
    at.ds += whole;
    if (keys > whole) queries == 2 ? spread<CLAMP, 2, 1>(at, keys - whole) : spread<CLAMP, 1, 1>(at, keys - whole);
}

constexpr int keys_at_once = 16;

// The gradients of a strip, tile by tile, without the tiles that no pair may attend in.
void spread_strip(const Additive& job, const Place& at, const Block& block, const Tile& whole) {
    for (int n = 0; n < block.cols; n += keys_at_once) {
        const int keys = int(least(block.cols - n, keys_at_once));
        for (int m = 0; m < block.rows; m += 4) {
            const int queries = int(least(block.rows - m, 4));
            if (outside(job.of, at, {block.row + m, queries, block.col + n, keys})) continue;
            Tile part = whole;
            part.q += m * whole.q_row;
            part.dq += m * whole.row;
            part.k += n * whole.k_row;
            part.dk += n * whole.row;
            part.ds += m * grad_block + n;
            job.clamp ? spread_some<true>(part, queries, keys) : spread_some<false>(part, queries, keys);
        }
    }
}

// Scores → weights p, and dp = grad · value → ds; returns Σ ds. `capped` holds the scores before the mask. Without a `delta` the block
// holds all keys of its rows, whose own Σ p·dp / Σ p is then the better one: it shares their roundings, so that Σ ds is 0.
float differentiate(const float* delta, const float* lse, float softcap, int rows, int cols, float* s, float* dp,
                   const float* capped) {
    const int whole = round_up(cols);
    vec all{};
    for (int i = 0; i < rows; ++i) {
        const float base = lse[i] == -infinity ? 0.0f : lse[i];
        vec total{}, met{};
        for (int j = 0; j < whole; j += lanes) {
            const int at = i * grad_block + j;
            const vec x = load(s + at);
            const ivec none = x == splat(-infinity);
            const vec p = none ? vec{} : exponential(x - base);
            const vec change = none ? vec{} : load(dp + at);  // a masked value may be ∞ or NaN
            total += p;
            met += p * change;
            store(s + at, p);
            store(dp + at, change);
        }
        const float mean = delta ? delta[i] : lse[i] == -infinity ? 0.0f : sum(met) / sum(total);
        for (int j = 0; j < whole; j += lanes) {
            const int at = i * grad_block + j;
            vec ds = load(s + at) * (load(dp + at) - mean);
            if (softcap > 0) {
                const vec t = load(capped + at) * (1.0f / softcap);
                ds = load(s + at) == vec{} ? vec{} : ds * (1.0f - t * t);
            }
            all += ds;
            store(dp + at, ds);
        }
    }
    return sum(all);
}

// delta_i = grad_i · context_i = Σ_j p_ij · dp_ij.
void deltas(Rectangle grad, const float* context, ptrdiff_t row, int rows, int width, float* delta) {
    for (int i = 0; i < rows; ++i) {
        vec total{};
        for (int c = 0; c < width; c += lanes) {
            const float* o = context + i * row + c;
            total += load(grad.data + i * grad.row + c) * (c + lanes <= width ? load(o) : load_some(o, width - c));
        }
        delta[i] = sum(total);
    }
}

void scale(float* x, ptrdiff_t row, int64_t rows, int width, const float* times, float factor) {
    for (int64_t i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes)
            store(x + i * row + c, load(x + i * row + c) * (load(times + c) * factor));
}

void add(float* to, const float* x, int width) {
    for (int c = 0; c < width; c += lanes) store(to + c, load(to + c) + load(x + c));
}

}  // namespace

void additive_backward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveBackward& job = *static_cast<const AdditiveBackward*>(given);
    const Dot& of = job.of.of;
    const int64_t entry = task / job.parts, part = task % job.parts, row = padded(of.width);
    const Place at{entry / of.heads, entry % of.heads, 0, int(of.queries)};
    const int width = round_up(int(of.width)), values = int(of.value_width), value_width = round_up(values);
    const Head head = head_of(job.of, at);
    float* s = scratch.take(row_strip * grad_block);
    float* dp = scratch.take(row_strip * grad_block);
    float* capped = scratch.take(row_strip * grad_block);
    float* vt = scratch.take(values * grad_block);
    float* dv = scratch.take(grad_block * value_width);
    float* grad_room = scratch.take(row_strip * value_width);
    float* delta = scratch.take(row_strip);
    float* dw_strip = scratch.take(width);  // dw is a sum over all pairs: added up in three levels, it keeps its digits
    float* dw_block = scratch.take(width);
    const float* lse = job.lse + entry * of.queries;
    const float* grad = job.grad.data + at.batch * job.grad.batch + at.head * job.grad.head;
    const float* context = job.context.data + at.batch * job.context.batch + at.head * job.context.head;
    float* dq = job.dq + task * of.queries * row;
    float* dk = job.dk + entry * of.keys * row;
    float* dw = job.dw + task * row;
    std::memset(dq, 0, sizeof(float) * of.queries * row);
    std::memset(dw, 0, sizeof(float) * row);
    const int64_t share = (of.keys + job.parts - 1) / job.parts;
    const int64_t start = least(part * share, of.keys), stop = least(start + share, of.keys);
    const bool alone = stop - start == of.keys && of.keys <= grad_block;
    std::memset(dk + start * row, 0, sizeof(float) * (stop - start) * row);
    float total = 0;
    for (int64_t first = start; first < stop; first += grad_block) {
        const int cols = int(least(stop - first, grad_block));
        pack_transposed(head.v + first * head.v_row, head.v_row, cols, values, vt, grad_block);
        std::memset(dv, 0, sizeof(float) * cols * value_width);
        std::memset(dw_block, 0, sizeof(float) * width);
        for (int64_t m = 0; m < of.queries; m += row_strip) {
            const Block block{m, int(least(of.queries - m, row_strip)), first, cols};
            if (outside(of, at, block)) continue;
            const Rectangle g = rectangle(grad + m * job.grad.row, job.grad.row, block.rows, values, grad_room);
            if (!alone) deltas(g, context + m * job.context.row, job.context.row, block.rows, values, delta);
            score(job.of, at, block, s, grad_block);
            if (of.softcap > 0) {
                cap(s, grad_block, block.rows, cols, of.softcap);
                std::memcpy(capped, s, sizeof(float) * row_strip * grad_block);
            }
            if (!inside(of, at, block)) mask_block(of, at, block, s, grad_block);
            for (int i = 0; i < block.rows; ++i)
                for (int j = cols; j < round_up(cols); ++j) s[i * grad_block + j] = -infinity;
            product<false>(block.rows, cols, values, {g.data, g.row, 1}, vt, grad_block, dp, grad_block);
            total += differentiate(alone ? nullptr : delta, lse + m, of.softcap, block.rows, cols, s, dp, capped);
            product<true>(cols, value_width, block.rows, {s, 1, grad_block}, g.data, g.row, dv, value_width);
            std::memset(dw_strip, 0, sizeof(float) * width);
            spread_strip(job.of, at, block,
                         {head.q + m * head.q_row, head.k + first * head.k_row, head.q_row, head.k_row, dp, dq + m * row,
                          dk + first * row, dw_strip, width, row});
            add(dw_block, dw_strip, width);
        }
        add(dw, dw_block, width);
        for (int j = 0; j < cols; ++j)
            std::memcpy(job.dv + (entry * of.keys + first + j) * values, dv + j * value_width, sizeof(float) * values);
    }
    // `times` is −2w, over the cap; ds is not yet over it: 4w = −2 · cap · times, and dw has no such factor.
    const float factor = of.softcap > 0 ? -2.0f * of.softcap : -2.0f;
    scale(dq, row, of.queries, width, head.times, factor);
    scale(dk + start * row, row, stop - start, width, head.times, factor);
    for (int c = 0; c < width; c += lanes) store(dw + c, total - 2.0f * load(dw + c));
}

size_t additive_backward_room(const void* given, int64_t) {
    const Dot& of = static_cast<const AdditiveBackward*>(given)->of.of;
    const size_t width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    return 3 * row_strip * grad_block + of.value_width * grad_block + grad_block * value_width +
           row_strip * value_width + row_strip + 2 * width + 12 * 32;
}

}  // namespace regard::REGARD_ISA
