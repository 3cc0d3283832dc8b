// Arguments of kernels, as plain numbers and pointers, independent of Python and torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// Storage dtype of queries, keys, values and their gradients. Everything else is float32.
enum class Number : int32_t { float32, bfloat16, float16 };
inline size_t size_of(Number number) { return number == Number::float32 ? 4 : 2; }

// A tensor (B, H, T, D) whose last dimension has unit stride; strides are in elements, 0 where it broadcasts.
struct View {
    const float* data;  // of another kind where a job says so: `source` in dtype.hpp reads it
    ptrdiff_t batch, head, row;

    const float* at(int64_t b, int64_t h, int64_t t = 0) const { return data + b * batch + h * head + t * row; }
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

// Where results (B, H, T, D) are written. The last dimension has unit stride; strides are in elements of what is written.
struct Output {
    void* data;
    ptrdiff_t batch, head, row;

    template <typename T>
    T* at(int64_t b, int64_t h, int64_t t) const {
        return static_cast<T*>(data) + b * batch + h * head + t * row;
    }
    void* at(int64_t b, int64_t h, int64_t t, Number number) const {
        return number == Number::float32 ? static_cast<void*>(at<float>(b, h, t)) : static_cast<void*>(at<uint16_t>(b, h, t));
    }
};

// Row statistics that turn scores into weights: weight = e^(score − highest) / total, total = Σ e^(score − highest). They are
// not combined into a log-sum-exp, which is rounded like the highest score: at −1e9 to multiples of 64.
// A row without keys has −∞ and 0.
template <typename T>
struct Softmax {
    T highest, total;  // (B, H, Tq, 1), float32, the rows side by side
};

struct DotForward {
    Dot of;
    Output context;  // (B, H, Tq, Dv), float32
    Softmax<Output> softmax;
    int32_t* lost;   // set to 1 where a context is not finite
};

// The width of a row of gradients: whole vectors in every instruction set, D numbers and room.
inline int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// A task is one of `parts` equal shares of the keys of one head. Tasks of one head meet in dq only, where each has its own
// copy: the caller adds them up. Gradients of k and v are one per query head.
struct DotBackward {
    Dot of;
    View grad, context;  // (B, H, Tq, Dv)
    Softmax<View> softmax;
    int64_t parts;
    Output dq, dk, dv;   // (B, H, Tq, padded D), (B, H, Tk, padded D), (B, H, Tk, padded Dv)
    ptrdiff_t dq_part;   // from one share's copy of dq to the next
    Number dq_number, dk_number;  // what dq is written as; what dk and dv are. float32 where others are added to it
    int32_t* lost;       // set to 1 where a gradient may not be finite
};

// The highest of each row of logits (N, V), as log-probabilities, and where they are: (N, count) each, the highest first, of
// equal ones the first. Where a row holds NaN, so does all that is found of it.
struct Best {
    const float* logits;
    int64_t rows, size;
    ptrdiff_t row;   // from one row to the next
    int64_t count;   // 1 … size
    float* values;
    int64_t* ids;
};

}  // namespace regard
