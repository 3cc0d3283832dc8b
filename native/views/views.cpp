// The views of a map, each a way to look at a block of scores.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/top_k.hpp"
#include "views/score_walk.hpp"
#include "views/view_pooling.hpp"
#include "views/views.hpp"

namespace regard::REGARD_ISA {

namespace {

// The highest score of each row so far, and the sum of e^(score − highest).
struct Statistic : Sight {
    Statistic(const Observe& job, const Part& part) : Sight(job, part) {
        std::fill(highest + part.row, highest + part.row_end, -infinity);
        std::fill(total + part.row, total + part.row_end, 0.0f);
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            float &risen = highest[block.row + i], &sums = total[block.row + i];
            vec most = load(s), found{};
            for (int j = lanes; j < block.cols; j += lanes) most = maximum(most, load(s + j));
            if (any(most > splat(risen))) {
                const float now = REGARD_ISA::highest(most);
                sums *= risen == -infinity ? 0.0f : std::exp(risen - now);
                risen = now;
            }
            const vec base = splat(risen == -infinity ? 0.0f : risen);
            for (int j = 0; j < block.cols; j += lanes) found += weight(load(s + j) - base);
            sums += sum(found);
        }
    }

    void finish() const {}
};

// The best scores of a row so far stand in `out`, the highest first; among equal ones the first key leads.
struct Top : Sight {
    int64_t first, last;
    int64_t* at;

    Top(const Observe& job, const Part& part)
        : Sight(job, part), first(part.row), last(part.row_end), at(job.at + (out - job.out)) {
        std::fill(row(first), row(last), -infinity);
        std::fill(at + first * job.out_row, at + last * job.out_row, int64_t(-1));
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const Ranked best{row(block.row + i), at + (block.row + i) * job.out_row, job.count};
            for (int j = 0; j < block.cols; j += lanes) {
                if (!any(load(s + j) > splat(best.lowest()))) continue;
                for (int n = j; n < j + lanes; ++n)
                    if (s[n] > best.lowest()) best.insert(s[n], block.col + n);
            }
        }
    }

    void finish() const {
        for (int64_t i = first; i < last; ++i) {
            const Row log = logs(i);
            for (int64_t n = 0; n < job.count; n += lanes) {
                const int some = int(least(lanes, job.count - n));
                store_some(row(i) + n, weight(log(load_some(row(i) + n, some))), some);
            }
        }
    }
};

struct Entropy : Sight {
    Entropy(const Observe& job, const Part& part) : Sight(job, part) {
        for (int64_t i = part.row; i < part.row_end; ++i) *row(i) = 0;
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const Row log = logs(block.row + i);
            vec sums{};
            for (int j = 0; j < block.cols; j += lanes) {
                const vec x = maximum(log(load(s + j)), splat(-1e4f));  // in place of log 0, which 0 multiplies
                sums += weight(x) * x;
            }
            *row(block.row + i) -= sum(sums);
        }
    }
    void finish() const {}
};

struct Weights : Sight {
    Weights(const Observe& job, const Part& part) : Sight(job, part) {
        const Place at{part.batch, part.head, part.row, int(part.row_end - part.row)};
        if (inside(job.of.of, at, {at.row, at.rows, job.first, int(job.last - job.first)})) return;  // all is written
        for (int64_t i = part.row; i < part.row_end; ++i) std::fill(row(i), row(i) + (job.last - job.first), 0.0f);
    }

    void operator()(const Block& block, const float* s) const {
        for (int i = 0; i < block.rows; ++i, s += key_block) {
            const Row log = logs(block.row + i);
            float* to = row(block.row + i) + (block.col - job.first);
            for (int j = 0; j < block.cols; j += lanes)
                store_some(to + j, weight(log(load(s + j))), int(least(lanes, block.cols - j)));
        }
    }
    void finish() const {}
};

// weights · x
struct Times : Sight {
    int64_t first, last;
    const float* x;
    float *values, *summed;  // (key_block, width), (rows, width)
    int width;               // whole vectors

