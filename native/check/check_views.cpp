// The views of a map against the truth.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

// One view after the other of the same scores.
struct Viewer {
    const Kernels& kernels;
    const Problem& p;
    const Truth& truth;
    int threads;
    int64_t entries = p.batches * p.heads;
    std::vector<float> eq = std::vector<float>(entries * p.queries * query_row(p.width));
    std::vector<float> ek = std::vector<float>(entries / p.groups * p.keys * key_row(p.width));
    std::vector<float> base{}, log_total{};  // what is subtracted from the scores of each row

    double weight(int64_t entry, int64_t i, int64_t j) const { return truth.weights[(entry * p.queries + i) * p.keys + j]; }

    // Arguments that all views of rows share.
    Observe job_of(Verb verb, int64_t units, int64_t per_task, Observe job = {}) {
        job.of.of = p.dot();
        job.verb = verb;
        job.highest = base.data();
        job.total = log_total.data();
        job.last = p.keys;
        job.units = units;
        job.per_task = per_task;
        return job;
    }
    void run(const Observe& job) {
        calls::observe(kernels, job, p.additive ? std::optional(p.w.view()) : std::nullopt, {eq.data(), ek.data()}, threads);
    }

    // The softmax of each row, which the other views start from.
    void softmax() {
        const int64_t all = entries * p.queries;
        std::vector<float> found(2 * all, NAN);
        Observe job = job_of(Verb::statistic, p.queries, 53);
        job.highest = found.data();
        job.total = found.data() + all;
        run(job);
        agree_softmax(std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": ", found, truth);
        for (int64_t n = 0; n < all; ++n) {
            base.push_back(found[all + n] == 0 ? 0.0f : found[n]);
            log_total.push_back(found[all + n] == 0 ? 0.0f : std::log(found[all + n]));
        }
    }

    // (rows, width) numbers per head.
    void compare(Verb verb, int64_t rows, int64_t width, int64_t units, int64_t per_task, const std::vector<double>& wanted,
                 const Observe& more = {}) {
        std::vector<float> out(entries * rows * width, NAN);
        Observe job = job_of(verb, units, per_task, more);
        job.out = out.data();
        job.out_head = rows * width;
        job.out_row = width;
        job.count = verb == Verb::before ? rows : width;
        run(job);
        agree(std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": " + verbs[int(verb)],
              out.data(), width, wanted, width);
    }

    void rows() {
        std::vector<double> entropy, top;
        std::vector<int64_t> at(entries * p.queries * 5, -2);
        for (int64_t n = 0; n < entries * p.queries; ++n) {
            std::vector<double> w(&truth.weights[n * p.keys], &truth.weights[n * p.keys] + p.keys);
            entropy.push_back(0);
            for (double x : w) entropy.back() -= x > 0 ? x * std::log(x) : 0;
            std::sort(w.rbegin(), w.rend());
            for (size_t m = 0; m < 5; ++m) top.push_back(m < w.size() ? w[m] : 0);
        }
        compare(Verb::entropy, p.queries, 1, p.queries, 53, entropy);
        compare(Verb::weights, p.queries, p.keys, p.queries, 53, truth.weights);
        Observe more{};
        more.at = at.data();
        compare(Verb::top, p.queries, 5, p.queries, 53, top, more);
        std::vector<float> found;
        for (size_t n = 0; n < at.size(); ++n)  // the weights of the keys that it names
            found.push_back(at[n] < 0 ? 0.0f : float(truth.weights[int64_t(n) / 5 * p.keys + at[n]]));
        agree(std::string(kernels.name) + ", " + p.name + ": the keys of top", found.data(), 5, top, 5);
    }

    void products() {
        const Tensor x = Tensor::random(p.batches, p.heads, p.keys, 7, Number::float32, true);
        const Tensor y = Tensor::random(p.batches, p.heads, 7, p.queries, Number::float32, false);
        std::vector<double> times(entries * p.queries * 7, 0.0), before(entries * 7 * p.keys, 0.0);
        for (int64_t e = 0; e < entries; ++e)
            for (int64_t i = 0; i < p.queries; ++i)
                for (int64_t j = 0; j < p.keys; ++j)
                    for (int64_t c = 0; c < 7; ++c) {
                        times[(e * p.queries + i) * 7 + c] += weight(e, i, j) * x(e / p.heads, e % p.heads, j, c);
                        before[(e * 7 + c) * p.keys + j] += weight(e, i, j) * y(e / p.heads, e % p.heads, c, i);
                    }
        Observe more{};
        more.x = x.view();
        compare(Verb::times, p.queries, 7, p.queries, 53, times, more);
        more.x = y.view();
        compare(Verb::before, 7, p.keys, p.keys, 128, before, more);
    }

    // Shades, which are rounded: off by half of one.
    void shaded(Verb verb, int64_t tall, int64_t wide, bool log, std::vector<double> wanted, const Observe& more) {
        std::vector<uint8_t> out(wanted.size(), 77);
        Observe job = job_of(verb, tall, 2, more);
        job.shades = {out.data(), tall * wide, wide, log, log ? 37.0f : 255.0f, log ? 255.5f : 0.5f};
        job.count = wide;
        run(job);
        for (double& x : wanted) x = std::clamp(log ? 255 + 37 * std::log(x) : 255 * x, 0.0, 255.0);
        const std::vector<float> found(out.begin(), out.end());
        agree(std::string(kernels.name) + ", " + p.name + ": shades of " + verbs[int(verb)], found.data(), wide, wanted, wide,
              0.51 / (1 + *std::max_element(wanted.begin(), wanted.end())));
    }

    // Cells of up to `height` × `breadth` pairs.
    void picture(int64_t height, int64_t breadth) {
        std::vector<int64_t> rows, cols;
        for (int64_t n = 0; n < p.queries; n += height) rows.push_back(n);
        for (int64_t n = 0; n < p.keys; n += breadth) cols.push_back(n);
        const int64_t tall = int64_t(rows.size()), wide = int64_t(cols.size());
        rows.push_back(p.queries);
        cols.push_back(p.keys);
        std::vector<double> largest(entries * tall * wide, 0.0), sums = largest;
        for (int64_t e = 0; e < entries; ++e)
            for (int64_t i = 0; i < p.queries; ++i)
                for (int64_t j = 0; j < p.keys; ++j) {
                    const int64_t cell = (e * tall + i / height) * wide + j / breadth;
                    largest[cell] = std::max(largest[cell], weight(e, i, j));
                    sums[cell] += weight(e, i, j);
                }
        Observe more{};
        more.rows = {rows.data(), tall};
        more.cols = {cols.data(), wide};
        compare(Verb::largest, tall, wide, tall, 2, largest, more);
        compare(Verb::sums, tall, wide, tall, 2, sums, more);
        for (size_t n = 0; n < sums.size(); ++n) {
            const int64_t r = int64_t(n) / wide % tall, c = int64_t(n) % wide;
            sums[n] /= double((rows[r + 1] - rows[r]) * (cols[c + 1] - cols[c]));
        }
        for (const bool log : {false, true}) {
            shaded(Verb::largest, tall, wide, log, largest, more);
            shaded(Verb::sums, tall, wide, log, sums, more);
        }
    }
};

}  // namespace

void check_views(const Kernels& kernels, const Problem& p, const Truth& truth, int threads) {
    Viewer viewer{kernels, p, truth, threads};
    viewer.softmax();
    viewer.rows();
    viewer.products();
    viewer.picture(11, 7);
    viewer.picture(1, 1);
    viewer.picture(3, 4);
    viewer.picture(p.queries, p.keys);
}

}  // namespace regard::check
