#include "jpeg/markers.h"

namespace fastload {
namespace {

// Row-major position of the i-th coefficient in zigzag order.
constexpr uint8_t kZigzag[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

bool is_wide(const uint16_t values[64]) {
    for (size_t i = 0; i < 64; ++i)
        if (values[i] > 255) return true;
    return false;
}

void put_quantization(ByteBuffer& out, uint32_t table, const uint16_t values[64]) {
    bool wide = is_wide(values);
    out.put16(0xFFDB);
    out.put16(wide ? 131 : 67);
    out.put((wide ? 16 : 0) | table);
    for (uint8_t natural : kZigzag) {
        if (wide) out.put(values[natural] >> 8);
        out.put(values[natural] & 255);
    }
}

void put_huffman(ByteBuffer& out, uint32_t kind_and_table, const HuffmanCode& code) {
    out.put16(0xFFC4);
    out.put16(uint32_t(19 + code.n_symbols));
    out.put(kind_and_table);
    out.put(code.lengths + 1, 16);
    out.put(code.symbols, code.n_symbols);
}

// Writes the marker that defines the colors: JFIF means YCbCr or gray, Adobe with transform 0 means
// RGB.
void put_colors(ByteBuffer& out, bool rgb) {
    static const uint8_t jfif[] = {0xFF, 0xE0, 0, 16, 'J', 'F', 'I', 'F', 0,
                                   1,    1,    0, 0,  1,   0,   1,   0,   0};
    static const uint8_t adobe[] = {0xFF, 0xEE, 0,   14, 'A', 'd', 'o', 'b',
                                    'e',  0,    100, 0,  0,   0,   0,   0};
    if (rgb)
        out.put(adobe, sizeof adobe);
    else
        out.put(jfif, sizeof jfif);
}

// Writes the quantization tables and returns the frame marker: baseline, or extended sequential if
// a table needs 16 bits. libjpeg, Pillow, OpenCV and the CUDA path of nvJPEG read the latter; the
// hardware engine does not.
uint32_t put_quantizations(ByteBuffer& out, const JpegFrame& frame) {
    uint32_t marker = 0xFFC0, written = 0;
    for (uint32_t i = 0; i < frame.n_components; ++i) {
        uint32_t table = frame.components[i].quantization;
        if (written >> table & 1) continue;
        put_quantization(out, table, frame.quantization[table]);
        if (is_wide(frame.quantization[table])) marker = 0xFFC1;
        written |= 1u << table;
    }
    return marker;
}

}  // namespace

void put_markers(ByteBuffer& out, const JpegFrame& frame, const HuffmanCode codes[4]) {
    out.put16(0xFFD8);
    put_colors(out, frame.rgb);
    out.put16(put_quantizations(out, frame));
    out.put16(8 + 3 * frame.n_components);
    out.put(8);
    out.put16(frame.height);
    out.put16(frame.width);
    out.put(frame.n_components);
    for (uint32_t i = 0; i < frame.n_components; ++i) {
        out.put(frame.components[i].id);
        out.put(frame.components[i].h * 16u + frame.components[i].v);
        out.put(frame.components[i].quantization);
    }
    uint32_t written = 0;
    for (uint32_t i = 0; i < frame.n_components; ++i) {
        uint32_t table = frame.components[i].huffman;
        if (written >> table & 1) continue;
        put_huffman(out, table, codes[table]);
        put_huffman(out, 16 + table, codes[2 + table]);
        written |= 1u << table;
    }
    if (frame.interval) {
        out.put16(0xFFDD);
        out.put16(4);
        out.put16(frame.interval);
    }
    out.put16(0xFFDA);
    out.put16(6 + 2 * frame.n_components);
    out.put(frame.n_components);
    for (uint32_t i = 0; i < frame.n_components; ++i) {
        out.put(frame.components[i].id);
        out.put(frame.components[i].huffman * 17u);
    }
    out.put(0);  // spectral selection 0..63
    out.put(63);
    out.put(0);  // no successive approximation
}

}  // namespace fastload
