// Scores of a block, shared by forward, backward and views.
//
// Lanes are channels. Rows of exponentials are read in place, without a transposition; no lane is wasted for key blocks of any
// length or for a single query; gradients are accumulated in place. Only a score needs a horizontal sum. A microtile of scores
// that fills one vector, four keys wide, computes these together: 20 keys are five microtiles, not a vector and a quarter.
//
// Eight channels share one reciprocal. A hardware estimate and its Newton step cost as much as five multiplications, so eight
// fractions are summed over their common denominator: 1/a + 1/b = (a + b) / ab. The weights are in the denominators
// (additive_weights.hpp). Vector operations for eight channels of a pair: 8 for the denominators, 4·2 for pairs, 3·3 to combine
// them, 3 for the estimate, 3 for the Newton step and the sum: 31 / 8 = 3.9 per channel.
//
// The product of eight denominators must be a normal number. E ≤ `fast_limit` ensures this for the largest exponential of the
// query times that of the key. Above the limit (`score_clamped`) four channels share a reciprocal, w1/a + w2/b + w3/c + w4/d,
// and each denominator is clamped to 2^30, where the error of tanh is 2^-29.
//
// Error of a term w·tanh(q + k), with ε = 2^-24:
//   e^{2q} and e^{2k} have a relative error up to 1.5ε, so that of E = e^{2q}·e^{2k} is up to 3ε. It changes r = 1/(1 + E) by
//   at most r·(1 − r)·3ε < ε. The following operations multiply, invert, and add fractions: a relative error of ε in a sum of
//   fractions is an error of ε·Σ |w·r|. A fraction has the rounding errors of its weight and denominator (3), of the sum and
//   products that give it the common denominator (9), of that denominator (7), of the Newton step and the last product (3),
//   and 2.25ε of the reciprocal. So |error| ≤ 2·|w|·(ε + 24.25ε·r) < 51ε·|w| = 3e-6·|w| if all rounding errors have the same
//   sign. Measured errors of contexts are 0.3 to 2 times those of PyTorch in float32 under AVX-512. |x| ≤ 43 ensures that every
//   e^{2x} is a normal number: a product that overflows is clamped, one that underflows leaves 1, and ∞·0 cannot occur. Larger
//   |x| and NaN are reported to the caller (`out_of_range`).
#pragma once

#include <cstring>

#include "additive/additive.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"

namespace regard::REGARD_ISA {

// Writes the exponentials of rows first … last − 1 of the B·H·T rows to e and returns whether all inputs are in range.
bool exponential_rows(const Exponentials& job, int64_t first, int64_t last, float* e);

constexpr float clamp_limit = 1073741824.0f;  // 2^30

template <bool CLAMP>
REGARD_INLINE vec denominator(vec q, vec k) {
    const vec a = q * k + 1.0f;
    return CLAMP ? minimum(splat(clamp_limit), a) : a;  // in this order NaN is propagated
}

// Queries, keys, values and channel weights of one head.
struct Head {
    const float *q, *k, *v;
    ptrdiff_t q_row, k_row, v_row;
    int width;          // whole vectors
    int maximum_index;  // index of the maximum in a row of exponentials
    const float *scaled_w, *inverse_w;
    float base, unit, fast_limit;
    float padding_channels;  // channels from D on: each adds a fraction 1/1, which is subtracted

