// The table of kernels of one instruction set, and the workspace of a thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/problem.hpp"

namespace regard {

// Workspace of one thread. A task allocates from it; all allocations are released before the next task, and the memory is
// reused.
class Workspace {
    float* data = nullptr;  // unused part of the current block, aligned to 64 bytes
    size_t remaining = 0;

    float* grow(size_t count);  // allocates a new block

   public:
    int64_t rows_per_task;

    explicit Workspace(int64_t rows_per_task) : rows_per_task(rows_per_task) {}
    void release();

    float* allocate(size_t count) {
        count = (count + 31) / 16 * 16;  // aligned, and readable one vector past the end
        if (count > remaining) return grow(count);
        float* start = data;
        data += count;
        remaining -= count;
        return start;
    }
};

// A job is divided into tasks, which run in any order and on any thread. A kernel runs one task.
using Kernel = void(const void* job, int64_t task, Workspace&);

struct Kernels {
    const char* name;
    int lanes;
    Kernel* dot_forward;                                          // DotForward: a task is `rows_per_task` queries of one head
    Kernel* few_queries_forward;                                  // DotForward: a task is one head of keys
    Kernel* dot_backward;                                         // DotBackward: a task is one head, or a part of its keys
    Kernel* few_queries_backward;                                 // DotBackward: likewise
    Kernel *exponentials, *additive_forward, *additive_backward;  // additive/additive.hpp
    Kernel* compute_view;                                         // ViewJob: a task is a rectangle of the scores of one head
    Kernel* log_softmax_top_k;                                    // LogSoftmaxTopK: a task is `rows_per_task` rows
    Kernel *gelu, *add_norm, *add_norm_backward;                  // fused/fused.hpp
    Kernel *few_rows, *row_norm, *rotate_append;                  // linear/linear.hpp
};

}  // namespace regard
