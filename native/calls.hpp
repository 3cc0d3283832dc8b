// Calls of the kernels: a job in, the kernel that serves it, cut into tasks. No Python: the module (binding.cpp) and the
// self-check (check/) come in here.
#pragma once

#include <cstdint>
#include <optional>

#include "additive.hpp"
#include "kernels.hpp"
#include "observe.hpp"
#include "problem.hpp"

namespace regard {

// The builds that run on this machine, the fastest last.
struct Runnable {
    const Kernels* all[3];
    int count = 0;

    Runnable();
    const Kernels* fastest() const { return all[count - 1]; }
};

namespace calls {

// Whether every context, or every gradient, is finite. `lost` of the job is not read.
bool dot_forward(const Kernels&, DotForward job, int64_t rows_per_task, int threads);
bool dot_backward(const Kernels&, DotBackward job, int threads);

// Room for exponentials: (B, H, Tq, query_row) and (B, H / groups, Tk, key_row), contiguous; null where each task is to
// make its own, as one that has a head for itself does best.
struct Room {
    float *queries, *keys;
    bool ready = false;  // those of the keys are there already
};

// Which of the queries and keys a backward pass is given raw.
struct Raw {
    bool queries, keys;
};

// Whether all is within range; where it is not, nothing is to be used. The job names raw queries and keys, `w` the
// channel weights (B, H, D) as they are given; what the kernels are to make of them, and `beyond`, is not read.
bool additive_forward(const Kernels&, AdditiveForward job, const View& w, const Room& room, int64_t rows_per_task, int threads);
bool observe(const Kernels&, Observe job, const std::optional<View>& w, const Room& room, int threads);

// Here q and k of the job are the exponentials that the forward pass left in its room, but for those that are raw.
void additive_backward(const Kernels&, AdditiveBackward job, const View& w, const Raw& raw, int threads);
View query_exponentials(const Dot& of, const float* room);
View key_exponentials(const Dot& of, const float* room);

}  // namespace calls

}  // namespace regard
