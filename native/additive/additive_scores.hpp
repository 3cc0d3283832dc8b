// Scores of a block, shared by forward, backward and views.
//
// Lanes are channels. Rows of exponentials are read in place, so nothing is transposed; a key block of any length and a
// single query waste no lane; gradients are added up where they belong. Only a score needs a sum over lanes, and a square of
// scores that fills a vector, four keys wide, takes it together: 20 keys are five squares, not a vector and a quarter.
//
// Eight reciprocals for one. A hardware estimate and its Newton step cost as much as five multiplications, so eight
// denominators share one: 1/a + 1/b = (a + b) / ab, and fractions n/d are added up over their common denominator. The
// weights are in the denominators (additive_weights.hpp). Operations per pair and channel, where a processor with two
// ports for vector arithmetic can start two: 8 denominators, 4·2 for pairs, 3·3 to bring them together, 3 for the
// estimate, 3 for the Newton step and the sum: 31/8 = 3.9.
//
// That needs the product of eight to be a normal number, which E ≤ `reach` ensures: a query's largest exponential times a
// key's decides. Beyond it (`meet_far`) four share a reciprocal, over w1/a + w2/b + w3/c + w4/d, and each is clamped to
// 2^30, where tanh is wrong by 2^-29.
//
// Error of a term w·tanh(q + k), with ε = 2^-24:
//   e^{2q} and e^{2k} are each within 1.5ε, so E = e^{2q}·e^{2k} is within 3ε, which moves r = 1/(1 + E) by at most
//   r·(1 − r)·3ε < ε. The arithmetic after it multiplies and inverts, and adds fractions: an error of ε in a sum of fractions
//   is one of ε·Σ |w·r|. A fraction takes the roundings of its weight and denominator (3), of the sum and the products that
//   bring it over the common denominator (9), of that denominator (7), of the Newton step and the last product (3), and the
//   reciprocal's own 2.25ε. So |error| ≤ 2·|w|·(ε + 24.25ε·r) < 51ε·|w| = 3e-6·|w| at worst, when all roundings agree; as
//   they do not, contexts are measured at 0.3 to 2 times the error of PyTorch's own float32 under AVX-512. |x| ≤ 43 keeps every
//   e^{2x} a normal number: a product that overflows is clamped, one that underflows leaves 1, and ∞·0 cannot occur. Above
//   43, and for NaN, the kernel reports it to the caller (`beyond`).
#pragma once

#include <cstring>

#include "additive/additive.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

// The exponentials of rows first … last − 1 of all B·H·T, one after the other in e; returns whether all are within range.
bool exponential_rows(const Exponentials& job, int64_t first, int64_t last, float* e);

constexpr float ceiling = 1073741824.0f;  // 2^30

template <bool CLAMP>
REGARD_INLINE vec denominator(vec q, vec k) {
    const vec a = q * k + 1.0f;
    return CLAMP ? minimum(splat(ceiling), a) : a;  // in this order NaN passes
}

// One head's queries, keys and values, and its channel weights.
struct Head {
    const float *q, *k, *v;
    ptrdiff_t q_row, k_row, v_row;
    int width;   // whole vectors
    int beside;  // where `largest` stands in a row of exponentials
    const float *times, *over;
    float base, unit, reach;
    float empty;  // channels beyond D, each a fraction 1/1 too many

    float largest_query(int64_t row) const { return q[row * q_row + beside]; }
    float largest_key(int64_t row) const { return k[row * k_row + beside]; }
};

inline Head head_of(const Additive& job, const Place& at) {
    const Dot& of = job.of;
    const int64_t shared = at.head / of.groups, whole = padded(of.width);
    const float* w = job.w.at(at.batch, at.head);
    return {.q = of.q.at(at.batch, at.head),
            .k = of.k.at(at.batch, shared),
            .v = of.v.at(at.batch, shared),
            .q_row = of.q.row,
            .k_row = of.k.row,
            .v_row = of.v.row,
            .width = round_up(int(of.width)),
            .beside = int(whole),
            .times = w,
            .over = w + whole,
            .base = w[2 * whole],
            .unit = w[2 * whole + 1],
            .reach = w[2 * whole + 2],
            .empty = float(round_up(int(of.width)) - of.width)};
}

// The exponentials of a head's queries, if they are for the task to compute; returns whether all are within range.
inline bool take_queries(const Additive& job, const Place& at, Head& head, float* room) {
    if (!job.queries) return true;
    const int64_t start = (at.batch * job.of.heads + at.head) * job.of.queries;
    head.q = room;
    head.q_row = query_row(job.of.width);
    return exponential_rows(*job.queries, start, start + job.of.queries, room);
}

// Likewise those of some of its keys, which still count from the head's first.
inline bool take_keys(const Additive& job, const Place& at, int64_t first, int keys, Head& head, float* room) {
    if (!job.keys) return true;
    const int64_t start = (at.batch * job.of.heads + at.head) / job.of.groups * job.of.keys + first;
    head.k_row = key_row(job.of.width);
    head.k = room - first * head.k_row;
    return exponential_rows(*job.keys, start, start + keys, room);
}

// A sum of fractions.
struct Fraction {
    vec above, below;
};
REGARD_INLINE Fraction operator+(Fraction a, Fraction b) { return {a.above * b.below + b.above * a.below, a.below * b.below}; }

// 1/(over + q·k) of N = 2^n vectors of channels, added up; q is times `over` already.
template <int N>
REGARD_INLINE Fraction fractions(const float* q, const float* k, const float* over) {
    if constexpr (N == 1) {
        return {splat(1.0f), load(q) * load(k) + load(over)};
    } else if constexpr (N == 2) {
        const vec a = load(q) * load(k) + load(over), b = load(q + lanes) * load(k + lanes) + load(over + lanes);
        return {a + b, a * b};
    } else {
        constexpr int half = N / 2 * lanes;
        return fractions<N / 2>(q, k, over) + fractions<N / 2>(q + half, k + half, over + half);
    }
}

