// Limits that are checked before an image reaches a decoder. fastload/_store/jpeg_header.py has the
// same limits under the same names, and a test compares them. The file is not called limits.h,
// which would hide the C header that Python.h includes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/header.h"

namespace fastload {

constexpr uint32_t MAX_SIDE = 16384;
constexpr uint64_t MAX_PIXELS = 64000000;
// A complete Huffman-coded JPEG has at least one bit per 8x8 block.
constexpr uint64_t MAX_PIXELS_PER_BYTE = 512;
constexpr uint32_t MAX_SCANS = 128;

// Throws BadJpeg if an image of `size` bytes exceeds a limit.
void check_limits(const JpegHeader& header, size_t size);

}  // namespace fastload
