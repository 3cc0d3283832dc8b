// Fused elementwise kernels of a transformer block. Each is one pass over memory.
#pragma once

#include <cstdint>

namespace regard {

// Tensors are (rows, width), contiguous. A task is `rows_per_task` rows. Sums over rows are stored in one row per task.

// y = gelu(x + bias)
struct Gelu {
    int64_t rows, width;
    const float *x, *bias;
    float* y;  // may be x
};

// Dropout: an element is dropped if its random byte, a hash of the key and its index, is below `threshold`.
struct Dropout {
    uint32_t key[2];
    int threshold;  // 0: no dropout
};

// sum = x + dropout(part + bias), y = (sum − mean) · inverse_std · gain + shift, inverse_std = 1 / √(variance + epsilon).
struct AddNorm {
    int64_t rows, width;
    const float *x, *part, *bias;  // bias may be null
    const float *gain, *shift;
    float epsilon;
    Dropout dropout;
    float *sum, *y;             // sum may be null: then it is not stored, and y may be `part`
    float *mean, *inverse_std;  // (rows,)
};
struct AddNormBackward {
    int64_t rows, width;
    const float *sum, *gain, *mean, *inverse_std;
    const float *grad_sum, *grad_y;  // incoming gradients; grad_sum may be null
    Dropout dropout;
    float *dx, *dpart;      // dpart is null without dropout: then it equals dx
    float *dgain, *dshift;  // (tasks, width)
};

}  // namespace regard
