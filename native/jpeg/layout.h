// Where the restart segments of a JPEG are: what rewrite, index and cut have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

// The structure of a sequential Huffman-coded JPEG with one scan over all components; nothing else
// has a layout.
struct JpegLayout {
    uint32_t width = 0, height = 0;
    uint32_t mcu_width = 0, mcu_height = 0;  // pixels
    uint32_t mcus_per_row = 0, mcu_rows = 0;
    uint32_t interval = 0;    // MCUs per restart segment, 0 = none
    size_t frame_offset = 0;  // of the height in the frame header; the width is 2 bytes behind
    size_t scan_offset = 0;   // first byte of entropy-coded data
    uint8_t n_components = 0;
    uint8_t h[4] = {}, v[4] = {};  // sampling factors
    uint8_t max_h = 0, max_v = 0;

    uint64_t n_mcus() const { return uint64_t(mcus_per_row) * mcu_rows; }
    uint64_t n_segments() const { return interval ? (n_mcus() + interval - 1) / interval : 1; }
};

// Reads the markers in front of the entropy-coded data; false for any other kind of JPEG and for
// every surprise.
bool read_layout(const uint8_t* jpeg, size_t size, JpegLayout& layout);

// Finds the segments by their markers: the offset of each segment's first byte, and that of the end
// marker. False, with an empty index, where the markers are not RST0, RST1 ... in turn,
// `layout.n_segments()` of them, and then the end.
bool find_segments(const uint8_t* jpeg, size_t size, const JpegLayout& layout,
                   std::vector<uint32_t>& index);

}  // namespace fastload
