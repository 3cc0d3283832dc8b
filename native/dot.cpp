// Scaled dot products: forward.
//
//     for blocks of queries (a task):
//         for blocks of keys they may attend to:
//             Kt     = the block's keys, transposed
//             for strips of a few queries:
//                 S  = Q · Kt                       registers → a strip of the first-level cache
//                 P  = e^(S − highest so far)       the highest is raised only when a score exceeds it
//                 O += P · V
//         context = O / Σ P,  lse = highest + log Σ P
#include <cmath>
#include <cstring>

#include "gemm.hpp"
#include "kernels.hpp"
#include "pack.hpp"
#include "problem.hpp"
#include "scores.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128;

// The state of the queries of a task.
struct Rows {
    float* highest;  // (rows)
    float* total;    // (rows, lanes): lane by lane, added up at the end
    float* summed;   // (rows, padded value width)
};

// Weights of one strip in place of its scores, and the sums brought to the new highest score.
// FIRST: there are no sums yet. MASKED: some scores are −∞, and a row may have nothing else.
template <bool FIRST, bool MASKED>
void weigh(float* scores, ptrdiff_t ld, int rows, int cols, const Rows& state, int first,
           int value_width) {
    const int whole = round_up(cols);
    float base[most_rows];
    for (int i = 0; i < rows; ++i) {
        float* s = scores + i * ld;
        for (int j = cols; j < whole; ++j) s[j] = -infinity;
        vec most = load(s);
        for (int j = lanes; j < whole; j += lanes) most = maximum(most, load(s + j));
        float& risen = state.highest[first + i];
        if (FIRST) {
            risen = highest(most);
        } else if (any(most > splat(risen))) {
            const float now = highest(most);
            const vec shrink = splat(risen == -infinity ? 0.0f : std::exp(risen - now));
            float* sums = state.summed + (first + i) * value_width;
            for (int c = 0; c < value_width; c += lanes) store(sums + c, load(sums + c) * shrink);
            float* total = state.total + (first + i) * lanes;
            store(total, load(total) * shrink);
            risen = now;
        }
        base[i] = MASKED && risen == -infinity ? 0.0f : risen;
    }
    for (int i = 0; i < rows; ++i) {
        float* s = scores + i * ld;
        float* total = state.total + (first + i) * lanes;
        vec sum = FIRST ? vec{} : load(total);
        for (int j = 0; j < whole; j += lanes) {
            const vec x = load(s + j);
            vec p = exponential(x - base[i]);
            if (MASKED || j + lanes > cols) p = x == splat(-infinity) ? vec{} : p;
            sum += p;
            store(s + j, p);
        }
        store(total, sum);
    }
}

// What a task works in. Few keys stand close together: spread out they would fall on few sets of the cache.
struct Room {
    const float* q;
    float *kt, *s;
    ptrdiff_t ld;  // of kt and s
};

// A strip of queries against a block of keys.
template <bool FIRST>
void strip_forward(const Dot& of, const Place& at, const Block& block, const Room& room, const Rectangle& v,
                   const Rows& state) {
    const int m = int(block.row - at.row), width = int(of.width), value_width = round_up(int(of.value_width));
    const ptrdiff_t ld = room.ld;
    product<false>(block.rows, block.cols, width, {room.q + m * width, width, 1}, room.kt, ld, room.s, ld);
    if (of.softcap > 0) cap(room.s, ld, block.rows, block.cols, of.softcap);
    if (inside(of, at, block)) {
        weigh<FIRST, false>(room.s, ld, block.rows, block.cols, state, m, value_width);
    } else {
        mask_block(of, at, block, room.s, ld);
        weigh<FIRST, true>(room.s, ld, block.rows, block.cols, state, m, value_width);
    }
    product<!FIRST>(block.rows, value_width, block.cols, {room.s, ld, 1}, v.data, v.row, state.summed + m * value_width,
                    value_width);
}

// Context and log-sum-exp of the rows that were summed.
void finish(const DotForward& job, const Place& at, const Rows& state) {
    const Dot& of = job.of;
    const int value_width = round_up(int(of.value_width));
    const int64_t start = (at.batch * of.heads + at.head) * of.queries + at.row;
    float* total = state.total;
    bool finite = true;
    for (int i = 0; i < at.rows; ++i) total[i] = sum(load(state.total + i * lanes));
    for (int i = 0; i < at.rows; i += lanes) {
        const int some = at.rows - i < lanes ? at.rows - i : lanes;
        const vec sums = load_some(total + i, some), base = load_some(state.highest + i, some);
        const vec lse = sums == sums ? base + logarithm(sums) : sums;  // NaN stays
        store_some(job.lse + start + i, sums == vec{} ? splat(-infinity) : lse, some);
    }
    for (int i = 0; i < at.rows; ++i) {
        const float share = total[i] == 0 ? 0.0f : 1.0f / total[i];
        const int width = int(of.value_width);
        finite &= unpack_rows(state.summed + i * value_width, value_width, 1, width, job.context + (start + i) * width, share);
    }
    if (!finite) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

}  // namespace

void dot_forward(const void* given, int64_t task, Scratch& scratch) {
    const DotForward& job = *static_cast<const DotForward*>(given);
    const Dot& of = job.of;
    const Place at = place(of, task, scratch.rows_per_task);
    const int width = int(of.width), value_width = round_up(int(of.value_width));
    float* q = scratch.take(at.rows * width);
    float* kt = scratch.take(width * key_block);
    float* s = scratch.take(most_rows * key_block);
    float* v_room = scratch.take(key_block * value_width);
    const Rows state{scratch.take(at.rows), scratch.take(at.rows * lanes), scratch.take(at.rows * value_width)};
    pack_rows(of.q.data + at.batch * of.q.batch + at.head * of.q.head + at.row * of.q.row, of.q.row, at.rows, width, q,
              width, of.softcap > 0 ? of.scale / of.softcap : of.scale);
    const Columns columns = columns_of(of, at);
    const int64_t shared = at.head / of.groups;
    const float* k = of.k.data + at.batch * of.k.batch + shared * of.k.head;
    const float* v = of.v.data + at.batch * of.v.batch + shared * of.v.head;
    const Room room{q, kt, s, round_up(int(least(columns.last - columns.first, key_block)))};
    const int step = strip(at.rows);
    if (columns.first >= columns.last) {
        std::memset(state.total, 0, sizeof(float) * at.rows * lanes);
        std::memset(state.summed, 0, sizeof(float) * at.rows * value_width);
    }
    for (int64_t first = columns.first; first < columns.last; first += key_block) {
        const int cols = int(least(columns.last - first, key_block));
        pack_transposed(k + first * of.k.row, of.k.row, cols, width, kt, room.ld);
        const Rectangle values = rectangle(v + first * of.v.row, of.v.row, cols, int(of.value_width), v_room);
        for (int m = 0; m < at.rows; m += step) {
            const Block block{at.row + m, int(least(at.rows - m, step)), first, cols};
            if (first == columns.first)
                strip_forward<true>(of, at, block, room, values, state);
            else if (!outside(of, at, block))
                strip_forward<false>(of, at, block, room, values, state);
        }
    }
    finish(job, at, state);
}

size_t dot_forward_room(const void* given, int64_t rows) {
    const Dot& of = static_cast<const DotForward*>(given)->of;
    const size_t width = of.width, value_width = round_up(int(of.value_width));
    return rows * width + width * key_block + most_rows * key_block + key_block * value_width +
           rows * (1 + lanes + value_width) + 8 * 32;
}

}  // namespace regard::REGARD_ISA
