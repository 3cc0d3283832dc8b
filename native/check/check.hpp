// The self-check compares every kernel with plain loops in double precision. It needs no Python, so it runs on machines that
// cannot run the tests, such as emulated ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/dispatch.hpp"

namespace regard::check {

inline constexpr int64_t unbounded = int64_t(1) << 40;  // a window without a limit on that side

// A tensor (B, H, T, D) of any dtype, stored as (B, H, T, D) or (B, T, H, D).
struct Tensor {
    int64_t batches = 0, heads = 0, rows = 0, width = 0;
    bool interleaved_heads = false;  // (B, T, H, D) in memory
    Dtype dtype = Dtype::float32;
    std::vector<float> floats;
    std::vector<uint16_t> half_data;

    static Tensor random(int64_t batches, int64_t heads, int64_t rows, int64_t width, Dtype dtype, bool interleaved_heads);
    View view() const;
    double operator()(int64_t batch, int64_t head, int64_t row, int64_t c) const;
};

double value_of(uint16_t half, Dtype dtype);

struct Problem {
    std::string name;
    int64_t queries, keys, width, value_width;
    int64_t batches = 2, heads = 3, groups = 1;
    Dtype dtype = Dtype::float32;
    bool additive = false;
    float scale = 0.37f, softcap = 0;
    int64_t left = unbounded, right = unbounded;
    std::vector<int64_t> offset{}, length{};  // one per batch entry, or empty
    MaskKind kind = MaskKind::none;
    bool large_rows = false;            // the float mask has large finite numbers, for some keys and for whole rows
    std::vector<uint8_t> allowed{};     // (H, Tq, Tk), the same for each batch entry
    std::vector<float> added{};         // likewise
    Tensor q{}, k{}, v{}, w{}, grad{};  // w: (B, H, 1, D)

    void fill();  // random tensors and dense mask
    Dot dot() const;
    bool masked() const {
        return left < unbounded || right < unbounded || !offset.empty() || !length.empty() || kind != MaskKind::none;
    }
    bool may_attend(int64_t batch, int64_t head, int64_t query, int64_t key) const;
};

// Reference results of a problem, contiguous.
struct Reference {
    std::vector<double> weights;         // (B, H, Tq, Tk)
    std::vector<double> context;         // (B, H, Tq, Dv)
    std::vector<double> softmax;         // (2, B, H, Tq): the highest score of each row, and Σ e^(score − highest)
    std::vector<double> dq, dk, dv, dw;  // (B, H, Tq, D), (B, H, Tk, D), (B, H, Tk, Dv), (B, H, D): one per query head
};
Reference reference_of(const Problem&);

// Compares the first `width` elements of each row of `result`, with row stride `row`, with the reference. Exits at the first
// error above tolerance · (1 + largest reference): gradients are sums of many numbers, which may cancel.
void expect_close(const std::string& what, const float* result, int64_t row, const std::vector<double>& reference, int64_t width,
                  double tolerance = 1e-5);

void expect_close_softmax(const std::string& name, const std::vector<float>& result, const Reference& reference);

void check_dot(const Kernels&, const Problem&, const Reference&, int threads);
void check_additive(const Kernels&, const Problem&, const Reference&, int threads);
void check_views(const Kernels&, const Problem&, const Reference&, int threads);
void check_packed(const Kernels&, const std::vector<Problem>& sequences, int threads);  // one batch entry each
void check_half_precision(const Kernels&, Dtype dtype);
void check_log_softmax_top_k(const Kernels&, int64_t size, int64_t count, int threads);
void check_fused(const Kernels&, int64_t rows, int64_t width, int threads);
void check_linear(const Kernels&, int64_t rows, int64_t in, int64_t out, int threads);

}  // namespace regard::check
