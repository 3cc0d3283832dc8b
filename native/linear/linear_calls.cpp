#include "base/parallel.hpp"
#include "linear/linear.hpp"

namespace regard::calls {

namespace {

// A multiple of the outputs of every tile (few_rows.cpp): tiles, and so the rounding, do not depend on the number of tasks.
constexpr int64_t tile = 24;
constexpr int64_t tasks_per_thread = 8;  // balances the load, in parts long enough for hardware prefetching
constexpr int64_t rows_per_task = 32;    // for norms and rotations

int64_t parts(int64_t whole, int64_t each) { return (whole + each - 1) / each; }

}  // namespace

void linear(const Kernels& kernels, const RowNorm* norm, const Linear& job, int threads) {
    if (norm) row_norm(kernels, *norm, threads);
    const int64_t outputs = parts(parts(job.out, tasks_per_thread * threads), tile) * tile;
    parallel(kernels.few_rows, &job, parts(job.out, outputs), outputs, threads);
}

void row_norm(const Kernels& kernels, const RowNorm& job, int threads) {
    parallel(kernels.row_norm, &job, parts(job.rows, rows_per_task), rows_per_task, threads);
}

void rotate_append(const Kernels& kernels, const RotateAppend& job, int threads) {
    parallel(kernels.rotate_append, &job, parts(job.rows, rows_per_task), rows_per_task, threads);
}

}  // namespace regard::calls
