// Arguments of kernels, as plain numbers and pointers, independent of Python and torch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// Storage dtype of queries, keys, values and their gradients. Everything else is float32.
enum class Dtype : int32_t { float32, bfloat16, float16 };
inline size_t element_size(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

// A tensor (B, H, T, D) whose last dimension has unit stride; strides are in elements; 0 for broadcast dimensions.
struct View {
    const float* data;  // elements of another dtype if the job says so; read through `head_rows` (dtype.hpp)
    ptrdiff_t batch, head, row;

    const float* at(int64_t b, int64_t h, int64_t t = 0) const { return data + b * batch + h * head + t * row; }
};

enum class MaskKind : int32_t { none, boolean, added };

// Query i of batch entry b has position p = i + offset[b] and may attend to key j if p − left ≤ j ≤ p + right,
// j < length[b], and the dense mask allows it.
struct Mask {
    int64_t left, right;  // larger than any length if that side is unbounded
    const int64_t* offset;
    const int64_t* length;
    MaskKind kind;
    const void* dense;  // uint8 (1 = may attend) or float
    ptrdiff_t batch, head, row, col;
    bool any;  // whether anything is masked
};

struct Dot {
    int64_t batches, heads, groups, queries, keys, width, value_width;
    View q, k, v;
    Dtype dtype;           // dtype of q, k and v
    float scale, softcap;  // softcap 0: none
    Mask mask;
};

// An output tensor (B, H, T, D). The last dimension has unit stride; strides are in elements of its dtype.
struct Output {
    void* data;
    ptrdiff_t batch, head, row;

    template <typename T>
    T* at(int64_t b, int64_t h, int64_t t) const {
        return static_cast<T*>(data) + b * batch + h * head + t * row;
    }
    void* at(int64_t b, int64_t h, int64_t t, Dtype dtype) const {
        return dtype == Dtype::float32 ? static_cast<void*>(at<float>(b, h, t)) : static_cast<void*>(at<uint16_t>(b, h, t));
    }
};

// Row statistics that turn scores into weights: weight = e^(score − highest) / total, total = Σ e^(score − highest). They are
// not combined into a log-sum-exp, which has the rounding error of the highest score: multiples of 64 at −1e9.
// A row without keys has −∞ and 0.
template <typename T>
struct Softmax {
    T highest, total;  // (B, H, Tq, 1), float32, with row stride 1
};

struct DotForward {
    Dot dot;
    Output context;  // (B, H, Tq, Dv), float32
    Softmax<Output> softmax;
    int32_t* non_finite;  // set to 1 if a context is not finite, or with a mask a query or key it may depend on
};

// Row width of gradients: `width`, padded to whole vectors of every instruction set.
inline int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// A task is one of `parts` equal parts of the keys of one head. All parts of a head contribute to dq: each has its own copy,
// and the caller sums them. dk and dv are computed per query head.
struct DotBackward {
    Dot dot;
    View grad, context;  // (B, H, Tq, Dv)
    Softmax<View> softmax;
    int64_t parts;
    Output dq, dk, dv;          // (B, H, Tq, padded D), (B, H, Tk, padded D), (B, H, Tk, padded Dv)
    ptrdiff_t dq_part;          // stride from the dq of one part to the next
    Dtype dq_dtype, dkv_dtype;  // dkv: of dk and dv. float32 if the caller sums several
    int32_t* non_finite;        // set to 1 if a gradient may not be finite
};

// The highest log-probabilities of each row of logits (N, V) and their ids, (N, count) each, in descending order; on ties, the
// lower id first. If a row contains NaN, all its results are NaN.
struct LogSoftmaxTopK {
    const float* logits;
    int64_t rows, size;
    ptrdiff_t row;  // row stride
    int64_t count;  // 1 … size
    float* values;
    int64_t* ids;
};

}  // namespace regard
