// Compares the forward and backward passes with the reference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "check/check.hpp"

namespace regard::check {

namespace {

using Floats = std::vector<float>;

// Sums over the parts of the keys, as Python does: (B, H, parts, n) → (B, H, n).
Floats sum_parts(const Floats& x, int64_t entries, int64_t parts) {
    const int64_t n = int64_t(x.size()) / (entries * parts);
    Floats sums(entries * n, 0.0f);
    for (int64_t i = 0; i < entries * parts * n; ++i) sums[i / n / parts * n + i % n] += x[i];
    return sums;
}

template <typename T>
T contiguous(float* x, int64_t heads, int64_t rows, int64_t width) {
    return {x, heads * rows * width, rows * width, width};
}
template <typename T>
Softmax<T> contiguous(Floats& softmax, const Problem& p) {  // (2, B, H, Tq)
    float* const totals = softmax.data() + softmax.size() / 2;
    return {contiguous<T>(softmax.data(), p.heads, p.queries, 1), contiguous<T>(totals, p.heads, p.queries, 1)};
}
DotForward forward_of(const Problem& p, Floats& context, Floats& softmax) {
    return {p.dot(), contiguous<Output>(context.data(), p.heads, p.queries, p.value_width), contiguous<Output>(softmax, p),
            nullptr};
}

void require(bool condition, const std::string& what) {
    if (condition) return;
    std::printf("%s: the kernels returned false\n", what.c_str());
    std::exit(1);
}

}  // namespace

void expect_close(const std::string& what, const float* result, int64_t row, const std::vector<double>& reference, int64_t width,
                  double tolerance) {
    double max_error = 0, largest = 0;
    for (const double x : reference)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    for (size_t n = 0; n < reference.size(); ++n) {
        const double actual = result[int64_t(n) / width * row + int64_t(n) % width], expected = reference[n];
        if (actual == expected || (std::isnan(actual) && std::isnan(expected))) continue;
        const double error = std::abs(actual - expected);
        max_error = std::max(max_error, error);
        if (error <= tolerance * (1 + largest)) continue;  // written so that NaN fails
        std::printf("%s: number %zu is %.9g and should be %.9g\n", what.c_str(), n, actual, expected);
        std::exit(1);
    }
    std::printf("%-90s within %.1e\n", what.c_str(), max_error);
}

// Compares highest scores and totals separately, because their magnitudes differ: a highest score may be −3e38.
void expect_close_softmax(const std::string& name, const std::vector<float>& result, const Reference& reference) {
    const auto middle = reference.softmax.begin() + ptrdiff_t(reference.softmax.size() / 2);
    expect_close(name + "highest scores", result.data(), 1, {reference.softmax.begin(), middle}, 1);
    expect_close(name + "totals", result.data() + result.size() / 2, 1, {middle, reference.softmax.end()}, 1);
}

void check_dot(const Kernels& kernels, const Problem& p, const Reference& reference, int threads) {
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": ";
    const int64_t entries = p.batches * p.heads, d = padded(p.width), dv_row = padded(p.value_width), parts = threads;
    Floats context(reference.context.size(), NAN), softmax(reference.softmax.size(), NAN);
    require(calls::dot_forward(kernels, forward_of(p, context, softmax), 43, threads), name + "forward");
    expect_close(name + "context", context.data(), p.value_width, reference.context, p.value_width);
    expect_close_softmax(name, softmax, reference);
    Floats dq(entries * parts * p.queries * d, NAN), dk(entries * p.keys * d, NAN), dv(entries * p.keys * dv_row, NAN);
    const int64_t dq_head = parts * p.queries * d;
    const DotBackward job{p.dot(),
                          p.grad.view(),
                          contiguous<View>(context.data(), p.heads, p.queries, p.value_width),
                          contiguous<View>(softmax, p),
                          parts,
                          {dq.data(), p.heads * dq_head, dq_head, d},
                          contiguous<Output>(dk.data(), p.heads, p.keys, d),
                          contiguous<Output>(dv.data(), p.heads, p.keys, dv_row),
                          p.queries * d,
                          Dtype::float32,
                          Dtype::float32,
                          nullptr};
    require(calls::dot_backward(kernels, job, threads), name + "backward");
    expect_close(name + "dq", sum_parts(dq, entries, parts).data(), d, reference.dq, p.width);
    expect_close(name + "dk", dk.data(), d, reference.dk, p.width);
    expect_close(name + "dv", dv.data(), dv_row, reference.dv, p.value_width);
}

void check_additive(const Kernels& kernels, const Problem& p, const Reference& reference, int threads) {
    const int64_t entries = p.batches * p.heads, d = padded(p.width), parts = threads;
    Floats eq(entries * p.queries * query_row(p.width), NAN), ek(entries / p.groups * p.keys * key_row(p.width), NAN);
    for (const bool keep : {false, true}) {
        const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name +
                                 (keep ? ", scores kept: " : ": ");
        Floats context(reference.context.size(), NAN), softmax(reference.softmax.size(), NAN);
        Floats saved_scores(keep ? reference.weights.size() : 0, NAN);
        AdditiveForward forward{};
        forward.additive.dot = p.dot();
        forward.context = context.data();
        forward.softmax = contiguous<Output>(softmax, p);
        forward.saved_scores = keep ? saved_scores.data() : nullptr;
        const bool raw = keep && p.groups == 1;  // each task has a head to itself and computes its exponentials
        const calls::ExponentialBuffers buffers =
            raw ? calls::ExponentialBuffers{nullptr, nullptr} : calls::ExponentialBuffers{eq.data(), ek.data()};
        require(calls::additive_forward(kernels, forward, p.w.view(), buffers, raw ? p.queries : 43, threads), name + "forward");
        expect_close(name + "context", context.data(), p.value_width, reference.context, p.value_width);
        expect_close_softmax(name, softmax, reference);
        Floats dq(entries * parts * p.queries * d, NAN), dk(entries * p.keys * d, NAN);
        Floats dv(reference.dv.size(), NAN), dw(entries * parts * d, NAN);
        AdditiveBackward backward{{p.dot(), {}, nullptr, nullptr},
                                  p.grad.view(),
                                  contiguous<View>(context.data(), p.heads, p.queries, p.value_width),
                                  contiguous<View>(softmax, p),
                                  forward.saved_scores,
                                  parts,
                                  dq.data(),
                                  dk.data(),
                                  dv.data(),
                                  dw.data()};
        Dot& dot = backward.additive.dot;
        if (!raw) dot.q = calls::query_exponentials(dot, eq.data());
        if (!raw) dot.k = calls::key_exponentials(dot, ek.data());
        calls::additive_backward(kernels, backward, p.w.view(), {raw, raw}, threads);
        expect_close(name + "dq", sum_parts(dq, entries, parts).data(), d, reference.dq, p.width);
        expect_close(name + "dk", dk.data(), d, reference.dk, p.width);
        expect_close(name + "dv", dv.data(), p.value_width, reference.dv, p.value_width);
        expect_close(name + "dw", sum_parts(dw, entries, parts).data(), d, reference.dw, p.width);
    }
}

// A single key has weight 1, so the context is its value, also if that is subnormal, ∞ or NaN.
void check_half_precision(const Kernels& kernels, Dtype dtype) {
    for (const int64_t queries : {1, 5}) {
        Problem p{.name = "",
                  .queries = queries,
                  .keys = 1,
                  .width = 3,
                  .value_width = 256,
                  .batches = 256,
                  .heads = 1,
                  .dtype = dtype};
        p.fill();
        std::vector<double> expected;
        for (int n = 0; n < 1 << 16; ++n) p.v.half_data[n] = uint16_t(n);
        for (int64_t n = 0; n < (1 << 16) * queries; ++n)
            expected.push_back(value_of(uint16_t(n / 256 / queries * 256 + n % 256), dtype));
        Floats context(expected.size(), 0.0f), softmax(2 * 256 * queries, 0.0f);
        calls::dot_forward(kernels, forward_of(p, context, softmax), 43, 1);
        const char* kind = dtype == Dtype::float16 ? "float16" : "bfloat16";
        expect_close(std::string(kernels.name) + ", every " + kind + " read by " + std::to_string(queries) + " queries",
                     context.data(), 1, expected, 1, 0.0);
    }
}

}  // namespace regard::check
