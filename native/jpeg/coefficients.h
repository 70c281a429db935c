// Operations of the lossless rewrite on the coefficients that libjpeg has read.
#pragma once

#include <cstdint>

#include "jpeg/libjpeg_errors.h"
#include "jpeg/markers.h"

namespace fastload {

// Returns whether a vertical flip of the coefficients applies this EXIF orientation and keeps every
// pixel exact.
bool can_flip(const JpegFrame& frame, uint8_t orientation);

void flip_vertically(jpeg_decompress_struct& source, jvirt_barray_ptr* coefficients);

bool is_complete(const jpeg_decompress_struct& source);

}  // namespace fastload
