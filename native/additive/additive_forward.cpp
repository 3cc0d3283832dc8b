// Additive attention, forward: an online softmax over blocks of keys.
#include <cmath>
#include <cstring>

#include "additive/additive_scores.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128, max_queries = 24;  // per block

// State of the online softmax.
struct RunningSoftmax {
    float* highest;      // (rows)
    float* total;        // (rows, lanes): one sum per lane; (rows) if one block holds all keys
    float* accumulator;  // (rows, padded value width)
};

void rescale(RunningSoftmax softmax, int row, int value_width, float factor) {
    float *sums = softmax.accumulator + row * value_width, *total = softmax.total + row * lanes;
    for (int c = 0; c < value_width; c += lanes) store(sums + c, load(sums + c) * factor);
    store(total, load(total) * factor);
}

// Pads a row of scores with −∞ to whole vectors and returns its maximum, lane by lane.
REGARD_INLINE vec pad_and_max(float* s, int cols, int padded_cols) {
    for (int j = cols; j < padded_cols; ++j) s[j] = -infinity;
    vec maxima = load(s);
    for (int j = lanes; j < padded_cols; j += lanes) maxima = maximum(load(s + j), maxima);
    return maxima;
}

// Replaces a row of scores by their exponentials and returns `sum` plus these.
REGARD_INLINE vec exponentiate_row(float* s, int padded_cols, float highest, vec sum) {
    const float base = highest == -infinity ? 0.0f : highest;
    for (int j = 0; j < padded_cols; j += lanes) {
        const vec x = load(s + j), p = x == splat(-infinity) ? vec{} : exponential(x - base);
        sum += p;
        store(s + j, p);
    }
    return sum;
}

// Replaces scores by unnormalized weights, and rescales the sums if the highest score of a row increases.
void softmax_block(float* scores, int rows, int cols, RunningSoftmax softmax, int first, int value_width) {
    const int padded_cols = round_up(cols);
    for (int i = 0; i < rows; ++i) {
        float *s = scores + i * key_block, *total = softmax.total + (first + i) * lanes;
        const vec maxima = pad_and_max(s, cols, padded_cols);
        float& running_max = softmax.highest[first + i];
        if (any(maxima > splat(running_max))) {
            const float new_max = highest(maxima);
            if (running_max > -infinity) rescale(softmax, first + i, value_width, std::exp(running_max - new_max));
            running_max = new_max;
        }
        store(total, exponentiate_row(s, padded_cols, running_max, load(total)));
    }
}

// Replaces scores by weights, if the block holds all keys.
void softmax_single_block(float* scores, int rows, int cols, float* highest_score, float* total) {
    const int padded_cols = round_up(cols);
    for (int i = 0; i < rows; ++i) {
        float* s = scores + i * key_block;
        highest_score[i] = highest(pad_and_max(s, cols, padded_cols));
        total[i] = sum(exponentiate_row(s, padded_cols, highest_score[i], vec{}));
        const float inverse_total = total[i] == 0 ? 0.0f : 1.0f / total[i];
        for (int j = 0; j < padded_cols; j += lanes) store(s + j, load(s + j) * inverse_total);
    }
}

void save_scores(const AdditiveForward& job, const QueryBlock& query_block, const Block& block, const float* s) {
    const Dot& dot = job.additive.dot;
    float* saved =
        job.saved_scores + ((query_block.batch * dot.heads + query_block.head) * dot.queries + block.row) * dot.keys + block.col;
    for (int i = 0; i < block.rows; ++i) std::memcpy(saved + i * dot.keys, s + i * key_block, sizeof(float) * block.cols);
}

// Workspace and outputs of a task.
struct TaskState {
    const AdditiveForward& job;
    QueryBlock query_block;
    Head head;
    RunningSoftmax softmax;
    bool single_block;  // one block holds all keys
    float *s, *v_buffer, *k_buffer;
    float* context;  // (rows, padded value width): the output if it is written once and needs no padding, else `accumulator`
    int row;         // row stride of context

    int64_t start() const {
        return (query_block.batch * job.additive.dot.heads + query_block.head) * job.additive.dot.queries + query_block.row;
    }
};

// Attention of some queries to a block of keys: scores, softmax, accumulation of values.
void forward_block(const TaskState& state, const Block& block, const MatrixView& values) {
    const Dot& dot = state.job.additive.dot;
    const int m = int(block.row - state.query_block.row), value_width = round_up(int(dot.value_width));
    float *s = state.s, *context = state.context + m * state.row;
    score_block(state.head, dot, state.query_block, block, s, key_block);
    if (state.job.saved_scores) save_scores(state.job, state.query_block, block, s);
    if (dot.softcap > 0) apply_softcap(s, key_block, block.rows, block.cols, dot.softcap);
    if (!unmasked(dot, state.query_block, block)) mask_block(dot, state.query_block, block, s, key_block);
    const Matrix weights{s, key_block, 1};
    if (state.single_block) {
        softmax_single_block(s, block.rows, block.cols, state.softmax.highest + m, state.softmax.total + m);
        product<false>(block.rows, value_width, block.cols, weights, values.data, values.row, context, state.row);
    } else {
        softmax_block(s, block.rows, block.cols, state.softmax, m, value_width);
        product<true>(block.rows, value_width, block.cols, weights, values.data, values.row, context, state.row);
    }
}

