// Runs the self-check with every instruction set that is built and runs here, on one thread and on two.
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

// Primes, on both sides of what a kernel takes at once: four queries or fewer, a vector, a group, a block of keys.
constexpr Sizes few[] = {{1, 7, 3, 5}, {2, 131, 13, 17}, {3, 307, 67, 37}};
constexpr Sizes many[] = {{5, 2, 3, 1}, {7, 13, 19, 11}, {53, 79, 64, 32}, {101, 149, 17, 67}, {199, 307, 5, 13}};

// Every mask and option on one set of sizes.
std::vector<Problem> problems(const Sizes& sizes, bool additive) {
    std::vector<Problem> all;
    const auto add = [&](const char* name, auto change) {
        Problem p{.name = std::string(additive ? "additive " : "dot ") + name, .queries = sizes.queries, .keys = sizes.keys, .width = sizes.width, .value_width = sizes.value_width};
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
    add("all together", [&](Problem& p) {
        p.heads = 4, p.groups = 2, p.left = 41, p.right = 2, p.offset = {lag, 3}, p.length = {sizes.keys - 1, sizes.keys / 2 + 1};
        p.kind = MaskKind::boolean, p.softcap = 3;
    });
    if (additive) return all;
    add("bfloat16", [](Problem& p) { p.number = Number::bfloat16; });
    add("float16, causal, grouped heads", [](Problem& p) { p.number = Number::float16, p.right = 0, p.groups = 3; });
    return all;
}

void check_sizes(const Runnable& machine, const Sizes& sizes) {
    for (const bool additive : {false, true})
        for (const Problem& p : problems(sizes, additive)) {
            const Truth truth = truth_of(p);
            for (int n = 0; n < machine.count; ++n)
                for (const int threads : {1, 2}) {
                    additive ? check_additive(*machine.all[n], p, truth, threads) : check_dot(*machine.all[n], p, truth, threads);
                    if (p.number == Number::float32) check_views(*machine.all[n], p, truth, threads);
                }
        }
}

// Sequences of all sizes in one batch, without queries and without keys among them.
void check_sequences(const Runnable& machine) {
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
        for (int n = 0; n < machine.count; ++n)
            for (const int threads : {1, 2}) check_packed(*machine.all[n], sequences, threads);
    }
}

}  // namespace

int main() {
    const Runnable machine;
    for (const Sizes& sizes : few) check_sizes(machine, sizes);
    for (const Sizes& sizes : many) check_sizes(machine, sizes);
    check_sequences(machine);
    for (int n = 0; n < machine.count; ++n)
        for (const Number number : {Number::bfloat16, Number::float16}) check_halves(*machine.all[n], number);
    for (int n = 0; n < machine.count; ++n)
        for (const int threads : {1, 2})
            for (const auto& [size, count] : {std::pair{1, 1}, {7, 7}, {61, 5}, {131, 6}, {5003, 41}}) check_best(*machine.all[n], size, count, threads);
    for (int n = 0; n < machine.count; ++n)
        for (const int threads : {1, 2})
            for (const auto& [rows, width] : {std::pair{1, 1}, {3, 17}, {61, 64}, {131, 97}}) check_between(*machine.all[n], rows, width, threads);
    std::printf("all agree\n");
}
