// Reads the markers of a JPEG without decoding it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fastload {

// The bytes are not a readable JPEG; what() has the reason.
struct BadJpeg : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct JpegComponent {
    uint8_t id = 0, h = 0, v = 0;
};

struct JpegHeader {
    uint32_t width = 0, height = 0;
    uint8_t precision = 0;  // bits per sample
    uint8_t sof = 0;  // frame marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, others rare
    uint8_t n_components = 0;
    uint8_t orientation = 1;   // EXIF, 1..8
    int adobe_transform = -1;  // APP14: 0 RGB or CMYK, 1 YCbCr, 2 YCCK; -1 if the marker is missing
    bool jfif = false;
    bool complete = false;          // the end marker was found
    uint32_t restart_interval = 0;  // MCUs, in the first scan
    uint32_t n_scans = 0;
    size_t scan_offset = 0;  // first byte of the first scan's entropy-coded data
    size_t end_offset = 0;   // after the end marker, or where the data ends
    std::array<JpegComponent, 4> components{};

    bool progressive() const { return sof == 0xC2 || sof == 0xC6 || sof == 0xCA || sof == 0xCE; }
    bool arithmetic() const { return sof >= 0xC9; }
    bool lossless() const { return (sof & 3) == 3; }
};

// Reads every marker up to the end of the image, skipping entropy-coded data, as libjpeg finds
// them. Throws BadJpeg. A missing end marker is not an error but sets `complete` to false.
JpegHeader read_jpeg_header(const uint8_t* bytes, size_t size);

// True for a complete image that is gray or sampled 4:4:4, 4:2:2, 4:2:0, 4:4:0 or 4:1:1.
bool is_common(const JpegHeader& header);

}  // namespace fastload
