// Additive scores: exponentials, forward and backward.
//
// Lanes are channels. A row of exponentials is read as it lies, so nothing is transposed; a key block of any length and a
// single query waste no lane; gradients are added up where they belong. Only a score needs a sum over lanes, and `lanes`
// of them take it together.
//
// Four reciprocals for one. A hardware estimate and its Newton step cost as much as three multiplications or more, so
// four denominators a, b, c, d share one: w1/a + w2/b + w3/c + w4/d over the common denominator a·b·c·d. That needs
// a·b·c·d < 2^126, where the estimate is still a normal number: each is at most 1 + 2^31, because e^{2q} and e^{2k} are
// both below 2^15.5, or, when some are not, because a is clamped to 2^30 (CLAMP; tanh is then wrong by 2^-29).
//
// Error of a term w·tanh(q + k), with ε = 2^-24:
//   e^{2q} and e^{2k} are each within 1.5ε, so E = e^{2q}·e^{2k} is within 3ε, which moves r = 1/(1 + E) by at most
//   r·(1 − r)·3ε < ε. The arithmetic after it only adds, multiplies and inverts positive denominators: a summand w1·b·c·d of
//   the numerator over a·b·c·d is w1/a within the roundings of a (1), of its products and sums in the numerator (5), of the
//   common denominator (3), of the Newton step and the last product (3), and the reciprocal's own 2.25ε.
//   So |error| ≤ 2·|w|·(ε + 14.25ε·r) < 31ε·|w| = 1.9e-6·|w| at worst; contexts are measured at 1.0 to 1.6 times the error
//   of PyTorch's own float32. |x| ≤ 43 keeps every e^{2x} a normal number: a product that overflows is clamped, one that
//   underflows leaves a = 1, and ∞·0 cannot occur. Beyond 43 the caller is told (`beyond`), as for NaN.
#include <cmath>
#include <cstring>

#include "additive.hpp"
#include "gemm.hpp"
#include "kernels.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr float ceiling = 1073741824.0f;      // 2^30
constexpr float most_weight = 268435456.0f;   // 2^28: w·b·c·d, and the sum of four such, stays finite
constexpr float large_exponential = 46340.0f;  // just below 2^15.5

template <bool CLAMP>
REGARD_INLINE vec denominator(vec q, vec k) {
    const vec a = q * k + 1.0f;
    return CLAMP ? minimum(splat(ceiling), a) : a;  // in this order NaN passes
}

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

// `lanes` vectors → the vector of their sums: each round halves the vectors by adding halves of two, side by side.
REGARD_INLINE vec sums(vec (&x)[lanes]) {
#pragma GCC unroll 4
    for (int half = lanes / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            x[i] = __builtin_shufflevector(x[i], x[i + half], REGARD_LOW) + __builtin_shufflevector(x[i], x[i + half], REGARD_HIGH);
    return x[0];
}

// total[j] = Σ_c w_c · r_jc lane by lane, for one query and KEYS keys. `width` is whole vectors.
template <bool CLAMP, int KEYS>
REGARD_INLINE void meet(const float* q, const float* k, ptrdiff_t row, const float* w, int width, vec* total) {
    vec sum[KEYS] = {};
    int c = 0;
    for (; c + 4 * lanes <= width; c += 4 * lanes) {
        const vec q0 = load(q + c), q1 = load(q + c + lanes), q2 = load(q + c + 2 * lanes), q3 = load(q + c + 3 * lanes);
        const vec w0 = load(w + c), w1 = load(w + c + lanes), w2 = load(w + c + 2 * lanes), w3 = load(w + c + 3 * lanes);
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; ++j) {
            const float* key = k + j * row + c;
            const vec x0 = denominator<CLAMP>(q0, load(key)), x1 = denominator<CLAMP>(q1, load(key + lanes));
            const vec x2 = denominator<CLAMP>(q2, load(key + 2 * lanes)), x3 = denominator<CLAMP>(q3, load(key + 3 * lanes));
            const vec low = x0 * x1, high = x2 * x3;
            const vec above = (w0 * x1 + w1 * x0) * high + (w2 * x3 + w3 * x2) * low;
            sum[j] += above * reciprocal(low * high);
        }
    }
    for (; c < width; c += lanes) {
        const vec q0 = load(q + c), w0 = load(w + c);
#pragma GCC unroll 4
        for (int j = 0; j < KEYS; ++j) sum[j] += w0 * reciprocal(denominator<CLAMP>(q0, load(k + j * row + c)));
    }
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) total[j] = sum[j];
}

