// Additive attention, backward: scores again, where the forward pass did not keep them, then the gradients of a block.
//
// Operations per pair and channel: 1 denominator, 3.5 for its share of a reciprocal, 1 for the slope r·(1 − r), 3 for dq, dk
// and dw: 8.5.
#include <cstring>

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int row_strip = 32, grad_block = 128, queries_at_once = 4, keys_at_once = 24, few = 4;

// 1 / x for N vectors, N ≤ 4, by one reciprocal.
template <int N>
REGARD_INLINE void invert(const vec (&x)[N], vec (&r)[N]) {
    if constexpr (N == 1) {
        r[0] = reciprocal(x[0]);
    } else if constexpr (N == 2) {
        const vec y = reciprocal(x[0] * x[1]);
        r[0] = x[1] * y;
        r[1] = x[0] * y;
    } else if constexpr (N == 3) {
        const vec low = x[0] * x[1], y = reciprocal(low * x[2]), of_low = y * x[2];
        r[0] = x[1] * of_low;
        r[1] = x[0] * of_low;
        r[2] = low * y;
    } else {
        const vec low = x[0] * x[1], high = x[2] * x[3], y = reciprocal(low * high);
        const vec of_low = high * y, of_high = low * y;
        r[0] = x[1] * of_low;
        r[1] = x[0] * of_low;
        r[2] = x[3] * of_high;
        r[3] = x[2] * of_high;
    }
}

// Some queries and keys, the gradients of their scores, and where their own go.
struct Pairs {
    const float *q, *k;
    ptrdiff_t q_row, k_row;
    const float* ds;  // of stride grad_block
    float *dq, *dk, *dw;
    int width;
    ptrdiff_t row;  // of dq and dk
};

// Σ ds·r·(1 − r) to dq and dk, Σ ds·r to dw; the factors 4w and −2 come at the end. QUERIES × KEYS pairs share a
// reciprocal; there are QUERIES queries and `keys` keys, a multiple of KEYS.
template <bool CLAMP, int QUERIES, int KEYS>
__attribute__((noinline)) void spread(const Pairs at, int keys) {
    for (int c = 0; c < at.width; c += lanes) {
        vec q[QUERIES], dq[QUERIES], dw[QUERIES] = {};
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            q[i] = load(at.q + i * at.q_row + c);
            dq[i] = load(at.dq + i * at.row + c);
        }
        for (int j = 0; j < keys; j += KEYS) {
            vec x[QUERIES * KEYS], r[QUERIES * KEYS];
#pragma GCC unroll 4
            for (int n = 0; n < KEYS * QUERIES; ++n)
                x[n] = denominator<CLAMP>(q[n % QUERIES], load(at.k + (j + n / QUERIES) * at.k_row + c));
            invert(x, r);
#pragma GCC unroll 4
            for (int n = 0; n < KEYS; ++n) {
                vec dk = load(at.dk + (j + n) * at.row + c);
#pragma GCC unroll 4
                for (int i = 0; i < QUERIES; ++i) {
                    const vec y = r[n * QUERIES + i], ds = splat(at.ds[i * grad_block + j + n]);
                    dw[i] += ds * y;
                    const vec slope = y - y * y;
                    dq[i] += ds * slope;
                    dk += ds * slope;
                }
                store(at.dk + (j + n) * at.row + c, dk);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            store(at.dq + i * at.row + c, dq[i]);
            if (i) dw[0] += dw[i];
        }
        store(at.dw + c, load(at.dw + c) + dw[0]);  // one rounding per tile and not per pair
    }
}

// Fewer than four queries share their reciprocals among keys.
template <bool CLAMP>
void spread_some(Pairs at, int queries, int keys) {
    if (queries == 4) return spread<CLAMP, 4, 1>(at, keys);
    if (queries == 3) return spread<CLAMP, 3, 1>(at, keys);
    const int group = queries == 2 ? 2 : 4, whole = keys / group * group;
    if (whole) queries == 2 ? spread<CLAMP, 2, 2>(at, whole) : spread<CLAMP, 1, 4>(at, whole);
    at.k += whole * at.k_row;
    at.dk += whole * at.row;
    at.ds += whole;
    if (keys > whole) queries == 2 ? spread<CLAMP, 2, 1>(at, keys - whole) : spread<CLAMP, 1, 1>(at, keys - whole);
}

// Working memory and outputs of a task.
struct Walk {
    const AdditiveBackward& job;
    Place at;
    Head head;
    int64_t start, stop;  // keys
    const float *grad, *context, *highest, *totals;
    float *dq, *dk, *dv, *dw;
    const float* kept;  // scores of the forward pass, (Tq, Tk), or null
    float *s, *dp, *capped, *vt, *dv_block, *grad_room, *delta, *k_room;
    float *dw_strip, *dw_block;  // dw is a sum over all pairs: added up in three levels, it keeps its digits
    float total = 0;             // Σ ds
};

