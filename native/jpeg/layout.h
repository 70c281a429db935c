// Finds the restart segments of a JPEG, for rewrite, index and cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

// The structure of a sequential Huffman-coded JPEG with one scan over all components. Other JPEGs
// have no layout.
struct JpegLayout {
    uint32_t width = 0, height = 0;
    uint32_t mcu_width = 0, mcu_height = 0;  // pixels
    uint32_t mcus_per_row = 0, mcu_rows = 0;
    uint32_t interval = 0;    // MCUs per restart segment; 0: no restart markers
    size_t frame_offset = 0;  // of the height in the frame header; the width follows 2 bytes later
    size_t scan_offset = 0;   // first byte of entropy-coded data
    uint8_t n_components = 0;
    uint8_t h[4] = {}, v[4] = {};  // sampling factors
    uint8_t max_h = 0, max_v = 0;

    uint64_t n_mcus() const { return uint64_t(mcus_per_row) * mcu_rows; }
    uint64_t n_segments() const { return interval ? (n_mcus() + interval - 1) / interval : 1; }
};

// Reads the markers before the entropy-coded data. Returns false for any other kind of JPEG and for
// anything unexpected.
bool read_layout(const uint8_t* jpeg, size_t size, JpegLayout& layout);

// Finds the segments by their markers: the offset of the first byte of each segment, then the
// offset of the end marker. Returns false and an empty index unless the markers are RST0, RST1 ...
// in order, with `layout.n_segments()` segments before the end marker.
bool find_segments(const uint8_t* jpeg, size_t size, const JpegLayout& layout,
                   std::vector<uint32_t>& index);

}  // namespace fastload
