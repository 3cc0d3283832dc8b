// Scaled dot products: forward, for the few queries of a decoding step. The channels stand in the lanes.
//
//     for blocks of keys:                                  one task: a head of keys, and all query heads that share it
//         for a few queries at a time:
//             S  = Q · Kᵀ                                  a vector of sums per key, `lanes` of them added up together
//             P  = e^(S − highest so far)
//             O += P · V
//     context = O / Σ P,  lse = highest + log Σ P
//
// Every key and value is used once per query: what limits is how fast they can be read. Nothing is copied or transposed,
// and query heads that share a key head read it once.
#include <cmath>
#include <cstring>

#include "kernels.hpp"
#include "numbers.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128, most_together = 4;
constexpr int ahead = 16;  // rows between what is read and what is asked for

// The queries of a task: row r is query r % queries of the r / queries-th head that shares the keys.
struct Few {
    const DotForward* job;
    int64_t batch, shared;
    int rows, width, value_width;  // widths in whole vectors
    Source k, v;
    float *k_room, *v_room;                   // (key_block, width), (key_block, value_width): copies of half numbers
    float *q, *s;                             // (rows, width), (most_together, key_block)
    float *highest, *total, *summed;          // (rows), (rows), (rows, value_width)

    Place place(int row) const {
        const Dot& of = job->of;
        return {batch, shared * of.groups + row / of.queries, row % of.queries, 1};
    }
};

// `lanes` vectors → the vector of their sums: each round halves the vectors by adding halves of two, side by side.
REGARD_INLINE vec sums_of(vec (&x)[lanes]) {
#pragma GCC unroll 4
    for (int half = lanes / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; ++i)
            x[i] = __builtin_shufflevector(x[i], x[i + half], REGARD_LOW) + __builtin_shufflevector(x[i], x[i + half], REGARD_HIGH);
    return x[0];
}

// Streams stop at the end of a page: rows are asked for before the hardware would think of them.
REGARD_INLINE void fetch(const float* row, int width) {
    for (int c = 0; c < width; c += 16) __builtin_prefetch(row + c, 0, 3);
}

// Scores of R queries with a vector of keys. The last vector of a row may be partly beyond its end: `load_some`.
template <int R>
void score(const Few& few, const float* q, const Rectangle& k, int first, int keys, float* s) {
    const Dot& of = few.job->of;
    const int width = int(of.width), whole = width / lanes * lanes;
    vec total[R][lanes] = {};
    for (int j = 0; j < keys; ++j) {
        const float* key = k.data + (first + j) * k.row;
        fetch(key + ahead * k.row, width);
        vec sum[R] = {};
        for (int c = 0; c < whole; c += lanes) {
            const vec x = load(key + c);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) sum[r] += x * load(q + r * few.width + c);
        }
        if (whole < width) {
            const vec x = load_some(key + whole, width - whole);
            for (int r = 0; r < R; ++r) sum[r] += x * load(q + r * few.width + whole);
        }
        for (int r = 0; r < R; ++r) total[r][j] = sum[r];
    }
    for (int r = 0; r < R; ++r) store(s + r * key_block, sums_of(total[r]));
}

// Weights of one query in place of its scores, and its sums brought to the new highest score.
void weigh(const Few& few, int row, float* s, int keys) {
    const int whole = round_up(keys);
    for (int j = keys; j < whole; ++j) s[j] = -infinity;
    vec peak = load(s);
    for (int j = lanes; j < whole; j += lanes) peak = maximum(peak, load(s + j));
    const float before = few.highest[row], now = std::fmax(before, highest(peak));
    const float base = now == -infinity ? 0.0f : now;
    if (now > before) {
        const float shrink = before == -infinity ? 0.0f : std::exp(before - now);
        float* sums = few.summed + row * few.value_width;
        for (int c = 0; c < few.value_width; c += lanes) store(sums + c, load(sums + c) * shrink);
        few.total[row] *= shrink;
        few.highest[row] = now;
    }
    vec total{};
    for (int j = 0; j < whole; j += lanes) {
        const vec x = load(s + j);
        const vec p = x == splat(-infinity) ? vec{} : exponential(x - base);
        total += p;
        store(s + j, p);
    }
    few.total[row] += sum(total);
}

// O += P · V for R queries, NV vectors of channels: two keys at a time, so that one sum need not wait for another.
template <int R, int NV>
void gather(const Few& few, const float* v, ptrdiff_t row, int keys, const float* p, float* summed) {
    vec even[R][NV] = {}, odd[R][NV] = {};
    int j = 0;
    for (; j + 2 <= keys; j += 2)
#pragma GCC unroll 4
        for (int n = 0; n < NV; ++n) {
            __builtin_prefetch(v + (j + ahead) * row + n * lanes, 0, 3);
            __builtin_prefetch(v + (j + 1 + ahead) * row + n * lanes, 0, 3);
            const vec x = load(v + j * row + n * lanes), y = load(v + (j + 1) * row + n * lanes);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                even[r][n] += x * splat(p[r * key_block + j]);
                odd[r][n] += y * splat(p[r * key_block + j + 1]);
            }
        }
    for (int n = 0; n < NV; ++n)
        for (int r = 0; r < R; ++r) {
            if (j < keys) even[r][n] += load(v + j * row + n * lanes) * splat(p[r * key_block + j]);
            float* to = summed + r * few.value_width + n * lanes;
            store(to, load(to) + (even[r][n] + odd[r][n]));
        }
}

