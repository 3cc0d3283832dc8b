// Runs the self-check with every supported instruction set, on one and on two threads.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "check/check.hpp"

using namespace regard;
using namespace regard::check;

namespace {

struct Sizes {
    int64_t queries, keys, width, value_width;
};

// Mostly primes, below and above the block sizes of the kernels: four queries, a vector, a group, a block of keys.
constexpr Sizes few_queries_sizes[] = {{1, 7, 3, 5}, {2, 131, 13, 17}, {3, 307, 67, 37}};
constexpr Sizes many_queries_sizes[] = {{5, 2, 3, 1}, {7, 13, 19, 11}, {53, 79, 64, 32}, {101, 149, 17, 67}, {199, 307, 5, 13}};

// Every mask and option on one set of sizes.
std::vector<Problem> problems(const Sizes& sizes, bool additive) {
    std::vector<Problem> all;
    const auto add = [&](const char* name, auto change) {
        Problem p{.name = std::string(additive ? "additive " : "dot ") + name,
                  .queries = sizes.queries,
                  .keys = sizes.keys,
                  .width = sizes.width,
                  .value_width = sizes.value_width};
        p.additive = additive;
        change(p);
        for (const int64_t n : {sizes.queries, sizes.keys, sizes.width, sizes.value_width}) p.name += ' ' + std::to_string(n);
        p.fill();
        all.push_back(p);
    };
    const int64_t lag = sizes.keys - sizes.queries;
    add("plain", [](Problem&) {});
    add("causal", [](Problem& p) { p.right = 0; });
    add("causal from the end, capped", [&](Problem& p) { p.right = 0, p.offset = {lag, lag / 2}, p.softcap = 2.5f; });
    add("lengths", [&](Problem& p) { p.length = {sizes.keys / 3, sizes.keys}; });
    add("window", [&](Problem& p) { p.left = 11, p.right = 3, p.offset = {lag, -2}; });
    add("boolean mask", [](Problem& p) { p.kind = MaskKind::boolean; });
    add("added mask, capped", [](Problem& p) { p.kind = MaskKind::added, p.softcap = 2.5f; });
    add("added mask of large numbers", [](Problem& p) { p.kind = MaskKind::added, p.large_rows = true; });
    add("grouped heads, causal", [](Problem& p) { p.heads = 6, p.groups = 3, p.right = 5; });
    add("all options", [&](Problem& p) {
        p.heads = 4, p.groups = 2, p.left = 41, p.right = 2, p.offset = {lag, 3}, p.length = {sizes.keys - 1, sizes.keys / 2 + 1};
        p.kind = MaskKind::boolean, p.softcap = 3;
    });
    if (additive) return all;
    add("bfloat16", [](Problem& p) { p.dtype = Dtype::bfloat16; });
    add("float16, causal, grouped heads", [](Problem& p) { p.dtype = Dtype::float16, p.right = 0, p.groups = 3; });
    return all;
}

void check_sizes(const SupportedIsas& isas, const Sizes& sizes) {
    for (const bool additive : {false, true})
        for (const Problem& p : problems(sizes, additive)) {
            const Reference reference = reference_of(p);
            for (int n = 0; n < isas.count; ++n)
                for (const int threads : {1, 2}) {
                    additive ? check_additive(*isas.all[n], p, reference, threads)
                             : check_dot(*isas.all[n], p, reference, threads);
                    if (p.dtype == Dtype::float32) check_views(*isas.all[n], p, reference, threads);
                }
        }
}

// Packed sequences of many sizes, some without queries or without keys.
void check_sequences(const SupportedIsas& isas) {
    constexpr int64_t lengths[][2] = {{5, 2}, {1, 131}, {0, 7}, {3, 0}, {101, 149}, {7, 0}, {53, 79}, {4, 4}, {199, 61}};
    for (const char* kind : {"plain", "causal", "lower right causal", "window, capped, grouped heads"}) {
        std::vector<Problem> sequences;
        for (const auto& [queries, keys] : lengths) {
            Problem p{.name = kind, .queries = queries, .keys = keys, .width = 19, .value_width = 32, .batches = 1, .heads = 4};
            if (kind[0] != 'p') p.right = 0;
            if (kind[0] == 'l') p.offset = {keys - queries};
            if (kind[0] == 'w') p.left = 11, p.right = 3, p.softcap = 2.5f, p.groups = 2;
            p.fill();
            sequences.push_back(p);
        }
        for (int n = 0; n < isas.count; ++n)
            for (const int threads : {1, 2}) check_packed(*isas.all[n], sequences, threads);
    }
}

}  // namespace

int main() {
    const SupportedIsas isas;
    for (const Sizes& sizes : few_queries_sizes) check_sizes(isas, sizes);
    for (const Sizes& sizes : many_queries_sizes) check_sizes(isas, sizes);
    check_sequences(isas);
    for (int n = 0; n < isas.count; ++n)
        for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) check_half_precision(*isas.all[n], dtype);
    for (int n = 0; n < isas.count; ++n)
        for (const int threads : {1, 2})
            for (const auto& [size, count] : {std::pair{1, 1}, {7, 7}, {61, 5}, {131, 6}, {5003, 41}})
                check_log_softmax_top_k(*isas.all[n], size, count, threads);
    for (int n = 0; n < isas.count; ++n)
        for (const int threads : {1, 2})
            for (const auto& [rows, width] : {std::pair{1, 1}, {3, 17}, {61, 64}, {131, 97}})
                check_fused(*isas.all[n], rows, width, threads);
    for (int n = 0; n < isas.count; ++n)
        for (const int threads : {1, 2})
            for (int64_t rows = 1; rows <= 11; ++rows)
                for (const auto& [in, out] : {std::pair{1, 1}, {17, 13}, {67, 331}})
                    check_linear(*isas.all[n], rows, in, out, threads);
    std::printf("all agree\n");
}
