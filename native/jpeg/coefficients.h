// What the lossless rewrite does to, and asks of, the coefficients that libjpeg has read.
#pragma once

#include <cstdint>

#include "jpeg/libjpeg_errors.h"
#include "jpeg/markers.h"

namespace fastload {

// True where turning the coefficients upside down is what the EXIF orientation asks for, and leaves
// every pixel exact.
bool can_flip(const JpegFrame& frame, uint8_t orientation);

void flip_vertically(jpeg_decompress_struct& source, jvirt_barray_ptr* coefficients);

bool is_complete(const jpeg_decompress_struct& source);

}  // namespace fastload
