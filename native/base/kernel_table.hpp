// The kernels of one instruction set, and what they work in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/problem.hpp"

namespace regard {

// Memory of one thread, handed out from one piece and taken back whole at the next task.
struct Scratch {
    float* data;  // aligned to 64 bytes
    size_t used;
    int64_t rows_per_task;

    float* take(size_t count) {
        float* part = data + used;
        used += (count + 31) / 16 * 16;  // aligned, and with room to read one vector past the end
        return part;
    }
};

// A job is cut into tasks, which run in any order and on any thread.
struct Kernel {
    void (*run)(const void* job, int64_t task, Scratch&);
    size_t (*room)(const void* job, int64_t rows_per_task);  // floats of scratch that one task takes
};

struct Kernels {
    const char* name;
    int lanes;
    Kernel dot_forward;   // DotForward: a task is `rows_per_task` queries of one head
    Kernel dot_few;       // DotForward: a task is one head of keys, for few queries
    Kernel dot_backward;  // DotBackward: a task is one head, or a share of its keys
    Kernel dot_few_backward;  // likewise, for few queries
    Kernel exponentials, additive_forward, additive_backward;  // additive/additive.hpp
    Kernel observe;  // Observe: a task is a rectangle of the scores of one head
    Kernel best;  // Best: a task is `rows_per_task` rows
    Kernel gelu, add_norm, add_norm_backward;  // fused/fused.hpp
};

}  // namespace regard
