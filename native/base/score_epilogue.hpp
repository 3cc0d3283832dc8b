// Epilogue of the scores, before the softmax: soft cap and mask.
#pragma once

#include <cmath>

#include "base/problem.hpp"
#include "base/simd.hpp"

namespace regard::REGARD_ISA {

// Consecutive queries of one head: the work of a task.
struct QueryBlock {
    int64_t batch, head, row;
    int rows;
};

struct KeyRange {
    int64_t first, last;
};

// A block of the score matrix.
struct Block {
    int64_t row;
    int rows;
    int64_t col;
    int cols;
};

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

inline QueryBlock block_of_task(const Dot& dot, int64_t task, int64_t rows_per_task) {
    const int64_t blocks_per_head = (dot.queries + rows_per_task - 1) / rows_per_task;
    const int64_t entry = task / blocks_per_head, row = task % blocks_per_head * rows_per_task;
    return {entry / dot.heads, entry % dot.heads, row, int(min(rows_per_task, dot.queries - row))};
}

// One of `parts` equal parts of the keys of a head: the work of a task of a backward pass.
struct KeyPart {
    int64_t batch, head, part, first, last;

    KeyPart(const Dot& dot, int64_t parts, int64_t task) {
        const int64_t entry = task / parts, keys_per_part = (dot.keys + parts - 1) / parts;
        batch = entry / dot.heads;
        head = entry % dot.heads;
        part = task % parts;
        first = min(part * keys_per_part, dot.keys);
        last = min(first + keys_per_part, dot.keys);
    }
};

inline int64_t offset_of(const Dot& dot, int64_t batch) { return dot.mask.offset ? dot.mask.offset[batch] : 0; }
inline int64_t length_of(const Dot& dot, int64_t batch) {
    return dot.mask.length ? min(dot.mask.length[batch], dot.keys) : dot.keys;
}

// Range that contains every key to which these rows may attend.
inline KeyRange visible_keys(const Dot& dot, int64_t batch, int64_t row, int64_t rows) {
    const int64_t offset = offset_of(dot, batch);
    const int64_t first = max(0, row + offset - dot.mask.left);
    const int64_t last = min(length_of(dot, batch), row + rows + offset + dot.mask.right);
    return {first, max(first, last)};
}
inline KeyRange visible_keys(const Dot& dot, const QueryBlock& query_block) {
    return visible_keys(dot, query_block.batch, query_block.row, query_block.rows);
}

// Returns whether no pair of a block may attend.
inline bool fully_masked(const Dot& dot, const QueryBlock& query_block, const Block& block) {
    const KeyRange columns = visible_keys(dot, query_block.batch, block.row, block.rows);
    return columns.last <= block.col || columns.first >= block.col + block.cols;
}

// Returns whether every pair of a block may attend, so that no mask is needed.
inline bool unmasked(const Dot& dot, const QueryBlock& query_block, const Block& block) {
    const int64_t offset = offset_of(dot, query_block.batch);
    return dot.mask.kind == MaskKind::none && block.col >= block.row + block.rows - 1 + offset - dot.mask.left &&
           block.col + block.cols - 1 <= block.row + offset + dot.mask.right &&
           block.col + block.cols <= length_of(dot, query_block.batch);
}

// Replaces scores, already divided by softcap, by softcap · tanh(score). Rows are padded to whole vectors.
inline void apply_softcap(float* s, ptrdiff_t ld, int rows, int cols, float softcap) {
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; j += lanes) store(s + i * ld + j, softcap * hyperbolic_tangent(load(s + i * ld + j)));
}

// Sets masked scores to −∞ and adds a float mask.
inline void mask_block(const Dot& dot, const QueryBlock& query_block, const Block& block, float* s, ptrdiff_t ld) {
    const Mask& mask = dot.mask;
    for (int i = 0; i < block.rows; ++i) {
        float* row = s + i * ld;
        if (mask.kind != MaskKind::none) {
            const ptrdiff_t start =
                query_block.batch * mask.batch + query_block.head * mask.head + (block.row + i) * mask.row + block.col * mask.col;
            if (mask.kind == MaskKind::added) {
                const float* added = static_cast<const float*>(mask.dense) + start;
                for (int j = 0; j < block.cols; ++j)
                    row[j] = added[j * mask.col] == -infinity ? -infinity : row[j] + added[j * mask.col];
            } else {
                const uint8_t* allowed = static_cast<const uint8_t*>(mask.dense) + start;
                for (int j = 0; j < block.cols; ++j) row[j] = allowed[j * mask.col] ? row[j] : -infinity;
            }
        }
        const KeyRange columns = visible_keys(dot, query_block.batch, block.row + i, 1);
        for (int64_t j = 0; j < min(columns.first - block.col, block.cols); ++j) row[j] = -infinity;
        for (int64_t j = max(0, columns.last - block.col); j < block.cols; ++j) row[j] = -infinity;
    }
}

}  // namespace regard::REGARD_ISA
