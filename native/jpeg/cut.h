// Cut before decode: the part of a JPEG that a region of interest needs, as a smaller JPEG.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

struct Roi {
    uint32_t x = 0, y = 0, width = 0, height = 0;  // pixels of the stored image
};

// Writes to `out` (its storage is reused: no allocation once it has grown) a JPEG of the restart
// segments that cover `roi` and says in x0, y0 which pixel of the whole image its first pixel is.
// Pixels inside the ROI are then those of the whole image, bit for bit, for a decoder that
// upsamples chroma as libjpeg does ("fancy", at most one neighbor sample) or simply repeats it;
// `scale` = 1, 2, 4 or 8 keeps that true when the decoder scales by 1/scale (ROI pixel / scale,
// rounded down).
//
// `index` (n_index little-endian uint32 at any address: LMDB aligns values to 2 bytes only) and
// `interval` are those of the record. False = take the whole image: there is nothing to cut, or
// index and JPEG do not agree with each other; `out` is then unspecified and x0 = y0 = 0. Neither
// the JPEG nor the index is trusted: nothing outside `jpeg` is read whatever they hold, and nothing
// is thrown (but std::bad_alloc). `roi` must lie inside the image, else false.
bool cut_jpeg(const uint8_t* jpeg, size_t size, const uint8_t* index, size_t n_index,
              uint32_t interval, const Roi& roi, uint32_t scale, std::vector<uint8_t>& out,
              uint32_t& x0, uint32_t& y0);

}  // namespace fastload