template <int N, int KEYS>
REGARD_INLINE void add_fractions(const float* q, const float* k, ptrdiff_t row, const float* over, vec (&sum)[KEYS]) {
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) {
        const Fraction x = fractions<N>(q, k + j * row, over);
#if REGARD_LANES == 16
        sum[j] += x.above * reciprocal(x.below);
#else
        sum[j] += x.above / x.below;
#endif
    }
}

// total[j] = unit · Σ_c 1/(over + q·k) lane by lane, for one query and KEYS keys.
template <int KEYS>
REGARD_INLINE void meet(const Head& head, const float* q, const float* k, vec* total) {
    vec sum[KEYS] = {};
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) sum[j][0] = -head.empty;
    int c = 0;
    for (; c + 8 * lanes <= head.width; c += 8 * lanes) add_fractions<8>(q + c, k + c, head.k_row, head.over + c, sum);
    if (c + 4 * lanes <= head.width) {
        add_fractions<4>(q + c, k + c, head.k_row, head.over + c, sum);
        c += 4 * lanes;
    }
    for (; c < head.width; c += lanes) add_fractions<1>(q + c, k + c, head.k_row, head.over + c, sum);
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) total[j] = sum[j] * head.unit;
}

// total = Σ_c times · r lane by lane for one query and one key, of any range.
inline __attribute__((noinline)) vec meet_far(const Head& head, const float* q, const float* k) {
    const float* w = head.times;
    vec sum{};
    int c = 0;
    for (; c + 4 * lanes <= head.width; c += 4 * lanes) {
        vec x[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) x[n] = denominator<true>(load(q + c + n * lanes), load(k + c + n * lanes));
        const vec low = x[0] * x[1], high = x[2] * x[3];
        const vec of_low = load(w + c) * x[1] + load(w + c + lanes) * x[0];
        const vec of_high = load(w + c + 2 * lanes) * x[3] + load(w + c + 3 * lanes) * x[2];
        sum += (of_low * high + of_high * low) * reciprocal(low * high);
    }
    for (; c < head.width; c += lanes) sum += load(w + c) * reciprocal(denominator<true>(load(q + c), load(k + c)));
    return sum;
}

constexpr int keys_together = 4, queries_together = lanes / keys_together;  // a square of scores that fills one vector
constexpr int keys_in_tile = 16;

// total[j] lane by lane for one query and up to four keys, `largest` being theirs.
REGARD_INLINE void meet_keys(const Head& head, const float* q, const float* k, int keys, float largest, vec* total) {
    const float* scaled = q + head.beside + beside;
    for (int j = keys; j < keys_together; ++j) total[j] = vec{};
    if (largest * q[head.beside] > head.reach)
        for (int j = 0; j < keys; ++j) total[j] = meet_far(head, q, k + j * head.k_row);
    else if (keys == 4)
        meet<4>(head, scaled, k, total);
    else if (keys == 2)
        meet<2>(head, scaled, k, total);
    else
        for (int j = 0; j < keys; ++j) meet<1>(head, scaled, k + j * head.k_row, total + j);
}

// Up to `queries_together` queries, those that are not null, and four keys: a row of scores after the other in `found`.
REGARD_INLINE void meet_square(const Head& head, const float* const* q, const float* k, int keys, float largest, float* found) {
    vec total[lanes];
    for (int i = 0; i < queries_together; ++i)
        if (q[i])
            meet_keys(head, q[i], k, keys, largest, total + i * keys_together);
        else
            for (int j = 0; j < keys_together; ++j) total[i * keys_together + j] = vec{};
    store(found, sums_of(total) + head.base);
}

// A few keys, which stay in the first-level cache, and all rows of the block, square by square.
inline void score_tile(const Head& head, const Dot& of, const Place& at, const Block& tile, float* s, ptrdiff_t ld) {
    float largest[keys_in_tile / keys_together] = {};
    for (int j = 0; j < tile.cols; ++j) {
        float& most = largest[j / keys_together];
        most = head.largest_key(tile.col + j) > most ? head.largest_key(tile.col + j) : most;
    }
    for (int m = 0; m < tile.rows; m += queries_together) {
        const int rows = tile.rows - m < queries_together ? tile.rows - m : queries_together;
        const float* q[queries_together] = {};
        for (int i = 0; i < rows; ++i)
            if (!outside(of, at, {tile.row + m + i, 1, tile.col, tile.cols})) q[i] = head.q + (tile.row + m + i) * head.q_row;
        for (int n = 0; n < tile.cols; n += keys_together) {
            const int keys = tile.cols - n < keys_together ? tile.cols - n : keys_together;
            float found[lanes];
            meet_square(head, q, head.k + (tile.col + n) * head.k_row, keys, largest[n / keys_together], found);
            for (int i = 0; i < rows; ++i)
                std::memcpy(s + (m + i) * ld + n, found + i * keys_together, sizeof(float) * keys_together);
        }
    }
}

// Row-major scores of a block, over the softcap if there is one but not yet bent by it, and not masked: where a row may
// attend to no key of a tile, anything is written. So it is to columns up to a multiple of four.
inline void score(const Head& head, const Dot& of, const Place& at, const Block& block, float* s, ptrdiff_t ld) {
    for (int n = 0; n < block.cols; n += keys_in_tile)
        score_tile(head, of, at, {block.row, block.rows, block.col + n, int(least(block.cols - n, keys_in_tile))}, s + n, ld);
}

}  // namespace regard::REGARD_ISA
