#include "fused/fused.hpp"

#include <cmath>

#include "base/kernel_table.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

namespace {

// Φ(x), the cumulative distribution function of the normal distribution. Up to |x| = 1 it is ½ + x·R(x²), with relative error
// 7e-10; above, Φ(−a) = e^(−a²/2) · P(1 / (1 + 0.23·a)), with relative error 4.8e-8 up to a = 14. So the left tail is as
// accurate as the middle; 1 + erf would cancel there.
REGARD_INLINE vec cumulative(vec x) {
    const vec magnitude = maximum(x, -x), z = x * x;
    vec middle = splat(-7.654208094e-06f);
    middle = middle * z + 1.134863713e-04f;
    middle = middle * z - 1.186329941e-03f;
    middle = middle * z + 9.973323410e-03f;
    middle = middle * z - 6.649035992e-02f;
    middle = middle * z + 3.989422801e-01f;
    const vec t = reciprocal(minimum(splat(14.0f), magnitude) * 0.23f + 1.0f);
    vec p = splat(-7.84674790e-02f);
    p = p * t + 2.90414221e-01f;
    p = p * t - 2.78127107e-01f;
    p = p * t + 3.01472905e-01f;
    p = p * t - 3.29202380e-02f;
    p = p * t + 1.19514062e-01f;
    p = p * t + 8.57629187e-02f;
    p = p * t + 9.23784564e-02f;
    p = p * t - 2.77624266e-05f;
    const vec tail = select(magnitude < splat(12.5f), exponential(z * -0.5f) * p, vec{});  // below 1e-34 from there on
    return select(magnitude < splat(1.0f), middle * x + 0.5f, select(x < vec{}, tail, 1.0f - tail));
}

// Calls body(column, number of lanes) for each vector of a row; the last one may be partial.
template <class Body>
REGARD_INLINE void for_each_vector(int64_t width, Body body) {
    int64_t c = 0;
    for (; c + lanes <= width; c += lanes) body(c, lanes);
    if (c < width) body(c, int(width - c));
}

struct Rows {
    int64_t first, last;

    Rows(int64_t rows, int64_t task, int64_t rows_per_task)
        : first(task * rows_per_task), last(first + rows_per_task < rows ? first + rows_per_task : rows) {}
};

void clear(float* x, int64_t width) {
    for_each_vector(width, [&](int64_t c, int count) { store_partial(x + c, vec{}, count); });
}

// A 32-bit hash: each bit of x changes about half of the output bits.
REGARD_INLINE uvec mix(uvec x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// Random bytes of a row. One hash gives the bytes of four elements, the same on every instruction set.
struct DropoutMask {
    const Dropout& dropout;
    uint8_t* bytes;
    float scale;

    DropoutMask(const Dropout& dropout, int64_t width, Workspace& workspace)
        : dropout(dropout),
          bytes(dropout.threshold ? reinterpret_cast<uint8_t*>(workspace.allocate(size_t(width) / 4 + 1 + lanes)) : nullptr),
          scale(256.0f / float(256 - dropout.threshold)) {}

    void fill(int64_t row, int64_t width) {
        if (!bytes) return;
        const int64_t words = (width + 3) / 4;
        for (int64_t word = 0; word < words; word += lanes) {
            const uvec word_index = uint32_t(row * words + word) + (uvec)lane_indices();
            const uvec hash = mix(mix(word_index ^ dropout.key[0]) + dropout.key[1]);
            __builtin_memcpy(bytes + 4 * word, &hash, sizeof hash);
        }
    }
    // Returns x after dropout: 0, or x times the scale.
    REGARD_INLINE vec operator()(int64_t c, vec x) const {
        return bytes ? select((ivec)load_bytes(bytes + c) >= dropout.threshold, x * scale, vec{}) : x;
    }
};

}  // namespace

void gelu(const void* arguments, int64_t task, Workspace& workspace) {
    const Gelu& job = *static_cast<const Gelu*>(arguments);
    const Rows rows(job.rows, task, workspace.rows_per_task);
    for (int64_t r = rows.first; r < rows.last; ++r) {
        const float* x = job.x + r * job.width;
        float* y = job.y + r * job.width;
        for_each_vector(job.width, [&](int64_t c, int count) {
            const vec value = load_partial(x + c, count) + load_partial(job.bias + c, count);
            store_partial(y + c, value * cumulative(value), count);
        });
    }
}

void add_norm(const void* arguments, int64_t task, Workspace& workspace) {
    const AddNorm& job = *static_cast<const AddNorm*>(arguments);
    const Rows rows(job.rows, task, workspace.rows_per_task);
    const float inverse_width = 1.0f / float(job.width);
    DropoutMask dropout_mask(job.dropout, job.width, workspace);
    for (int64_t r = rows.first; r < rows.last; ++r) {
        const float *x = job.x + r * job.width, *part = job.part + r * job.width;
        float *y = job.y + r * job.width, *added = job.sum ? job.sum + r * job.width : y;
        dropout_mask.fill(r, job.width);
        vec total{};
        for_each_vector(job.width, [&](int64_t c, int count) {
            vec value = load_partial(part + c, count);
            if (job.bias) value += load_partial(job.bias + c, count);
            value = load_partial(x + c, count) + dropout_mask(c, value);
            total += value;
            store_partial(added + c, value, count);
        });
        const float mean = sum(total) * inverse_width;
        vec squares{};
        for_each_vector(job.width, [&](int64_t c, int count) {
            const vec deviation = select(lane_indices() < count, load_partial(added + c, count) - mean, vec{});
            squares += deviation * deviation;
        });
        const float inverse_std = 1.0f / std::sqrt(sum(squares) * inverse_width + job.epsilon);
        for_each_vector(job.width, [&](int64_t c, int count) {
            const vec unit = (load_partial(added + c, count) - mean) * inverse_std;
            store_partial(y + c, unit * load_partial(job.gain + c, count) + load_partial(job.shift + c, count), count);
        });
        job.mean[r] = mean;
        job.inverse_std[r] = inverse_std;
    }
}

// With u = (sum − mean) · inverse_std and g = grad_y · gain: dsum = grad_sum + inverse_std · (g − mean(g) − u · mean(g·u)).
void add_norm_backward(const void* arguments, int64_t task, Workspace& workspace) {
    const AddNormBackward& job = *static_cast<const AddNormBackward*>(arguments);
    const Rows rows(job.rows, task, workspace.rows_per_task);
    const float inverse_width = 1.0f / float(job.width);
    DropoutMask dropout_mask(job.dropout, job.width, workspace);
    float *dgain = job.dgain + task * job.width, *dshift = job.dshift + task * job.width;
    clear(dgain, job.width);
    clear(dshift, job.width);
    for (int64_t r = rows.first; r < rows.last; ++r) {
        const int64_t row = r * job.width;
        const float *added = job.sum + row, *grad = job.grad_y + row, mean = job.mean[r], inverse_std = job.inverse_std[r];
        dropout_mask.fill(r, job.width);
        vec scaled_sum{}, scaled_unit_sum{};
        for_each_vector(job.width, [&](int64_t c, int count) {
            const vec unit = (load_partial(added + c, count) - mean) * inverse_std,
                      value = load_partial(grad + c, count);  // 0 past the end of the row
            const vec scaled = value * load_partial(job.gain + c, count);
            scaled_sum += scaled;
            scaled_unit_sum += scaled * unit;
            store_partial(dgain + c, load_partial(dgain + c, count) + value * unit, count);
            store_partial(dshift + c, load_partial(dshift + c, count) + value, count);
        });
        const float scaled_mean = sum(scaled_sum) * inverse_width, scaled_unit_mean = sum(scaled_unit_sum) * inverse_width;
        for_each_vector(job.width, [&](int64_t c, int count) {
            const vec unit = (load_partial(added + c, count) - mean) * inverse_std;
            const vec scaled = load_partial(grad + c, count) * load_partial(job.gain + c, count);
            vec dsum = (scaled - scaled_mean - unit * scaled_unit_mean) * inverse_std;
            if (job.grad_sum) dsum += load_partial(job.grad_sum + row + c, count);
            store_partial(job.dx + row + c, dsum, count);
            if (job.dpart) store_partial(job.dpart + row + c, dropout_mask(c, dsum), count);
        });
    }
}

}  // namespace regard::REGARD_ISA
