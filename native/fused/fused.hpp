// Fused elementwise kernels of a transformer block. Each is one pass over memory.
#pragma once

#include <cstdint>

namespace regard {

// Rows (rows, width), contiguous. A task is `rows_per_task` of them; sums over rows are stored per
// task, in one row each.

// y = gelu(x + bias)
struct Gelu {
    int64_t rows, width;
    const float *x, *bias;
    float* y;  // may be x
};

// Which numbers are dropped: those whose byte, a hash of the key and the place, is below `below`.
struct Drop {
    uint32_t key[2];
    int below;  // 0: none
};

// sum = x + dropped(part + bias), and y = (sum − mean) · rate · gain + shift, where rate = 1 / √(variance + epsilon).
struct AddNorm {
    int64_t rows, width;
    const float *x, *part, *bias;  // bias may be null
    const float *gain, *shift;
    float epsilon;
    Drop drop;
    float *sum, *y;  // sum may be null: then it is not kept, and y may be `part`
    float *mean, *rate;  // (rows,)
};
struct AddNormBackward {
    int64_t rows, width;
    const float *sum, *gain, *mean, *rate;
    const float *of_sum, *of_y;  // the gradients that arrive; of_sum may be null
    Drop drop;
    float *dx, *dpart;  // dpart is null where nothing is dropped: then it is dx
    float *dgain, *dshift;  // (tasks, width)
};

}  // namespace regard
