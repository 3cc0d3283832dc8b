// The self-check: every kernel against plain loops in double precision, without Python. What cannot run the tests, such as
// an emulated machine, can run this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/dispatch.hpp"

namespace regard::check {

inline constexpr int64_t open = int64_t(1) << 40;  // a side without a window

// Numbers (B, H, T, D) of any kind, as kernels read them: row by row of a head, or the heads of a row side by side.
struct Tensor {
    int64_t batches = 0, heads = 0, rows = 0, width = 0;
    bool heads_inside = false;  // (B, T, H, D) in memory
    Number number = Number::float32;
    std::vector<float> floats;
    std::vector<uint16_t> halves;

    static Tensor random(int64_t batches, int64_t heads, int64_t rows, int64_t width, Number number, bool heads_inside);
    View view() const;
    double operator()(int64_t batch, int64_t head, int64_t row, int64_t c) const;
};

double value_of(uint16_t half, Number number);

struct Problem {
    std::string name;
    int64_t queries, keys, width, value_width;
    int64_t batches = 2, heads = 3, groups = 1;
    Number number = Number::float32;
    bool additive = false;
    float scale = 0.37f, softcap = 0;
    int64_t left = open, right = open;
    std::vector<int64_t> offset{}, length{};  // one for each batch entry, or none
    MaskKind kind = MaskKind::none;
    bool large_rows = false;              // the added mask holds large finite numbers: over some keys, and over whole rows
    std::vector<uint8_t> allowed{};       // (H, Tq, Tk), the same for each batch entry
    std::vector<float> added{};           // likewise
    Tensor q{}, k{}, v{}, w{}, grad{};    // w: (B, H, 1, D)

    void fill();  // tensors and the dense mask, at random
    Dot dot() const;
    bool masked() const { return left < open || right < open || !offset.empty() || !length.empty() || kind != MaskKind::none; }
    bool may(int64_t batch, int64_t head, int64_t query, int64_t key) const;
};

// Everything about a problem, contiguous.
struct Truth {
    std::vector<double> weights;            // (B, H, Tq, Tk)
    std::vector<double> context;            // (B, H, Tq, Dv)
    std::vector<double> softmax;            // (2, B, H, Tq): the highest score of each row, and Σ e^(score − highest)
    std::vector<double> dq, dk, dv, dw;     // (B, H, Tq, D), (B, H, Tk, D), (B, H, Tk, Dv), (B, H, D): one for each query head
};
Truth truth_of(const Problem&);

// Compares results with the truth. Rows of `found` are `row` numbers apart, and the first `width` of each are compared. Ends
// the program at the first error above the tolerance times 1 + the largest number: a gradient is a sum of many numbers,
// which may cancel.
void agree(const std::string& what, const float* found, int64_t row, const std::vector<double>& truth, int64_t width,
           double tolerance = 1e-5);

void agree_softmax(const std::string& name, const std::vector<float>& found, const Truth& truth);

void check_dot(const Kernels&, const Problem&, const Truth&, int threads);
void check_additive(const Kernels&, const Problem&, const Truth&, int threads);
void check_views(const Kernels&, const Problem&, const Truth&, int threads);
void check_packed(const Kernels&, const std::vector<Problem>& sequences, int threads);  // one batch entry each
void check_halves(const Kernels&, Number number);
void check_best(const Kernels&, int64_t size, int64_t count, int threads);
void check_between(const Kernels&, int64_t rows, int64_t width, int threads);

}  // namespace regard::check
