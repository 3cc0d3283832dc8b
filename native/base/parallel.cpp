#include "base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace regard {

namespace {

std::atomic<ParallelRegion> pool{nullptr};

struct alignas(64) CacheLine {
    float floats[16];
};
struct Block {
    std::unique_ptr<CacheLine[]> lines;
    size_t size;  // floats
};
thread_local std::vector<Block> blocks;  // memory of Workspace, kept between calls

size_t total_block_size() {
    size_t total = 0;
    for (const Block& block : blocks) total += block.size;
    return total;
}

// While it exists, this thread flushes denormals to 0, if requested.
class FlushDenormals {
#if defined(__SSE2__)
    using ControlWord = unsigned;
    static constexpr ControlWord flush = 0x8040;  // FTZ (results) and DAZ (operands)
    static ControlWord get() { return _mm_getcsr(); }
    static void set(ControlWord value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
    using ControlWord = uint64_t;
    static constexpr ControlWord flush = 1 << 24;
    static ControlWord get() {
        ControlWord value;
        asm volatile("mrs %0, fpcr" : "=r"(value));
        return value;
    }
    static void set(ControlWord value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
    using ControlWord = int;
    static constexpr ControlWord flush = 0;
    static ControlWord get() { return 0; }
    static void set(ControlWord) {}
#endif
    const ControlWord saved = get();

   public:
    explicit FlushDenormals(Denormals denormals) {
        if (denormals == Denormals::flush) set(saved | flush);
    }
    ~FlushDenormals() { set(saved); }
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;
};

// State of one call, shared by its threads.
struct Work {
    Kernel* kernel;
    const void* job;
    int64_t tasks, rows_per_task, chunk;
    Denormals denormals;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};

    void run() {
        Workspace workspace(rows_per_task);
        const FlushDenormals flush_denormals(denormals);
        for (;;) {
            const int64_t first = next.fetch_add(chunk, std::memory_order_relaxed);
            if (first >= tasks) return;
            for (int64_t task = first; task < std::min(first + chunk, tasks); ++task) {
                workspace.release();
                kernel(job, task, workspace);
            }
        }
    }

    // Runs on a worker: no exception may reach the pool.
    static void run_noexcept(void* data) noexcept {
        Work& work = *static_cast<Work*>(data);
        if (work.next.load(std::memory_order_relaxed) >= work.tasks) return;
        try {
            work.run();
        } catch (...) {
            work.next.store(work.tasks, std::memory_order_relaxed);  // stops the other threads
            if (!work.failed.exchange(true)) work.error = std::current_exception();
        }
    }
};

// Used if there is no pool.
void run_on_new_threads(Work& work, int threads) {
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    try {
        for (int i = 1; i < threads; ++i) others.emplace_back(Work::run_noexcept, &work);
    } catch (const std::system_error&) {
        // no more threads are available: the existing ones do the work
    }
    Work::run_noexcept(&work);
    for (std::thread& thread : others) thread.join();
}

}  // namespace

float* Workspace::grow(size_t count) {
#ifdef __SANITIZE_ADDRESS__
    const size_t size = count;  // one block per allocation, so that the sanitizer detects any overrun
#else
    const size_t size = std::max(count, total_block_size());  // doubling keeps the number of blocks small
#endif
    blocks.push_back({std::make_unique_for_overwrite<CacheLine[]>(size / 16), size});
    float* start = blocks.back().lines[0].floats;
    data = start + count;
    remaining = size - count;
    return start;
}

void Workspace::release() {
    if (blocks.size() > 1) {
        const size_t total = total_block_size();
        blocks.clear();
        grow(total);
    }
    data = blocks.empty() ? nullptr : blocks[0].lines[0].floats;
    remaining = blocks.empty() ? 0 : blocks[0].size;
}

void use_pool(ParallelRegion region) { pool = region; }

void parallel(Kernel* kernel, const void* job, int64_t tasks, int64_t rows_per_task, int threads, Denormals denormals) {
    if (tasks <= 0) return;
    // Many chunks per thread balance tasks of unequal cost (causal masks). With thousands of tiny tasks, a chunk has several.
    const int64_t chunk = std::max<int64_t>(1, tasks / (int64_t(threads) * 16));
    Work work{kernel, job, tasks, rows_per_task, chunk, denormals};
    if (threads <= 1 || tasks == 1) return work.run();
    // Always use all threads, even for fewer tasks: for a region of another size the runtime would end some threads and
    // start them again for the next.
    if (const ParallelRegion region = pool)
        region(Work::run_noexcept, &work, unsigned(threads), 0);
    else
        run_on_new_threads(work, int(std::min<int64_t>(threads, tasks)));
    if (work.failed) std::rethrow_exception(work.error);
}

}  // namespace regard
