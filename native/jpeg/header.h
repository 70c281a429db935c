// What a JPEG says about itself in its markers, without decoding anything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fastload {

// The bytes are not a JPEG that can be read; what() says why.
struct BadJpeg : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct JpegComponent {
    uint8_t id = 0, h = 0, v = 0;
};

struct JpegHeader {
    uint32_t width = 0, height = 0;
    uint8_t precision = 0;  // bits per sample
    uint8_t sof =
        0;  // the frame marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, others rare
    uint8_t n_components = 0;
    uint8_t orientation = 1;   // EXIF, 1..8
    int adobe_transform = -1;  // APP14: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; -1 without the marker
    bool jfif = false;
    bool complete = false;          // the end marker was found
    uint32_t restart_interval = 0;  // MCUs; of the first scan
    uint32_t n_scans = 0;
    size_t scan_offset = 0;  // first byte of the first scan's entropy-coded data
    size_t end_offset = 0;   // behind the end marker, or where the data stops
    std::array<JpegComponent, 4> components{};

    bool progressive() const { return sof == 0xC2 || sof == 0xC6 || sof == 0xCA || sof == 0xCE; }
    bool arithmetic() const { return sof >= 0xC9; }
    bool lossless() const { return (sof & 3) == 3; }
};

// Reads every marker up to the end of the image (skipping over entropy-coded data), as libjpeg
// would find them. Throws BadJpeg. A missing end marker is no error: `complete` says so.
JpegHeader read_jpeg_header(const uint8_t* bytes, size_t size);

// Whole, and gray or sampled 4:4:4, 4:2:2, 4:2:0, 4:4:0 or 4:1:1.
bool is_common(const JpegHeader& header);

}  // namespace fastload
