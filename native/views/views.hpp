// The job of a view of an attention map.
//
// A task is a rectangle of the score matrix of one head. No two tasks write the same element, and the division into tasks does
// not depend on the number of threads, so results are bit-identical for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "additive/additive.hpp"
#include "base/problem.hpp"

namespace regard {

// w is the weight e^((score − highest) − log total) of a pair (i, j). The last column is the unit that tasks count.
enum class ViewKind : int32_t {
    statistic,  // highest_i, total_i            rows
    top,        // the `count` largest w_i       rows
    entropy,    // −Σ_j w log w                  rows
    weights,    // w                             rows
    matmul,     // Σ_j w · x_j                   rows
    rmatmul,    // Σ_i x_i · w                   columns
    max,        // the largest w of a cell       rows of cells
    sum,        // the sum of w over a cell      rows of cells
};
inline constexpr const char* view_names[] = {"statistic", "top", "entropy", "weights", "matmul", "rmatmul", "max", "sum"};

// Cell c has rows (or columns) edges[c] … edges[c + 1] − 1.
struct Cells {
    const int64_t* edges;
    int64_t count;
};

// Maps the weight w of a cell to one of 256 shades, rounded and clamped to 0 … 255: x · slope + shift, x = w or log w.
struct Shades {
    uint8_t* out;         // one image per head; null: no shades
    ptrdiff_t head, row;  // strides; rows are contiguous
    bool log;
    float slope, shift;  // shift includes ½ for rounding
};

struct ViewJob {
    Additive additive;  // w null: dot products; v is not used
    ViewKind kind;
    // (B, H, Tq), contiguous. For `statistic` the outputs: highest scores and totals, as in Softmax. Otherwise inputs, which are
    // subtracted from the scores of a row: its highest score and the logarithm of its total; 0 if it has no keys
    float *highest, *total;
    float* out;                   // output of each head: rows of numbers, or an image
    ptrdiff_t out_head, out_row;  // strides
    int64_t* indices;             // top: indices of keys, with the strides of `out`
    int64_t count;                // top: number of weights; matmul, rmatmul: width of x
    View x;                       // matmul: (B, H, Tk, count); rmatmul: (B, H, count, Tq)
    Cells rows, cols;             // max, sum
    Shades shades;                // instead of `out`: max; sum, which gives shades of the mean
    int64_t first, last;          // columns of the view
    int64_t units, per_task;      // units of a head (rows, columns or rows of cells), units of a task
};

inline int64_t tasks_of_head(const ViewJob& job) { return (job.units + job.per_task - 1) / job.per_task; }

}  // namespace regard
