// Random problems, the same in every run.
#include <cmath>
#include <cstring>

#include "check/check.hpp"

namespace regard::check {

namespace {

uint64_t state = 1;

// Uniform in [−1, 1).
double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return double(state >> 40) / double(1 << 23) - 1;
}

// Converts multiple / 1024, below 2, to float16.
uint16_t float16_of(int multiple) {
    int exponent;
    const double fraction = std::frexp(std::abs(multiple) / 1024.0, &exponent);  // in [½, 1)
    const int bits = multiple ? ((exponent + 14) << 10) + int(fraction * 2048) - 1024 : 0;
    return uint16_t((multiple < 0 ? 0x8000 : 0) | bits);
}

uint16_t bfloat16_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return uint16_t(bits >> 16);
}

}  // namespace

double value_of(uint16_t half, Dtype dtype) {
    const int sign = half & 0x8000 ? -1 : 1, mantissa_bits = dtype == Dtype::float16 ? 10 : 7;
    const int exponent = (half & 0x7fff) >> mantissa_bits, mantissa = half & ((1 << mantissa_bits) - 1);
    const int max_exponent = dtype == Dtype::float16 ? 31 : 255, bias = max_exponent / 2 + mantissa_bits;
    if (exponent == max_exponent) return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias) : std::ldexp(mantissa, 1 - bias));
}

Tensor Tensor::random(int64_t batches, int64_t heads, int64_t rows, int64_t width, Dtype dtype, bool interleaved_heads) {
    Tensor x{batches, heads, rows, width, interleaved_heads, dtype, {}, {}};
    for (int64_t n = 0; n < batches * heads * rows * width; ++n) {
        if (dtype == Dtype::float32) x.floats.push_back(float(1.5 * next()));
        if (dtype == Dtype::bfloat16) x.half_data.push_back(bfloat16_of(float(1.5 * next())));
        if (dtype == Dtype::float16) x.half_data.push_back(float16_of(int(1500 * next())));
    }
    return x;
}

View Tensor::view() const {
    const float* data = dtype == Dtype::float32 ? floats.data() : reinterpret_cast<const float*>(half_data.data());
    const int64_t head = interleaved_heads ? width : rows * width, row = interleaved_heads ? heads * width : width;
    return {data, heads * rows * width, head, row};
}

double Tensor::operator()(int64_t batch, int64_t head, int64_t row, int64_t c) const {
    const View strides = view();
    const int64_t n = batch * strides.batch + head * strides.head + row * strides.row + c;
    return dtype == Dtype::float32 ? floats[n] : value_of(half_data[n], dtype);
}

void Problem::fill() {
    const int64_t kv_heads = heads / groups;
    q = Tensor::random(batches, heads, queries, width, dtype, true);
    k = Tensor::random(batches, kv_heads, keys, width, dtype, false);
    v = Tensor::random(batches, kv_heads, keys, value_width, dtype, true);
    w = Tensor::random(batches, heads, 1, width, Dtype::float32, false);
    grad = Tensor::random(batches, heads, queries, value_width, Dtype::float32, true);
    for (int64_t n = 0; n < heads * queries * keys && kind != MaskKind::none; ++n) {
        allowed.push_back(next() > -0.4);
        added.push_back(allowed.back() ? float(next()) : -INFINITY);
        const int64_t row = n / keys % queries, key = n % keys;
        const float large = row % 3 == 1 ? -1e9f : -__FLT_MAX__;  // all keys of rows 1, 2, 4, 5, …; some keys of the others
        if (large_rows && allowed.back() && (row % 3 || key % 4 == 1)) added.back() = large;
    }
}

Dot Problem::dot() const {
    const void* dense = kind == MaskKind::none      ? nullptr
                        : kind == MaskKind::boolean ? static_cast<const void*>(allowed.data())
                                                    : static_cast<const void*>(added.data());
    const Mask mask{left,
                    right,
                    offset.empty() ? nullptr : offset.data(),
                    length.empty() ? nullptr : length.data(),
                    kind,
                    dense,
                    0,
                    queries * keys,
                    keys,
                    1,
                    masked()};
    return {batches, heads, groups, queries, keys, width, value_width, q.view(), k.view(), v.view(), dtype, scale, softcap, mask};
}

bool Problem::may_attend(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    const int64_t position = query + (offset.empty() ? 0 : offset[batch]);
    return key >= position - left && key <= position + right && key < (length.empty() ? keys : length[batch]) &&
           (kind == MaskKind::none || allowed[(head * queries + query) * keys + key]);
}

}  // namespace regard::check
