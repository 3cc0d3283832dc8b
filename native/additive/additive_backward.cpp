// Additive attention, backward: the scores of a block, saved by the forward pass or computed again, then its gradients.
//
// Operations per pair and channel: 1 for the denominator, 3.5 for a quarter of a reciprocal, 1 for the slope r·(1 − r), 3 for
// dq, dk and dw: 8.5 in total.
#include <cstring>

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int strip_rows = 32, key_block = 128, tile_queries = 4, max_tile_keys = 24, few_queries = 4;

// Computes 1 / x for N ≤ 4 vectors with one reciprocal.
template <int N>
REGARD_INLINE void invert(const vec (&x)[N], vec (&r)[N]) {
    if constexpr (N == 1) {
        r[0] = reciprocal(x[0]);
    } else if constexpr (N == 2) {
        const vec y = reciprocal(x[0] * x[1]);
        r[0] = x[1] * y;
        r[1] = x[0] * y;
    } else if constexpr (N == 3) {
        const vec low = x[0] * x[1], y = reciprocal(low * x[2]), inverse_low = y * x[2];
        r[0] = x[1] * inverse_low;
        r[1] = x[0] * inverse_low;
        r[2] = low * y;
    } else {
        const vec low = x[0] * x[1], high = x[2] * x[3], y = reciprocal(low * high);
        const vec inverse_low = high * y, inverse_high = low * y;
        r[0] = x[1] * inverse_low;
        r[1] = x[0] * inverse_low;
        r[2] = x[3] * inverse_high;
        r[3] = x[2] * inverse_high;
    }
}

// A tile of queries and keys, the gradients of their scores, and the outputs.
struct GradientTile {
    const float *q, *k;
    ptrdiff_t q_row, k_row;
    const float* ds;  // row stride key_block
    float *dq, *dk, *dw;
    int width;
    ptrdiff_t row;  // row stride of dq and dk
};

// Adds Σ ds·r·(1 − r) to dq and dk, and Σ ds·r to dw; the factors 4w and −2 are applied at the end. QUERIES × KEYS pairs share
// one reciprocal. The tile has QUERIES queries and `keys` keys, a multiple of KEYS.
template <bool CLAMP, int QUERIES, int KEYS>
__attribute__((noinline)) void gradient_microkernel(const GradientTile tile, int keys) {
    for (int c = 0; c < tile.width; c += lanes) {
        vec q[QUERIES], dq[QUERIES], dw[QUERIES] = {};
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            q[i] = load(tile.q + i * tile.q_row + c);
            dq[i] = load(tile.dq + i * tile.row + c);
        }
        for (int j = 0; j < keys; j += KEYS) {
            vec x[QUERIES * KEYS], r[QUERIES * KEYS];
#pragma GCC unroll 4
            for (int n = 0; n < KEYS * QUERIES; ++n)
                x[n] = denominator<CLAMP>(q[n % QUERIES], load(tile.k + (j + n / QUERIES) * tile.k_row + c));
            invert(x, r);
#pragma GCC unroll 4
            for (int n = 0; n < KEYS; ++n) {
                vec dk = load(tile.dk + (j + n) * tile.row + c);
#pragma GCC unroll 4
                for (int i = 0; i < QUERIES; ++i) {
                    const vec y = r[n * QUERIES + i], ds = splat(tile.ds[i * key_block + j + n]);
                    dw[i] += ds * y;
                    const vec slope = y - y * y;
                    dq[i] += ds * slope;
                    dk += ds * slope;
                }
                store(tile.dk + (j + n) * tile.row + c, dk);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) {
            store(tile.dq + i * tile.row + c, dq[i]);
            if (i) dw[0] += dw[i];
        }
        store(tile.dw + c, load(tile.dw + c) + dw[0]);  // one rounding per tile, not per pair
    }
}

