// Cuts the restart segments that a region of interest needs out of a JPEG, as a smaller JPEG.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

struct Roi {
    uint32_t x = 0, y = 0, width = 0, height = 0;  // pixels of the stored image
};

// Writes a JPEG of the restart segments that cover `roi` to `out`, whose storage is reused. x0 and
// y0 receive the position of its first pixel in the whole image. Pixels inside the ROI are
// identical to the pixels of the whole image, bit for bit, for a decoder that upsamples chroma like
// libjpeg ("fancy", at most one neighbor sample) or repeats it. `scale` = 1, 2, 4 or 8 keeps this
// true if the decoder scales by 1/scale (ROI pixel / scale, rounded down).
//
// `index` (n_index little-endian uint32 at any address, because LMDB aligns values to 2 bytes only)
// and `interval` are stored in the record. Returns false if the whole image must be decoded: there
// is nothing to cut, the index does not match the JPEG, or `roi` is not inside the image. `out` is
// then unspecified and x0 = y0 = 0.
//
// Neither the JPEG nor the index is trusted: nothing outside `jpeg` is read, and only
// std::bad_alloc is thrown.
bool cut_jpeg(const uint8_t* jpeg, size_t size, const uint8_t* index, size_t n_index,
              uint32_t interval, const Roi& roi, uint32_t scale, std::vector<uint8_t>& out,
              uint32_t& x0, uint32_t& y0);

}  // namespace fastload
