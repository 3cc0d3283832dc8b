// Pictures: a cell holds the largest weight, or the sum of the weights, of the pairs in it.
//
// Rows first: the strips of a block become one line of numbers per row of cells, vectors all the way, and only the line
// is cut at the edges of the columns. The exponential is monotone, so the largest weight needs one per cell, at the end:
// until then a cell holds the largest score − lse.
#pragma once

#include <algorithm>

#include "observe_walk.hpp"

namespace regard::REGARD_ISA {

// The largest, or the sum, of n numbers.
template <bool LARGEST>
REGARD_INLINE float gather(const float* x, int n) {
    float found = LARGEST ? -infinity : 0.0f;
    int j = 0;
    if (n >= lanes) {
        vec most = load(x);
        for (j = lanes; j + lanes <= n; j += lanes) most = LARGEST ? maximum(most, load(x + j)) : most + load(x + j);
        found = LARGEST ? highest(most) : sum(most);
    }
    for (; j < n; ++j) found = LARGEST ? std::max(found, x[j]) : found + x[j];
    return found;
}

template <bool LARGEST>
struct Pool : Sight {
    int64_t first, last;  // rows of cells
    int64_t first_col = 0;  // the cell of the first column of a block

    static int64_t cell_of(const Cells& cells, int64_t entry) {
        return std::upper_bound(cells.edges, cells.edges + cells.count, entry) - cells.edges - 1;
    }

    Pool(const Observe& job, const Part& part)
        : Sight(job, part), first(cell_of(job.rows, part.row)), last(cell_of(job.rows, part.row_end - 1) + 1) {
        for (int64_t r = first; r < last; ++r) std::fill_n(row(r), job.cols.count, LARGEST ? -infinity : 0.0f);
    }

    void keys(int64_t col, int) { first_col = cell_of(job.cols, col); }

    void operator()(const Block& block, const float* s) const {
        float line[key_block];
        int64_t cell = cell_of(job.rows, block.row);
        for (int m = 0; m < block.rows; ++cell) {
            const int stop = int(least(job.rows.edges[cell + 1] - block.row, block.rows));
            fold_rows(block, m, stop, s, line);
            fold_columns(block, line, row(cell));
            m = stop;
        }
    }

    // Rows m … stop − 1 of a block → one line.
    void fold_rows(const Block& block, int m, int stop, const float* s, float* line) const {
        for (int j = 0; j < block.cols; j += lanes) {
            vec found = splat(LARGEST ? -infinity : 0.0f);
            for (int i = m; i < stop; ++i) {
                const vec log = load(s + i * key_block + j) - splat(base_of(lse[block.row + i]));
                found = LARGEST ? maximum(found, log) : found + weight(log);
            }
            store(line + j, found);
        }
    }

    // A line → the cells of one row.
    void fold_columns(const Block& block, const float* line, float* cells) const {
        const int64_t* edges = job.cols.edges;
        int j = 0;
        if (job.cols.count == job.last - job.first) {  // one column each
            float* to = cells + first_col;
            for (; j + lanes <= block.cols; j += lanes) {
                const vec held = load(to + j), found = load(line + j);
                store(to + j, LARGEST ? maximum(held, found) : held + found);
            }
        }
        for (int64_t cell = first_col + j; j < block.cols; ++cell) {
            const int stop = int(least(edges[cell + 1] - block.col, block.cols));
            const float found = gather<LARGEST>(line + j, stop - j);
            cells[cell] = LARGEST ? std::max(cells[cell], found) : cells[cell] + found;
            j = stop;
        }
    }

    void finish() const {
        if (!LARGEST) return;
        for (int64_t r = first; r < last; ++r)
            for (int64_t c = 0; c < job.cols.count; c += lanes) {
                const int some = int(least(lanes, job.cols.count - c));
                store_some(row(r) + c, weight(load_some(row(r) + c, some)), some);
            }
    }
};

}  // namespace regard::REGARD_ISA
