// Compares the kernels of decoding steps with plain loops.
#include <cmath>

#include "check/check.hpp"
#include "linear/linear.hpp"

namespace regard::check {

namespace {

std::vector<float> numbers(int64_t rows, int64_t width) { return Tensor::random(1, 1, rows, width, Dtype::float32, false).floats; }

void check_row_norm(const Kernels& kernels, const std::string& name, int64_t rows, int64_t width, bool centered, int threads) {
    const std::vector<float> x = numbers(rows, width), gain = numbers(1, width), shift = numbers(1, width);
    std::vector<double> truth;
    for (int64_t r = 0; r < rows; ++r) {
        double mean = 0, square = 0;
        for (int64_t c = 0; c < width && centered; ++c) mean += double(x[r * width + c]) / double(width);
        for (int64_t c = 0; c < width; ++c) square += std::pow(x[r * width + c] - mean, 2) / double(width);
        for (int64_t c = 0; c < width; ++c)
            truth.push_back((x[r * width + c] - mean) / std::sqrt(square + 1e-5) * gain[c] + (centered ? shift[c] : 0));
    }
    std::vector<float> y(x);
    calls::row_norm(kernels, {rows, width, y.data(), gain.data(), centered ? shift.data() : nullptr, 1e-5f, centered, y.data()}, threads);
    expect_close(name + ": row norm", y.data(), width, truth, width, 1e-4);
}

void check_few_rows(const Kernels& kernels, const std::string& name, int64_t rows, int64_t in, int64_t out, Epilogue epilogue, int threads) {
    const int64_t all = epilogue == Epilogue::gate ? 2 * out : out;
    const std::vector<float> x = numbers(rows, in), weight = numbers(all, in), bias = numbers(1, all);
    std::vector<float> y = numbers(rows, out);
    std::vector<double> truth;
    const auto product = [&](int64_t r, int64_t o) {
        double sum = bias[o];
        for (int64_t i = 0; i < in; ++i) sum += double(x[r * in + i]) * weight[o * in + i];
        return sum;
    };
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < out; ++o) {
            const double sum = product(r, o), before = y[r * out + o];
            truth.push_back(epilogue == Epilogue::store ? sum
                            : epilogue == Epilogue::add ? before + sum
                                                        : sum / (1 + std::exp(-sum)) * product(r, out + o));
        }
    calls::linear(kernels, nullptr, {rows, in, out, x.data(), weight.data(), bias.data(), y.data(), epilogue}, threads);
    expect_close(name + ": few rows, epilogue " + std::to_string(int(epilogue)), y.data(), out, truth, out);
}

void check_rotate_append(const Kernels& kernels, const std::string& name, int64_t half, int threads) {
    constexpr int64_t texts = 2, tokens = 3, heads = 4, kv_heads = 2, capacity = 11, all = heads + 2 * kv_heads;
    const int64_t width = 2 * half, first[texts] = {5, 8};
    std::vector<float> qkv = numbers(texts * tokens, all * width);
    const std::vector<float> cos = numbers(capacity, half), sin = numbers(capacity, half);
    std::vector<float> key(texts * kv_heads * capacity * width), value(key);
    std::vector<double> rotated, keys(key.size()), values(key.size());
    for (int64_t r = 0; r < texts * tokens; ++r)
        for (int64_t h = 0; h < all; ++h)
            for (int64_t c = 0; c < width; ++c) {
                const int64_t text = r / tokens, position = first[text] + r % tokens;
                const auto at = [&](int64_t channel) { return double(qkv[(r * all + h) * width + channel]); };
                const double u = cos[position * half + c % half], v = sin[position * half + c % half];
                const double turned = c < half ? at(c) * u - at(c + half) * v : at(c) * u + at(c - half) * v;
                rotated.push_back(h < heads + kv_heads ? turned : at(c));
                if (h < heads) continue;
                const int64_t to = ((text * kv_heads + (h - heads) % kv_heads) * capacity + position) * width + c;
                (h < heads + kv_heads ? keys : values)[to] = rotated.back();
            }
    calls::rotate_append(kernels, {texts * tokens, tokens, heads, kv_heads, width, qkv.data(), cos.data(), sin.data(), first, key.data(), value.data(), kv_heads * capacity * width, capacity * width}, threads);
    expect_close(name + ": rotated", qkv.data(), width, rotated, width);
    expect_close(name + ": cached keys", key.data(), width, keys, width);
    expect_close(name + ": cached values", value.data(), width, values, width);
}

}  // namespace

void check_linear(const Kernels& kernels, int64_t rows, int64_t in, int64_t out, int threads) {
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + std::to_string(rows) + " × " + std::to_string(in) + " → " + std::to_string(out);
    for (const bool centered : {false, true}) check_row_norm(kernels, name, rows, in, centered, threads);
    for (const Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::gate}) check_few_rows(kernels, name, rows, in, out, epilogue, threads);
    check_rotate_append(kernels, name, in, threads);
}

}  // namespace regard::check
