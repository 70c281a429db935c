#include "jpeg/layout.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

enum : uint8_t {
    kSOF0 = 0xC0,
    kSOF1 = 0xC1,
    kDHT = 0xC4,
    kRST0 = 0xD0,
    kSOI = 0xD8,
    kEOI = 0xD9,
    kSOS = 0xDA,
    kDQT = 0xDB,
    kDRI = 0xDD,
    kAPP0 = 0xE0,
    kAPP15 = 0xEF,
    kCOM = 0xFE,
};

uint32_t u16(const uint8_t* bytes) {
    return uint32_t(bytes[0]) << 8 | bytes[1];
}

uint32_t divide_up(uint32_t value, uint32_t by) {
    return (value + by - 1) / by;
}

bool parse_frame(const uint8_t* body, size_t size, JpegLayout& layout) {
    if (layout.n_components || size < 6 || body[0] != 8 || (body[5] != 1 && body[5] != 3) ||
        size != 6 + 3u * body[5])
        return false;
    layout.height = u16(body + 1);
    layout.width = u16(body + 3);
    layout.n_components = body[5];
    for (size_t i = 0; i < layout.n_components; ++i) {
        layout.h[i] = body[7 + 3 * i] >> 4;
        layout.v[i] = body[7 + 3 * i] & 15;
        if (layout.h[i] < 1 || layout.h[i] > 4 || layout.v[i] < 1 || layout.v[i] > 4) return false;
        layout.max_h = std::max(layout.max_h, layout.h[i]);
        layout.max_v = std::max(layout.max_v, layout.v[i]);
    }
    // A scan of one component has MCUs of one block, regardless of its sampling factors.
    layout.mcu_width = layout.n_components == 1 ? 8 : 8u * layout.max_h;
    layout.mcu_height = layout.n_components == 1 ? 8 : 8u * layout.max_v;
    layout.mcus_per_row = divide_up(layout.width, layout.mcu_width);
    layout.mcu_rows = divide_up(layout.height, layout.mcu_height);
    return layout.width && layout.height;
}

bool is_whole_scan(const uint8_t* body, size_t size, const JpegLayout& layout) {
    if (!layout.n_components || size != 4 + 2u * layout.n_components ||
        body[0] != layout.n_components)
        return false;
    const uint8_t* spectrum = body + 1 + 2u * layout.n_components;
    return spectrum[0] == 0 && spectrum[1] == 63 && spectrum[2] == 0;
}

}  // namespace

bool read_layout(const uint8_t* jpeg, size_t size, JpegLayout& layout) {
    layout = {};
    if (size < 4 || jpeg[0] != 0xFF || jpeg[1] != kSOI) return false;
    for (size_t position = 2; size - position >= 4;) {
        uint8_t marker = jpeg[position + 1];
        size_t length = u16(jpeg + position + 2);
        if (jpeg[position] != 0xFF || length < 2 || length > size - position - 2) return false;
        const uint8_t* body = jpeg + position + 4;
        position += 2 + length;
        if (marker == kSOS) {
            layout.scan_offset = position;
            return is_whole_scan(body, length - 2, layout);
        }
        if (marker == kSOF0 || marker == kSOF1) {
            if (!parse_frame(body, length - 2, layout)) return false;
            layout.frame_offset = size_t(body - jpeg) + 1;
        } else if (marker == kDRI) {
            if (length != 4) return false;
            layout.interval = u16(body);
        } else if (marker != kDHT && marker != kDQT && marker != kCOM &&
                   !(marker >= kAPP0 && marker <= kAPP15)) {
            return false;
        }
    }
    return false;
}

bool find_segments(const uint8_t* jpeg, size_t size, const JpegLayout& layout,
                   std::vector<uint32_t>& index) {
    index.clear();
    if (size > UINT32_MAX) return false;
    index.reserve(size_t(std::min<uint64_t>(layout.n_segments(), size / 2)) + 1);
    index.push_back(uint32_t(layout.scan_offset));
    for (size_t position = layout.scan_offset; position < size;) {
        const void* found = std::memchr(jpeg + position, 0xFF, size - position);
        if (!found) break;
        position = size_t(static_cast<const uint8_t*>(found) - jpeg);
        if (position + 1 >= size) break;
        uint8_t marker = jpeg[position + 1];
        if (marker == kEOI && index.size() == layout.n_segments()) {
            index.push_back(uint32_t(position));
            return true;
        }
        if (marker != 0) {
            if (marker != kRST0 + (index.size() - 1) % 8)
                break;  // out of order, or not a restart marker
            index.push_back(uint32_t(position + 2));
        }
        position += 2;
    }
    index.clear();
    return false;
}

}  // namespace fastload
