// Additive attention, forward: a running softmax over blocks of keys.
#include <cmath>
#include <cstring>

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128, most_queries = 24;  // at a time

struct Rows {
    float* highest;  // (rows)
    float* total;    // (rows, lanes): lane by lane, added up at the end; (rows) where one block holds all keys
    float* summed;   // (rows, padded value width)
};

void shrink(Rows state, int row, int value_width, float share) {
    float *sums = state.summed + row * value_width, *total = state.total + row * lanes;
    for (int c = 0; c < value_width; c += lanes) store(sums + c, load(sums + c) * share);
    store(total, load(total) * share);
}

// The highest of a row of scores, which is filled up to whole vectors.
REGARD_INLINE vec highest_of(float* s, int cols, int whole) {
    for (int j = cols; j < whole; ++j) s[j] = -infinity;
    vec most = load(s);
    for (int j = lanes; j < whole; j += lanes) most = maximum(load(s + j), most);
    return most;
}

// Weights in place of a row of scores, and `sum` with them.
REGARD_INLINE vec weigh_row(float* s, int whole, float highest, vec sum) {
    const float base = highest == -infinity ? 0.0f : highest;
    for (int j = 0; j < whole; j += lanes) {
        const vec x = load(s + j), p = x == splat(-infinity) ? vec{} : exponential(x - base);
        sum += p;
        store(s + j, p);
    }
    return sum;
}

// Weights in place of scores, and the sums brought to the new highest score.
void weigh(float* scores, int rows, int cols, Rows state, int first, int value_width) {
    const int whole = round_up(cols);
    for (int i = 0; i < rows; ++i) {
        float *s = scores + i * key_block, *total = state.total + (first + i) * lanes;
        const vec most = highest_of(s, cols, whole);
        float& risen = state.highest[first + i];
        if (any(most > splat(risen))) {
            const float now = highest(most);
            if (risen > -infinity) shrink(state, first + i, value_width, std::exp(risen - now));
            risen = now;
        }
        store(total, weigh_row(s, whole, risen, load(total)));
    }
}

// The same where the block holds all keys: the weights are final.
void weigh_whole(float* scores, int rows, int cols, float* highest_score, float* total) {
    const int whole = round_up(cols);
    for (int i = 0; i < rows; ++i) {
        float* s = scores + i * key_block;
        highest_score[i] = highest(highest_of(s, cols, whole));
        total[i] = sum(weigh_row(s, whole, highest_score[i], vec{}));
        const float share = total[i] == 0 ? 0.0f : 1.0f / total[i];
        for (int j = 0; j < whole; j += lanes) store(s + j, load(s + j) * share);
    }
}

void keep(const AdditiveForward& job, const Place& at, const Block& block, const float* s) {
    const Dot& of = job.of.of;
    float* to = job.kept + ((at.batch * of.heads + at.head) * of.queries + block.row) * of.keys + block.col;
    for (int i = 0; i < block.rows; ++i) std::memcpy(to + i * of.keys, s + i * key_block, sizeof(float) * block.cols);
}

// One task on its way.
struct Walk {
    const AdditiveForward& job;
    Place at;
    Head head;
    Rows state;
    bool whole;  // one block holds all keys
    float *s, *v_room, *k_room;
    float* context;  // (rows, padded value width): in its place where sums are final, and as wide; else `summed`
    int row;

    int64_t start() const { return (at.batch * job.of.of.heads + at.head) * job.of.of.queries + at.row; }
};

// Some queries against a block of keys.
void meet_block(const Walk& walk, const Block& block, const Rectangle& values) {
    const Dot& of = walk.job.of.of;
    const int m = int(block.row - walk.at.row), value_width = round_up(int(of.value_width));
    float *s = walk.s, *to = walk.context + m * walk.row;
    score(walk.head, of, walk.at, block, s, key_block);
    if (walk.job.kept) keep(walk.job, walk.at, block, s);
    if (of.softcap > 0) cap(s, key_block, block.rows, block.cols, of.softcap);
    if (!inside(of, walk.at, block)) mask_block(of, walk.at, block, s, key_block);
    const Matrix weights{s, key_block, 1};
    if (walk.whole) {
        weigh_whole(s, block.rows, block.cols, walk.state.highest + m, walk.state.total + m);
        product<false>(block.rows, value_width, block.cols, weights, values.data, values.row, to, walk.row);
    } else {
        weigh(s, block.rows, block.cols, walk.state, m, value_width);
        product<true>(block.rows, value_width, block.cols, weights, values.data, values.row, to, walk.row);
    }
}

