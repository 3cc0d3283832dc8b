// Compares the views of a map with the reference.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

// Checks the views of one problem.
struct ViewChecker {
    const Kernels& kernels;
    const Problem& p;
    const Reference& reference;
    int threads;
    int64_t entries = p.batches * p.heads;
    std::vector<float> eq = std::vector<float>(entries * p.queries * query_row(p.width));
    std::vector<float> ek = std::vector<float>(entries / p.groups * p.keys * key_row(p.width));
    std::vector<float> base{}, log_total{};  // numbers subtracted from the scores of each row

    double weight(int64_t entry, int64_t i, int64_t j) const { return reference.weights[(entry * p.queries + i) * p.keys + j]; }

    // Sets the arguments that all views share.
    ViewJob job_of(ViewKind kind, int64_t units, int64_t per_task, ViewJob job = {}) {
        job.additive.dot = p.dot();
        job.kind = kind;
        job.highest = base.data();
        job.total = log_total.data();
        job.last = p.keys;
        job.units = units;
        job.per_task = per_task;
        return job;
    }
    void run(const ViewJob& job) {
        calls::compute_view(kernels, job, p.additive ? std::optional(p.w.view()) : std::nullopt, {eq.data(), ek.data()}, threads);
    }

    // Checks the row statistics and keeps them for the other views.
    void check_statistic() {
        const int64_t row_count = entries * p.queries;
        std::vector<float> result(2 * row_count, NAN);
        ViewJob job = job_of(ViewKind::statistic, p.queries, 53);
        job.highest = result.data();
        job.total = result.data() + row_count;
        run(job);
        expect_close_softmax(std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": ", result,
                             reference);
        for (int64_t n = 0; n < row_count; ++n) {
            base.push_back(result[row_count + n] == 0 ? 0.0f : result[n]);
            log_total.push_back(result[row_count + n] == 0 ? 0.0f : std::log(result[row_count + n]));
        }
    }

    // Checks a view with output (rows, width) per head.
    void compare(ViewKind kind, int64_t rows, int64_t width, int64_t units, int64_t per_task, const std::vector<double>& expected,
                 const ViewJob& more = {}) {
        std::vector<float> out(entries * rows * width, NAN);
        ViewJob job = job_of(kind, units, per_task, more);
        job.out = out.data();
        job.out_head = rows * width;
        job.out_row = width;
        job.count = kind == ViewKind::rmatmul ? rows : width;
        run(job);
        expect_close(
            std::string(kernels.name) + ", " + std::to_string(threads) + " threads, " + p.name + ": " + view_names[int(kind)],
            out.data(), width, expected, width);
    }

    void check_rows() {
        std::vector<double> entropy, top;
        std::vector<int64_t> indices(entries * p.queries * 5, -2);
        for (int64_t n = 0; n < entries * p.queries; ++n) {
            std::vector<double> w(&reference.weights[n * p.keys], &reference.weights[n * p.keys] + p.keys);
            entropy.push_back(0);
            for (double x : w) entropy.back() -= x > 0 ? x * std::log(x) : 0;
            std::sort(w.rbegin(), w.rend());
            for (size_t m = 0; m < 5; ++m) top.push_back(m < w.size() ? w[m] : 0);
        }
        compare(ViewKind::entropy, p.queries, 1, p.queries, 53, entropy);
        compare(ViewKind::weights, p.queries, p.keys, p.queries, 53, reference.weights);
        ViewJob more{};
        more.indices = indices.data();
        compare(ViewKind::top, p.queries, 5, p.queries, 53, top, more);
        std::vector<float> result;
        for (size_t n = 0; n < indices.size(); ++n)  // weights of the returned keys
            result.push_back(indices[n] < 0 ? 0.0f : float(reference.weights[int64_t(n) / 5 * p.keys + indices[n]]));
        expect_close(std::string(kernels.name) + ", " + p.name + ": the keys of top", result.data(), 5, top, 5);
    }

