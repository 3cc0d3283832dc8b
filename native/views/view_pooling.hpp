// Pictures: a cell holds the largest weight, or the sum of the weights, of the pairs in it.
//
// Rows first: the strips of a block become one line of numbers per row of cells, vectors all the way, and only the line
// is cut at the edges of the columns. The exponential is monotone, so the largest weight needs one per cell, at the end:
// until then a cell holds the largest logarithm of a weight; a shade on the log scale needs none at all.
#pragma once

#include <algorithm>
#include <cstring>

#include "views/score_walk.hpp"

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

// The first n lanes of x, cut to whole numbers within 0 … 255; NaN is 0.
REGARD_INLINE void store_shades(uint8_t* p, vec x, int n) {
    const ivec whole = __builtin_convertvector(minimum(maximum(x, vec{}), splat(255.0f)), ivec);
    if (n == lanes) return store_bytes(p, whole);
    uint8_t y[lanes];
    store_bytes(y, whole);
    for (int i = 0; i < n; ++i) p[i] = y[i];
}

// Shades of cells of one pair each, where the largest, the sum and the mean are one: no number is kept on the way.
struct Shaded : Sight {
    uint8_t* shades;
    int64_t first_row;  // of the picture

    static bool serves(const Observe& job) {
        const auto one_each = [](const Cells& side) { return side.edges[side.count] - side.edges[0] == side.count; };
        return job.shades.out && one_each(job.rows) && one_each(job.cols);
    }

    Shaded(const Observe& job, const Part& part)
        : Sight(job, part), shades(job.shades.out + (part.batch * job.of.of.heads + part.head) * job.shades.head),
          first_row(job.rows.edges[0]) {
        std::memset(line(part.row), 0, size_t((part.row_end - part.row) * job.shades.row));
    }

    uint8_t* line(int64_t i) const { return shades + (i - first_row) * job.shades.row; }

    void operator()(const Block& block, const float* s) const { return job.shades.log ? shade<true>(block, s) : shade<false>(block, s); }

    template <bool LOG>
    void shade(const Block& block, const float* s) const {
        const vec slope = splat(job.shades.slope), shift = splat(job.shades.shift);
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const Row log = logs(block.row + i);
            uint8_t* to = line(block.row + i) + (block.col - job.first);
            for (int j = 0; j < block.cols; j += lanes) {
                const vec x = log(load(s + j));
                store_shades(to + j, (LOG ? x : weight(x)) * slope + shift, int(least(lanes, block.cols - j)));
            }
        }
    }
    void finish() const {}
};

template <bool LARGEST>
struct Pool : Sight {
    int64_t first, last;  // rows of cells
    int64_t first_col = 0;  // the cell of the first column of a block
    int64_t breadth = 0;  // columns of a cell, where all have as many and it is a power of 2 within a block; else 0
    // Where shades are wanted:
    uint8_t* shades;
    float *numbers = nullptr, *widths = nullptr;  // of the cells of the task's rows; their columns, for a mean

    static int64_t cell_of(const Cells& cells, int64_t entry) {
        return std::upper_bound(cells.edges, cells.edges + cells.count, entry) - cells.edges - 1;
    }

    float* row(int64_t r) const { return numbers ? numbers + (r - first) * job.cols.count : Sight::row(r); }

    Pool(const Observe& job, const Part& part, Scratch& scratch)
        : Sight(job, part), first(cell_of(job.rows, part.row)), last(cell_of(job.rows, part.row_end - 1) + 1),
          shades(job.shades.out + (part.batch * job.of.of.heads + part.head) * job.shades.head) {
        if (shades) {
            numbers = scratch.take((last - first) * job.cols.count);
            widths = scratch.take(job.cols.count);
            for (int64_t c = 0; c < job.cols.count; ++c) widths[c] = float(job.cols.edges[c + 1] - job.cols.edges[c]);
        }
        const int64_t* edges = job.cols.edges;
        const int64_t wide = edges[1] - edges[0];
        bool even = wide <= key_block && (wide & (wide - 1)) == 0;
        for (int64_t c = 1; even && c < job.cols.count; ++c) even = edges[c + 1] - edges[c] == wide;
        if (even) breadth = wide;
        for (int64_t r = first; r < last; ++r) std::fill_n(row(r), job.cols.count, LARGEST ? -infinity : 0.0f);
    }

    void keys(int64_t col, int) { first_col = cell_of(job.cols, col); }

    void operator()(const Block& block, const float* s) const {
        alignas(64) float line[key_block];
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
                const vec x = logs(block.row + i)(load(s + i * key_block + j));
                found = LARGEST ? maximum(found, x) : found + weight(x);
            }
            store(line + j, found);
        }
    }

    static vec join(vec a, vec b) { return LARGEST ? maximum(a, b) : a + b; }
    static void join(float& held, float found) { held = LARGEST ? std::max(held, found) : held + found; }

    // A line → the cells of one row.
    void fold_columns(const Block& block, float* line, float* cells) const {
        if (breadth && (block.col - job.first) % breadth == 0) return fold_even(block.cols, line, cells + first_col);
        const int64_t* edges = job.cols.edges;
        int64_t cell = first_col;
        for (int j = 0; j < block.cols; ++cell) {
            const int stop = int(least(edges[cell + 1] - block.col, block.cols));
            join(cells[cell], gather<LARGEST>(line + j, stop - j));
            j = stop;
        }
    }

    // The same where each cell has 2^n columns: the line is halved n times, neighbours joined.
    void fold_even(int cols, float* line, float* to) const {
        for (int64_t left = breadth; left > 1; left /= 2) {
            const int whole = round_up(cols);
            if (whole / lanes % 2) store(line + whole, splat(LARGEST ? -infinity : 0.0f));
            for (int j = 0; j < whole; j += 2 * lanes) {
                const vec a = load(line + j), b = load(line + j + lanes);
                store(line + j / 2, join(evens(a, b), odds(a, b)));
            }
            cols = (cols + 1) / 2;
        }
        int j = 0;
        for (; j + lanes <= cols; j += lanes) store(to + j, join(load(to + j), load(line + j)));
        for (; j < cols; ++j) join(to[j], line[j]);
    }

    void finish() const {
        if (job.shades.out) return job.shades.log ? shade<true>() : shade<false>();
        if (!LARGEST) return;
        for (int64_t r = first; r < last; ++r)
            for (int64_t c = 0; c < job.cols.count; c += lanes) {
                const int some = int(least(lanes, job.cols.count - c));
                store_some(row(r) + c, weight(load_some(row(r) + c, some)), some);
            }
    }

    // The numbers of the cells → their shades.
    template <bool LOG>
    void shade() const {
        const vec slope = splat(job.shades.slope), shift = splat(job.shades.shift);
        for (int64_t r = first; r < last; ++r) {
            const vec height = splat(float(job.rows.edges[r + 1] - job.rows.edges[r]));
            for (int64_t c = 0; c < job.cols.count; c += lanes) {
                const int some = int(least(lanes, job.cols.count - c));
                vec x = load_some(row(r) + c, some);
                if (LARGEST) {
                    if (!LOG) x = weight(x);
                } else {
                    x /= height * load(widths + c);
                    if (LOG) x = x < splat(least_normal) ? splat(-infinity) : logarithm(x);
                }
                store_shades(shades + r * job.shades.row + c, x * slope + shift, some);
            }
        }
    }
};

}  // namespace regard::REGARD_ISA