    float largest_query(int64_t row) const { return q[row * q_row + maximum_index]; }
    float largest_key(int64_t row) const { return k[row * k_row + maximum_index]; }
};

inline Head head_of(const Additive& job, const QueryBlock& query_block) {
    const Dot& dot = job.dot;
    const int64_t kv_head = query_block.head / dot.groups, padded_width = padded(dot.width);
    const float* w = job.w.at(query_block.batch, query_block.head);
    return {.q = dot.q.at(query_block.batch, query_block.head),
            .k = dot.k.at(query_block.batch, kv_head),
            .v = dot.v.at(query_block.batch, kv_head),
            .q_row = dot.q.row,
            .k_row = dot.k.row,
            .v_row = dot.v.row,
            .width = round_up(int(dot.width)),
            .maximum_index = int(padded_width),
            .scaled_w = w,
            .inverse_w = w + padded_width,
            .base = w[2 * padded_width],
            .unit = w[2 * padded_width + 1],
            .fast_limit = w[2 * padded_width + 2],
            .padding_channels = float(round_up(int(dot.width)) - dot.width)};
}

// Computes the exponentials of the queries of a head, unless they are stored. Returns whether all inputs are in range.
inline bool load_queries(const Additive& job, const QueryBlock& query_block, Head& head, float* buffer) {
    if (!job.queries) return true;
    const int64_t start = (query_block.batch * job.dot.heads + query_block.head) * job.dot.queries;
    head.q = buffer;
    head.q_row = query_row(job.dot.width);
    return exponential_rows(*job.queries, start, start + job.dot.queries, buffer);
}

// Likewise for some keys. Their indices still count from the first key of the head.
inline bool load_keys(const Additive& job, const QueryBlock& query_block, int64_t first, int keys, Head& head, float* buffer) {
    if (!job.keys) return true;
    const int64_t start = (query_block.batch * job.dot.heads + query_block.head) / job.dot.groups * job.dot.keys + first;
    head.k_row = key_row(job.dot.width);
    head.k = buffer - first * head.k_row;
    return exponential_rows(*job.keys, start, start + keys, buffer);
}

// A sum of fractions.
struct Fraction {
    vec numerator, denominator;
};
REGARD_INLINE Fraction operator+(Fraction a, Fraction b) {
    return {a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator};
}

// Σ 1/(inverse_w + q·k) over N = 2^n vectors of channels; q is already multiplied by `inverse_w`.
template <int N>
REGARD_INLINE Fraction fractions(const float* q, const float* k, const float* inverse_w) {
    if constexpr (N == 1) {
        return {splat(1.0f), load(q) * load(k) + load(inverse_w)};
    } else if constexpr (N == 2) {
        const vec a = load(q) * load(k) + load(inverse_w), b = load(q + lanes) * load(k + lanes) + load(inverse_w + lanes);
        return {a + b, a * b};
    } else {
        constexpr int half = N / 2 * lanes;
        return fractions<N / 2>(q, k, inverse_w) + fractions<N / 2>(q + half, k + half, inverse_w + half);
    }
}

template <int N, int KEYS>
REGARD_INLINE void add_fractions(const float* q, const float* k, ptrdiff_t row, const float* inverse_w, vec (&sum)[KEYS]) {
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) {
        const Fraction x = fractions<N>(q, k + j * row, inverse_w);
#if REGARD_LANES == 16
        sum[j] += x.numerator * reciprocal(x.denominator);
#else
        sum[j] += x.numerator / x.denominator;
#endif
    }
}

// total[j] = unit · Σ_c 1/(inverse_w + q·k), lane by lane, for one query and KEYS keys.
template <int KEYS>
REGARD_INLINE void score_keys(const Head& head, const float* q, const float* k, vec* total) {
    vec sum[KEYS] = {};
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) sum[j][0] = -head.padding_channels;
    int c = 0;
    for (; c + 8 * lanes <= head.width; c += 8 * lanes) add_fractions<8>(q + c, k + c, head.k_row, head.inverse_w + c, sum);
    if (c + 4 * lanes <= head.width) {
        add_fractions<4>(q + c, k + c, head.k_row, head.inverse_w + c, sum);
        c += 4 * lanes;
    }
    for (; c < head.width; c += lanes) add_fractions<1>(q + c, k + c, head.k_row, head.inverse_w + c, sum);
#pragma GCC unroll 4
    for (int j = 0; j < KEYS; ++j) total[j] = sum[j] * head.unit;
}

// Returns Σ_c scaled_w · r, lane by lane, for one query and one key, without the limit on E.
inline __attribute__((noinline)) vec score_clamped(const Head& head, const float* q, const float* k) {
    const float* w = head.scaled_w;
    vec sum{};
    int c = 0;
    for (; c + 4 * lanes <= head.width; c += 4 * lanes) {
        vec x[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) x[n] = denominator<true>(load(q + c + n * lanes), load(k + c + n * lanes));
        const vec low = x[0] * x[1], high = x[2] * x[3];
        const vec numerator_low = load(w + c) * x[1] + load(w + c + lanes) * x[0];
        const vec numerator_high = load(w + c + 2 * lanes) * x[3] + load(w + c + 3 * lanes) * x[2];
        sum += (numerator_low * high + numerator_high * low) * reciprocal(low * high);
    }
    for (; c < head.width; c += lanes) sum += load(w + c) * reciprocal(denominator<true>(load(q + c), load(k + c)));
    return sum;
}

