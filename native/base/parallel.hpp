// Runs tasks on the threads of torch.
//
// A second thread pool would compete with torch's: after each parallel region, the workers of an OpenMP runtime spin while
// they wait for the next one, and keep all cores busy. So the tasks run as a parallel region of the runtime that torch has
// loaded. Python passes in its address.
#pragma once

#include <cstdint>

#include "base/kernel_table.hpp"

namespace regard {

// GOMP_parallel: part of the interface of GCC's OpenMP runtime, which LLVM's and Intel's offer as well.
using ParallelRegion = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

// Sets the function that runs parallel regions; null: each call starts its own threads.
void use_pool(ParallelRegion region);

// Treatment of denormals. A weight of 1e-30 times a gradient of 1e-10 is denormal, and each operation on it takes about a
// hundred cycles: without flushing, the backward pass of peaked attention takes three times as long. Half precision keeps
// them, because the conversion of a float16 may use a denormal.
enum class Denormals { keep, flush };
inline Denormals denormals_of(Dtype dtype) { return dtype == Dtype::float32 ? Denormals::flush : Denormals::keep; }

// Runs every task of a job and returns when all are done. An exception of a task is rethrown here, after all threads
// have ended. With one thread or one task, no pool is used. May be called inside a parallel region.
void parallel(Kernel* kernel, const void* job, int64_t tasks, int64_t rows_per_task, int threads, Denormals = Denormals::keep);

}  // namespace regard
