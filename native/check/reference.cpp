// Attention in plain loops, for reading.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

// One query of a head, and the gradients of it.
struct Row {
    const Problem& p;
    Truth& truth;
    int64_t batch, head, query;
    int64_t shared = head / p.groups, entry = batch * p.heads + head, row = entry * p.queries + query;
    std::vector<double> slope{};  // d score / d (score before the softcap), key by key

    double raw_score(int64_t key) const {
        double sum = 0;
        for (int64_t c = 0; c < p.width; ++c) {
            const double q = p.q(batch, head, query, c), k = p.k(batch, shared, key, c);
            sum += p.additive ? p.w(batch, head, 0, c) * std::tanh(q + k) : p.scale * q * k;
        }
        return sum;
    }

    void attend() {
        double* weights = truth.weights.data() + row * p.keys;
        double total = 0, highest = -INFINITY;
        slope.assign(p.keys, 1.0);
        for (int64_t j = 0; j < p.keys; ++j) {
            double score = raw_score(j);
            if (p.softcap > 0) {
                const double bent = std::tanh(score / p.softcap);
                score = p.softcap * bent;
                slope[j] = 1 - bent * bent;
            }
            if (p.kind == MaskKind::added) score = float(score) + p.added[(head * p.queries + query) * p.keys + j];  // rounded
            weights[j] = p.may(batch, head, query, j) ? score : -INFINITY;
            highest = std::max(highest, weights[j]);
        }
        for (int64_t j = 0; j < p.keys; ++j) total += weights[j] = highest == -INFINITY ? 0.0 : std::exp(weights[j] - highest);
        truth.softmax[row] = highest;
        truth.softmax[truth.softmax.size() / 2 + row] = total;
        for (int64_t j = 0; j < p.keys; ++j) {
            if (total > 0) weights[j] /= total;
            for (int64_t c = 0; c < p.value_width; ++c)
                truth.context[row * p.value_width + c] += weights[j] * p.v(batch, shared, j, c);
        }
    }

    void differentiate() {
        const double* weights = truth.weights.data() + row * p.keys;
        std::vector<double> dp(p.keys, 0.0);
        double delta = 0;
        for (int64_t j = 0; j < p.keys; ++j) {
            for (int64_t c = 0; c < p.value_width; ++c) {
                const double grad = p.grad(batch, head, query, c);
                dp[j] += grad * p.v(batch, shared, j, c);
                truth.dv[(entry * p.keys + j) * p.value_width + c] += weights[j] * grad;
            }
            delta += weights[j] * dp[j];
        }
        for (int64_t j = 0; j < p.keys; ++j) spread(j, weights[j] * (dp[j] - delta) * slope[j]);
    }

    void spread(int64_t key, double ds) {
        for (int64_t c = 0; c < p.width; ++c) {
            const double q = p.q(batch, head, query, c), k = p.k(batch, shared, key, c);
            double &dq = truth.dq[row * p.width + c], &dk = truth.dk[(entry * p.keys + key) * p.width + c];
            if (p.additive) {
                const double w = p.w(batch, head, 0, c), bent = std::tanh(q + k);
                dq += ds * w * (1 - bent * bent);
                dk += ds * w * (1 - bent * bent);
                truth.dw[entry * p.width + c] += ds * bent;
            } else {
                dq += ds * p.scale * k;
                dk += ds * p.scale * q;
            }
        }
    }
};

}  // namespace

Truth truth_of(const Problem& p) {
    const int64_t entries = p.batches * p.heads, rows = entries * p.queries, columns = entries * p.keys;
    Truth truth;
    truth.weights.assign(rows * p.keys, 0.0);
    truth.context.assign(rows * p.value_width, 0.0);
    truth.softmax.assign(2 * rows, 0.0);
    truth.dq.assign(rows * p.width, 0.0);
    truth.dk.assign(columns * p.width, 0.0);
    truth.dv.assign(columns * p.value_width, 0.0);
    truth.dw.assign(entries * p.width, 0.0);
    for (int64_t n = 0; n < rows; ++n) {
        Row row{p, truth, n / p.queries / p.heads, n / p.queries % p.heads, n % p.queries};
        row.attend();
        row.differentiate();
    }
    return truth;
}

}  // namespace regard::check
