#include "stored.hpp"

#include <algorithm>
#include <cstring>

namespace regard {

namespace {

// Bytes: of data in a block, and before it; of size, chunk and stream before the blocks, and after them
constexpr int64_t most = 65535, block_head = 5, head = 18, tail = 8;

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
    out = put_number(out, uint32_t(stored_size(height, width, pixel) - 20));  // less both sizes, the name and the CRC
    const uint8_t* chunk = out;
    out = std::copy_n("IDAT\x78\x01", 6, out);
    Blocks blocks{.to = out, .left = height * (1 + bytes), .kernels = kernels};
    blocks.open();
    for (int64_t r = 0; r < height; ++r) {
        blocks.put(&filter, 1);
        blocks.put(lines + r * bytes, bytes);
    }
    blocks.close();
    out = put_number(blocks.to, blocks.sum);
    put_number(out, kernels.crc(0, chunk, size_t(out - chunk)));
}

}  // namespace regard
