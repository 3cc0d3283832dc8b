// Pooling to an image: each cell has the largest weight, or the sum of the weights, of its pairs.
//
// Rows are reduced first, in whole vectors: the rows of a block that belong to one row of cells become one line, and only the
// line is divided into columns of cells. The exponential is monotonic, so a maximum needs only one exponential per cell, at the
// end: until then a cell has the largest logarithm of a weight. Shades on a log scale need none.
#pragma once

#include <algorithm>
#include <cstring>

#include "views/score_visitor.hpp"

namespace regard::REGARD_ISA {

// The maximum or the sum of n numbers.
template <bool MAX>
REGARD_INLINE float reduce(const float* x, int n) {
    float result = MAX ? -infinity : 0.0f;
    int j = 0;
    if (n >= lanes) {
        vec partial = load(x);
        for (j = lanes; j + lanes <= n; j += lanes) partial = MAX ? maximum(partial, load(x + j)) : partial + load(x + j);
        result = MAX ? highest(partial) : sum(partial);
    }
    for (; j < n; ++j) result = MAX ? std::max(result, x[j]) : result + x[j];
    return result;
}

// Stores the first n lanes of x, clamped to 0 … 255 and truncated; NaN becomes 0.
REGARD_INLINE void store_shades(uint8_t* p, vec x, int n) {
    const ivec rounded = __builtin_convertvector(minimum(maximum(x, vec{}), splat(255.0f)), ivec);
    if (n == lanes) return store_bytes(p, rounded);
    uint8_t y[lanes];
    store_bytes(y, rounded);
    for (int i = 0; i < n; ++i) p[i] = y[i];
}

// Shades of cells with one pair each, for which maximum, sum and mean are equal. Nothing is stored but the shades.
struct Shaded : ViewBase {
    uint8_t* shades;
    int64_t first_row;  // of the image

    static bool supports(const ViewJob& job) {
        const auto one_entry_per_cell = [](const Cells& side) { return side.edges[side.count] - side.edges[0] == side.count; };
        return job.shades.out && one_entry_per_cell(job.rows) && one_entry_per_cell(job.cols);
    }

    Shaded(const ViewJob& job, const Region& region)
        : ViewBase(job, region), shades(job.shades.out + (region.batch * job.additive.dot.heads + region.head) * job.shades.head),
          first_row(job.rows.edges[0]) {
        std::memset(line(region.row), 0, size_t((region.row_end - region.row) * job.shades.row));
    }

    uint8_t* line(int64_t i) const { return shades + (i - first_row) * job.shades.row; }

    void operator()(const Block& block, const float* s) const {
        return job.shades.log ? shade<true>(block, s) : shade<false>(block, s);
    }

    template <bool LOG>
    void shade(const Block& block, const float* s) const {
        const vec slope = splat(job.shades.slope), shift = splat(job.shades.shift);
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const LogWeights log_weight = log_weights(block.row + i);
            uint8_t* output = line(block.row + i) + (block.col - job.first);
            for (int j = 0; j < block.cols; j += lanes) {
                const vec x = log_weight(load(s + j));
                store_shades(output + j, (LOG ? x : weight(x)) * slope + shift, int(min(lanes, block.cols - j)));
            }
        }
    }
    void finish() const {}
};

template <bool MAX>
struct Pool : ViewBase {
    int64_t first, last;     // rows of cells
    int64_t first_col = 0;   // cell of the first column of a block
    int64_t cell_width = 0;  // columns per cell, if equal for all cells and a power of 2 up to key_block; else 0
    // Only for shades:
    uint8_t* shades;
    float *values = nullptr, *cell_widths = nullptr;  // values of the cells of the task; columns per cell, for the mean

    static int64_t cell_of(const Cells& cells, int64_t entry) {
        return std::upper_bound(cells.edges, cells.edges + cells.count, entry) - cells.edges - 1;
    }

    float* row(int64_t r) const { return values ? values + (r - first) * job.cols.count : ViewBase::row(r); }

