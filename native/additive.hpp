// Additive attention: what its kernels are asked, and how to cut a job into tasks.
//
//     score_ij = Σ_c w_c · tanh(q_ic + k_jc) = Σ_c w_c − 2 · Σ_c w_c · r_ijc,   r_ijc = 1 / (1 + e^{2 q_ic} · e^{2 k_jc})
//
// The exponentials are computed first, once per row (`Exponentials`), into buffers whose rows are `padded` wide: forward
// and backward then read whole vectors everywhere. A recurrent decoder keeps those of the keys for all of its steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "problem.hpp"

namespace regard {

// The width of a row of exponentials, and of dq, dk and dw: whole vectors in every instruction set, D numbers and zeros.
inline int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// |w| over the softcap beyond which kernels must not be asked: w·b·c·d, and the sum of four such, stays finite.
inline constexpr float most_weight = 268435456.0f;  // 2^28

// e = e^{2x}. A task is `rows_per_task` of all B·H·T rows.
struct Exponentials {
    int64_t batches, heads, rows, width;
    View x;            // (B, H, T, D)
    float* e;          // (B, H, T, padded D), contiguous
    int32_t* beyond;   // set to 1 where some |x| > 43 or x is NaN: additive kernels must not be given this e
    int32_t* large;    // set to 1 where some e > 2^15.5: they must then clamp
};

// A Dot whose q and k are the exponentials of the queries and keys (rows `padded` wide); its scale is not used.
struct Additive {
    Dot of;
    View w;         // (B, H, padded D + 1), no rows: −2w over the softcap and zeros, then Σ w over the softcap
    int32_t clamp;  // 1 unless no exponential of q or k is `large`
};

// A task is `rows_per_task` queries of one head.
struct AdditiveForward {
    Additive of;
    float* context;   // (B, H, Tq, Dv), contiguous
    float* lse;       // (B, H, Tq), contiguous
    int32_t* beyond;  // set to 1 where the result is not to be used: a value that is ∞ or NaN under a mask
};

// A task is one of `parts` equal shares of the keys of one head. Tasks of one head meet in dq and dw only, where each
// has its own copy: the caller adds them up.
struct AdditiveBackward {
    Additive of;
    View grad, context;  // (B, H, Tq, Dv)
    const float* lse;    // (B, H, Tq), contiguous
    int64_t parts;
    float* dq;  // (B, H, parts, Tq, padded D)
    float* dk;  // (B, H, Tk, padded D)
    float* dv;  // (B, H, Tk, Dv)
    float* dw;  // (B, H, parts, padded D)
};

// Shares of a head's keys: one where there are heads enough for all threads, else four tasks per thread (the keys of a
// causal mask cost unequally), but no share below 64 keys.
inline int64_t additive_parts(int64_t heads, int64_t keys, int64_t threads) {
    if (heads >= 4 * threads) return 1;
    const int64_t wanted = (4 * threads + heads - 1) / heads, possible = (keys + 63) / 64;
    return wanted < possible ? wanted : possible < 1 ? 1 : possible;
}

}  // namespace regard
