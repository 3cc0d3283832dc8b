// The best few of many numbers, found while they pass by.
#pragma once

#include <cstdint>

#include "base/simd.hpp"

namespace regard::REGARD_ISA {

// The highest so far, the highest first; of equal ones the first that came.
struct Ranked {
    float* values;
    int64_t* ids;
    int64_t count;

    float lowest() const { return values[count - 1]; }

    // Takes the place of the last.
    void insert(float x, int64_t id) const { settle(count - 1, x, id); }

    // Into its place among those before `at`.
    void settle(int64_t at, float x, int64_t id) const {
        for (; at && x > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
        values[at] = x, ids[at] = id;
    }
};

}  // namespace regard::REGARD_ISA