// All queries of the task against some keys; false: they are out of range.
bool meet_keys(Walk& walk, int64_t first, int cols) {
    const Dot& of = walk.job.of.of;
    const Place& at = walk.at;
    const float* v = walk.head.v + first * walk.head.v_row;
    const int values = int(of.value_width), step = (strip(at.rows, most_queries) + 3) / 4 * 4;
    if (!take_keys(walk.job.of, at, first, cols, walk.head, walk.k_room)) return false;
    const Rectangle rows = rectangle(v, walk.head.v_row, cols, values, walk.v_room);
    for (int m = 0; m < at.rows; m += step) {
        const Block block{at.row + m, int(least(at.rows - m, step)), first, cols};
        if (!outside(of, at, block))
            meet_block(walk, block, rows);
        else if (walk.whole)
            std::memset(walk.context + m * walk.row, 0, sizeof(float) * block.rows * walk.row);
    }
    return true;
}

Walk make_walk(const AdditiveForward& job, const Place& at, const Columns& columns, Scratch& scratch) {
    const Dot& of = job.of.of;
    const int values = int(of.value_width), value_width = round_up(values);
    Walk walk{job, at, head_of(job.of, at), {}, false, nullptr, nullptr, nullptr, nullptr, value_width};
    walk.state = {scratch.take(at.rows), scratch.take(at.rows * lanes), scratch.take(at.rows * value_width)};
    walk.whole = columns.first < columns.last && columns.last - columns.first <= key_block;
    walk.s = scratch.take(most_queries * key_block);
    walk.v_room = scratch.take(key_block * value_width);
    walk.k_room = scratch.take(job.of.keys ? least(columns.last - columns.first, key_block) * key_row(of.width) : 0);
    walk.context = walk.whole && values == value_width ? job.context + walk.start() * values : walk.state.summed;
    for (int i = 0; i < at.rows; ++i) walk.state.highest[i] = -infinity;
    std::memset(walk.state.total, 0, sizeof(float) * at.rows * lanes);
    if (walk.context == walk.state.summed) std::memset(walk.context, 0, sizeof(float) * at.rows * value_width);
    return walk;
}

void finish(const Walk& walk) {
    const AdditiveForward& job = walk.job;
    const int width = int(job.of.of.value_width);
    float* total = walk.state.total;
    for (int i = 0; i < walk.at.rows && !walk.whole; ++i) total[i] = sum(load(total + i * lanes));
    std::memcpy(job.softmax.highest.at<float>(walk.at.batch, walk.at.head, walk.at.row), walk.state.highest, sizeof(float) * walk.at.rows);
    std::memcpy(job.softmax.total.at<float>(walk.at.batch, walk.at.head, walk.at.row), total, sizeof(float) * walk.at.rows);
    if (walk.context != walk.state.summed) return;
    for (int i = 0; i < walk.at.rows; ++i) {
        const float share = walk.whole || total[i] == 0 ? 1.0f : 1.0f / total[i];
        float* context = job.context + (walk.start() + i) * width;
        const float* sums = walk.context + i * walk.row;
        int c = 0;
        for (; c + lanes <= width; c += lanes) store(context + c, load(sums + c) * share);
        for (; c < width; ++c) context[c] = sums[c] * share;
    }
}

}  // namespace

void additive_forward(const void* given, int64_t task, Scratch& scratch) {
    const AdditiveForward& job = *static_cast<const AdditiveForward*>(given);
    const Dot& of = job.of.of;
    const Place at = place(of, task, scratch.rows_per_task);
    const Columns columns = columns_of(of, at);
    Walk walk = make_walk(job, at, columns, scratch);
    float* room = scratch.take(job.of.queries ? of.queries * query_row(of.width) : 0);
    bool served = take_queries(job.of, at, walk.head, room);
    for (int64_t first = columns.first; served && first < columns.last; first += key_block)
        served = meet_keys(walk, first, int(least(columns.last - first, key_block)));
    if (served) {
        finish(walk);  // a value that is not finite shows in the context, masked or not: 0 · NaN is NaN
        served = !of.mask.any || finite(job.context + walk.start() * of.value_width, at.rows, int(of.value_width), of.value_width);
    }
    if (!served) __atomic_store_n(job.beyond, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