bool near(const Head& head, const Block& block) {
    float q = 0, k = 0;
    for (int i = 0; i < block.rows; ++i) q = head.largest_query(block.row + i) > q ? head.largest_query(block.row + i) : q;
    for (int j = 0; j < block.cols; ++j) k = head.largest_key(block.col + j) > k ? head.largest_key(block.col + j) : k;
    return q * k < ceiling;
}

// Scores → weights p in their place, and dp → ds; adds to Σ ds.
void differentiate(Walk& walk, const Block& block) {
    const float softcap = walk.job.of.of.softcap;
    vec all{};
    for (int i = 0; i < block.rows; ++i) {
        const float highest = walk.highest[block.row + i], sums = walk.totals[block.row + i];
        const float base = highest == -infinity ? 0.0f : highest, share = sums == 0 ? 0.0f : 1.0f / sums;
        for (int j = 0; j < block.cols; j += lanes) {
            const int at = i * grad_block + j;
            const vec x = load(walk.s + at), change = load(walk.dp + at);
            const ivec none = x == splat(-infinity);
            const vec p = none ? vec{} : exponential(x - base) * share;
            vec ds = p * (change - walk.delta[i]);
            if (softcap > 0) {
                const vec t = load(walk.capped + at) * (1.0f / softcap);
                ds *= 1.0f - t * t;
            }
            ds = none ? vec{} : ds;  // a masked value may be ∞ or NaN
            all += ds;
            store(walk.s + at, p);
            store(walk.dp + at, ds);
        }
    }
    walk.total += sum(all);
}

// The scores of a block, capped and masked: those that the forward pass kept, or computed as it computes them. Bit for
// bit the same ones: Σ ds of a row is 0 only if delta comes of the weights that it is subtracted from.
void find_scores(Walk& walk, const Block& block) {
    const Dot& of = walk.job.of.of;
    if (walk.kept)
        for (int i = 0; i < block.rows; ++i)
            std::memcpy(walk.s + i * grad_block, walk.kept + (block.row + i) * of.keys + block.col, sizeof(float) * block.cols);
    else
        score(walk.head, of, walk.at, block, walk.s, grad_block);
    if (of.softcap > 0) {
        cap(walk.s, grad_block, block.rows, block.cols, of.softcap);
        std::memcpy(walk.capped, walk.s, sizeof(float) * row_strip * grad_block);
    }
    if (!inside(of, walk.at, block)) mask_block(of, walk.at, block, walk.s, grad_block);
    for (int i = 0; i < block.rows; ++i)
        for (int j = block.cols; j < round_up(block.cols); ++j) walk.s[i * grad_block + j] = -infinity;
}

