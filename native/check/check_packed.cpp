// Compares packed sequences with the reference of each sequence alone.
#include <algorithm>
#include <cmath>

#include "check/check.hpp"

namespace regard::check {

namespace {

using Floats = std::vector<float>;

// The rows of all sequences, (N, H, D).
Floats concatenated(const std::vector<Problem>& sequences, const Tensor Problem::* which) {
    Floats all;
    for (const Problem& p : sequences) {
        const Tensor& x = p.*which;
        for (int64_t row = 0; row < x.rows; ++row)
            for (int64_t head = 0; head < x.heads; ++head)
                for (int64_t c = 0; c < x.width; ++c) all.push_back(float(x(0, head, row, c)));
    }
    return all;
}

View interleaved_heads(const Floats& x, int64_t heads, int64_t width) { return {x.data(), 0, width, heads * width}; }
Output interleaved_heads(Floats& x, int64_t heads, int64_t width) { return {x.data(), 0, width, heads * width}; }

// Rows of one sequence in the layout of the reference: (H, T, width) from (N, H, row).
Floats sequence_rows(const float* x, int64_t first, int64_t rows, int64_t heads, int64_t row, int64_t width) {
    Floats result;
    for (int64_t head = 0; head < heads; ++head)
        for (int64_t t = 0; t < rows; ++t)
            for (int64_t c = 0; c < width; ++c) result.push_back(x[((first + t) * heads + head) * row + c]);
    return result;
}

}  // namespace

void check_packed(const Kernels& kernels, const std::vector<Problem>& sequences, int threads) {
    const Problem& first_problem = sequences.front();
    const std::string name =
        std::string(kernels.name) + ", " + std::to_string(threads) + " threads, packed " + first_problem.name + ": ";
    const int64_t heads = first_problem.heads, kv_heads = heads / first_problem.groups, d = padded(first_problem.width),
                  dv_row = padded(first_problem.value_width);
    std::vector<int64_t> queries, keys, offsets;
    int64_t rows = 0, all_keys = 0;
    Dot dot = first_problem.dot();
    dot.batches = int64_t(sequences.size());
    for (const Problem& p : sequences) {
        queries.push_back(p.queries);
        keys.push_back(p.keys);
        offsets.insert(offsets.end(), p.offset.begin(), p.offset.end());
        rows += p.queries;
        all_keys += p.keys;
        dot.queries = std::max(dot.queries, p.queries);
        dot.keys = std::max(dot.keys, p.keys);
    }
    dot.mask.offset = offsets.empty() ? nullptr : offsets.data();
    const Floats q = concatenated(sequences, &Problem::q), k = concatenated(sequences, &Problem::k),
                 v = concatenated(sequences, &Problem::v);
    const Floats grad = concatenated(sequences, &Problem::grad);
    dot.q = interleaved_heads(q, heads, first_problem.width);
    dot.k = interleaved_heads(k, kv_heads, first_problem.width);
    dot.v = interleaved_heads(v, kv_heads, first_problem.value_width);
    const calls::Packed packed{dot.batches, queries.data(), keys.data()};
    Floats context(rows * heads * first_problem.value_width, NAN), softmax(2 * heads * rows, NAN);
    float* const totals = softmax.data() + heads * rows;
    const DotForward forward{dot,
                             interleaved_heads(context, heads, first_problem.value_width),
                             {{softmax.data(), 0, rows, 1}, {totals, 0, rows, 1}},
                             nullptr};
    calls::packed_forward(kernels, forward, packed, 43, threads);
    const int64_t parts = threads;
    Floats dq(parts * rows * heads * d, NAN), dk(all_keys * heads * d, NAN), dv(all_keys * heads * dv_row, NAN);
    const DotBackward backward{dot,
                               interleaved_heads(grad, heads, first_problem.value_width),
                               interleaved_heads(static_cast<const Floats&>(context), heads, first_problem.value_width),
                               {{softmax.data(), 0, rows, 1}, {totals, 0, rows, 1}},
                               parts,
                               interleaved_heads(dq, heads, d),
                               interleaved_heads(dk, heads, d),
                               interleaved_heads(dv, heads, dv_row),
                               rows * heads * d,
                               Dtype::float32,
                               Dtype::float32,
                               nullptr};
    calls::packed_backward(kernels, backward, packed, threads);
    for (int64_t n = rows * heads * d; n < int64_t(dq.size()); ++n) dq[n % (rows * heads * d)] += dq[n];
    int64_t row = 0, key = 0;
    for (const Problem& p : sequences) {
        const Reference reference = reference_of(p);
        const auto compare = [&](const char* what, const Floats& result, const std::vector<double>& expected) {
            expect_close(name + what, result.data(), 1, expected, 1);
        };
        compare("context",
                sequence_rows(context.data(), row, p.queries, heads, first_problem.value_width, first_problem.value_width),
                reference.context);
        compare("dq", sequence_rows(dq.data(), row, p.queries, heads, d, p.width), reference.dq);
        if (p.queries) compare("dk", sequence_rows(dk.data(), key, p.keys, heads, d, p.width), reference.dk);
        if (p.queries) compare("dv", sequence_rows(dv.data(), key, p.keys, heads, dv_row, p.value_width), reference.dv);
        row += p.queries;
        key += p.keys;
    }
}

}  // namespace regard::check
