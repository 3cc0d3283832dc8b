// Compares the fused elementwise kernels with the reference.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check/check.hpp"

namespace regard::check {

namespace {

constexpr float epsilon = 1e-5f;

struct Rows {
    Tensor values;
    int64_t rows, width;

    Rows(int64_t rows, int64_t width)
        : values(Tensor::random(1, 1, rows, width, Dtype::float32, false)), rows(rows), width(width) {}
    const float* data() const { return values.floats.data(); }
    double operator()(int64_t r, int64_t c) const { return values(0, 0, r, c); }
};

uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// The dropout factor of an element: 0 if it is dropped.
double dropout_factor(const Dropout& dropout, int64_t r, int64_t c, int64_t width) {
    const uint32_t hash = mix(mix(uint32_t(r * ((width + 3) / 4) + c / 4) ^ dropout.key[0]) + dropout.key[1]);
    return int(hash >> 8 * (c % 4) & 0xff) < dropout.threshold ? 0.0 : 256.0 / (256 - dropout.threshold);
}

void check_gelu(const Kernels& kernels, const std::string& name, int64_t rows, int64_t width, int threads) {
    const Rows x(rows, width), bias(1, width);
    std::vector<double> reference;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c) {
            const double input = 3 * x(r, c) + bias(0, c);
            reference.push_back(input * std::erfc(-input / std::sqrt(2.0)) / 2);
        }
    std::vector<float> y(x.data(), x.data() + rows * width);
    for (float& value : y) value *= 3;
    calls::gelu(kernels, {rows, width, y.data(), bias.data(), y.data()}, threads);
    expect_close(name + ": gelu", y.data(), width, reference, width);
}

void check_add_norm(const Kernels& kernels, const std::string& name, int64_t rows, int64_t width, int threshold, int threads) {
    const Rows x(rows, width), part(rows, width), bias(1, width), gain(1, width), shift(1, width), grad_sum(rows, width),
        grad_y(rows, width);
    const Dropout dropout{{0x12345678u, 0x9abcdef0u}, threshold};
    std::vector<double> sum, y, dx, dpart, dgain(width), dshift(width);
    double steepest = 0;  // grad_y · gain is rounded, then multiplied by inverse_std: 316 if a row is constant
    for (int64_t r = 0; r < rows; ++r) {
        double mean = 0, variance = 0, scaled_mean = 0, scaled_unit_mean = 0;
        for (int64_t c = 0; c < width; ++c) {
            sum.push_back(x(r, c) + dropout_factor(dropout, r, c, width) * (part(r, c) + bias(0, c)));
            mean += sum.back() / double(width);
        }
        for (int64_t c = 0; c < width; ++c) variance += std::pow(sum[r * width + c] - mean, 2) / double(width);
        const double inverse_std = 1 / std::sqrt(variance + epsilon);
        const auto unit = [&](int64_t c) { return (sum[r * width + c] - mean) * inverse_std; };
        for (int64_t c = 0; c < width; ++c) {
            steepest = std::max(steepest, inverse_std * std::abs(grad_y(r, c) * gain(0, c)));
            y.push_back(unit(c) * gain(0, c) + shift(0, c));
            scaled_mean += grad_y(r, c) * gain(0, c) / double(width);
            scaled_unit_mean += grad_y(r, c) * gain(0, c) * unit(c) / double(width);
            dgain[c] += grad_y(r, c) * unit(c);
            dshift[c] += grad_y(r, c);
        }
        for (int64_t c = 0; c < width; ++c) {
            dx.push_back(grad_sum(r, c) + inverse_std * (grad_y(r, c) * gain(0, c) - scaled_mean - unit(c) * scaled_unit_mean));
            dpart.push_back(dropout_factor(dropout, r, c, width) * dx.back());
        }
    }
    const int64_t count = rows * width, tasks = calls::fused_tasks(rows, threads);
    std::vector<float> result_sum(count), result_y(count), mean(rows), inverse_std(rows);
    calls::add_norm(kernels,
                    {rows, width, x.data(), part.data(), bias.data(), gain.data(), shift.data(), epsilon, dropout,
                     result_sum.data(), result_y.data(), mean.data(), inverse_std.data()},
                    threads);
    expect_close(name + ": sum", result_sum.data(), width, sum, width);
    expect_close(name + ": norm", result_y.data(), width, y, width);

    std::vector<float> result_dx(count), result_dpart(count), gains(tasks * width), shifts(tasks * width);
    calls::add_norm_backward(kernels,
                             {rows, width, result_sum.data(), gain.data(), mean.data(), inverse_std.data(), grad_sum.data(),
                              grad_y.data(), dropout, result_dx.data(), result_dpart.data(), gains.data(), shifts.data()},
                             threads);
    for (int64_t task = 1; task < tasks; ++task)
        for (int64_t c = 0; c < width; ++c) gains[c] += gains[task * width + c], shifts[c] += shifts[task * width + c];
    const double tolerance = 1e-5 + std::numeric_limits<float>::epsilon() * steepest;
    expect_close(name + ": dx", result_dx.data(), width, dx, width, tolerance);
    expect_close(name + ": dpart", result_dpart.data(), width, dpart, width, tolerance);
    expect_close(name + ": dgain", gains.data(), width, dgain, width);
    expect_close(name + ": dshift", shifts.data(), width, dshift, width);
}

}  // namespace

void check_fused(const Kernels& kernels, int64_t rows, int64_t width, int threads) {
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + std::to_string(rows) +
                             " × " + std::to_string(width);
    check_gelu(kernels, name, rows, width, threads);
    for (const int threshold : {0, 26}) check_add_norm(kernels, name, rows, width, threshold, threads);
}

}  // namespace regard::check
