#include "jpeg/header.h"

#include <cstring>

namespace fastload {
namespace {

enum Marker : uint8_t {
    kTEM = 0x01,
    kSOF0 = 0xC0,
    kDHT = 0xC4,
    kJPG = 0xC8,
    kDAC = 0xCC,
    kSOF15 = 0xCF,
    kRST0 = 0xD0,
    kRST7 = 0xD7,
    kSOI = 0xD8,
    kEOI = 0xD9,
    kSOS = 0xDA,
    kDRI = 0xDD,
    kAPP0 = 0xE0,
    kAPP1 = 0xE1,
    kAPP14 = 0xEE,
};

bool is_frame(uint8_t marker) {
    return marker >= kSOF0 && marker <= kSOF15 && marker != kDHT && marker != kJPG &&
           marker != kDAC;
}

std::string hex(uint8_t marker) {
    static const char digits[] = "0123456789ABCDEF";
    return {'0', 'x', 'F', 'F', digits[marker >> 4], digits[marker & 15]};
}

std::string at(size_t offset) {
    return " at byte " + std::to_string(offset);
}

// Returns the orientation (tag 0x0112) of the first image directory in an Exif block, or 1 if it is
// missing or damaged.
uint8_t exif_orientation(const uint8_t* tiff, size_t size) {
    if (size < 8) return 1;
    bool little = tiff[0] == 'I' && tiff[1] == 'I';
    if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 1;
    auto u16 = [&](size_t i) -> uint32_t {
        return little ? tiff[i] | tiff[i + 1] << 8 : tiff[i] << 8 | tiff[i + 1];
    };
    auto u32 = [&](size_t i) -> uint64_t {
        return little ? u16(i) | uint64_t(u16(i + 2)) << 16 : uint64_t(u16(i)) << 16 | u16(i + 2);
    };
    if (u16(2) != 42) return 1;
    uint64_t directory = u32(4);
    if (directory + 2 > size) return 1;
    uint32_t entries = u16(directory);
    for (uint32_t i = 0; i < entries; ++i) {
        uint64_t entry = directory + 2 + 12ull * i;
        if (entry + 12 > size) return 1;
        if (u16(entry) != 0x0112) continue;
        // 3: 16 bits, as in the standard. 4: 32 bits, which some cameras write.
        uint32_t type = u16(entry + 2);
        if ((type != 3 && type != 4) || u32(entry + 4) != 1) return 1;
        uint64_t value = type == 3 ? u16(entry + 8) : u32(entry + 8);
        return value >= 1 && value <= 8 ? uint8_t(value) : 1;
    }
    return 1;
}

class MarkerReader {
public:
    MarkerReader(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {}

    JpegHeader read() {
        if (size_ < 4 || bytes_[0] != 0xFF || bytes_[1] != kSOI)
            throw BadJpeg("not a JPEG: it does not start with FF D8");
        position_ = 2;
        while (int marker = next_marker()) {
            if (marker == kEOI) {
                header_.complete = true;
                break;
            }
            parse_segment(uint8_t(marker));
        }
        if (!header_.sof)
            throw BadJpeg("no frame header (SOF) in " + std::to_string(size_) + " bytes");
        if (!header_.n_scans)
            throw BadJpeg("no image data: no scan (SOS) in " + std::to_string(size_) + " bytes");
        header_.end_offset = position_;
        return header_;
    }

private:
    // Returns the code of the next marker, or 0 at the end of the data. Skips other bytes, as
    // libjpeg does.
    int next_marker() {
        while (position_ < size_) {
            const void* found = std::memchr(bytes_ + position_, 0xFF, size_ - position_);
            if (!found) break;
            position_ = size_t(static_cast<const uint8_t*>(found) - bytes_) + 1;
            while (position_ < size_ && bytes_[position_] == 0xFF) ++position_;
            if (position_ >= size_) break;
            uint8_t marker = bytes_[position_++];
            if (marker != 0 && !(marker >= kRST0 && marker <= kRST7) && marker != kTEM)
                return marker;
        }
        position_ = size_;
        return 0;
    }

    void parse_segment(uint8_t marker) {
        if (marker == kSOI) throw BadJpeg("a second start marker" + at(position_ - 2));
        size_t start = position_;
        if (size_ - start < 2) throw BadJpeg("cut off in marker " + hex(marker) + at(start - 2));
        size_t length = size_t(bytes_[start]) << 8 | bytes_[start + 1];
        if (length < 2)
            throw BadJpeg("marker " + hex(marker) + " has length " + std::to_string(length) +
                          at(start - 2));
        if (length > size_ - start)
            throw BadJpeg("cut off in marker " + hex(marker) + at(start - 2));
        const uint8_t* body = bytes_ + start + 2;
        size_t body_size = length - 2;
        position_ = start + length;
        if (is_frame(marker))
            parse_frame(marker, body, body_size);
        else if (marker == kSOS)
            parse_scan();
        else if (marker == kDRI && body_size >= 2 && !header_.n_scans)
            header_.restart_interval = uint32_t(body[0]) << 8 | body[1];
        else if (marker == kAPP0 && body_size >= 5 && !std::memcmp(body, "JFIF", 5))
            header_.jfif = true;
        else if (marker == kAPP14 && body_size >= 12 && !std::memcmp(body, "Adobe", 5))
            header_.adobe_transform = body[11];
        else if (marker == kAPP1 && !exif_seen_ && body_size >= 6 &&
                 !std::memcmp(body, "Exif\0", 6)) {
            exif_seen_ = true;
            header_.orientation = exif_orientation(body + 6, body_size - 6);
        }
    }

    void parse_frame(uint8_t marker, const uint8_t* body, size_t size) {
        if (header_.sof) throw BadJpeg("a second frame header (SOF)" + at(position_ - size - 4));
        if (size < 6 || size != 6 + 3 * size_t(body[5]))
            throw BadJpeg("the frame header (SOF) has a wrong length" + at(position_ - size - 4));
        header_.sof = marker;
        header_.precision = body[0];
        header_.height = uint32_t(body[1]) << 8 | body[2];
        header_.width = uint32_t(body[3]) << 8 | body[4];
        header_.n_components = body[5];
        if (!header_.width || !header_.height)
            throw BadJpeg("the size is " + std::to_string(header_.width) + "x" +
                          std::to_string(header_.height));
        if (header_.n_components < 1 || header_.n_components > 4)
            throw BadJpeg("expected 1 to 4 components, found " +
                          std::to_string(header_.n_components));
        for (size_t i = 0; i < header_.n_components; ++i) {
            JpegComponent& component = header_.components[i];
            component = {body[6 + 3 * i], uint8_t(body[7 + 3 * i] >> 4),
                         uint8_t(body[7 + 3 * i] & 15)};
            if (component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4)
                throw BadJpeg("component " + std::to_string(i) + " has sampling factors " +
                              std::to_string(component.h) + "x" + std::to_string(component.v) +
                              ", expected 1 to 4");
        }
    }

    void parse_scan() {
        if (!header_.sof)
            throw BadJpeg("a scan (SOS) before the frame header (SOF)" + at(position_));
        if (!header_.n_scans++) header_.scan_offset = position_;
    }

    const uint8_t* bytes_;
    size_t size_, position_ = 0;
    bool exif_seen_ = false;
    JpegHeader header_;
};

}  // namespace

JpegHeader read_jpeg_header(const uint8_t* bytes, size_t size) {
    return MarkerReader(bytes, size).read();
}

bool is_common(const JpegHeader& header) {
    if (!header.complete || header.n_components == 1) return header.complete;
    const auto is = [&](size_t i, int h, int v) {
        return header.components[i].h == h && header.components[i].v == v;
    };
    return header.n_components == 3 && is(1, 1, 1) && is(2, 1, 1) &&
           (is(0, 1, 1) || is(0, 2, 1) || is(0, 2, 2) || is(0, 1, 2) || is(0, 4, 1));
}

}  // namespace fastload
