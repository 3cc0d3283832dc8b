// The views of a map. Each processes a block of scores at a time.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/top_k.hpp"
#include "views/score_visitor.hpp"
#include "views/view_pooling.hpp"
#include "views/views.hpp"

namespace regard::REGARD_ISA {

namespace {

// Online softmax: the highest score of each row so far, and the sum of e^(score − highest).
struct Statistic : ViewBase {
    Statistic(const ViewJob& job, const Region& region) : ViewBase(job, region) {
        std::fill(highest + region.row, highest + region.row_end, -infinity);
        std::fill(total + region.row, total + region.row_end, 0.0f);
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            float &running_max = highest[block.row + i], &sums = total[block.row + i];
            vec maxima = load(s), exponentials{};
            for (int j = lanes; j < block.cols; j += lanes) maxima = maximum(maxima, load(s + j));
            if (any(maxima > splat(running_max))) {
                const float new_max = REGARD_ISA::highest(maxima);
                sums *= running_max == -infinity ? 0.0f : std::exp(running_max - new_max);
                running_max = new_max;
            }
            const vec base = splat(running_max == -infinity ? 0.0f : running_max);
            for (int j = 0; j < block.cols; j += lanes) exponentials += weight(load(s + j) - base);
            sums += sum(exponentials);
        }
    }

    void finish() const {}
};

// The highest scores of a row so far are in `out`, in descending order; on ties, the first key comes first.
struct TopWeights : ViewBase {
    int64_t first, last;
    int64_t* indices;

    TopWeights(const ViewJob& job, const Region& region)
        : ViewBase(job, region), first(region.row), last(region.row_end), indices(job.indices + (out - job.out)) {
        std::fill(row(first), row(last), -infinity);
        std::fill(indices + first * job.out_row, indices + last * job.out_row, int64_t(-1));
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const TopK top{row(block.row + i), indices + (block.row + i) * job.out_row, job.count};
            for (int j = 0; j < block.cols; j += lanes) {
                if (!any(load(s + j) > splat(top.lowest()))) continue;
                for (int n = j; n < j + lanes; ++n)
                    if (s[n] > top.lowest()) top.insert(s[n], block.col + n);
            }
        }
    }

    void finish() const {
        for (int64_t i = first; i < last; ++i) {
            const LogWeights log_weight = log_weights(i);
            for (int64_t n = 0; n < job.count; n += lanes) {
                const int count = int(min(lanes, job.count - n));
                store_partial(row(i) + n, weight(log_weight(load_partial(row(i) + n, count))), count);
            }
        }
    }
};

struct Entropy : ViewBase {
    Entropy(const ViewJob& job, const Region& region) : ViewBase(job, region) {
        for (int64_t i = region.row; i < region.row_end; ++i) *row(i) = 0;
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const LogWeights log_weight = log_weights(block.row + i);
            vec sums{};
            for (int j = 0; j < block.cols; j += lanes) {
                const vec x = maximum(log_weight(load(s + j)), splat(-1e4f));  // finite instead of log 0, so that 0 · x is 0
                sums += weight(x) * x;
            }
            *row(block.row + i) -= sum(sums);
        }
    }
    void finish() const {}
};

struct Weights : ViewBase {
    Weights(const ViewJob& job, const Region& region) : ViewBase(job, region) {
        const QueryBlock query_block{region.batch, region.head, region.row, int(region.row_end - region.row)};
        if (unmasked(job.additive.dot, query_block, {query_block.row, query_block.rows, job.first, int(job.last - job.first)}))
            return;  // every element is written
        for (int64_t i = region.row; i < region.row_end; ++i) std::fill(row(i), row(i) + (job.last - job.first), 0.0f);
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const LogWeights log_weight = log_weights(block.row + i);
            float* output = row(block.row + i) + (block.col - job.first);
            for (int j = 0; j < block.cols; j += lanes)
                store_partial(output + j, weight(log_weight(load(s + j))), int(min(lanes, block.cols - j)));
        }
    }
    void finish() const {}
};

// weights · x
struct Matmul : ViewBase {
    int64_t first, last;
    const float* x;
    float *values, *accumulator;  // (key_block, width), (rows, width)
    int width;                    // whole vectors