// Computes a tile of any size. With one or two queries, several keys share a reciprocal.
template <bool CLAMP>
void accumulate_tile(GradientTile tile, int queries, int keys) {
    if (queries == 4) return gradient_microkernel<CLAMP, 4, 1>(tile, keys);
    if (queries == 3) return gradient_microkernel<CLAMP, 3, 1>(tile, keys);
    const int group = queries == 2 ? 2 : 4, full_keys = keys / group * group;
    if (full_keys) queries == 2 ? gradient_microkernel<CLAMP, 2, 2>(tile, full_keys) : gradient_microkernel<CLAMP, 1, 4>(tile, full_keys);
    tile.k += full_keys * tile.k_row;
    tile.dk += full_keys * tile.row;
    tile.ds += full_keys;
    if (keys > full_keys)
        queries == 2 ? gradient_microkernel<CLAMP, 2, 1>(tile, keys - full_keys)
                     : gradient_microkernel<CLAMP, 1, 1>(tile, keys - full_keys);
}

// Workspace and outputs of a task.
struct TaskState {
    const AdditiveBackward& job;
    QueryBlock query_block;
    Head head;
    int64_t start, stop;  // keys
    const float *grad, *context, *highest, *row_totals;
    float *dq, *dk, *dv, *dw;
    const float* saved_scores;  // scores of the forward pass, (Tq, Tk), or null
    float *s, *dp, *capped, *vt, *dv_block, *grad_buffer, *delta, *k_buffer;
    float *dw_strip, *dw_block;  // dw is a sum over all pairs: summing in three levels keeps it accurate
    float ds_total = 0;          // Σ ds
};

// Returns whether no product of exponentials in the block reaches the clamp limit.
bool needs_no_clamp(const Head& head, const Block& block) {
    float q = 0, k = 0;
    for (int i = 0; i < block.rows; ++i) q = head.largest_query(block.row + i) > q ? head.largest_query(block.row + i) : q;
    for (int j = 0; j < block.cols; ++j) k = head.largest_key(block.col + j) > k ? head.largest_key(block.col + j) : k;
    return q * k < clamp_limit;
}

// Replaces scores by weights p and dp by ds, and adds to Σ ds.
void differentiate(TaskState& state, const Block& block) {
    const float softcap = state.job.additive.dot.softcap;
    vec ds_sum{};
    for (int i = 0; i < block.rows; ++i) {
        const float highest = state.highest[block.row + i], total = state.row_totals[block.row + i];
        const float base = highest == -infinity ? 0.0f : highest, inverse_total = total == 0 ? 0.0f : 1.0f / total;
        for (int j = 0; j < block.cols; j += lanes) {
            const int index = i * key_block + j;
            const vec x = load(state.s + index), dp = load(state.dp + index);
            const ivec masked = x == splat(-infinity);
            const vec p = masked ? vec{} : exponential(x - base) * inverse_total;
            vec ds = p * (dp - state.delta[i]);
            if (softcap > 0) {
                const vec t = load(state.capped + index) * (1.0f / softcap);
                ds *= 1.0f - t * t;
            }
            ds = masked ? vec{} : ds;  // a masked value may be ∞ or NaN
            ds_sum += ds;
            store(state.s + index, p);
            store(state.dp + index, ds);
        }
    }
    state.ds_total += sum(ds_sum);
}

// Computes the scores of a block, capped and masked, or copies those that the forward pass saved. They must be bit-identical
// to those of the forward pass: Σ ds of a row is 0 only if delta was computed from the same weights.
void score_and_mask(TaskState& state, const Block& block) {
    const Dot& dot = state.job.additive.dot;
    if (state.saved_scores)
        for (int i = 0; i < block.rows; ++i)
            std::memcpy(state.s + i * key_block, state.saved_scores + (block.row + i) * dot.keys + block.col,
                        sizeof(float) * block.cols);
    else
        score_block(state.head, dot, state.query_block, block, state.s, key_block);
    if (dot.softcap > 0) {
        apply_softcap(state.s, key_block, block.rows, block.cols, dot.softcap);
        std::memcpy(state.capped, state.s, sizeof(float) * strip_rows * key_block);
    }
    if (!unmasked(dot, state.query_block, block)) mask_block(dot, state.query_block, block, state.s, key_block);
    for (int i = 0; i < block.rows; ++i)
        for (int j = block.cols; j < round_up(block.cols); ++j) state.s[i * key_block + j] = -infinity;
}

