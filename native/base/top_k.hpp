// The k largest of a stream of numbers.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

// The largest numbers so far in descending order; on ties, the one that was inserted first.
struct TopK {
    float* values;
    int64_t* ids;
    int64_t count;

    float lowest() const { return values[count - 1]; }

    // Replaces the lowest.
    void insert(float x, int64_t id) const { insert_at(count - 1, x, id); }

    // Inserts among the first `index` + 1 numbers and drops the last of these.
    void insert_at(int64_t index, float x, int64_t id) const {
        for (; index && x > values[index - 1]; --index) values[index] = values[index - 1], ids[index] = ids[index - 1];
        values[index] = x, ids[index] = id;
    }
};

}  // namespace regard::REGARD_ISA
