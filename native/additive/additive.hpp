// Jobs of additive attention, and how they are divided into tasks.
//
//     score_ij = Σ_c w_c · tanh(q_ic + k_jc) = Σ_c w_c − 2 · Σ_c w_c · r_ijc,   r_ijc = 1 / (1 + e^{2 q_ic} · e^{2 k_jc})
//
// The exponentials are computed first, once per row (`Exponentials`), padded to whole vectors for the forward and backward
// passes. A task that has a head to itself computes them in its workspace, which is faster than writing and reading them. If
// several tasks share a head, they are stored in buffers. A recurrent decoder reuses those of the keys in all steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kernel_table.hpp"
#include "base/problem.hpp"

namespace regard {

// A row of exponentials: e^{2x} (padded D), their maximum, and for a query also e^{2x} times the `inverse_w` of its head:
//
//     key     e e e … 0 0 | maximum
//     query   e e e … 0 0 | maximum | e·inverse_w e·inverse_w … 0 0
inline constexpr int64_t maximum_slot = 16;  // width of the field of the maximum, which keeps vectors aligned
inline int64_t key_row(int64_t width) { return padded(width) + maximum_slot; }
inline int64_t query_row(int64_t width) { return 2 * padded(width) + maximum_slot; }

// A row of prepared channel weights: `scaled_w`, `inverse_w` and three numbers (additive_weights.hpp).
inline int64_t weight_row(int64_t width) { return 2 * padded(width) + 3; }

// A task is `rows_per_task` of the B·H·T rows.
struct Exponentials {
    int64_t batches, heads, rows, width;
    View x;    // (B, H, T, D)
    View w;    // (B, H, weight_row), without rows; no data if x are keys
    float* e;  // (B, H, T, query_row or key_row), contiguous
    // Set to 1 if some |x| > 43 or x is NaN: e is then unusable. Null in a backward pass: the forward pass has checked every
    // visible key, and the others are replaced by neutral ones.
    int32_t* out_of_range;
};

// `dot` has the exponentials of queries and keys as q and k; its scale is not used.
struct Additive {
    Dot dot;
    View w;                              // (B, H, weight_row), without rows
    const Exponentials *queries, *keys;  // exponentials that each task computes itself; null: q or k has them
};

// A task is `rows_per_task` queries of one head.
struct AdditiveForward {
    Additive additive;
    float* context;  // (B, H, Tq, Dv), contiguous
    Softmax<Output> softmax;
    float* saved_scores;    // (B, H, Tq, Tk), contiguous: output of `score_block`; null: not saved
    int32_t* out_of_range;  // set to 1 if the result is unusable: inputs out of range, or a masked result that is not finite
};

// A task is one of `parts` equal parts of the keys of one head. All parts of a head contribute to dq and dw: each has its own
// copy, and the caller sums them.
struct AdditiveBackward {
    Additive additive;
    View grad, context;         // (B, H, Tq, Dv)
    Softmax<View> softmax;      // of the forward pass
    const float* saved_scores;  // of the forward pass, or null
    int64_t parts;
    float* dq;  // (B, H, parts, Tq, padded D)
    float* dk;  // (B, H, Tk, padded D)
    float* dv;  // (B, H, Tk, Dv)
    float* dw;  // (B, H, parts, padded D)
};

}  // namespace regard
