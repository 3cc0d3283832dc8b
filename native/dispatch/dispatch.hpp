// Entry points of the kernels: each chooses the kernel for a job and divides the job into tasks. Independent of Python; used by
// the module (binding/module.cpp) and the self-check (check/).
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

// Instruction sets that are built and supported by this machine, the fastest last. The environment variable REGARD_MAX_CPU_ISA
// excludes those above the one it names, so that tests and users can run what an older machine would run.
struct SupportedIsas {
    const Kernels* all[3];
    int count = 0;

    SupportedIsas();
    const Kernels* fastest() const { return all[count - 1]; }
};

namespace calls {

inline constexpr int64_t few_queries = 4;  // up to this number of queries, lanes are channels, not queries

// Return whether every context (with a mask also every query and key), or every gradient, is finite. `non_finite` of the job
// is ignored.
bool dot_forward(const Kernels&, DotForward job, int64_t rows_per_task, int threads);
bool dot_backward(const Kernels&, DotBackward job, int threads);

// Sequences of different lengths, one after the other: (N, H, D) in memory, with N the sum of the lengths. Views and outputs of
// the job are those of the first sequence; `queries` and `keys` are the largest lengths. A mask must be defined by position, and
// its offset is null or has one number per sequence. Each sequence is computed as if it were alone. One without queries is
// skipped: the caller must clear its dk and dv.
struct Packed {
    int64_t count;
    const int64_t *queries, *keys;  // lengths
};
bool packed_forward(const Kernels&, DotForward job, const Packed& packed, int64_t rows_per_task, int threads);
bool packed_backward(const Kernels&, DotBackward job, const Packed& packed, int threads);

// Buffers for exponentials: (B, H, Tq, query_row) and (B, H / groups, Tk, key_row), contiguous. Null: each task computes its
// own, which is faster if it has a head to itself.
struct ExponentialBuffers {
    float *queries, *keys;
    bool ready = false;  // whether those of the keys are already computed
};

// Whether q and k of a backward job are raw queries and keys instead of exponentials.
struct Raw {
    bool queries, keys;
};

// Return whether all inputs are in range; if not, the results are undefined. The job has raw queries and keys, and `w` the raw
// channel weights (B, H, D). The prepared weights, exponentials and `out_of_range` of the job are ignored.
bool additive_forward(const Kernels&, AdditiveForward job, const View& w, const ExponentialBuffers& buffers,
                      int64_t rows_per_task, int threads);
bool compute_view(const Kernels&, ViewJob job, const std::optional<View>& w, const ExponentialBuffers& buffers, int threads);

// q and k of the job are the exponentials of the forward pass, unless `raw` says otherwise.
void additive_backward(const Kernels&, AdditiveBackward job, const View& w, const Raw& raw, int threads);
View query_exponentials(const Dot& dot, const float* buffer);
View key_exponentials(const Dot& dot, const float* buffer);

// Replaces row r < count of every table by row rows[r], up to `length` positions. Only what differs is copied: the first table
// (int32) has the writer of each position, and positions with the same writer have the same contents. Rows are in groups of
// `group` rows; the source of a row is in its own group, or at or above `count`.
struct Table {
    char* data;
    ptrdiff_t row;     // row stride in bytes
    int64_t position;  // bytes per position
};
struct ReorderRows {
    std::vector<Table> tables;
    const int64_t* rows;
    int64_t count, group, length;
};
void reorder_rows(const ReorderRows& job, int threads);

void log_softmax_top_k(const Kernels&, const LogSoftmaxTopK& job, int threads);

// Fused elementwise kernels (fused/fused.hpp). `fused_tasks` is the number of tasks, and so of partial sums over rows.
int64_t fused_tasks(int64_t rows, int threads);
void gelu(const Kernels&, const Gelu& job, int threads);
void add_norm(const Kernels&, const AddNorm& job, int threads);
void add_norm_backward(const Kernels&, const AddNormBackward& job, int threads);

}  // namespace calls

}  // namespace regard
