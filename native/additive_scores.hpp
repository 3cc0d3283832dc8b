// What forward, backward and the observers share: the scores of a block.
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
#pragma once

#include "additive.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

constexpr float ceiling = 1073741824.0f;      // 2^30

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

// One head's queries, keys and values, and the channel weights as scores use them: base + Σ_c times_c · r_c.
struct Head {
    const float *q, *k, *v;
    ptrdiff_t q_row, k_row, v_row;
    int width;  // whole vectors
    const float* times;
    float base;
};

inline Head head_of(const Additive& job, const Place& at) {
    const Dot& of = job.of;
    const int64_t shared = at.head / of.groups;
    const float* w = job.w.data + at.batch * job.w.batch + at.head * job.w.head;
    return {of.q.data + at.batch * of.q.batch + at.head * of.q.head,
            of.k.data + at.batch * of.k.batch + shared * of.k.head,
            of.v.data + at.batch * of.v.batch + shared * of.v.head,
            of.q.row, of.k.row, of.v.row, round_up(int(of.width)), w, w[padded(of.width)]};
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
                meet<CLAMP, 4>(q, k + j * head.k_row, head.k_row, head.times, head.width, total + j);
            for (; j < keys; ++j)
                meet<CLAMP, 1>(q, k + j * head.k_row, head.k_row, head.times, head.width, total + j);
            store(s + i * ld + n, sums(total) + head.base);
        }
    }
}

// Row-major scores of a block, before softcap (but already over it) and mask. What no row of the mask lets attend may be
// left unwritten; columns up to whole vectors are overwritten.
inline void score(const Additive& job, const Place& at, const Block& block, float* s, ptrdiff_t ld) {
    const Head head = head_of(job, at);
    if (job.clamp)
        score_tiles<true>(job.of, at, head, block, s, ld);
    else
        score_tiles<false>(job.of, at, head, block, s, ld);
}

}  // namespace regard::REGARD_ISA
