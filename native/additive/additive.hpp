// Additive attention: what its kernels are asked, and how to cut a job into tasks.
//
//     score_ij = Σ_c w_c · tanh(q_ic + k_jc) = Σ_c w_c − 2 · Σ_c w_c · r_ijc,   r_ijc = 1 / (1 + e^{2 q_ic} · e^{2 k_jc})
//
// The exponentials are computed first, once per row (`Exponentials`): forward and backward then read whole vectors
// everywhere. A task that has a head for itself computes them in its own memory, forward and backward, which is less work
// than to write them out and read them; where tasks share a head, they stand in buffers. A recurrent decoder keeps those of
// the keys for all of its steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kernel_table.hpp"
#include "base/problem.hpp"

namespace regard {

// A row of exponentials: e^{2x} (padded D), the largest of them, and for a query also e^{2x} times its head's `over`:
//
//     key     e e e … 0 0 | largest
//     query   e e e … 0 0 | largest | e·over e·over … 0 0
inline constexpr int64_t beside = 16;  // the room of `largest`, which keeps vectors aligned
inline int64_t key_row(int64_t width) { return padded(width) + beside; }
inline int64_t query_row(int64_t width) { return 2 * padded(width) + beside; }

// A row of channel weights, as the kernels read them: `times`, `over`, and three numbers (additive_weights.hpp).
inline int64_t weight_row(int64_t width) { return 2 * padded(width) + 3; }

// A task is `rows_per_task` of all B·H·T rows.
struct Exponentials {
    int64_t batches, heads, rows, width;
    View x;           // (B, H, T, D)
    View w;           // (B, H, weight_row), no rows; without data where x are keys
    float* e;         // (B, H, T, query_row or key_row), contiguous
    int32_t* beyond;  // set to 1 where some |x| > 43 or x is NaN: additive kernels must not be given this e. Null in a backward
                      // pass: the forward pass checked every key that is attended to, and the others become neutral
};

// A Dot whose q and k are exponentials of the queries and keys; its scale is not used.
struct Additive {
    Dot of;
    View w;  // (B, H, weight_row), no rows
    const Exponentials *queries, *keys;  // what a task computes for itself, in place of q and k; null: it is there
};

// A task is `rows_per_task` queries of one head.
struct AdditiveForward {
    Additive of;
    float* context;   // (B, H, Tq, Dv), contiguous
    Softmax<Output> softmax;
    float* kept;      // (B, H, Tq, Tk), contiguous: for the scores as `score` writes them; null: not wanted
    int32_t* beyond;  // set to 1 where the result is not to be used: it is not finite, under a mask
};

// A task is one of `parts` equal shares of the keys of one head. Tasks of one head meet in dq and dw only, where each
// has its own copy: the caller adds them up.
struct AdditiveBackward {
    Additive of;
    View grad, context;    // (B, H, Tq, Dv)
    Softmax<View> softmax;  // as the forward pass left it
    const float* kept;      // likewise
    int64_t parts;
    float* dq;  // (B, H, parts, Tq, padded D)
    float* dk;  // (B, H, Tk, padded D)
    float* dv;  // (B, H, Tk, Dv)
    float* dw;  // (B, H, parts, padded D)
};

}  // namespace regard