    Matmul(const ViewJob& job, const Region& region, Workspace& workspace)
        : ViewBase(job, region), first(region.row), last(region.row_end), x(job.x.at(region.batch, region.head)),
          width(round_up(int(job.count))) {
        values = workspace.allocate(key_block * width);
        accumulator = workspace.allocate((last - first) * width);
        std::fill(accumulator, accumulator + (last - first) * width, 0.0f);
    }

    void load_columns(int64_t col, int cols) const {
        pack_rows(x + col * job.x.row, job.x.row, cols, int(job.count), values, width, 1.0f);
    }
    void operator()(const Block& block, float* s) const {
        softmax_block(block, s);
        product<true>(block.rows, width, block.cols, {s, key_block, 1}, values, width, accumulator + (block.row - first) * width,
                      width);
    }
    void finish() const {
        for (int64_t i = first; i < last; ++i) std::copy_n(accumulator + (i - first) * width, job.count, row(i));
    }
};

// x · weights. The sums of blocks are computed separately and then added, so that small weights of long columns are not lost.
struct Rmatmul : ViewBase {
    static constexpr int strips = 8;
    int64_t first;
    int cols;
    const float* x;
    float *block_product, *accumulator;  // (count, key_block)

    Rmatmul(const ViewJob& job, const Region& region, Workspace& workspace)
        : ViewBase(job, region), first(region.col), cols(int(region.col_end - region.col)),
          x(job.x.at(region.batch, region.head)) {
        block_product = workspace.allocate(job.count * key_block);
        accumulator = workspace.allocate(job.count * key_block);
        std::fill(accumulator, accumulator + job.count * key_block, 0.0f);
    }

    void operator()(const Block& block, float* s) const {
        softmax_block(block, s);
        const int64_t shift = block.col - first;
        product<false>(int(job.count), block.cols, block.rows, {x + block.row, job.x.row, 1}, s, key_block, block_product,
                       key_block);
        for (int64_t e = 0; e < job.count; ++e)
            for (int j = 0; j < block.cols; ++j) accumulator[e * key_block + shift + j] += block_product[e * key_block + j];
    }
    void finish() const {
        for (int64_t e = 0; e < job.count; ++e) std::copy_n(accumulator + e * key_block, cols, row(e) + first);
    }
};

template <typename VIEW>
void run_view(const ViewJob& job, const Region& region, Workspace& workspace, VIEW view) {
    visit_scores(job.additive, region, workspace, view);
    view.finish();
}

Region region_of(const ViewJob& job, int64_t task) {
    const Dot& dot = job.additive.dot;
    const int64_t entry = task / tasks_of_head(job), first = task % tasks_of_head(job) * job.per_task;
    const int64_t last = min(first + job.per_task, job.units);
    const int64_t batch = entry / dot.heads, head = entry % dot.heads;
    if (job.kind == ViewKind::rmatmul) return {batch, head, 0, dot.queries, first, last};
    if (job.kind == ViewKind::max || job.kind == ViewKind::sum)
        return {batch, head, job.rows.edges[first], job.rows.edges[last], job.first, job.last};
    return {batch, head, first, last, job.first, job.last};
}

}  // namespace

void compute_view(const void* arguments, int64_t task, Workspace& workspace) {
    const ViewJob& job = *static_cast<const ViewJob*>(arguments);
    const Region region = region_of(job, task);
    const bool pooled = job.kind == ViewKind::max || job.kind == ViewKind::sum;
    if (pooled && Shaded::supports(job)) return run_view(job, region, workspace, Shaded(job, region));
    switch (job.kind) {
        case ViewKind::statistic: return run_view(job, region, workspace, Statistic(job, region));
        case ViewKind::top: return run_view(job, region, workspace, TopWeights(job, region));
        case ViewKind::entropy: return run_view(job, region, workspace, Entropy(job, region));
        case ViewKind::weights: return run_view(job, region, workspace, Weights(job, region));
        case ViewKind::matmul: return run_view(job, region, workspace, Matmul(job, region, workspace));
        case ViewKind::rmatmul: return run_view(job, region, workspace, Rmatmul(job, region, workspace));
        case ViewKind::max: return run_view(job, region, workspace, Pool<true>(job, region, workspace));
        case ViewKind::sum: return run_view(job, region, workspace, Pool<false>(job, region, workspace));
    }
}

}  // namespace regard::REGARD_ISA
