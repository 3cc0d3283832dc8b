// The numbers of a problem: at random, but the same in every run.
#include <cmath>
#include <cstring>

#include "check/check.hpp"

namespace regard::check {

namespace {

uint64_t state = 1;

// Evenly from −1 to 1.
double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return double(state >> 40) / double(1 << 23) - 1;
}

// A multiple of 1/1024 below 2, as float16.
uint16_t float16_of(int thousands) {
    int exponent;
    const double part = std::frexp(std::abs(thousands) / 1024.0, &exponent);  // in [½, 1)
    const int bits = thousands ? ((exponent + 14) << 10) + int(part * 2048) - 1024 : 0;
    return uint16_t((thousands < 0 ? 0x8000 : 0) | bits);
}

uint16_t bfloat16_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return uint16_t(bits >> 16);
}

}  // namespace

double value_of(uint16_t half, Number number) {
    const int sign = half & 0x8000 ? -1 : 1, digits = number == Number::float16 ? 10 : 7;
    const int high = (half & 0x7fff) >> digits, low = half & ((1 << digits) - 1);
    const int most = number == Number::float16 ? 31 : 255, bias = most / 2 + digits;
    if (high == most) return low ? NAN : sign * INFINITY;
    return sign * (high ? std::ldexp(low + (1 << digits), high - bias) : std::ldexp(low, 1 - bias));
}

Tensor Tensor::random(int64_t batches, int64_t heads, int64_t rows, int64_t width, Number number, bool heads_inside) {
    Tensor x{batches, heads, rows, width, heads_inside, number, {}, {}};
    for (int64_t n = 0; n < batches * heads * rows * width; ++n) {
        if (number == Number::float32) x.floats.push_back(float(1.5 * next()));
        if (number == Number::bfloat16) x.halves.push_back(bfloat16_of(float(1.5 * next())));
        if (number == Number::float16) x.halves.push_back(float16_of(int(1500 * next())));
    }
    return x;
}

View Tensor::view() const {
    const float* data = number == Number::float32 ? floats.data() : reinterpret_cast<const float*>(halves.data());
    const int64_t head = heads_inside ? width : rows * width, row = heads_inside ? heads * width : width;
    return {data, heads * rows * width, head, row};
}

double Tensor::operator()(int64_t batch, int64_t head, int64_t row, int64_t c) const {
    const View at = view();
    const int64_t n = batch * at.batch + head * at.head + row * at.row + c;
    return number == Number::float32 ? floats[n] : value_of(halves[n], number);
}

void Problem::fill() {
    const int64_t shared = heads / groups;
    q = Tensor::random(batches, heads, queries, width, number, true);
    k = Tensor::random(batches, shared, keys, width, number, false);
    v = Tensor::random(batches, shared, keys, value_width, number, true);
    w = Tensor::random(batches, heads, 1, width, Number::float32, false);
    grad = Tensor::random(batches, heads, queries, value_width, Number::float32, true);
    for (int64_t n = 0; n < heads * queries * keys && kind != MaskKind::none; ++n) {
        allowed.push_back(next() > -0.4);
        added.push_back(allowed.back() ? float(next()) : -INFINITY);
        const int64_t row = n / keys % queries, key = n % keys;
        const float large = row % 3 == 1 ? -1e9f : -__FLT_MAX__;  // rows 1, 2, 4, 5, … throughout; of others some keys
        if (large_rows && allowed.back() && (row % 3 || key % 4 == 1)) added.back() = large;
    }
}

Dot Problem::dot() const {
    const void* dense = kind == MaskKind::none      ? nullptr
                        : kind == MaskKind::boolean ? static_cast<const void*>(allowed.data())
                                                    : static_cast<const void*>(added.data());
    const Mask mask{left, right, offset.empty() ? nullptr : offset.data(), length.empty() ? nullptr : length.data(),
                    kind, dense, 0, queries * keys, keys, 1, masked()};
    return {batches, heads, groups, queries, keys, width, value_width, q.view(), k.view(), v.view(), number, scale, softcap, mask};
}

bool Problem::may(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    const int64_t position = query + (offset.empty() ? 0 : offset[batch]);
    return key >= position - left && key <= position + right && key < (length.empty() ? keys : length[batch]) &&
           (kind == MaskKind::none || allowed[(head * queries + query) * keys + key]);
}

}  // namespace regard::check