// Accumulates the gradients of a strip, tile by tile. Fully masked tiles are skipped.
void accumulate_strip_gradients(const TaskState& state, const Block& block) {
    const Head& head = state.head;
    const ptrdiff_t row_stride = padded(state.job.additive.dot.width);
    const int tiles = (block.cols + max_tile_keys - 1) / max_tile_keys,
              step = (block.cols + tiles - 1) / tiles;  // tiles of nearly equal size
    for (int n = 0; n < block.cols; n += step) {
        for (int m = 0; m < block.rows; m += tile_queries) {
            const Block tile_block{block.row + m, int(min(block.rows - m, tile_queries)), block.col + n,
                                   int(min(block.cols - n, step))};
            if (fully_masked(state.job.additive.dot, state.query_block, tile_block)) continue;
            const GradientTile tile{head.q + tile_block.row * head.q_row,
                                    head.k + tile_block.col * head.k_row,
                                    head.q_row,
                                    head.k_row,
                                    state.dp + m * key_block + n,
                                    state.dq + tile_block.row * row_stride,
                                    state.dk + tile_block.col * row_stride,
                                    state.dw_strip,
                                    head.width,
                                    row_stride};
            needs_no_clamp(head, tile_block) ? accumulate_tile<false>(tile, tile_block.rows, tile_block.cols)
                                             : accumulate_tile<true>(tile, tile_block.rows, tile_block.cols);
        }
    }
}

// delta_i = grad_i · context_i = Σ_j p_ij · dp_ij.
void compute_delta(MatrixView grad, const float* context, ptrdiff_t row, int rows, int width, float* delta) {
    for (int i = 0; i < rows; ++i) {
        vec total{};
        for (int c = 0; c < width; c += lanes) {
            const float* o = context + i * row + c;
            total += load(grad.data + i * grad.row + c) * (c + lanes <= width ? load(o) : load_partial(o, width - c));
        }
        delta[i] = sum(total);
    }
}

void scale(float* x, ptrdiff_t row, int64_t rows, int width, const float* weights, float factor) {
    for (int64_t i = 0; i < rows; ++i)
        for (int c = 0; c < width; c += lanes) store(x + i * row + c, load(x + i * row + c) * (load(weights + c) * factor));
}

void add(float* total, const float* x, int width) {
    for (int c = 0; c < width; c += lanes) store(total + c, load(total + c) + load(x + c));
}

// dp = grad · valueᵀ row by row. For few queries this is faster than transposing the values.
void weight_gradients_by_row(const TaskState& state, MatrixView grad, int rows, int64_t first, int cols) {
    const int value_width = int(state.job.additive.dot.value_width);
    for (int n = 0; n < cols; n += lanes) {
        for (int i = 0; i < rows; ++i) {
            vec total[lanes];
            for (int j = 0; j < lanes; ++j) {
                const float* v = state.head.v + (first + n + j) * state.head.v_row;
                total[j] = vec{};
                if (n + j >= cols) continue;
                int c = 0;
                for (; c + lanes <= value_width; c += lanes) total[j] += load(grad.data + i * grad.row + c) * load(v + c);
                if (c < value_width) total[j] += load(grad.data + i * grad.row + c) * load_partial(v + c, value_width - c);
            }
            store(state.dp + i * key_block + n, horizontal_sums(total));
        }
    }
}

void backward_key_block(TaskState& state, int64_t first, int cols) {
    const AdditiveBackward& job = state.job;
    const Dot& dot = job.additive.dot;
    const int value_width = int(dot.value_width), padded_value_width = round_up(value_width);
    for (int64_t m = 0; m < dot.queries; m += strip_rows) {
        const Block block{m, int(min(dot.queries - m, strip_rows)), first, cols};
        if (fully_masked(dot, state.query_block, block)) continue;
        const MatrixView g =
            readable_rows(state.grad + m * job.grad.row, job.grad.row, block.rows, value_width, state.grad_buffer);
        compute_delta(g, state.context + m * job.context.row, job.context.row, block.rows, value_width, state.delta);
        if (dot.queries <= few_queries)
            weight_gradients_by_row(state, g, block.rows, first, cols);
        else
            product<false>(block.rows, cols, value_width, {g.data, g.row, 1}, state.vt, key_block, state.dp, key_block);
        score_and_mask(state, block);
        differentiate(state, block);
        product<true>(cols, padded_value_width, block.rows, {state.s, 1, key_block}, g.data, g.row, state.dv_block,
                      padded_value_width);
        std::memset(state.dw_strip, 0, sizeof(float) * state.head.width);
        accumulate_strip_gradients(state, block);
        add(state.dw_block, state.dw_strip, state.head.width);
    }
}

