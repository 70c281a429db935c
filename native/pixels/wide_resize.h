// Resizes images of 16 bits per channel: columns first, then rows, like pixels/resize.h.
//
// Weights have 30 bits and sums 64, and the rows between the two passes are rounded to 16 bits. So
// `antialias` produces the values of Pillow for I;16, except for sums that lie within the rounding
// error of Pillow's floating-point arithmetic around a half. There is no vector code: reading a
// 16-bit PNG takes several times longer than resizing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pixels/resize.h"
#include "pixels/taps.h"

namespace fastload {

class RowWriter;

class WideResizer {
public:
    // Resizes job.in_h rows of little-endian values, `stride` bytes apart and of any alignment.
    void run(const ResizeJob& job, const uint8_t* pixels, ptrdiff_t stride, RowWriter& out);
    void release_memory();
    size_t memory() const {
        return 2 * (input_.capacity() + ring_.capacity() + row_.capacity()) + 8 * sums_.capacity();
    }

private:
    void columns(const uint8_t* in, int channels, uint16_t* out);
    void rows(const int32_t* weights, int first, size_t n);

    Taps columns_, rows_;
    std::vector<uint16_t> input_, ring_, row_;  // one row, the last rows_.width rows, one row
    std::vector<int64_t> sums_;
};

}  // namespace fastload