// Attention of all queries of the task to a block of keys. Returns false if the keys are out of range.
bool forward_keys(TaskState& state, int64_t first, int cols) {
    const Dot& dot = state.job.additive.dot;
    const QueryBlock& query_block = state.query_block;
    const float* v = state.head.v + first * state.head.v_row;
    const int value_width = int(dot.value_width), step = (strip(query_block.rows, max_queries) + 3) / 4 * 4;
    if (!load_keys(state.job.additive, query_block, first, cols, state.head, state.k_buffer)) return false;
    const MatrixView values = readable_rows(v, state.head.v_row, cols, value_width, state.v_buffer);
    for (int m = 0; m < query_block.rows; m += step) {
        const Block block{query_block.row + m, int(min(query_block.rows - m, step)), first, cols};
        if (!fully_masked(dot, query_block, block))
            forward_block(state, block, values);
        else if (state.single_block)
            std::memset(state.context + m * state.row, 0, sizeof(float) * block.rows * state.row);
    }
    return true;
}

TaskState make_state(const AdditiveForward& job, const QueryBlock& query_block, const KeyRange& columns, Workspace& workspace) {
    const Dot& dot = job.additive.dot;
    const int value_width = int(dot.value_width), padded_value_width = round_up(value_width);
    TaskState state{job,     query_block,       head_of(job.additive, query_block), {}, false, nullptr, nullptr, nullptr,
                    nullptr, padded_value_width};
    state.softmax = {workspace.allocate(query_block.rows), workspace.allocate(query_block.rows * lanes),
                     workspace.allocate(query_block.rows * padded_value_width)};
    state.single_block = columns.first < columns.last && columns.last - columns.first <= key_block;
    state.s = workspace.allocate(max_queries * key_block);
    state.v_buffer = workspace.allocate(key_block * padded_value_width);
    state.k_buffer =
        workspace.allocate(job.additive.keys ? min(columns.last - columns.first, key_block) * key_row(dot.width) : 0);
    state.context = state.single_block && value_width == padded_value_width ? job.context + state.start() * value_width
                                                                            : state.softmax.accumulator;
    for (int i = 0; i < query_block.rows; ++i) state.softmax.highest[i] = -infinity;
    std::memset(state.softmax.total, 0, sizeof(float) * query_block.rows * lanes);
    if (state.context == state.softmax.accumulator)
        std::memset(state.context, 0, sizeof(float) * query_block.rows * padded_value_width);
    return state;
}

void finish(const TaskState& state) {
    const AdditiveForward& job = state.job;
    const int width = int(job.additive.dot.value_width);
    float* total = state.softmax.total;
    for (int i = 0; i < state.query_block.rows && !state.single_block; ++i) total[i] = sum(load(total + i * lanes));
    std::memcpy(job.softmax.highest.at<float>(state.query_block.batch, state.query_block.head, state.query_block.row),
                state.softmax.highest, sizeof(float) * state.query_block.rows);
    std::memcpy(job.softmax.total.at<float>(state.query_block.batch, state.query_block.head, state.query_block.row), total,
                sizeof(float) * state.query_block.rows);
    if (state.context != state.softmax.accumulator) return;
    for (int i = 0; i < state.query_block.rows; ++i) {
        const float inverse_total = state.single_block || total[i] == 0 ? 1.0f : 1.0f / total[i];
        float* context = job.context + (state.start() + i) * width;
        const float* sums = state.context + i * state.row;
        int c = 0;
        for (; c + lanes <= width; c += lanes) store(context + c, load(sums + c) * inverse_total);
        for (; c < width; ++c) context[c] = sums[c] * inverse_total;
    }
}

}  // namespace

void additive_forward(const void* arguments, int64_t task, Workspace& workspace) {
    const AdditiveForward& job = *static_cast<const AdditiveForward*>(arguments);
    const Dot& dot = job.additive.dot;
    const QueryBlock query_block = block_of_task(dot, task, workspace.rows_per_task);
    const KeyRange columns = visible_keys(dot, query_block);
    TaskState state = make_state(job, query_block, columns, workspace);
    float* buffer = workspace.allocate(job.additive.queries ? dot.queries * query_row(dot.width) : 0);
    bool succeeded = load_queries(job.additive, query_block, state.head, buffer);
    for (int64_t first = columns.first; succeeded && first < columns.last; first += key_block)
        succeeded = forward_keys(state, first, int(min(columns.last - first, key_block)));
    if (succeeded) {
        finish(state);  // a non-finite value makes the context NaN even if it is masked: 0 · NaN is NaN
        succeeded = !dot.mask.any || finite(job.context + state.start() * dot.value_width, query_block.rows, int(dot.value_width),
                                            dot.value_width);
    }
    if (!succeeded) __atomic_store_n(job.out_of_range, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA
