#include "fused/fused.hpp"

#include <cmath>

#include "base/kernel_table.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

namespace {

// Φ(x) of the normal distribution. Up to |x| = 1 it is ½ + x·R(x²), R fitted for the least relative error: 7e-10. Beyond,
// Φ(−a) = e^(−a²/2) · P(1 / (1 + 0.23·a)), P fitted likewise up to a = 14: 4.8e-8. So the tail on the left is as exact as
// the middle, where 1 + erf has nothing left of it.
REGARD_INLINE vec cumulative(vec x) {
    const vec size = maximum(x, -x), z = x * x;
    vec near = splat(-7.654208094e-06f);
    near = near * z + 1.134863713e-04f;
    near = near * z - 1.186329941e-03f;
    near = near * z + 9.973323410e-03f;
    near = near * z - 6.649035992e-02f;
    near = near * z + 3.989422801e-01f;
    const vec t = reciprocal(minimum(splat(14.0f), size) * 0.23f + 1.0f);
    vec p = splat(-7.84674790e-02f);
    p = p * t + 2.90414221e-01f;
    p = p * t - 2.78127107e-01f;
    p = p * t + 3.01472905e-01f;
    p = p * t - 3.29202380e-02f;
    p = p * t + 1.19514062e-01f;
    p = p * t + 8.57629187e-02f;
    p = p * t + 9.23784564e-02f;
    p = p * t - 2.77624266e-05f;
    const vec tail = select(size < splat(12.5f), exponential(z * -0.5f) * p, vec{});  // beyond, below 1e-34
    return select(size < splat(1.0f), near * x + 0.5f, select(x < vec{}, tail, 1.0f - tail));
}

// Vectors of a row, the last of them perhaps in part: body(at, how many).
template <class Body>
REGARD_INLINE void each(int64_t width, Body body) {
    int64_t at = 0;
    for (; at + lanes <= width; at += lanes) body(at, lanes);
    if (at < width) body(at, int(width - at));
}

struct Rows {
    int64_t first, past;

    Rows(int64_t rows, int64_t task, int64_t each) : first(task * each), past(first + each < rows ? first + each : rows) {}
};

void clear(float* x, int64_t width) {
    each(width, [&](int64_t at, int some) { store_some(x + at, vec{}, some); });
}

// A hash of 32 bits in which each bit of x moves half of the others.
REGARD_INLINE uvec mixed(uvec x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// The bytes of a row, four for each hash of a place: the same on every instruction set.
struct Bytes {
    const Drop& drop;
    uint8_t* of;
    float scale;

    Bytes(const Drop& drop, int64_t width, Scratch& scratch)
        : drop(drop), of(drop.below ? reinterpret_cast<uint8_t*>(scratch.take(size_t(width) / 4 + 1 + lanes)) : nullptr), scale(256.0f / float(256 - drop.below)) {}

    void fill(int64_t row, int64_t width) {
        if (!of) return;
        const int64_t words = (width + 3) / 4;
        for (int64_t word = 0; word < words; word += lanes) {
            const uvec place = uint32_t(row * words + word) + (uvec)lane_numbers();
            const uvec hash = mixed(mixed(place ^ drop.key[0]) + drop.key[1]);
            __builtin_memcpy(of + 4 * word, &hash, sizeof hash);
        }
    }
    // Returns x after dropout: 0, or x times the scale.
    REGARD_INLINE vec operator()(int64_t at, vec x) const {
        return of ? select((ivec)load_bytes(of + at) >= drop.below, x * scale, vec{}) : x;
    }
};

}  // namespace

void gelu(const void* given, int64_t task, Scratch& scratch) {
    const Gelu& job = *static_cast<const Gelu*>(given);
    const Rows rows(job.rows, task, scratch.rows_per_task);
    for (int64_t r = rows.first; r < rows.past; ++r) {
        const float* x = job.x + r * job.width;
        float* y = job.y + r * job.width;
        each(job.width, [&](int64_t at, int some) {
            const vec of = load_some(x + at, some) + load_some(job.bias + at, some);
            store_some(y + at, of * cumulative(of), some);
        });
    }
}

void add_norm(const void* given, int64_t task, Scratch& scratch) {
    const AddNorm& job = *static_cast<const AddNorm*>(given);
    const Rows rows(job.rows, task, scratch.rows_per_task);
    const float share = 1.0f / float(job.width);
    Bytes bytes(job.drop, job.width, scratch);
    for (int64_t r = rows.first; r < rows.past; ++r) {
        const float *x = job.x + r * job.width, *part = job.part + r * job.width;
        float *y = job.y + r * job.width, *added = job.sum ? job.sum + r * job.width : y;
        bytes.fill(r, job.width);
        vec total{};
        each(job.width, [&](int64_t at, int some) {
            vec of = load_some(part + at, some);
            if (job.bias) of += load_some(job.bias + at, some);
            of = load_some(x + at, some) + bytes(at, of);
            total += of;
            store_some(added + at, of, some);
        });
        const float mean = sum(total) * share;
        vec squares{};
        each(job.width, [&](int64_t at, int some) {
            const vec off = select(lane_numbers() < some, load_some(added + at, some) - mean, vec{});
            squares += off * off;
        });
        const float rate = 1.0f / std::sqrt(sum(squares) * share + job.epsilon);
        each(job.width, [&](int64_t at, int some) {
            const vec unit = (load_some(added + at, some) - mean) * rate;
            store_some(y + at, unit * load_some(job.gain + at, some) + load_some(job.shift + at, some), some);
        });
        job.mean[r] = mean;
        job.rate[r] = rate;
    }
}

// With u = (sum − mean) · rate and g = of_y · gain: dsum = of_sum + rate · (g − mean(g) − u · mean(g·u)).
void add_norm_backward(const void* given, int64_t task, Scratch& scratch) {
    const AddNormBackward& job = *static_cast<const AddNormBackward*>(given);
    const Rows rows(job.rows, task, scratch.rows_per_task);
    const float share = 1.0f / float(job.width);
    Bytes bytes(job.drop, job.width, scratch);
    float *dgain = job.dgain + task * job.width, *dshift = job.dshift + task * job.width;
    clear(dgain, job.width);
    clear(dshift, job.width);
    for (int64_t r = rows.first; r < rows.past; ++r) {
        const int64_t row = r * job.width;
        const float *added = job.sum + row, *grad = job.of_y + row, mean = job.mean[r], rate = job.rate[r];
        bytes.fill(r, job.width);
        vec plain{}, along{};
        each(job.width, [&](int64_t at, int some) {
            const vec unit = (load_some(added + at, some) - mean) * rate, of = load_some(grad + at, some);  // 0 beyond a row
            const vec scaled = of * load_some(job.gain + at, some);
            plain += scaled;
            along += scaled * unit;
            store_some(dgain + at, load_some(dgain + at, some) + of * unit, some);
            store_some(dshift + at, load_some(dshift + at, some) + of, some);
        });
        const float less = sum(plain) * share, towards = sum(along) * share;
        each(job.width, [&](int64_t at, int some) {
            const vec unit = (load_some(added + at, some) - mean) * rate;
            const vec scaled = load_some(grad + at, some) * load_some(job.gain + at, some);
            vec found = (scaled - less - unit * towards) * rate;
            if (job.of_sum) found += load_some(job.of_sum + row + at, some);
            store_some(job.dx + row + at, found, some);
            if (job.dpart) store_some(job.dpart + row + at, bytes(at, found), some);
        });
    }
}

}  // namespace regard::REGARD_ISA
