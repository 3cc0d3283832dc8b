#include "stored.hpp"

#include <algorithm>
#include <cstring>

namespace regard {

namespace {

constexpr int64_t most = 65535, head = 10, tail = 4, block_head = 5;  // bytes: of data in a block; around the blocks; before one

// The first byte the highest.
uint8_t* put_number(uint8_t* to, uint32_t x) {
    for (int byte = 0; byte < 4; ++byte) *to++ = uint8_t(x >> (24 - 8 * byte));
    return to;
}

int64_t blocks_of(int64_t bytes) { return std::max<int64_t>(1, (bytes + most - 1) / most); }

// Writes data into blocks that are full but for the last.
struct Blocks {
    uint8_t* to;
    int64_t left;  // bytes of data to come
    int64_t room = 0;
    const Kernels& kernels;
    uint32_t sum = 1;
    const uint8_t* start = nullptr;  // of the data of the block under way

    void open() {
        room = std::min(left, most);
        const uint8_t low = uint8_t(room), high = uint8_t(room >> 8);
        const uint8_t begin[block_head] = {left <= most, low, high, uint8_t(~low), uint8_t(~high)};
        std::memcpy(to, begin, block_head);
        start = to += block_head;
    }
    void close() { sum = kernels.adler(sum, start, size_t(to - start)); }

    void put(const uint8_t* data, int64_t bytes) {
        while (bytes) {
            if (!room) {
                close();
                open();
            }
            const int64_t some = std::min(bytes, room);
            std::memcpy(to, data, size_t(some));
            data += some, to += some, bytes -= some, room -= some, left -= some;
        }
    }
};

}  // namespace

int64_t stored_size(int64_t height, int64_t width, int64_t pixel) {
    const int64_t bytes = height * (1 + width * pixel);
    return head + bytes + blocks_of(bytes) * block_head + tail;
}

void store_lines(const Kernels& kernels, const uint8_t* lines, int64_t height, int64_t width, int64_t pixel, uint8_t* out) {
    constexpr uint8_t filter = 0;
    const int64_t bytes = width * pixel;
    out = put_number(put_number(out, uint32_t(width)), uint32_t(height));
    *out++ = 0x78, *out++ = 0x01;
    Blocks blocks{.to = out, .left = height * (1 + bytes), .kernels = kernels};
    blocks.open();
    for (int64_t r = 0; r < height; ++r) {
        blocks.put(&filter, 1);
        blocks.put(lines + r * bytes, bytes);
    }
    blocks.close();
    put_number(blocks.to, blocks.sum);
}

}  // namespace regard
