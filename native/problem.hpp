// What a kernel is asked, as plain numbers and pointers: no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// A tensor (B, H, T, D) whose last dimension has unit stride; strides are in elements, 0 where it broadcasts.
struct View {
    const float* data;
    ptrdiff_t batch, head, row;
};

enum class MaskKind : int32_t { none, boolean, added };

// Query i of batch entry b stands at position p = i + offset[b] and may attend to key j when
// p − left ≤ j ≤ p + right, j < length[b], and the dense part allows it.
struct Mask {
    int64_t left, right;  // far beyond any length for an open side
    const int64_t* offset;
    const int64_t* length;
    MaskKind kind;
    const void* dense;  // bytes (1 = may attend) or floats
    ptrdiff_t batch, head, row, col;
};

struct Dot {
    int64_t batches, heads, groups, queries, keys, width, value_width;
    View q, k, v;
    float scale, softcap;  // softcap 0: none
    Mask mask;
};

struct DotForward {
    Dot of;
    float* context;  // (B, H, Tq, Dv), contiguous
    float* lse;      // (B, H, Tq), contiguous
    int32_t* lost;   // set to 1 where a context is not finite
};

struct DotBackward {
    Dot of;
    View grad, context;  // (B, H, Tq, Dv)
    const float* lse;
    float *dq, *dk, *dv;  // contiguous (B, H, Tq, D), (B, H, Tk, D), (B, H, Tk, Dv): one per query head
    int32_t* lost;        // set to 1 where a gradient is not finite
};

}  // namespace regard
