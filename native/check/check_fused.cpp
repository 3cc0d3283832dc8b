// Compares the fused elementwise kernels with the truth.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check/check.hpp"

namespace regard::check {

namespace {

constexpr float epsilon = 1e-5f;

struct Rows {
    Tensor numbers;
    int64_t rows, width;

    Rows(int64_t rows, int64_t width) : numbers(Tensor::random(1, 1, rows, width, Number::float32, false)), rows(rows), width(width) {}
    const float* data() const { return numbers.floats.data(); }
    double operator()(int64_t r, int64_t c) const { return numbers(0, 0, r, c); }
};

uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// The dropout factor of an element: 0 if it is dropped.
double kept(const Drop& drop, int64_t r, int64_t c, int64_t width) {
    const uint32_t hash = mixed(mixed(uint32_t(r * ((width + 3) / 4) + c / 4) ^ drop.key[0]) + drop.key[1]);
    return int(hash >> 8 * (c % 4) & 0xff) < drop.below ? 0.0 : 256.0 / (256 - drop.below);
}

void check_gelu(const Kernels& kernels, const std::string& name, int64_t rows, int64_t width, int threads) {
    const Rows x(rows, width), bias(1, width);
    std::vector<double> truth;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; ++c) {
            const double of = 3 * x(r, c) + bias(0, c);
            truth.push_back(of * std::erfc(-of / std::sqrt(2.0)) / 2);
        }
    std::vector<float> y(x.data(), x.data() + rows * width);
    for (float& number : y) number *= 3;
    calls::gelu(kernels, {rows, width, y.data(), bias.data(), y.data()}, threads);
    agree(name + ": gelu", y.data(), width, truth, width);
}

void check_add_norm(const Kernels& kernels, const std::string& name, int64_t rows, int64_t width, int below, int threads) {
    const Rows x(rows, width), part(rows, width), bias(1, width), gain(1, width), shift(1, width), of_sum(rows, width), of_y(rows, width);
    const Drop drop{{0x12345678u, 0x9abcdef0u}, below};
    std::vector<double> sum, y, dx, dpart, dgain(width), dshift(width);
    double steepest = 0;  // a product of_y · gain is rounded, and then multiplied by the rate: 316 where a row does not vary
    for (int64_t r = 0; r < rows; ++r) {
        double mean = 0, variance = 0, less = 0, towards = 0;
        for (int64_t c = 0; c < width; ++c) {
            sum.push_back(x(r, c) + kept(drop, r, c, width) * (part(r, c) + bias(0, c)));
            mean += sum.back() / double(width);
        }
        for (int64_t c = 0; c < width; ++c) variance += std::pow(sum[r * width + c] - mean, 2) / double(width);
        const double rate = 1 / std::sqrt(variance + epsilon);
        const auto unit = [&](int64_t c) { return (sum[r * width + c] - mean) * rate; };
        for (int64_t c = 0; c < width; ++c) {
            steepest = std::max(steepest, rate * std::abs(of_y(r, c) * gain(0, c)));
            y.push_back(unit(c) * gain(0, c) + shift(0, c));
            less += of_y(r, c) * gain(0, c) / double(width);
            towards += of_y(r, c) * gain(0, c) * unit(c) / double(width);
            dgain[c] += of_y(r, c) * unit(c);
            dshift[c] += of_y(r, c);
        }
        for (int64_t c = 0; c < width; ++c) {
            dx.push_back(of_sum(r, c) + rate * (of_y(r, c) * gain(0, c) - less - unit(c) * towards));
            dpart.push_back(kept(drop, r, c, width) * dx.back());
        }
    }
    const int64_t all = rows * width, tasks = calls::tasks_between(rows, threads);
    std::vector<float> found_sum(all), found_y(all), mean(rows), rate(rows);
    calls::add_norm(kernels, {rows, width, x.data(), part.data(), bias.data(), gain.data(), shift.data(), epsilon, drop, found_sum.data(), found_y.data(), mean.data(), rate.data()}, threads);
    agree(name + ": sum", found_sum.data(), width, sum, width);
    agree(name + ": norm", found_y.data(), width, y, width);

    std::vector<float> found_dx(all), found_dpart(all), gains(tasks * width), shifts(tasks * width);
    calls::add_norm_backward(kernels, {rows, width, found_sum.data(), gain.data(), mean.data(), rate.data(), of_sum.data(), of_y.data(), drop, found_dx.data(), found_dpart.data(), gains.data(), shifts.data()}, threads);
    for (int64_t task = 1; task < tasks; ++task)
        for (int64_t c = 0; c < width; ++c) gains[c] += gains[task * width + c], shifts[c] += shifts[task * width + c];
    const double tolerance = 1e-5 + std::numeric_limits<float>::epsilon() * steepest;
    agree(name + ": dx", found_dx.data(), width, dx, width, tolerance);
    agree(name + ": dpart", found_dpart.data(), width, dpart, width, tolerance);
    agree(name + ": dgain", gains.data(), width, dgain, width);
    agree(name + ": dshift", shifts.data(), width, dshift, width);
}

}  // namespace

void check_between(const Kernels& kernels, int64_t rows, int64_t width, int threads) {
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + std::to_string(rows) + " × " + std::to_string(width);
    check_gelu(kernels, name, rows, width, threads);
    for (const int below : {0, 26}) check_add_norm(kernels, name, rows, width, below, threads);
}

}  // namespace regard::check