    Times(const Observe& job, const Part& part, Scratch& scratch)
        : Sight(job, part), first(part.row), last(part.row_end),
          x(job.x.at(part.batch, part.head)), width(round_up(int(job.count))) {
        values = scratch.take(key_block * width);
        summed = scratch.take((last - first) * width);
        std::fill(summed, summed + (last - first) * width, 0.0f);
    }

    void keys(int64_t col, int cols) const {
        pack_rows(x + col * job.x.row, job.x.row, cols, int(job.count), values, width, 1.0f);
    }
    void operator()(const Block& block, float* s) const {
        weigh(block, s);
        product<true>(block.rows, width, block.cols, {s, key_block, 1}, values, width,
                      summed + (block.row - first) * width, width);
    }
    void finish() const {
        for (int64_t i = first; i < last; ++i) std::copy_n(summed + (i - first) * width, job.count, row(i));
    }
};

// x · weights. Sums are made block by block and then added: long columns would lose small weights otherwise.
struct Before : Sight {
    static constexpr int strips = 8;
    int64_t first;
    int cols;
    const float* x;
    float *part, *summed;  // (count, key_block)

    Before(const Observe& job, const Part& of, Scratch& scratch)
        : Sight(job, of), first(of.col), cols(int(of.col_end - of.col)),
          x(job.x.at(of.batch, of.head)) {
        part = scratch.take(job.count * key_block);
        summed = scratch.take(job.count * key_block);
        std::fill(summed, summed + job.count * key_block, 0.0f);
    }

    void operator()(const Block& block, float* s) const {
        weigh(block, s);
        const int64_t shift = block.col - first;
        product<false>(int(job.count), block.cols, block.rows, {x + block.row, job.x.row, 1}, s, key_block, part, key_block);
        for (int64_t e = 0; e < job.count; ++e)
            for (int j = 0; j < block.cols; ++j) summed[e * key_block + shift + j] += part[e * key_block + j];
    }
    void finish() const {
        for (int64_t e = 0; e < job.count; ++e) std::copy_n(summed + e * key_block, cols, row(e) + first);
    }
};

template <typename SEE>
void look(const Observe& job, const Part& part, Scratch& scratch, SEE see) {
    walk(job.of, part, scratch, see);
    see.finish();
}

Part part_of(const Observe& job, int64_t task) {
    const Dot& of = job.of.of;
    const int64_t entry = task / tasks_of_head(job), first = task % tasks_of_head(job) * job.per_task;
    const int64_t last = least(first + job.per_task, job.units);
    const int64_t batch = entry / of.heads, head = entry % of.heads;
    if (job.verb == Verb::before) return {batch, head, 0, of.queries, first, last};
    if (job.verb == Verb::largest || job.verb == Verb::sums)
        return {batch, head, job.rows.edges[first], job.rows.edges[last], job.first, job.last};
    return {batch, head, first, last, job.first, job.last};
}

}  // namespace

void observe(const void* given, int64_t task, Scratch& scratch) {
    const Observe& job = *static_cast<const Observe*>(given);
    const Part part = part_of(job, task);
    const bool pictured = job.verb == Verb::largest || job.verb == Verb::sums;
    if (pictured && Shaded::serves(job)) return look(job, part, scratch, Shaded(job, part));
    switch (job.verb) {
        case Verb::statistic: return look(job, part, scratch, Statistic(job, part));
        case Verb::top: return look(job, part, scratch, Top(job, part));
        case Verb::entropy: return look(job, part, scratch, Entropy(job, part));
        case Verb::weights: return look(job, part, scratch, Weights(job, part));
        case Verb::times: return look(job, part, scratch, Times(job, part, scratch));
        case Verb::before: return look(job, part, scratch, Before(job, part, scratch));
        case Verb::largest: return look(job, part, scratch, Pool<true>(job, part, scratch));
        case Verb::sums: return look(job, part, scratch, Pool<false>(job, part, scratch));
    }
}

}  // namespace regard::REGARD_ISA