    Pool(const ViewJob& job, const Region& region, Workspace& workspace)
        : ViewBase(job, region), first(cell_of(job.rows, region.row)), last(cell_of(job.rows, region.row_end - 1) + 1),
          shades(job.shades.out + (region.batch * job.additive.dot.heads + region.head) * job.shades.head) {
        if (shades) {
            values = workspace.allocate((last - first) * job.cols.count);
            cell_widths = workspace.allocate(job.cols.count);
            for (int64_t c = 0; c < job.cols.count; ++c) cell_widths[c] = float(job.cols.edges[c + 1] - job.cols.edges[c]);
        }
        const int64_t* edges = job.cols.edges;
        const int64_t first_width = edges[1] - edges[0];
        bool even = first_width <= key_block && (first_width & (first_width - 1)) == 0;
        for (int64_t c = 1; even && c < job.cols.count; ++c) even = edges[c + 1] - edges[c] == first_width;
        if (even) cell_width = first_width;
        for (int64_t r = first; r < last; ++r) std::fill_n(row(r), job.cols.count, MAX ? -infinity : 0.0f);
    }

    void load_columns(int64_t col, int) { first_col = cell_of(job.cols, col); }

    void operator()(const Block& block, const float* s) const {
        alignas(64) float line[key_block];
        int64_t cell = cell_of(job.rows, block.row);
        for (int m = 0; m < block.rows; ++cell) {
            const int stop = int(min(job.rows.edges[cell + 1] - block.row, block.rows));
            fold_rows(block, m, stop, s, line);
            fold_columns(block, line, row(cell));
            m = stop;
        }
    }

    // Reduces rows m … stop − 1 of a block to one line.
    void fold_rows(const Block& block, int m, int stop, const float* s, float* line) const {
        for (int j = 0; j < block.cols; j += lanes) {
            vec result = splat(MAX ? -infinity : 0.0f);
            for (int i = m; i < stop; ++i) {
                const vec x = log_weights(block.row + i)(load(s + i * key_block + j));
                result = MAX ? maximum(result, x) : result + weight(x);
            }
            store(line + j, result);
        }
    }

    static vec combine(vec a, vec b) { return MAX ? maximum(a, b) : a + b; }
    static void combine(float& cell, float result) { cell = MAX ? std::max(cell, result) : cell + result; }

    // Reduces a line to the cells of one row.
    void fold_columns(const Block& block, float* line, float* cells) const {
        if (cell_width && (block.col - job.first) % cell_width == 0) return fold_even(block.cols, line, cells + first_col);
        const int64_t* edges = job.cols.edges;
        int64_t cell = first_col;
        for (int j = 0; j < block.cols; ++cell) {
            const int stop = int(min(edges[cell + 1] - block.col, block.cols));
            combine(cells[cell], reduce<MAX>(line + j, stop - j));
            j = stop;
        }
    }

    // The same if each cell has 2^n columns: n times, neighbors are combined and the line is halved.
    void fold_even(int cols, float* line, float* output) const {
        for (int64_t width = cell_width; width > 1; width /= 2) {
            const int rounded = round_up(cols);
            if (rounded / lanes % 2) store(line + rounded, splat(MAX ? -infinity : 0.0f));
            for (int j = 0; j < rounded; j += 2 * lanes) {
                const vec a = load(line + j), b = load(line + j + lanes);
                store(line + j / 2, combine(evens(a, b), odds(a, b)));
            }
            cols = (cols + 1) / 2;
        }
        int j = 0;
        for (; j + lanes <= cols; j += lanes) store(output + j, combine(load(output + j), load(line + j)));
        for (; j < cols; ++j) combine(output[j], line[j]);
    }

    void finish() const {
        if (job.shades.out) return job.shades.log ? shade<true>() : shade<false>();
        if (!MAX) return;
        for (int64_t r = first; r < last; ++r)
            for (int64_t c = 0; c < job.cols.count; c += lanes) {
                const int count = int(min(lanes, job.cols.count - c));
                store_partial(row(r) + c, weight(load_partial(row(r) + c, count)), count);
            }
    }

    // Converts the values of the cells to shades.
    template <bool LOG>
    void shade() const {
        const vec slope = splat(job.shades.slope), shift = splat(job.shades.shift);
        for (int64_t r = first; r < last; ++r) {
            const vec height = splat(float(job.rows.edges[r + 1] - job.rows.edges[r]));
            for (int64_t c = 0; c < job.cols.count; c += lanes) {
                const int count = int(min(lanes, job.cols.count - c));
                vec x = load_partial(row(r) + c, count);
                if (MAX) {
                    if (!LOG) x = weight(x);
                } else {
                    x /= height * load(cell_widths + c);
                    if (LOG) x = x < splat(least_normal) ? splat(-infinity) : logarithm(x);
                }
                store_shades(shades + r * job.shades.row + c, x * slope + shift, count);
            }
        }
    }
};

}  // namespace regard::REGARD_ISA
