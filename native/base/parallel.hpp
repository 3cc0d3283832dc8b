// Tasks on threads, in torch's own pool.
//
// A second pool beside torch's would spin against it: after each parallel region the workers of an OpenMP runtime wait
// busily for the next one, and on a machine whose cores are all taken by one pool the other crawls. So the tasks run as
// one more region of the runtime that torch has loaded. Its address comes from Python, which knows where torch is.
#pragma once

#include <cstdint>

#include "base/kernel_table.hpp"

namespace regard {

// GOMP_parallel: part of the interface of GCC's OpenMP runtime, which LLVM's and Intel's offer as well.
using Region = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// From now on, regions run there; null: on threads started for each call.
void use_pool(Region region);

// Treatment of denormals. A weight of 1e-30 times a gradient of 1e-10 is one, and each operation on it takes a hundred
// cycles: the backward pass of peaked attention took three times as long. Half precision keeps them, because a float16 may
// be converted through one.
enum class Small { kept, zero };
inline Small small_of(Number number) { return number == Number::float32 ? Small::zero : Small::kept; }

// Runs every task of a job and returns when all are done. An exception of a task is rethrown here, after the others have
// ended. One thread or one task needs no pool. Safe inside a parallel region of the caller.
void parallel(Kernel* kernel, const void* job, int64_t tasks, int64_t rows_per_task, int threads, Small = Small::kept);

}  // namespace regard
