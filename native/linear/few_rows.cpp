// y = x·Wᵀ for a few rows of x.
//
//     for tiles of outputs:                    one task: some outputs, for all rows
//         S[o][r] = Σ_i W[o][i] · x[r][i]      a vector of sums per output and row, in registers
//
// With few rows, reading the weights is the bottleneck. They are read once, in the order in which they are stored.
#include <array>
#include <utility>

#include "base/simd.hpp"
#include "linear/linear.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int most_rows = 8;  // maximum number of rows of x per pass over the weights

// Number of outputs of a tile, limited by the registers for their sums. With one row, several outputs are computed at a
// time to keep enough reads in flight: eight streams reach the memory bandwidth, two do not (measured).
constexpr int tile_outputs(int rows) {
    constexpr int sums = lanes == 16 ? 24 : 12;
    const int fit = sums / rows;
    return fit > 8 ? 8 : fit > 1 ? fit : 1;
}

// Computes the sums of O outputs and R rows. Rows of `sums` are `stride` apart.
template <int O, int R>
__attribute__((noinline)) void tile(const float* w, const float* x, int64_t in, float* sums, int64_t stride) {
    vec s[O][R] = {};
    const auto step = [&](int64_t i, int some) __attribute__((always_inline)) {
        vec a[O];
#pragma GCC unroll 8
        for (int o = 0; o < O; ++o) {
            a[o] = some == lanes ? load(w + o * in + i) : load_partial(w + o * in + i, some);
            if (R > 1) __builtin_prefetch(w + (o + O) * in + i);  // of the next tile, while this one computes
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vec b = some == lanes ? load(x + r * in + i) : load_partial(x + r * in + i, some);
#pragma GCC unroll 8
            for (int o = 0; o < O; ++o) s[o][r] += a[o] * b;
        }
    };
    int64_t i = 0;
    for (; i + lanes <= in; i += lanes) step(i, lanes);
    if (i < in) step(i, int(in - i));
#pragma GCC unroll 8
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums[r * stride + o] = sum(s[o][r]);
}

// Computes `count` outputs of R rows of x.
template <int R>
void outputs(const float* w, const float* x, int64_t in, int64_t count, float* sums, int64_t stride) {
    constexpr int together = tile_outputs(R);
    int64_t o = 0;
    for (; o + together <= count; o += together) tile<together, R>(w + o * in, x, in, sums + o, stride);
    for (; o < count; ++o) tile<1, R>(w + o * in, x, in, sums + o, stride);
}

// Computes outputs `first` … `first` + `count` − 1 of all rows, with their biases: (rows, count).
void multiply(const Linear& job, int64_t first, int64_t count, float* sums) {
    using Outputs = void (*)(const float*, const float*, int64_t, int64_t, float*, int64_t);
    static constexpr auto by_rows = []<int... I>(std::integer_sequence<int, I...>) {
        return std::array<Outputs, sizeof...(I)>{outputs<I + 1>...};
    }(std::make_integer_sequence<int, most_rows>{});
    for (int64_t r = 0; r < job.rows; r += most_rows) {
        const int64_t some = job.rows - r < most_rows ? job.rows - r : most_rows;
        by_rows[some - 1](job.weight + first * job.in, job.x + r * job.in, job.in, count, sums + r * count, count);
    }
    if (!job.bias) return;
    for (int64_t r = 0; r < job.rows; ++r)
        for (int64_t o = 0; o < count; ++o) sums[r * count + o] += job.bias[first + o];
}

// x / (1 + e^−x). Beyond 88 the exponential would overflow; there x is divided by 1e38, and the result is about 0.
REGARD_INLINE vec silu(vec x) { return x / (1.0f + exponential(minimum(splat(88.0f), -x))); }

// Calls body(index, number of lanes) for each vector of a row; the last one may be partial.
template <class Body>
REGARD_INLINE void each_vector(int64_t width, Body body) {
    int64_t i = 0;
    for (; i + lanes <= width; i += lanes) body(i, lanes);
    if (i < width) body(i, int(width - i));
}

}  // namespace

