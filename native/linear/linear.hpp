// Products of a few rows with a weight matrix, and the steps between them, for decoding token by token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kernel_table.hpp"

namespace regard {

// y = norm(x) of each row: (x − mean) · rate · gain + shift, or x · rate · gain without centering (root mean square).
struct RowNorm {
    int64_t rows, width;
    const float *x, *gain, *shift;  // x: (rows, width), contiguous; shift may be null
    float epsilon;
    bool centered;
    float* y;  // (rows, width); may be x
};

enum class Epilogue : int32_t {
    store,  // y = x·Wᵀ + bias
    add,    // y += x·Wᵀ + bias
    gate,   // y = silu(x·Gᵀ + …) · (x·Uᵀ + …), where the first `out` rows of the weights are G and the next are U
};

// A task is `rows_per_task` outputs of all rows. The weights are read once for up to eight rows.
struct Linear {
    int64_t rows, in, out;
    const float* x;       // (rows, in), contiguous
    const float* weight;  // (out, in), contiguous; (2·out, in) for a gate
    const float* bias;    // (out), or (2·out) for a gate; may be null
    float* y;             // (rows, out), contiguous
    Epilogue epilogue;
};

// Rotates queries and keys by their positions, in place, and copies keys and values to their caches. A row of qkv has
// `heads` queries, then `kv_heads` keys and as many values, of `width` numbers each. Row r is token r % tokens of text
// r / tokens, at position first[text] + r % tokens.
struct RotateAppend {
    int64_t rows, tokens, heads, kv_heads, width;
    float* qkv;              // (rows, heads + 2·kv_heads, width), contiguous
    const float *cos, *sin;  // (positions, width / 2); null: no rotation
    const int64_t* first;    // (texts)
    float *key, *value;      // (texts, kv_heads, capacity, width); null: not copied
    ptrdiff_t text, head;    // strides of the caches, in floats; those of a position are `width`
};

namespace calls {

// If `norm` is not null, its output is the x of the job, and it is computed first.
void linear(const Kernels&, const RowNorm* norm, const Linear& job, int threads);
void row_norm(const Kernels&, const RowNorm& job, int threads);
void rotate_append(const Kernels&, const RotateAppend& job, int threads);

}  // namespace calls

}  // namespace regard