constexpr int microtile_keys = 4, microtile_queries = lanes / microtile_keys;  // a microtile of scores fills one vector
constexpr int tile_keys = 16;

// Computes total[j], lane by lane, for one query and up to four keys. `largest`: the largest exponential of these keys.
REGARD_INLINE void score_key_group(const Head& head, const float* q, const float* k, int keys, float largest, vec* total) {
    const float* scaled = q + head.maximum_index + maximum_slot;
    for (int j = keys; j < microtile_keys; ++j) total[j] = vec{};
    if (largest * q[head.maximum_index] > head.fast_limit)
        for (int j = 0; j < keys; ++j) total[j] = score_clamped(head, q, k + j * head.k_row);
    else if (keys == 4)
        score_keys<4>(head, scaled, k, total);
    else if (keys == 2)
        score_keys<2>(head, scaled, k, total);
    else
        for (int j = 0; j < keys; ++j) score_keys<1>(head, scaled, k + j * head.k_row, total + j);
}

// Computes the scores of up to `microtile_queries` queries and four keys, row by row. Queries that are null are skipped.
REGARD_INLINE void score_microtile(const Head& head, const float* const* q, const float* k, int keys, float largest,
                                   float* scores) {
    vec total[lanes];
    for (int i = 0; i < microtile_queries; ++i)
        if (q[i])
            score_key_group(head, q[i], k, keys, largest, total + i * microtile_keys);
        else
            for (int j = 0; j < microtile_keys; ++j) total[i * microtile_keys + j] = vec{};
    store(scores, horizontal_sums(total) + head.base);
}

// Computes the scores of all rows of a block and a few keys, which stay in the L1 cache, microtile by microtile.
inline void score_tile(const Head& head, const Dot& dot, const QueryBlock& query_block, const Block& tile, float* s,
                       ptrdiff_t ld) {
    float largest[tile_keys / microtile_keys] = {};
    for (int j = 0; j < tile.cols; ++j) {
        float& group_maximum = largest[j / microtile_keys];
        group_maximum = head.largest_key(tile.col + j) > group_maximum ? head.largest_key(tile.col + j) : group_maximum;
    }
    for (int m = 0; m < tile.rows; m += microtile_queries) {
        const int rows = tile.rows - m < microtile_queries ? tile.rows - m : microtile_queries;
        const float* q[microtile_queries] = {};
        for (int i = 0; i < rows; ++i)
            if (!fully_masked(dot, query_block, {tile.row + m + i, 1, tile.col, tile.cols}))
                q[i] = head.q + (tile.row + m + i) * head.q_row;
        for (int n = 0; n < tile.cols; n += microtile_keys) {
            const int keys = tile.cols - n < microtile_keys ? tile.cols - n : microtile_keys;
            float scores[lanes];
            score_microtile(head, q, head.k + (tile.col + n) * head.k_row, keys, largest[n / microtile_keys], scores);
            for (int i = 0; i < rows; ++i)
                std::memcpy(s + (m + i) * ld + n, scores + i * microtile_keys, sizeof(float) * microtile_keys);
        }
    }
}

// Computes the row-major scores of a block, divided by softcap if there is one, before tanh and mask. Scores of a row whose
// tile is fully masked are undefined, and so are the columns up to a multiple of four.
inline void score_block(const Head& head, const Dot& dot, const QueryBlock& query_block, const Block& block, float* s,
                        ptrdiff_t ld) {
    for (int n = 0; n < block.cols; n += tile_keys)
        score_tile(head, dot, query_block, {block.row, block.rows, block.col + n, int(min(block.cols - n, tile_keys))}, s + n,
                   ld);
}

}  // namespace regard::REGARD_ISA