// The gradients of a strip, tile by tile, without the tiles that no pair may attend in.
void spread_strip(const Walk& walk, const Block& block) {
    const Head& head = walk.head;
    const ptrdiff_t row = padded(walk.job.of.of.width);
    const int tiles = (block.cols + keys_at_once - 1) / keys_at_once, step = (block.cols + tiles - 1) / tiles;  // even ones
    for (int n = 0; n < block.cols; n += step) {
        for (int m = 0; m < block.rows; m += queries_at_once) {
            const Block part{block.row + m, int(least(block.rows - m, queries_at_once)), block.col + n,
                             int(least(block.cols - n, step))};
            if (outside(walk.job.of.of, walk.at, part)) continue;
            const Pairs tile{head.q + part.row * head.q_row, head.k + part.col * head.k_row, head.q_row, head.k_row,
                            walk.dp + m * grad_block + n, walk.dq + part.row * row, walk.dk + part.col * row,
                            walk.dw_strip, head.width, row};
            near(head, part) ? spread_some<false>(tile, part.rows, part.cols) : spread_some<true>(tile, part.rows, part.cols);
        }
    }
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

// dp = grad · valueᵀ row by row, without a transposed copy of the values, which few queries do not repay.
void reread(const Walk& walk, Rectangle grad, int rows, int64_t first, int cols) {
    const int values = int(walk.job.of.of.value_width);
    for (int n = 0; n < cols; n += lanes) {
        for (int i = 0; i < rows; ++i) {
            vec total[lanes];
            for (int j = 0; j < lanes; ++j) {
                const float* v = walk.head.v + (first + n + j) * walk.head.v_row;
                total[j] = vec{};
                if (n + j >= cols) continue;
                int c = 0;
                for (; c + lanes <= values; c += lanes) total[j] += load(grad.data + i * grad.row + c) * load(v + c);
                if (c < values) total[j] += load(grad.data + i * grad.row + c) * load_some(v + c, values - c);
            }
            store(walk.dp + i * grad_block + n, sums_of(total));
        }
    }
}

void walk_strips(Walk& walk, int64_t first, int cols) {
    const AdditiveBackward& job = walk.job;
    const Dot& of = job.of.of;
    const int values = int(of.value_width), value_width = round_up(values);
    for (int64_t m = 0; m < of.queries; m += row_strip) {
        const Block block{m, int(least(of.queries - m, row_strip)), first, cols};
        if (outside(of, walk.at, block)) continue;
        const Rectangle g = rectangle(walk.grad + m * job.grad.row, job.grad.row, block.rows, values, walk.grad_room);
        deltas(g, walk.context + m * job.context.row, job.context.row, block.rows, values, walk.delta);
        if (of.queries <= few)
            reread(walk, g, block.rows, first, cols);
        else
            product<false>(block.rows, cols, values, {g.data, g.row, 1}, walk.vt, grad_block, walk.dp, grad_block);
        find_scores(walk, block);
        differentiate(walk, block);
        product<true>(cols, value_width, block.rows, {walk.s, 1, grad_block}, g.data, g.row, walk.dv_block, value_width);
        std::memset(walk.dw_strip, 0, sizeof(float) * walk.head.width);
        spread_strip(walk, block);
        add(walk.dw_block, walk.dw_strip, walk.head.width);
    }
}

void walk_blocks(Walk& walk) {
    const Dot& of = walk.job.of.of;
    const int values = int(of.value_width), value_width = round_up(values);
    for (int64_t first = walk.start; first < walk.stop; first += grad_block) {
        const int cols = int(least(walk.stop - first, grad_block));
        take_keys(walk.job.of, walk.at, first, cols, walk.head, walk.k_room);
        if (of.queries > few)
            pack_transposed(walk.head.v + first * walk.head.v_row, walk.head.v_row, cols, values, walk.vt, grad_block);
        if (values == value_width) walk.dv_block = walk.dv + first * values;  // straight to its place
        std::memset(walk.dv_block, 0, sizeof(float) * cols * value_width);
        std::memset(walk.dw_block, 0, sizeof(float) * walk.head.width);
        walk_strips(walk, first, cols);
        add(walk.dw, walk.dw_block, walk.head.width);
        for (int j = 0; j < cols && values < value_width; ++j)
            std::memcpy(walk.dv + (first + j) * values, walk.dv_block + j * value_width, sizeof(float) * values);
    }
}

}  // namespace

void additive_backward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveBackward& job = *static_cast<const AdditiveBackward*>(given);
    const Dot& of = job.of.of;
    const Share own(of, job.parts, task);
    const int64_t entry = task / job.parts, row = padded(of.width), start = own.first, stop = own.last;
    const Place at{own.batch, own.head, 0, int(of.queries)};
    Head head = head_of(job.of, at);
    take_queries(job.of, at, head, scratch.take(job.of.queries ? of.queries * query_row(of.width) : 0));
    const int width = head.width, values = int(of.value_width), value_width = round_up(values);
    Walk walk{.job = job, .at = at, .head = head, .start = start, .stop = stop,
              .grad = job.grad.at(at.batch, at.head), .context = job.context.at(at.batch, at.head),
              .highest = job.softmax.highest.at(at.batch, at.head), .totals = job.softmax.total.at(at.batch, at.head),
              .dq = job.dq + task * of.queries * row, .dk = job.dk + entry * of.keys * row,
              .dv = job.dv + entry * of.keys * values, .dw = job.dw + task * row,
              .kept = job.kept ? job.kept + entry * of.queries * of.keys : nullptr,
              .s = scratch.take(row_strip * grad_block), .dp = scratch.take(row_strip * grad_block),
              .capped = scratch.take(row_strip * grad_block), .vt = scratch.take(values * grad_block),
              .dv_block = scratch.take(grad_block * value_width), .grad_room = scratch.take(row_strip * value_width),
              .delta = scratch.take(row_strip), .k_room = scratch.take(job.of.keys ? grad_block * key_row(of.width) : 0),
              .dw_strip = scratch.take(width), .dw_block = scratch.take(width)};
    std::memset(walk.dq, 0, sizeof(float) * of.queries * row);
    std::memset(walk.dw, 0, sizeof(float) * row);
    std::memset(walk.dk + start * row, 0, sizeof(float) * (stop - start) * row);
    walk_blocks(walk);
    // `times` is −2w, over the cap; ds is not yet over it: 4w = −2 · cap · times, and dw has no such factor.
    const float factor = of.softcap > 0 ? -2.0f * of.softcap : -2.0f;
    scale(walk.dq, row, of.queries, width, head.times, factor);
    scale(walk.dk + start * row, row, stop - start, width, head.times, factor);
    for (int c = 0; c < width; c += lanes) store(walk.dw + c, walk.total - 2.0f * load(walk.dw + c));
}

}  // namespace regard::REGARD_ISA