void few_rows(const void* argument, int64_t task, Workspace& workspace) {
    const Linear& job = *static_cast<const Linear*>(argument);
    const int64_t first = task * workspace.rows_per_task, left = job.out - first;
    const int64_t count = left < workspace.rows_per_task ? left : workspace.rows_per_task;
    const bool gate = job.epilogue == Epilogue::gate;
    float* sums = workspace.allocate(size_t(job.rows * count));
    float* up = gate ? workspace.allocate(size_t(job.rows * count)) : nullptr;
    multiply(job, first, count, sums);
    if (gate) multiply(job, job.out + first, count, up);
    for (int64_t r = 0; r < job.rows; ++r) {
        float* y = job.y + r * job.out + first;
        const int64_t row = r * count;
        each_vector(count, [&](int64_t i, int some) {
            vec result = load_partial(sums + row + i, some);
            if (gate) result = silu(result) * load_partial(up + row + i, some);
            if (job.epilogue == Epilogue::add) result += load_partial(y + i, some);
            store_partial(y + i, result, some);
        });
    }
}

// A task is `rows_per_task` rows.
void row_norm(const void* argument, int64_t task, Workspace& workspace) {
    const RowNorm& job = *static_cast<const RowNorm*>(argument);
    const float share = 1.0f / float(job.width);
    const int64_t first = task * workspace.rows_per_task, end = first + workspace.rows_per_task;
    for (int64_t r = first; r < (end < job.rows ? end : job.rows); ++r) {
        const float* x = job.x + r * job.width;
        float* y = job.y + r * job.width;
        vec total{}, squares{};
        if (job.centered) each_vector(job.width, [&](int64_t i, int some) { total += load_partial(x + i, some); });
        const float mean = job.centered ? sum(total) * share : 0.0f;
        each_vector(job.width, [&](int64_t i, int some) {
            const vec off = select(lane_indices() < some, load_partial(x + i, some) - mean, vec{});
            squares += off * off;
        });
        const float rate = 1.0f / __builtin_sqrtf(sum(squares) * share + job.epsilon);
        each_vector(job.width, [&](int64_t i, int some) {
            vec result = (load_partial(x + i, some) - mean) * rate * load_partial(job.gain + i, some);
            if (job.shift) result += load_partial(job.shift + i, some);
            store_partial(y + i, result, some);
        });
    }
}

// A task is `rows_per_task` rows.
void rotate_append(const void* argument, int64_t task, Workspace& workspace) {
    const RotateAppend& job = *static_cast<const RotateAppend*>(argument);
    const int64_t half = job.width / 2, rotated = job.heads + job.kv_heads;
    const int64_t start = task * workspace.rows_per_task, end = start + workspace.rows_per_task;
    for (int64_t r = start; r < (end < job.rows ? end : job.rows); ++r) {
        const int64_t text = r / job.tokens, position = job.first[text] + r % job.tokens;
        float* row = job.qkv + r * (rotated + job.kv_heads) * job.width;
        for (int64_t h = 0; job.cos && h < rotated; ++h) {
            float *a = row + h * job.width, *b = a + half;
            each_vector(half, [&](int64_t i, int some) {
                const vec cos = load_partial(job.cos + position * half + i, some), sin = load_partial(job.sin + position * half + i, some);
                const vec x = load_partial(a + i, some), y = load_partial(b + i, some);
                store_partial(a + i, x * cos - y * sin, some);
                store_partial(b + i, y * cos + x * sin, some);
            });
        }
        for (int64_t h = 0; job.key && h < job.kv_heads; ++h) {
            const float *key = row + (job.heads + h) * job.width, *value = row + (rotated + h) * job.width;
            const ptrdiff_t to = text * job.text + h * job.head + position * job.width;
            __builtin_memcpy(job.key + to, key, sizeof(float) * size_t(job.width));
            __builtin_memcpy(job.value + to, value, sizeof(float) * size_t(job.width));
        }
    }
}

}  // namespace regard::REGARD_ISA