// The channel weights as scores use them: scores = base + Σ_c times_c · r_c.
struct Weights {
    float base;
    float* times;  // (padded width)
};

// One head's queries and keys.
struct Head {
    const float *q, *k, *v;
    ptrdiff_t q_row, k_row, v_row;
    int width;  // whole vectors
    Weights weights;
};

Head head_of(const Additive& job, const Place& at, float* room, int32_t* beyond) {
    const Dot& of = job.of;
    const int64_t shared = at.head / of.groups;
    const float* w = job.w.data + at.batch * job.w.batch + at.head * job.w.head;
    const int width = round_up(int(of.width));
    const float share = of.softcap > 0 ? 1.0f / of.softcap : 1.0f;
    vec base{}, size{};
    for (int c = 0; c < width; c += lanes) {
        const int some = int(of.width) - c < lanes ? int(of.width) - c : lanes;
        const vec x = (some == lanes ? load(w + c) : load_some(w + c, some)) * share;
        base += x;
        size = maximum(size, maximum(x, -x));
        store(room + c, x * -2.0f);
    }
    if (beyond && any(size > splat(most_weight))) *beyond = 1;
    return {of.q.data + at.batch * of.q.batch + at.head * of.q.head,
            of.k.data + at.batch * of.k.batch + shared * of.k.head,
            of.v.data + at.batch * of.v.batch + shared * of.v.head,
            of.q.row, of.k.row, of.v.row, width, {sum(base), room}};
}

// Scores of a block, all of them that a row may need. A tile is a vector of keys; it stays in the first-level cache for
// all rows of the block.
template <bool CLAMP>
void score_tiles(const Dot& of, const Place& at, const Head& head, const Block& block, float* s, ptrdiff_t ld) {
    for (int n = 0; n < block.cols; n += lanes) {
        const int keys = block.cols - n < lanes ? block.cols - n : lanes;
        const float* k = head.k + (block.col + n) * head.k_row;
        for (int i = 0; i < block.rows; ++i) {
            if (outside(of, at, {block.row + i, 1, block.col + n, keys})) continue;  // mask_block fills it
            const float* q = head.q + (block.row + i) * head.q_row;
            vec total[lanes] = {};
            int j = 0;
            for (; j + 4 <= keys; j += 4)
                meet<CLAMP, 4>(q, k + j * head.k_row, head.k_row, head.weights.times, head.width, total + j);
            for (; j < keys; ++j)
                meet<CLAMP, 1>(q, k + j * head.k_row, head.k_row, head.weights.times, head.width, total + j);
            store(s + i * ld + n, sums(total) + head.weights.base);
        }
    }
}

void score(const Additive& job, const Place& at, const Head& head, const Block& block, float* s, ptrdiff_t ld) {
    if (job.clamp)
        score_tiles<true>(job.of, at, head, block, s, ld);
    else
        score_tiles<false>(job.of, at, head, block, s, ld);
}

// A weight of 0 leaves no trace of a value, unless that is ∞ or NaN.
bool finite(const float* x, ptrdiff_t row, int rows, int width) {
    vec trace{};
    for (int i = 0; i < rows; ++i) {
        int c = 0;
        for (; c + lanes <= width; c += lanes) trace += load(x + i * row + c) * 0.0f;
        if (c < width) trace += load_some(x + i * row + c, width - c) * 0.0f;
    }
    return sum(trace) == 0;
}

// ---- forward ----------------------------------------------------------------------------------------------------------

constexpr int key_block = 128;

struct Rows {
    float* highest;  // (rows)
    float* total;    // (rows, lanes): lane by lane, added up at the end
    float* summed;   // (rows, padded value width)
};

// Weights in place of scores, and the sums brought to the new highest score.
void weigh(float* scores, int rows, int cols, Rows state, int first, int value_width) {
    const int whole = round_up(cols);
    for (int i = 0; i < rows; ++i) {
        float* s = scores + i * key_block;
        for (int j = cols; j < whole; ++j) s[j] = -infinity;
        vec most = load(s);
        for (int j = lanes; j < whole; j += lanes) most = maximum(load(s + j), most);
        float& risen = state.highest[first + i];
        float* total = state.total + (first + i) * lanes;
        if (any(most > splat(risen))) {
            const float now = highest(most);
            const vec shrink = splat(risen == -infinity ? 0.0f : std::exp(risen - now));
            float* sums = state.summed + (first + i) * value_width;
            for (int c = 0; c < value_width; c += lanes) store(sums + c, load(sums + c) * shrink);
            store(total, load(total) * shrink);
            risen = now;
        }
        const float base = risen == -infinity ? 0.0f : risen;
        vec sum = load(total);
        for (int j = 0; j < whole; j += lanes) {
            const vec x = load(s + j), p = x == splat(-infinity) ? vec{} : exponential(x - base);
            sum += p;
            store(s + j, p);
        }
        store(total, sum);
    }
}

void finish(const AdditiveForward& job, const Place& at, Rows state) {
    const Dot& of = job.of.of;
    const int value_width = round_up(int(of.value_width));
    const int64_t start = (at.batch * of.heads + at.head) * of.queries + at.row;
    float* total = state.total;
    for (int i = 0; i < at.rows; ++i) total[i] = sum(load(state.total + i * lanes));
    for (int i = 0; i < at.rows; i += lanes) {
        const int some = at.rows - i < lanes ? at.rows - i : lanes;
        const vec sums = load_some(total + i, some), base = load_some(state.highest + i, some);
        store_some(job.lse + start + i, sums == vec{} ? splat(-infinity) : base + logarithm(sums), some);
    }
    for (int i = 0; i < at.rows; ++i) {
        const float share = total[i] == 0 ? 0.0f : 1.0f / total[i];
        float* context = job.context + (start + i) * of.value_width;
        const float* sums = state.summed + i * value_width;
        int c = 0;
        for (; c + lanes <= of.value_width; c += lanes) store(context + c, load(sums + c) * share);
        for (; c < of.value_width; ++c) context[c] = sums[c] * share;
    }
}

// ---- backward ---------------------------------------------------------------------------------------------------------

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

// e^x within 1.5 · 2^-24 (measured 1.42), for |x| ≤ 86: the polynomial of `exponential` one degree longer, and added up so
// that only its last sum, 1 + (r + …), rounds visibly. This error enters all scores of a row, so it is worth the care.
REGARD_INLINE vec precise_exponential(vec x) {
    constexpr float log2e = 1.44269504088896341f;
    constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    constexpr float magic = 12582912.0f;
    const vec shifted = x * log2e + magic;
    const vec n = shifted - magic;
    vec r = x - n * ln2_high;
    r = r - n * ln2_low;
    vec p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;
    const ivec exponent = (reinterpret_cast<ivec>(shifted) << 23) + (127 << 23);
    return p * reinterpret_cast<vec>(exponent);
}

void exponentials(const void* given, int64_t task, Scratch& scratch) {
    const Exponentials& job = *static_cast<const Exponentials*>(given);
    const int64_t first = task * scratch.rows_per_task, width = job.width, ld = padded(width);
    const int64_t last = least(first + scratch.rows_per_task, job.batches * job.heads * job.rows);
    vec largest{};
    ivec beyond{};
    for (int64_t n = first; n < last; ++n) {
        const int64_t entry = n / job.rows;
        const float* x = job.x.data + entry / job.heads * job.x.batch + entry % job.heads * job.x.head + n % job.rows * job.x.row;
        float* e = job.e + n * ld;
        for (int64_t c = 0; c < ld; c += lanes) {
            const int some = int(most(0, least(lanes, width - c)));
            const vec a = some == lanes ? load(x + c) : load_some(x + c, some);
            beyond |= ~(maximum(a, -a) <= splat(43.0f));  // so that NaN is beyond
            vec y = precise_exponential(minimum(splat(86.0f), maximum(splat(-86.0f), a + a)));
            if (some < lanes)
                for (int i = some; i < lanes; ++i) y[i] = 0;
            largest = maximum(largest, y);
            store(e + c, y);
        }
    }
    if (any(beyond)) *job.beyond = 1;
    if (any(largest > splat(large_exponential))) *job.large = 1;
}