template <int R>
void gather_all(const Few& few, const Rectangle& v, int keys, const float* p, float* summed) {
    constexpr int most = R == 1 ? 4 : R == 2 ? 4 : 2;
    const int width = int(few.job->of.value_width);
    int c = 0;
    for (; c + most * lanes <= width; c += most * lanes) gather<R, most>(few, v.data + c, v.row, keys, p, summed + c);
    for (; c + lanes <= width; c += lanes) gather<R, 1>(few, v.data + c, v.row, keys, p, summed + c);
    if (c == width) return;
    for (int j = 0; j < keys; ++j) {
        const vec x = load_some(v.data + j * v.row + c, width - c);
        for (int r = 0; r < R; ++r) {
            float* to = summed + r * few.value_width + c;
            store(to, load(to) + x * splat(p[r * key_block + j]));
        }
    }
}

// R queries from `row` on against a block of keys.
template <int R>
void meet(const Few& few, int row, int64_t first, int keys, const Rectangle& k, const Rectangle& v) {
    const Dot& of = few.job->of;
    for (int j = 0; j < keys; j += lanes)
        score<R>(few, few.q + row * few.width, k, j, int(least(lanes, keys - j)), few.s + j);
    for (int r = 0; r < R; ++r) {
        const Place at = few.place(row + r);
        const Block block{at.row, 1, first, keys};
        float* s = few.s + r * key_block;
        if (of.softcap > 0) cap(s, key_block, 1, keys, of.softcap);
        if (!inside(of, at, block)) mask_block(of, at, block, s, key_block);
        weigh(few, row + r, s, keys);
    }
    gather_all<R>(few, v, keys, few.s, few.summed + row * few.value_width);
}

void take_queries(const Few& few) {
    const Dot& of = few.job->of;
    const float scale = of.softcap > 0 ? of.scale / of.softcap : of.scale;
    for (int r = 0; r < few.rows; ++r) {
        const Place at = few.place(r);
        float* to = few.q + r * few.width;
        const Rectangle q = rectangle<false>(source(of.q, of.number, at.batch, at.head), at.row, 1, int(of.width), to);
        pack_rows(q.data, q.row, 1, int(of.width), to, few.width, scale);
        few.highest[r] = -infinity;
        few.total[r] = 0;
    }
    std::memset(few.summed, 0, sizeof(float) * few.rows * few.value_width);
}

bool finish(const Few& few) {
    const Dot& of = few.job->of;
    float trace = 0;
    for (int r = 0; r < few.rows; ++r) {
        const Place at = few.place(r);
        const int64_t to = (at.batch * of.heads + at.head) * of.queries + at.row;
        const float total = few.total[r], share = total == 0 ? 0.0f : 1.0f / total;
        few.job->lse[to] = total == 0 ? -infinity : few.highest[r] + std::log(total);
        for (int c = 0; c < of.value_width; ++c) {
            const float x = few.summed[r * few.value_width + c] * share;
            few.job->context[to * of.value_width + c] = x;
            trace += x * 0.0f;
        }
    }
    return trace == 0;
}

}  // namespace

void dot_few(const void* given, int64_t task, Scratch& scratch) {
    const DotForward& job = *static_cast<const DotForward*>(given);
    const Dot& of = job.of;
    const int64_t shared_heads = of.heads / of.groups, batch = task / shared_heads, shared = task % shared_heads;
    const int rows = int(of.groups * of.queries), width = round_up(int(of.width)), value_width = round_up(int(of.value_width));
    const Few few{&job, batch, shared, rows, width, value_width, source(of.k, of.number, batch, shared),
                  source(of.v, of.number, batch, shared), scratch.take(key_block * width),
                  scratch.take(key_block * value_width), scratch.take(rows * width),
                  scratch.take(most_together * key_block), scratch.take(rows), scratch.take(rows),
                  scratch.take(rows * value_width)};
    take_queries(few);
    const Columns columns = columns_of(of, batch, 0, of.queries);
    for (int64_t first = columns.first; first < columns.last; first += key_block) {
        const int keys = int(least(columns.last - first, key_block));
        const Rectangle k = rectangle<false>(few.k, first, keys, int(of.width), few.k_room);
        const Rectangle v = rectangle<false>(few.v, first, keys, int(of.value_width), few.v_room);
        int r = 0;
        for (; r + 4 <= rows; r += 4) meet<4>(few, r, first, keys, k, v);
        if (rows - r == 3) meet<3>(few, r, first, keys, k, v);
        if (rows - r == 2) meet<2>(few, r, first, keys, k, v);
        if (rows - r == 1) meet<1>(few, r, first, keys, k, v);
    }
    if (!finish(few)) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

size_t dot_few_room(const void* given, int64_t) {
    const Dot& of = static_cast<const DotForward*>(given)->of;
    const size_t rows = of.groups * of.queries;
    return rows * (padded(of.width) + padded(of.value_width) + 2) + key_block * (most_together + padded(of.width) + padded(of.value_width)) +
           10 * 32;
}

}  // namespace regard::REGARD_ISA
