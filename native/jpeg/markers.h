// Writes the markers of a new JPEG, before the entropy-coded data of its only scan.
#pragma once

#include <cstdint>

#include "jpeg/byte_buffer.h"
#include "jpeg/huffman.h"

namespace fastload {

struct JpegFrame {
    struct Component {
        uint8_t id = 0, h = 1, v = 1;
        uint8_t quantization = 0;  // table, 0..3
        uint8_t huffman = 0;       // tables, 0 or 1
    };
    uint32_t width = 0, height = 0;
    uint32_t interval = 0;  // MCUs between restart markers; 0: none
    bool rgb = false;       // false: YCbCr or gray
    Component components[3];
    uint32_t n_components = 0;
    const uint16_t* quantization[4] = {};  // by table, 64 values in natural order
};

// Writes SOI ... SOS, byte for byte as libjpeg does. `codes`: DC 0, DC 1, AC 0, AC 1.
void put_markers(ByteBuffer& out, const JpegFrame& frame, const HuffmanCode codes[4]);

}  // namespace fastload