void backward_task(TaskState& state) {
    const Dot& dot = state.job.additive.dot;
    const int value_width = int(dot.value_width), padded_value_width = round_up(value_width);
    for (int64_t first = state.start; first < state.stop; first += key_block) {
        const int cols = int(min(state.stop - first, key_block));
        load_keys(state.job.additive, state.query_block, first, cols, state.head, state.k_buffer);
        if (dot.queries > few_queries)
            pack_transposed(state.head.v + first * state.head.v_row, state.head.v_row, cols, value_width, state.vt, key_block);
        if (value_width == padded_value_width) state.dv_block = state.dv + first * value_width;  // accumulate in place
        std::memset(state.dv_block, 0, sizeof(float) * cols * padded_value_width);
        std::memset(state.dw_block, 0, sizeof(float) * state.head.width);
        backward_key_block(state, first, cols);
        add(state.dw, state.dw_block, state.head.width);
        for (int j = 0; j < cols && value_width < padded_value_width; ++j)
            std::memcpy(state.dv + (first + j) * value_width, state.dv_block + j * padded_value_width,
                        sizeof(float) * value_width);
    }
}

}  // namespace

void additive_backward(const void* arguments, int64_t task, Workspace& workspace) {
    const AdditiveBackward& job = *static_cast<const AdditiveBackward*>(arguments);
    const Dot& dot = job.additive.dot;
    const KeyPart part(dot, job.parts, task);
    const int64_t entry = task / job.parts, row = padded(dot.width), start = part.first, stop = part.last;
    const QueryBlock query_block{part.batch, part.head, 0, int(dot.queries)};
    Head head = head_of(job.additive, query_block);
    load_queries(job.additive, query_block, head,
                 workspace.allocate(job.additive.queries ? dot.queries * query_row(dot.width) : 0));
    const int width = head.width, value_width = int(dot.value_width), padded_value_width = round_up(value_width);
    TaskState state{.job = job,
                    .query_block = query_block,
                    .head = head,
                    .start = start,
                    .stop = stop,
                    .grad = job.grad.at(query_block.batch, query_block.head),
                    .context = job.context.at(query_block.batch, query_block.head),
                    .highest = job.softmax.highest.at(query_block.batch, query_block.head),
                    .row_totals = job.softmax.total.at(query_block.batch, query_block.head),
                    .dq = job.dq + task * dot.queries * row,
                    .dk = job.dk + entry * dot.keys * row,
                    .dv = job.dv + entry * dot.keys * value_width,
                    .dw = job.dw + task * row,
                    .saved_scores = job.saved_scores ? job.saved_scores + entry * dot.queries * dot.keys : nullptr,
                    .s = workspace.allocate(strip_rows * key_block),
                    .dp = workspace.allocate(strip_rows * key_block),
                    .capped = workspace.allocate(strip_rows * key_block),
                    .vt = workspace.allocate(value_width * key_block),
                    .dv_block = workspace.allocate(key_block * padded_value_width),
                    .grad_buffer = workspace.allocate(strip_rows * padded_value_width),
                    .delta = workspace.allocate(strip_rows),
                    .k_buffer = workspace.allocate(job.additive.keys ? key_block * key_row(dot.width) : 0),
                    .dw_strip = workspace.allocate(width),
                    .dw_block = workspace.allocate(width)};
    std::memset(state.dq, 0, sizeof(float) * dot.queries * row);
    std::memset(state.dw, 0, sizeof(float) * row);
    std::memset(state.dk + start * row, 0, sizeof(float) * (stop - start) * row);
    backward_task(state);
    // `scaled_w` is −2w / softcap, and ds is not yet divided by softcap: 4w = −2 · softcap · scaled_w. dw has no such factor.
    const float factor = dot.softcap > 0 ? -2.0f * dot.softcap : -2.0f;
    scale(state.dq, row, dot.queries, width, head.scaled_w, factor);
    scale(state.dk + start * row, row, stop - start, width, head.scaled_w, factor);
    for (int c = 0; c < width; c += lanes) store(state.dw + c, state.ds_total - 2.0f * load(state.dw + c));
}

}  // namespace regard::REGARD_ISA
