// The checksums of a PNG against their definitions, and a picture that is not compressed against what it should hold.
#include <cstdio>
#include <cstdlib>

#include "../stored.hpp"
#include "check.hpp"

namespace regard::check {

namespace {

uint32_t adler_of(const std::vector<uint8_t>& bytes) {
    uint32_t a = 1, b = 0;
    for (const uint8_t byte : bytes) a = (a + byte) % 65521, b = (b + a) % 65521;
    return b << 16 | a;
}

uint32_t crc_of(const std::vector<uint8_t>& bytes) {
    uint32_t r = ~0u;
    for (const uint8_t byte : bytes) {
        r ^= byte;
        for (int bit = 0; bit < 8; ++bit) r = r >> 1 ^ (r & 1 ? 0xEDB88320u : 0u);
    }
    return ~r;
}

void same(const std::string& what, uint32_t found, uint32_t truth) {
    if (found == truth) return;
    std::fprintf(stderr, "%s: %08x, not %08x\n", what.c_str(), unsigned(found), unsigned(truth));
    std::exit(1);
}

}  // namespace

void check_sums(const Kernels& kernels) {
    std::vector<uint8_t> bytes;
    uint32_t state = 1;
    for (const size_t size : {0, 1, 7, 15, 16, 63, 64, 65, 127, 128, 200, 4096, 70'001}) {
        while (bytes.size() < size) bytes.push_back(uint8_t((state = state * 1664525u + 1013904223u) >> 24));
        const std::string name = std::string(kernels.name) + ", " + std::to_string(size) + " bytes";
        const size_t part = size / 3;  // in two parts, so that both begin with a sum and from nothing
        same(name + ": Adler-32", kernels.adler(kernels.adler(1, bytes.data(), part), bytes.data() + part, size - part), adler_of(bytes));
        same(name + ": CRC-32", kernels.crc(kernels.crc(0, bytes.data(), part), bytes.data() + part, size - part), crc_of(bytes));
    }
    constexpr int64_t height = 3, width = 23'000;  // more than one block
    std::vector<uint8_t> out(size_t(stored_size(height, width, 1)));
    store_lines(kernels, bytes.data(), height, width, 1, out.data());
    const auto number = [&](size_t at) { return uint32_t(out[at]) << 24 | uint32_t(out[at + 1]) << 16 | uint32_t(out[at + 2]) << 8 | out[at + 3]; };
    std::vector<uint8_t> lines;
    for (int64_t r = 0; r < height; ++r) {
        lines.push_back(0);
        lines.insert(lines.end(), bytes.begin() + r * width, bytes.begin() + (r + 1) * width);
    }
    const std::string name = std::string(kernels.name) + ", a picture";
    same(name + ": its chunk", number(8), uint32_t(out.size() - 20));
    same(name + ": Adler-32", number(out.size() - 8), adler_of(lines));
    same(name + ": CRC-32", number(out.size() - 4), crc_of({out.begin() + 12, out.end() - 4}));
}

}  // namespace regard::check
