// Packed sequences against the truth about each of them alone.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

using Floats = std::vector<float>;

// The rows of all sequences, (N, H, D).
Floats joined(const std::vector<Problem>& sequences, const Tensor Problem::*which) {
    Floats all;
    for (const Problem& p : sequences) {
        const Tensor& x = p.*which;
        for (int64_t row = 0; row < x.rows; ++row)
            for (int64_t head = 0; head < x.heads; ++head)
                for (int64_t c = 0; c < x.width; ++c) all.push_back(float(x(0, head, row, c)));
    }
    return all;
}

View heads_inside(const Floats& x, int64_t heads, int64_t width) { return {x.data(), 0, width, heads * width}; }
Output heads_inside(Floats& x, int64_t heads, int64_t width) { return {x.data(), 0, width, heads * width}; }

// Rows of one sequence, heads first, as the truth has them: (H, T, width) of (N, H, row).
Floats taken(const float* x, int64_t first, int64_t rows, int64_t heads, int64_t row, int64_t width) {
    Floats found;
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t c = 0; c < width; ++c) found.push_back(x[((first + t) * heads + head) * row + c]);
    return found;
}

}  // namespace

void check_packed(const Kernels& kernels, const std::vector<Problem>& sequences, int threads) {
    const Problem& like = sequences.front();
    const std::string name = std::string(kernels.name) + ", " + std::to_string(threads) + " threads, packed " + like.name + ": ";
    const int64_t heads = like.heads, shared = heads / like.groups, d = padded(like.width), dv_row = padded(like.value_width);
    std::vector<int64_t> queries, keys, offsets;
    int64_t rows = 0, all_keys = 0;
    Dot of = like.dot();
    of.batches = int64_t(sequences.size());
    for (const Problem& p : sequences) {
        queries.push_back(p.queries);
        keys.push_back(p.keys);
        offsets.insert(offsets.end(), p.offset.begin(), p.offset.end());
        rows += p.queries;
        all_keys += p.keys;
        of.queries = std::max(of.queries, p.queries);
        of.keys = std::max(of.keys, p.keys);
    }
    of.mask.offset = offsets.empty() ? nullptr : offsets.data();
    const Floats q = joined(sequences, &Problem::q), k = joined(sequences, &Problem::k), v = joined(sequences, &Problem::v);
    const Floats grad = joined(sequences, &Problem::grad);
    of.q = heads_inside(q, heads, like.width);
    of.k = heads_inside(k, shared, like.width);
    of.v = heads_inside(v, shared, like.value_width);
    const calls::Packed packed{of.batches, queries.data(), keys.data()};
    Floats context(rows * heads * like.value_width, NAN), softmax(2 * heads * rows, NAN);
    float* const totals = softmax.data() + heads * rows;
    const DotForward forward{of, heads_inside(context, heads, like.value_width), {{softmax.data(), 0, rows, 1}, {totals, 0, rows, 1}}, nullptr};
    calls::packed_forward(kernels, forward, packed, 43, threads);
    const int64_t parts = threads;
    Floats dq(parts * rows * heads * d, NAN), dk(all_keys * heads * d, NAN), dv(all_keys * heads * dv_row, NAN);
    const DotBackward backward{of, heads_inside(grad, heads, like.value_width), heads_inside(static_cast<const Floats&>(context), heads, like.value_width),
                               {{softmax.data(), 0, rows, 1}, {totals, 0, rows, 1}}, parts, heads_inside(dq, heads, d), heads_inside(dk, heads, d),
                               heads_inside(dv, heads, dv_row), rows * heads * d, Number::float32, Number::float32, nullptr};
    calls::packed_backward(kernels, backward, packed, threads);
    for (int64_t n = rows * heads * d; n < int64_t(dq.size()); ++n) dq[n % (rows * heads * d)] += dq[n];
    int64_t row = 0, key = 0;
    for (const Problem& p : sequences) {
        const Truth truth = truth_of(p);
        const auto compare = [&](const char* what, const Floats& found, const std::vector<double>& wanted) {
            agree(name + what, found.data(), 1, wanted, 1);
        };
        compare("context", taken(context.data(), row, p.queries, heads, like.value_width, like.value_width), truth.context);
        compare("dq", taken(dq.data(), row, p.queries, heads, d, p.width), truth.dq);
        if (p.queries) compare("dk", taken(dk.data(), key, p.keys, heads, d, p.width), truth.dk);
        if (p.queries) compare("dv", taken(dv.data(), key, p.keys, heads, dv_row, p.value_width), truth.dv);
        row += p.queries;
        key += p.keys;
    }
}

}  // namespace regard::check
