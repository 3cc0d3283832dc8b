// Additive attention, forward: a running softmax over blocks of keys.
#include <cmath>
#include <cstring>

#include "additive_scores.hpp"
#include "gemm.hpp"
#include "kernels.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128;

struct Rows {
    float* highest;  // (rows)
    float* total;    // (rows, lanes): lane by lane, added up at the end
    float* summed;   // (rows, padded value width)
};

void shrink(Rows state, int row, int value_width, float share) {
    float *sums = state.summed + row * value_width, *total = state.total + row * lanes;
    for (int c = 0; c < value_width; c += lanes) store(sums + c, load(sums + c) * share);
    store(total, load(total) * share);
}

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
            if (risen > -infinity) shrink(state, first + i, value_width, std::exp(risen - now));
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

void keep(const AdditiveForward& job, const Place& at, const Block& block, const float* s) {
    const Dot& of = job.of.of;
    float* to = job.kept + ((at.batch * of.heads + at.head) * of.queries + block.row) * of.keys + block.col;
    for (int i = 0; i < block.rows; ++i) std::memcpy(to + i * of.keys, s + i * key_block, sizeof(float) * block.cols);
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
        job.softmax[2 * (start + i)] = state.highest[i] == -infinity ? 0.0f : state.highest[i];
        job.softmax[2 * (start + i) + 1] = share;
        float* context = job.context + (start + i) * of.value_width;
        const float* sums = state.summed + i * value_width;
        int c = 0;
        for (; c + lanes <= of.value_width; c += lanes) store(context + c, load(sums + c) * share);
        for (; c < of.value_width; ++c) context[c] = sums[c] * share;
    }
}

}  // namespace

void additive_forward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveForward& job = *static_cast<const AdditiveForward*>(given);
    const Dot& of = job.of.of;
    const Place at = place(of, task, scratch.rows_per_task);
    const int64_t entry = at.batch * of.heads + at.head;
    if ((job.queries && !exponential_rows(*job.queries, entry * of.queries, (entry + 1) * of.queries)) ||
        (job.keys && !exponential_rows(*job.keys, entry * of.keys, (entry + 1) * of.keys))) {
        __atomic_store_n(job.beyond, 1, __ATOMIC_RELAXED);
        return;
    }
    const int value_width = round_up(int(of.value_width));
    const Head head = head_of(job.of, at);
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
        // A weight of 0 leaves no trace of a value, unless that is ∞ or NaN
        if (!inside(of, at, {at.row, at.rows, first, cols}) && !finite(v, cols, int(of.value_width), head.v_row))
            __atomic_store_n(job.beyond, 1, __ATOMIC_RELAXED);
        for (int m = 0; m < at.rows; m += step) {
            const Block block{at.row + m, int(least(at.rows - m, step)), first, cols};
            if (outside(of, at, block)) continue;
            score(job.of, at, block, s, key_block);
            if (job.kept) keep(job, at, block, s);
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
    const size_t value_width = round_up(int(of.value_width));
    return most_rows * key_block + key_block * value_width + rows * (1 + lanes + value_width) + 8 * 32;
}

}  // namespace regard::REGARD_ISA
