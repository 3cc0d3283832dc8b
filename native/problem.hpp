// What a kernel is asked, as plain numbers and pointers: no Python, no torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// What queries, keys and values are stored as, and their gradients. Everything else is float32.
enum class Number : int32_t { float32, bfloat16, float16 };
inline size_t size_of(Number number) { return number == Number::float32 ? 4 : 2; }

// A tensor (B, H, T, D) whose last dimension has unit stride; strides are in elements, 0 where it broadcasts.
struct View {
    const float* data;  // of another kind where a job says so: `source` in numbers.hpp reads it
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
    bool any;  // whether anything is masked at all
};

struct Dot {
    int64_t batches, heads, groups, queries, keys, width, value_width;
    View q, k, v;
    Number number;         // of q, k and v
    float scale, softcap;  // softcap 0: none
    Mask mask;
};

struct DotForward {
    Dot of;
    float* context;  // (B, H, Tq, Dv), contiguous
    float* lse;      // (B, H, Tq), contiguous
    int32_t* lost;   // set to 1 where a context is not finite
};

// The width of a row of gradients: whole vectors in every instruction set, D numbers and room.
inline int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// A task is one of `parts` equal shares of the keys of one head. Tasks of one head meet in dq only, where each has its own
// copy: the caller adds them up. Gradients of k and v are one per query head.
struct DotBackward {
    Dot of;
    View grad, context;  // (B, H, Tq, Dv)
    const float* lse;    // (B, H, Tq), contiguous
    int64_t parts;
    void *dq, *dk, *dv;  // contiguous: (B, H, parts, Tq, padded D), (B, H, Tk, padded D), (B, H, Tk, padded Dv)
    Number dq_number, dk_number;  // what dq is written as; what dk and dv are. float32 where others are added to it
    int32_t* lost;       // set to 1 where a gradient may not be finite
};

}  // namespace regard
