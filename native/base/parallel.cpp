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

std::atomic<Region> pool{nullptr};

struct alignas(64) Line {
    float numbers[16];
};
struct Block {
    std::unique_ptr<Line[]> lines;
    size_t size;  // floats
};
thread_local std::vector<Block> blocks;  // of Scratch: kept from call to call

size_t size_of_blocks() {
    size_t all = 0;
    for (const Block& block : blocks) all += block.size;
    return all;
}

// During its lifetime, denormals of this thread are flushed to 0, if requested.
class Flushing {
#if defined(__SSE2__)
    using Control = unsigned;
    static constexpr Control flush = 0x8040;  // results, and what is read
    static Control get() { return _mm_getcsr(); }
    static void set(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
    using Control = uint64_t;
    static constexpr Control flush = 1 << 24;
    static Control get() {
        Control control;
        asm volatile("mrs %0, fpcr" : "=r"(control));
        return control;
    }
    static void set(Control control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
    using Control = int;
    static constexpr Control flush = 0;
    static Control get() { return 0; }
    static void set(Control) {}
#endif
    const Control before = get();

   public:
    explicit Flushing(Small small) {
        if (small == Small::zero) set(before | flush);
    }
    ~Flushing() { set(before); }
    Flushing(const Flushing&) = delete;
    Flushing& operator=(const Flushing&) = delete;
};

// One call: what its threads share.
struct Work {
    Kernel* kernel;
    const void* job;
    int64_t tasks, rows_per_task, chunk;
    Small small;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};

    void run() {
        Scratch scratch(rows_per_task);
        const Flushing flushing(small);
        for (;;) {
            const int64_t first = next.fetch_add(chunk, std::memory_order_relaxed);
            if (first >= tasks) return;
            for (int64_t task = first; task < std::min(first + chunk, tasks); ++task) {
                scratch.release();
                kernel(job, task, scratch);
            }
        }
    }

    // On a worker: nothing may be thrown into the pool.
    static void guarded(void* data) noexcept {
        Work& work = *static_cast<Work*>(data);
        if (work.next.load(std::memory_order_relaxed) >= work.tasks) return;
        try {
            work.run();
        } catch (...) {
            work.next.store(work.tasks, std::memory_order_relaxed);  // the others need not go on
            if (!work.failed.exchange(true)) work.error = std::current_exception();
        }
    }
};

// Where there is no pool to share.
void fan_out(Work& work, int threads) {
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    try {
        for (int i = 1; i < threads; ++i) others.emplace_back(Work::guarded, &work);
    } catch (const std::system_error&) {
        // no more threads are available: the existing ones do the work
    }
    Work::guarded(&work);
    for (std::thread& other : others) other.join();
}

}  // namespace

float* Scratch::grow(size_t count) {
#ifdef __SANITIZE_ADDRESS__
    const size_t size = count;  // a block for each part, so that one float beyond it is found
#else
    const size_t size = std::max(count, size_of_blocks());  // few blocks, however the needs of tasks grow
#endif
    blocks.push_back({std::make_unique_for_overwrite<Line[]>(size / 16), size});
    float* part = blocks.back().lines[0].numbers;
    data = part + count;
    left = size - count;
    return part;
}

void Scratch::release() {
    if (blocks.size() > 1) {
        const size_t all = size_of_blocks();
        blocks.clear();
        grow(all);
    }
    data = blocks.empty() ? nullptr : blocks[0].lines[0].numbers;
    left = blocks.empty() ? 0 : blocks[0].size;
}

void use_pool(Region region) { pool = region; }

void parallel(Kernel* kernel, const void* job, int64_t tasks, int64_t rows_per_task, int threads, Small small) {
    if (tasks <= 0) return;
    // Many chunks per thread, so that unequal tasks (causal ones) even out; more than one task in each where there are
    // thousands of tiny ones.
    const int64_t chunk = std::max<int64_t>(1, tasks / (int64_t(threads) * 16));
    Work work{kernel, job, tasks, rows_per_task, chunk, small};
    if (threads <= 1 || tasks == 1) return work.run();
    // Always use all threads, even for fewer tasks: for a region of another size the runtime would end some threads and
    // start them again for the next.
    if (const Region region = pool)
        region(Work::guarded, &work, unsigned(threads), 0);
    else
        fan_out(work, int(std::min<int64_t>(threads, tasks)));
    if (work.failed) std::rethrow_exception(work.error);
}

}  // namespace regard
