// What no decoder gets to see: the same limits, under the same names, as in
// fastload/_store/jpeg_header.py (a test compares them). Not called limits.h: that name would hide
// the C header of Python.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/header.h"

namespace fastload {

constexpr uint32_t MAX_SIDE = 16384;
constexpr uint64_t MAX_PIXELS = 64000000;
constexpr uint64_t MAX_PIXELS_PER_BYTE =
    512;  // a complete Huffman-coded JPEG spends at least one bit per 8x8 block
constexpr uint32_t MAX_SCANS = 128;

// Throws BadJpeg for an image of `size` bytes beyond a limit.
void check_limits(const JpegHeader& header, size_t size);

}  // namespace fastload
