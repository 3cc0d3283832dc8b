// Calls of the kernels: a job in, the kernel that serves it, cut into tasks. No Python: the module (binding/module.cpp) and the
// self-check (check/) come in here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "additive/additive.hpp"
#include "base/kernel_table.hpp"
#include "base/problem.hpp"
#include "fused/fused.hpp"
#include "views/views.hpp"

namespace regard {

// The builds that run on this machine, the fastest last. The environment variable REGARD_MAX_CPU_ISA leaves out those
// beyond the one it names, so that a test or a user can run what an older machine would.
struct Runnable {
    const Kernels* all[3];
    int count = 0;

    Runnable();
    const Kernels* fastest() const { return all[count - 1]; }
};

namespace calls {

inline constexpr int64_t few_queries = 4;  // up to which channels, not queries, fill the lanes

// Whether every context, or every gradient, is finite. `lost` of the job is not read.
bool dot_forward(const Kernels&, DotForward job, int64_t rows_per_task, int threads);
bool dot_backward(const Kernels&, DotBackward job, int threads);

// Sequences of different lengths, one after the other: (N, H, D) in memory, N the sum of their lengths. Views and outputs of
// the job are those of the first, queries and keys the longest; a mask is by position alone, and its offset is null or has
// one number per sequence. Each is computed as it would be alone, and a sequence without queries is left out: its dk and dv
// are for the caller to clear.
struct Packed {
    int64_t count;
    const int64_t *queries, *keys;  // lengths
};
bool packed_forward(const Kernels&, DotForward job, const Packed& packed, int64_t rows_per_task, int threads);
bool packed_backward(const Kernels&, DotBackward job, const Packed& packed, int threads);

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

// Rows of tables that go on from other rows: afterwards row r < count holds, up to `length`, what row rows[r] held. Only what
// differs is copied: the first table says who wrote each position (int32), and where that is the same, so is all. In groups
// of so many rows; a row's source is one of its own group, or beyond `count`.
struct Table {
    char* data;
    ptrdiff_t row;     // bytes from one row to the next
    int64_t position;  // bytes of one position
};
struct Move {
    std::vector<Table> tables;
    const int64_t* rows;
    int64_t count, group, length;
};
void move(const Move& job, int threads);

void best(const Kernels&, const Best& job, int threads);

// Between two products (fused/fused.hpp). The sums over rows come in one row for each of so many tasks.
int64_t tasks_between(int64_t rows, int threads);
void gelu(const Kernels&, const Gelu& job, int threads);
void add_norm(const Kernels&, const AddNorm& job, int threads);
void add_norm_backward(const Kernels&, const AddNormBackward& job, int threads);

}  // namespace calls

}  // namespace regard
