// The size of a PNG and the chunk of its lines, a stream of zlib that is not compressed (RFC 1950 and 1951): for pictures
// that are computed in less time than it takes to compress them.
//
//     width, height | bytes of the stream, IDAT | 78 01 | head of a block, up to 65,535 bytes of lines | … | Adler-32 | CRC-32
//
// A line is its filter, 0 for none, and its pixels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace regard {

// Bytes of both, for pixels of `pixel` bytes.
int64_t stored_size(int64_t height, int64_t width, int64_t pixel);

// Lines lie one after the other.
void store_lines(const Kernels&, const uint8_t* lines, int64_t height, int64_t width, int64_t pixel, uint8_t* out);

}  // namespace regard
