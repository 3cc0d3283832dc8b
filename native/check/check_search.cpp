// The best of rows of logits, and where they are, against the truth.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "check/check.hpp"

namespace regard::check {

void check_best(const Kernels& kernels, int64_t size, int64_t count, int threads) {
    constexpr int64_t rows = 37;
    const Tensor logits = Tensor::random(1, 1, rows, size, Number::float32, false);
    std::vector<double> wanted, where;
    for (int64_t r = 0; r < rows; ++r) {
        std::vector<int64_t> order(size);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits(0, 0, r, a) > logits(0, 0, r, b); });
        double all = 0;
        for (const int64_t id : order) all += std::exp(logits(0, 0, r, id));
        for (int64_t n = 0; n < count; ++n) {
            wanted.push_back(logits(0, 0, r, order[n]) - std::log(all));
            where.push_back(double(order[n]));
        }
    }
    std::vector<float> values(rows * count, NAN);
    std::vector<int64_t> ids(rows * count, -1);
    const View view = logits.view();
    calls::best(kernels, {view.data, rows, size, view.row, count, values.data(), ids.data()}, threads);
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, best " + std::to_string(count) + " of " + std::to_string(size);
    agree(name, values.data(), count, wanted, count);
    const std::vector<float> found(ids.begin(), ids.end());
    agree(name + ": where", found.data(), count, where, count, 0);
}

}  // namespace regard::check
