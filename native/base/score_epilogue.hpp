// Operations on scores between the similarity and the softmax: position, softcap, mask.
#pragma once

#include <cmath>

#include "base/problem.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

// Some queries of one head: what a task works on.
struct Place {
    int64_t batch, head, row;
    int rows;
};

struct Columns {
    int64_t first, last;
};

// Rows and columns of the score matrix.
struct Block {
    int64_t row;
    int rows;
    int64_t col;
    int cols;
};

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

inline Place place(const Dot& of, int64_t task, int64_t rows_per_task) {
    const int64_t parts = (of.queries + rows_per_task - 1) / rows_per_task;
    const int64_t entry = task / parts, row = task % parts * rows_per_task;
    return {entry / of.heads, entry % of.heads, row, int(least(rows_per_task, of.queries - row))};
}

// One of `parts` equal shares of the keys of a head: what a task of a backward pass works on.
struct Share {
    int64_t batch, head, part, first, last;

    Share(const Dot& of, int64_t parts, int64_t task) {
        const int64_t entry = task / parts, each = (of.keys + parts - 1) / parts;
        batch = entry / of.heads;
        head = entry % of.heads;
        part = task % parts;
        first = least(part * each, of.keys);
        last = least(first + each, of.keys);
    }
};

inline int64_t offset_of(const Dot& of, int64_t batch) { return of.mask.offset ? of.mask.offset[batch] : 0; }
inline int64_t length_of(const Dot& of, int64_t batch) {
    return of.mask.length ? least(of.mask.length[batch], of.keys) : of.keys;
}

// The keys outside which these rows attend to nothing.
inline Columns columns_of(const Dot& of, int64_t batch, int64_t row, int64_t rows) {
    const int64_t offset = offset_of(of, batch);
    const int64_t first = most(0, row + offset - of.mask.left);
    const int64_t last = least(length_of(of, batch), row + rows + offset + of.mask.right);
    return {first, most(first, last)};
}
inline Columns columns_of(const Dot& of, const Place& at) { return columns_of(of, at.batch, at.row, at.rows); }

// Whether a block holds no pair that may attend.
inline bool outside(const Dot& of, const Place& at, const Block& block) {
    const Columns columns = columns_of(of, at.batch, block.row, block.rows);
    return columns.last <= block.col || columns.first >= block.col + block.cols;
}

// Whether every pair of a block may attend, so that nothing is to be masked.
inline bool inside(const Dot& of, const Place& at, const Block& block) {
    const int64_t offset = offset_of(of, at.batch);
    return of.mask.kind == MaskKind::none && block.col >= block.row + block.rows - 1 + offset - of.mask.left &&
           block.col + block.cols - 1 <= block.row + offset + of.mask.right &&
           block.col + block.cols <= length_of(of, at.batch);
}

// Scores, already divided by the cap → cap · tanh(scores).
// Rows have room for whole vectors.
inline void cap(float* s, ptrdiff_t ld, int rows, int cols, float softcap) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; j += lanes) store(s + i * ld + j, softcap * hyperbolic_tangent(load(s + i * ld + j)));
}

inline void mask_block(const Dot& of, const Place& at, const Block& block, float* s, ptrdiff_t ld) {
    const Mask& mask = of.mask;
    for (int i = 0; i < block.rows; ++i) {
        float* row = s + i * ld;
        if (mask.kind != MaskKind::none) {
            const ptrdiff_t start = at.batch * mask.batch + at.head * mask.head + (block.row + i) * mask.row + block.col * mask.col;
            if (mask.kind == MaskKind::added) {
                const float* added = static_cast<const float*>(mask.dense) + start;
                for (int j = 0; j < block.cols; ++j) row[j] = added[j * mask.col] == -infinity ? -infinity : row[j] + added[j * mask.col];
            } else {
                const uint8_t* may = static_cast<const uint8_t*>(mask.dense) + start;
                for (int j = 0; j < block.cols; ++j) row[j] = may[j * mask.col] ? row[j] : -infinity;
            }
        }
        const Columns columns = columns_of(of, at.batch, block.row + i, 1);
        for (int64_t j = 0; j < least(columns.first - block.col, block.cols); ++j) row[j] = -infinity;
        for (int64_t j = most(0, columns.last - block.col); j < block.cols; ++j) row[j] = -infinity;
    }
}

}  // namespace regard::REGARD_ISA