size_t exponentials_room(const void*, int64_t) { return 0; }

void additive_forward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveForward& job = *static_cast<const AdditiveForward*>(given);
    const Dot& of = job.of.of;
    const Place at = place(of, task, scratch.rows_per_task);
    const int value_width = round_up(int(of.value_width));
    const Head head = head_of(job.of, at, scratch.take(round_up(int(of.width))), job.beyond);
    float* s = scratch.take(most_rows * key_block);
    float* v_room = scratch.take(key_block * value_width);
    const Rows state{scratch.take(at.rows), scratch.take(at.rows * lanes), scratch.take(at.rows * value_width)};
    for (int i = 0; i < at.rows; ++i) state.highest[i] = -infinity;
    std::memset(state.total, 0, sizeof(float) * at.rows * lanes);
    std::memset(state.summed, 0, sizeof(float) * at.rows * value_width);
    const Columns columns = columns_of(of, at);
    const int step = strip(at.rows);
    for (int64_t first = columns.first; first < columns.last; first += key_block) {
        const int cols = int(least(columns.last - first, key_block));
        const float* v = head.v + first * head.v_row;
        const Rectangle values = rectangle(v, head.v_row, cols, int(of.value_width), v_room);
        if (!inside(of, at, {at.row, at.rows, first, cols}) && !finite(v, head.v_row, cols, int(of.value_width))) *job.beyond = 1;
        for (int m = 0; m < at.rows; m += step) {
            const Block block{at.row + m, int(least(at.rows - m, step)), first, cols};
            if (outside(of, at, block)) continue;
            score(job.of, at, head, block, s, key_block);
            if (of.softcap > 0) cap(s, key_block, block.rows, cols, of.softcap);
            if (!inside(of, at, block)) mask_block(of, at, block, s, key_block);
            weigh(s, block.rows, cols, state, m, value_width);
            product<true>(block.rows, value_width, cols, {s, key_block, 1}, values.data, values.row,
                          state.summed + m * value_width, value_width);
        }
    }
    finish(job, at, state);
}

size_t additive_forward_room(const void* given, int64_t rows) {
    const Dot& of = static_cast<const AdditiveForward*>(given)->of.of;
    const size_t width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    return width + most_rows * key_block + key_block * value_width + rows * (1 + lanes + value_width) + 8 * 32;
}

void additive_backward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveBackward& job = *static_cast<const AdditiveBackward*>(given);
    const Dot& of = job.of.of;
    const int64_t entry = task / job.parts, part = task % job.parts, row = padded(of.width);
    const Place at{entry / of.heads, entry % of.heads, 0, int(of.queries)};
    const int width = round_up(int(of.width)), values = int(of.value_width), value_width = round_up(values);
    const Head head = head_of(job.of, at, scratch.take(width), nullptr);
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
            score(job.of, at, head, block, s, grad_block);
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
    scale(dq, row, of.queries, width, head.weights.times, factor);
    scale(dk + start * row, row, stop - start, width, head.weights.times, factor);
    for (int c = 0; c < width; c += lanes) store(dw + c, total - 2.0f * load(dw + c));
}

size_t additive_backward_room(const void* given, int64_t) {
    const Dot& of = static_cast<const AdditiveBackward*>(given)->of.of;
    const size_t width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    return width + 3 * row_strip * grad_block + of.value_width * grad_block + grad_block * value_width +
           row_strip * value_width + row_strip + 2 * width + 12 * 32;
}

}  // namespace regard::REGARD_ISA
