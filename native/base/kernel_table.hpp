// The kernels of one instruction set, and what they work in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/problem.hpp"

namespace regard {

// The memory of one thread. A task takes it part by part; all of it is released when the next task begins, and kept for that.
class Scratch {
    float* data = nullptr;  // what is left of the present block, aligned to 64 bytes
    size_t left = 0;

    float* grow(size_t count);  // a new block

   public:
    int64_t rows_per_task;

    explicit Scratch(int64_t rows_per_task) : rows_per_task(rows_per_task) {}
    void release();

    float* take(size_t count) {
        count = (count + 31) / 16 * 16;  // aligned, and with room to read one vector past the end
        if (count > left) return grow(count);
        float* part = data;
        data += count;
        left -= count;
        return part;
    }
};

// A job is cut into tasks, which run in any order and on any thread. A kernel runs one of them.
using Kernel = void(const void* job, int64_t task, Scratch&);

struct Kernels {
    const char* name;
    int lanes;
    Kernel* dot_forward;       // DotForward: a task is `rows_per_task` queries of one head
    Kernel* dot_few;           // DotForward: a task is one head of keys, for few queries
    Kernel* dot_backward;      // DotBackward: a task is one head, or a share of its keys
    Kernel* dot_few_backward;  // likewise, for few queries
    Kernel *exponentials, *additive_forward, *additive_backward;  // additive/additive.hpp
    Kernel* observe;  // Observe: a task is a rectangle of the scores of one head
    Kernel* best;     // Best: a task is `rows_per_task` rows
    Kernel *gelu, *add_norm, *add_norm_backward;  // fused/fused.hpp
};

}  // namespace regard