    void check_products() {
        const Tensor x = Tensor::random(p.batches, p.heads, p.keys, 7, Dtype::float32, true);
        const Tensor y = Tensor::random(p.batches, p.heads, 7, p.queries, Dtype::float32, false);
        std::vector<double> matmul(entries * p.queries * 7, 0.0), rmatmul(entries * 7 * p.keys, 0.0);
        for (int64_t e = 0; e < entries; ++e)
            for (int64_t i = 0; i < p.queries; ++i)
                for (int64_t j = 0; j < p.keys; ++j)
                    for (int64_t c = 0; c < 7; ++c) {
                        matmul[(e * p.queries + i) * 7 + c] += weight(e, i, j) * x(e / p.heads, e % p.heads, j, c);
                        rmatmul[(e * 7 + c) * p.keys + j] += weight(e, i, j) * y(e / p.heads, e % p.heads, c, i);
                    }
        ViewJob more{};
        more.x = x.view();
        compare(ViewKind::matmul, p.queries, 7, p.queries, 53, matmul, more);
        more.x = y.view();
        compare(ViewKind::rmatmul, 7, p.keys, p.keys, 128, rmatmul, more);
    }

    // Checks shades. They are rounded, so the tolerance is half a shade.
    void check_shades(ViewKind kind, int64_t cell_rows, int64_t cell_cols, bool log, std::vector<double> expected,
                      const ViewJob& more) {
        std::vector<uint8_t> out(expected.size(), 77);
        ViewJob job = job_of(kind, cell_rows, 2, more);
        job.shades = {out.data(), cell_rows * cell_cols, cell_cols, log, log ? 37.0f : 255.0f, log ? 255.5f : 0.5f};
        job.count = cell_cols;
        run(job);
        for (double& x : expected) x = std::clamp(log ? 255 + 37 * std::log(x) : 255 * x, 0.0, 255.0);
        const std::vector<float> result(out.begin(), out.end());
        expect_close(std::string(kernels.name) + ", " + p.name + ": shades of " + view_names[int(kind)], result.data(), cell_cols,
                     expected, cell_cols, 0.51 / (1 + *std::max_element(expected.begin(), expected.end())));
    }

    // Checks pooling to cells of up to `height` × `width` pairs.
    void check_pooling(int64_t height, int64_t width) {
        std::vector<int64_t> rows, cols;
        for (int64_t n = 0; n < p.queries; n += height) rows.push_back(n);
        for (int64_t n = 0; n < p.keys; n += width) cols.push_back(n);
        const int64_t cell_rows = int64_t(rows.size()), cell_cols = int64_t(cols.size());
        rows.push_back(p.queries);
        cols.push_back(p.keys);
        std::vector<double> largest(entries * cell_rows * cell_cols, 0.0), sums = largest;
        for (int64_t e = 0; e < entries; ++e)
            for (int64_t i = 0; i < p.queries; ++i)
                for (int64_t j = 0; j < p.keys; ++j) {
                    const int64_t cell = (e * cell_rows + i / height) * cell_cols + j / width;
                    largest[cell] = std::max(largest[cell], weight(e, i, j));
                    sums[cell] += weight(e, i, j);
                }
        ViewJob more{};
        more.rows = {rows.data(), cell_rows};
        more.cols = {cols.data(), cell_cols};
        compare(ViewKind::max, cell_rows, cell_cols, cell_rows, 2, largest, more);
        compare(ViewKind::sum, cell_rows, cell_cols, cell_rows, 2, sums, more);
        for (size_t n = 0; n < sums.size(); ++n) {
            const int64_t r = int64_t(n) / cell_cols % cell_rows, c = int64_t(n) % cell_cols;
            sums[n] /= double((rows[r + 1] - rows[r]) * (cols[c + 1] - cols[c]));
        }
        for (const bool log : {false, true}) {
            check_shades(ViewKind::max, cell_rows, cell_cols, log, largest, more);
            check_shades(ViewKind::sum, cell_rows, cell_cols, log, sums, more);
        }
    }
};

}  // namespace

void check_views(const Kernels& kernels, const Problem& p, const Reference& reference, int threads) {
    ViewChecker checker{kernels, p, reference, threads};
    checker.check_statistic();
    checker.check_rows();
    checker.check_products();
    checker.check_pooling(11, 7);
    checker.check_pooling(1, 1);
    checker.check_pooling(3, 4);
    checker.check_pooling(p.queries, p.keys);
}

}  // namespace regard::check
