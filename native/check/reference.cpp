// The reference: attention in plain loops, in double precision.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

// Attention of one query of a head, and its gradients.
struct Row {
    const Problem& p;
    Reference& reference;
    int64_t batch, head, query;
    int64_t kv_head = head / p.groups, entry = batch * p.heads + head, row = entry * p.queries + query;
    std::vector<double> slope{};  // derivative of the soft cap for each key

    double raw_score(int64_t key) const {
        double sum = 0;
        for (int64_t c = 0; c < p.width; ++c) {
            const double q = p.q(batch, head, query, c), k = p.k(batch, kv_head, key, c);
            sum += p.additive ? p.w(batch, head, 0, c) * std::tanh(q + k) : p.scale * q * k;
        }
        return sum;
    }

    void attend() {
        double* weights = reference.weights.data() + row * p.keys;
        double total = 0, highest = -INFINITY;
        slope.assign(p.keys, 1.0);
        for (int64_t j = 0; j < p.keys; ++j) {
            double score = raw_score(j);
            if (p.softcap > 0) {
                const double tanh_score = std::tanh(score / p.softcap);
                score = p.softcap * tanh_score;
                slope[j] = 1 - tanh_score * tanh_score;
            }
            if (p.kind == MaskKind::added)
                score = float(score) + p.added[(head * p.queries + query) * p.keys + j];  // rounded as in the kernels
            weights[j] = p.may_attend(batch, head, query, j) ? score : -INFINITY;
            highest = std::max(highest, weights[j]);
        }
        for (int64_t j = 0; j < p.keys; ++j) total += weights[j] = highest == -INFINITY ? 0.0 : std::exp(weights[j] - highest);
        reference.softmax[row] = highest;
        reference.softmax[reference.softmax.size() / 2 + row] = total;
        for (int64_t j = 0; j < p.keys; ++j) {
            if (total > 0) weights[j] /= total;
            for (int64_t c = 0; c < p.value_width; ++c)
                reference.context[row * p.value_width + c] += weights[j] * p.v(batch, kv_head, j, c);
        }
    }

    void differentiate() {
        const double* weights = reference.weights.data() + row * p.keys;
        std::vector<double> dp(p.keys, 0.0);
        double delta = 0;
        for (int64_t j = 0; j < p.keys; ++j) {
            for (int64_t c = 0; c < p.value_width; ++c) {
                const double grad = p.grad(batch, head, query, c);
                dp[j] += grad * p.v(batch, kv_head, j, c);
                reference.dv[(entry * p.keys + j) * p.value_width + c] += weights[j] * grad;
            }
            delta += weights[j] * dp[j];
        }
        for (int64_t j = 0; j < p.keys; ++j) accumulate_gradients(j, weights[j] * (dp[j] - delta) * slope[j]);
    }

    void accumulate_gradients(int64_t key, double ds) {
        for (int64_t c = 0; c < p.width; ++c) {
            const double q = p.q(batch, head, query, c), k = p.k(batch, kv_head, key, c);
            double &dq = reference.dq[row * p.width + c], &dk = reference.dk[(entry * p.keys + key) * p.width + c];
            if (p.additive) {
                const double w = p.w(batch, head, 0, c), tanh_score = std::tanh(q + k);
                dq += ds * w * (1 - tanh_score * tanh_score);
                dk += ds * w * (1 - tanh_score * tanh_score);
                reference.dw[entry * p.width + c] += ds * tanh_score;
            } else {
                dq += ds * p.scale * k;
                dk += ds * p.scale * q;
            }
        }
    }
};

}  // namespace

Reference reference_of(const Problem& p) {
    const int64_t entries = p.batches * p.heads, rows = entries * p.queries, columns = entries * p.keys;
    Reference reference;
    reference.weights.assign(rows * p.keys, 0.0);
    reference.context.assign(rows * p.value_width, 0.0);
    reference.softmax.assign(2 * rows, 0.0);
    reference.dq.assign(rows * p.width, 0.0);
    reference.dk.assign(columns * p.width, 0.0);
    reference.dv.assign(columns * p.value_width, 0.0);
    reference.dw.assign(entries * p.width, 0.0);
    for (int64_t n = 0; n < rows; ++n) {
        Row row{p, reference, n / p.queries / p.heads, n / p.queries % p.heads, n % p.queries};
        row.attend();
        row.differentiate();
    }
    return reference;
}

}  // namespace regard::check
