// Compares the highest log-probabilities of rows of logits, and their ids, with the reference.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "check/check.hpp"

namespace regard::check {

void check_log_softmax_top_k(const Kernels& kernels, int64_t size, int64_t count, int threads) {
    constexpr int64_t rows = 37;
    const Tensor logits = Tensor::random(1, 1, rows, size, Dtype::float32, false);
    std::vector<double> expected, expected_ids;
    for (int64_t r = 0; r < rows; ++r) {
        std::vector<int64_t> order(size);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return logits(0, 0, r, a) > logits(0, 0, r, b); });
        double total = 0;
        for (const int64_t id : order) total += std::exp(logits(0, 0, r, id));
        for (int64_t n = 0; n < count; ++n) {
            expected.push_back(logits(0, 0, r, order[n]) - std::log(total));
            expected_ids.push_back(double(order[n]));
        }
    }
    std::vector<float> values(rows * count, NAN);
    std::vector<int64_t> ids(rows * count, -1);
    const View view = logits.view();
    calls::log_softmax_top_k(kernels, {view.data, rows, size, view.row, count, values.data(), ids.data()}, threads);
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, top " +
                             std::to_string(count) + " of " + std::to_string(size);
    expect_close(name, values.data(), count, expected, count);
    const std::vector<float> result(ids.begin(), ids.end());
    expect_close(name + ": ids", result.data(), count, expected_ids, count, 0);
}

}  // namespace regard::check
