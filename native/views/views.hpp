// The views of a map: what is asked of the scores besides a context.
//
// A task is a rectangle of the score matrix of one head. No two tasks write the same number, and how the work is cut does
// not depend on the threads: neither does any bit of the answer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "additive/additive.hpp"
#include "base/problem.hpp"

namespace regard {

// With w the weight e^((score − highest) − log total) of a pair (i, j), and what a task is `per_task` of:
enum class Verb : int32_t {
    statistic,  // highest_i, total_i            rows
    top,        // the `count` largest w_i       rows
    entropy,    // −Σ_j w log w                  rows
    weights,    // w                             rows
    times,      // Σ_j w · x_j                   rows
    before,     // Σ_i x_i · w                   columns
    largest,    // the largest w of a cell       rows of cells
    sums,       // the sum of w over a cell      rows of cells
};
inline constexpr const char* verbs[] = {"statistic", "top", "entropy", "weights", "times", "before", "largest", "sums"};

// Cell c holds the rows (or columns) edges[c] up to, not with, edges[c + 1].
struct Cells {
    const int64_t* edges;
    int64_t count;
};

// Maps the weight w of a cell to one of 256 shades, rounded and clamped to 0 … 255: x · slope + shift, x = w or log w.
struct Shades {
    uint8_t* out;         // of each head a picture; null: numbers are wanted
    ptrdiff_t head, row;  // strides; nothing lies between two rows
    bool log;
    float slope, shift;  // shift: with the half that rounds
};

struct Observe {
    Additive of;  // w null: dot products; v is not used
    Verb verb;
    // (B, H, Tq), contiguous. statistic: where highest scores and totals are written, as in Softmax. Else what is subtracted
    // from the scores of a row, one after the other: its highest score and the logarithm of its total; 0 where it has no keys
    float *highest, *total;
    float* out;                  // of each head: numbers of rows, rows of numbers, or a picture
    ptrdiff_t out_head, out_row;  // strides
    int64_t* at;                 // top: the keys, as `out`
    int64_t count;               // top: how many; times, before: the width of x
    View x;                      // times: (B, H, Tk, count); before: (B, H, count, Tq)
    Cells rows, cols;            // largest, sums
    Shades shades;               // in place of `out`: largest; sums, of the mean
    int64_t first, last;         // the columns to look at
    int64_t units, per_task;     // what the tasks of one head share: rows, columns or rows of cells
};

inline int64_t tasks_of_head(const Observe& job) { return (job.units + job.per_task - 1) / job.per_task; }

}  // namespace regard
