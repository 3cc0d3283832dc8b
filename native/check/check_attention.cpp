// Forward and backward passes of the kernels against the truth.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "check/check.hpp"

namespace regard::check {

namespace {

using Floats = std::vector<float>;

// Sums the parts of a head's keys, like the Python side: (B, H, parts, n) → (B, H, n).
Floats joined(const Floats& x, int64_t entries, int64_t parts) {
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
    return {p.dot(), contiguous<Output>(context.data(), p.heads, p.queries, p.value_width), contiguous<Output>(softmax, p), nullptr};
}

void demand(bool yes, const std::string& what) {
    if (yes) return;
    std::printf("%s: the kernels did not serve\n", what.c_str());
    std::exit(1);
}

}  // namespace

void agree(const std::string& what, const float* found, int64_t row, const std::vector<double>& truth, int64_t width,
           double tolerance) {
    double worst = 0, largest = 0;
    for (const double x : truth)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    for (size_t n = 0; n < truth.size(); ++n) {
        const double got = found[int64_t(n) / width * row + int64_t(n) % width], wanted = truth[n];
        if (got == wanted || (std::isnan(got) && std::isnan(wanted))) continue;
        const double error = std::abs(got - wanted);
        worst = std::max(worst, error);
        if (error <= tolerance * (1 + largest)) continue;  // written so that NaN fails
        std::printf("%s: number %zu is %.9g and should be %.9g\n", what.c_str(), n, got, wanted);
        std::exit(1);
    }
    std::printf("%-90s within %.1e\n", what.c_str(), worst);
}

// Highest scores and totals, each by its own size: the former may be −3e38.
void agree_softmax(const std::string& name, const std::vector<float>& found, const Truth& truth) {
    const auto middle = truth.softmax.begin() + ptrdiff_t(truth.softmax.size() / 2);
    agree(name + "highest scores", found.data(), 1, {truth.softmax.begin(), middle}, 1);
    agree(name + "totals", found.data() + found.size() / 2, 1, {middle, truth.softmax.end()}, 1);
}

void check_dot(const Kernels& kernels, const Problem& p, const Truth& truth, int threads) {
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": ";
    const int64_t entries = p.batches * p.heads, d = padded(p.width), dv_row = padded(p.value_width), parts = threads;
    Floats context(truth.context.size(), NAN), softmax(truth.softmax.size(), NAN);
    demand(calls::dot_forward(kernels, forward_of(p, context, softmax), 43, threads), name + "forward");
    agree(name + "context", context.data(), p.value_width, truth.context, p.value_width);
    agree_softmax(name, softmax, truth);
    Floats dq(entries * parts * p.queries * d, NAN), dk(entries * p.keys * d, NAN), dv(entries * p.keys * dv_row, NAN);
    const int64_t dq_head = parts * p.queries * d;
    const DotBackward job{p.dot(), p.grad.view(), contiguous<View>(context.data(), p.heads, p.queries, p.value_width),
                          contiguous<View>(softmax, p), parts, {dq.data(), p.heads * dq_head, dq_head, d},
                          contiguous<Output>(dk.data(), p.heads, p.keys, d), contiguous<Output>(dv.data(), p.heads, p.keys, dv_row),
                          p.queries * d, Number::float32, Number::float32, nullptr};
    demand(calls::dot_backward(kernels, job, threads), name + "backward");
    agree(name + "dq", joined(dq, entries, parts).data(), d, truth.dq, p.width);
    agree(name + "dk", dk.data(), d, truth.dk, p.width);
    agree(name + "dv", dv.data(), dv_row, truth.dv, p.value_width);
}

void check_additive(const Kernels& kernels, const Problem& p, const Truth& truth, int threads) {
    const int64_t entries = p.batches * p.heads, d = padded(p.width), parts = threads;
    Floats eq(entries * p.queries * query_row(p.width), NAN), ek(entries / p.groups * p.keys * key_row(p.width), NAN);
    for (const bool keep : {false, true}) {
        const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name +
                                 (keep ? ", scores kept: " : ": ");
        Floats context(truth.context.size(), NAN), softmax(truth.softmax.size(), NAN);
        Floats kept(keep ? truth.weights.size() : 0, NAN);
        AdditiveForward forward{};
        forward.of.of = p.dot();
        forward.context = context.data();
        forward.softmax = contiguous<Output>(softmax, p);
        forward.kept = keep ? kept.data() : nullptr;
        const bool own = keep && p.groups == 1;  // a task has a head for itself, and makes its exponentials
        const calls::Room room = own ? calls::Room{nullptr, nullptr} : calls::Room{eq.data(), ek.data()};
        demand(calls::additive_forward(kernels, forward, p.w.view(), room, own ? p.queries : 43, threads), name + "forward");
        agree(name + "context", context.data(), p.value_width, truth.context, p.value_width);
        agree_softmax(name, softmax, truth);
        Floats dq(entries * parts * p.queries * d, NAN), dk(entries * p.keys * d, NAN);
        Floats dv(truth.dv.size(), NAN), dw(entries * parts * d, NAN);
        AdditiveBackward backward{{p.dot(), {}, nullptr, nullptr}, p.grad.view(),
                                  contiguous<View>(context.data(), p.heads, p.queries, p.value_width), contiguous<View>(softmax, p), forward.kept, parts, dq.data(), dk.data(), dv.data(), dw.data()};
        Dot& of = backward.of.of;
        if (!own) of.q = calls::query_exponentials(of, eq.data());
        if (!own) of.k = calls::key_exponentials(of, ek.data());
        calls::additive_backward(kernels, backward, p.w.view(), {own, own}, threads);
        agree(name + "dq", joined(dq, entries, parts).data(), d, truth.dq, p.width);
        agree(name + "dk", dk.data(), d, truth.dk, p.width);
        agree(name + "dv", dv.data(), p.value_width, truth.dv, p.value_width);
        agree(name + "dw", joined(dw, entries, parts).data(), d, truth.dw, p.width);
    }
}

// A single key has the weight 1: the context is its value, be that subnormal, ∞ or NaN.
void check_halves(const Kernels& kernels, Number number) {
    for (const int64_t queries : {1, 5}) {
        Problem p{.name = "", .queries = queries, .keys = 1, .width = 3, .value_width = 256, .batches = 256, .heads = 1, .number = number};
        p.fill();
        std::vector<double> wanted;
        for (int n = 0; n < 1 << 16; ++n) p.v.halves[n] = uint16_t(n);
        for (int64_t n = 0; n < (1 << 16) * queries; ++n) wanted.push_back(value_of(uint16_t(n / 256 / queries * 256 + n % 256), number));
        Floats context(wanted.size(), 0.0f), softmax(2 * 256 * queries, 0.0f);
        calls::dot_forward(kernels, forward_of(p, context, softmax), 43, 1);
        const char* kind = number == Number::float16 ? "float16" : "bfloat16";
        agree(std::string(kernels.name) + ", every " + kind + " read by " + std::to_string(queries) + " queries", context.data(), 1, wanted, 1, 0.0);
    }
}

}  // namespace regard::check
