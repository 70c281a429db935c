#include "verify/record_check.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "jpeg/header.h"
#include "jpeg/image_limits.h"
#include "shard/little_endian.h"

namespace fastload {
namespace {

// A part and its bytes.
struct StoredPart {
    const PartRow& row;
    const uint8_t* data;

    bool has(StoredCodec codec) const { return row.codec == uint8_t(codec); }
};

uint64_t divide_up(uint64_t number, uint64_t divisor) {
    return (number + divisor - 1) / divisor;
}

bool is_ascii(const StoredPart& part) {
    return std::all_of(part.data, part.data + part.row.length,
                       [](uint8_t byte) { return byte < 0x80; });
}

uint64_t count_segments(const JpegHeader& header) {
    uint32_t across = 1, down = 1;  // a single component is coded block by block
    for (size_t i = 0; header.n_components > 1 && i < header.n_components; ++i) {
        across = std::max<uint32_t>(across, header.components[i].h);
        down = std::max<uint32_t>(down, header.components[i].v);
    }
    const uint64_t mcus = divide_up(header.width, 8 * across) * divide_up(header.height, 8 * down);
    return divide_up(mcus, header.restart_interval);
}

// Returns whether each entry follows a restart marker and the last one is at the end marker.
bool is_valid_index(const StoredPart& jpeg, const JpegHeader& header, const StoredPart& index) {
    const uint64_t n_entries = index.row.length / 4;
    if (!index.has(StoredCodec::kPlain) || index.row.length % 4 ||
        n_entries != count_segments(header) + 1)
        return false;
    const auto entry = [&index](uint64_t i) -> uint64_t {
        return read_little_endian<uint32_t>(index.data + 4 * i);
    };
    const auto has_marker = [&jpeg](uint64_t offset, uint64_t marker) {
        return jpeg.data[offset] == 0xFF && jpeg.data[offset + 1] == marker;
    };
    const uint64_t last = entry(n_entries - 1);
    if (entry(0) != header.scan_offset || last + 2 > jpeg.row.length || !has_marker(last, 0xD9))
        return false;
    for (uint64_t i = 1; i < n_entries; ++i) {
        if (entry(i) <= entry(i - 1) || entry(i) > last) return false;
        if (i + 1 < n_entries && !has_marker(entry(i) - 2, 0xD0 + (i - 1) % 8)) return false;
    }
    return true;
}

bool is_valid_jpeg(const StoredPart& part, const StoredPart* index) {
    JpegHeader header;
    try {
        header = read_jpeg_header(part.data, part.row.length);
        check_limits(header, part.row.length);
    } catch (const BadJpeg&) {
        return false;
    }
    const PartRow& row = part.row;
    if (header.sof > 0xC2 || header.precision != 8 || !header.complete) return false;
    if (header.n_components != 1 && header.n_components != 3) return false;
    if (header.width != row.width || header.height != row.height ||
        header.n_components != row.channels || row.bits != 8)
        return false;
    if (!row.interval) return !index;
    return index && header.restart_interval == row.interval && is_valid_index(part, header, *index);
}

bool is_valid_png(const StoredPart& part) {
    constexpr uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    const uint8_t* data = part.data;
    const auto u32 = [data](size_t i) {
        return uint32_t(data[i]) << 24 | uint32_t(data[i + 1]) << 16 | uint32_t(data[i + 2]) << 8 |
               data[i + 3];
    };
    return part.row.length >= 25 && !std::memcmp(data, magic, sizeof magic) &&
           !std::memcmp(data + 12, "IHDR", 4) && u32(16) == part.row.width &&
           u32(20) == part.row.height && (data[24] == 16) == (part.row.bits == 16);
}

bool is_valid_image(const StoredPart& part, const StoredPart* index, bool mask) {
    const PartRow& row = part.row;
    const uint64_t pixels = uint64_t(row.width) * row.height;
    if (!pixels || std::max(row.width, row.height) > MAX_SIDE || pixels > MAX_PIXELS) return false;
    if (row.orientation < 1 || row.orientation > 8 || !row.channels || !row.bits) return false;
    if (part.has(StoredCodec::kJpeg)) return !mask && is_valid_jpeg(part, index);
    if (index) return false;
    if (part.has(StoredCodec::kPng)) return is_valid_png(part);
    if (part.has(StoredCodec::kRaw)) return pixels * row.channels * row.bits / 8 == row.length;
    return part.has(StoredCodec::kDeflated);
}

// Checks the value of a field; `index` is its restart index, if it has one. A number is copied.
bool is_valid_value(const FieldRule& field, const StoredPart& part, const StoredPart* index,
                    int64_t& number) {
    const PartRow& row = part.row;
    if (row.role != uint8_t(PartRole::kData) || (row.item && !field.list)) return false;
    if (field.check == ValueCheck::kImage || field.check == ValueCheck::kMask)
        return is_valid_image(part, index, field.check == ValueCheck::kMask);
    if (index) return false;
    if (field.check == ValueCheck::kText) return is_ascii(part);
    if (field.check == ValueCheck::kBytes) return true;
    if (!part.has(StoredCodec::kPlain) || row.length != sizeof number) return false;
    number = read_little_endian<int64_t>(part.data);
    return true;
}

// Checks all parts of a record whose layout is valid.
bool are_valid_parts(const uint8_t* record, const PartRow* rows, size_t n_rows,
                     const std::vector<FieldRule>& fields, int64_t* values) {
    for (size_t i = 0; i < n_rows; ++i) {
        const StoredPart part{rows[i], record + rows[i].offset};
        if (part.row.field == kSourceField) {  // the highest number, so it is the last part
            if (i + 1 != n_rows || !is_ascii(part)) return false;
            continue;
        }
        if (part.row.field >= fields.size()) return false;
        const bool indexed = i + 1 < n_rows && rows[i + 1].field == part.row.field &&
                             rows[i + 1].item == part.row.item;  // then it differs in its role
        const StoredPart index{rows[indexed ? i + 1 : i],
                               record + rows[indexed ? i + 1 : i].offset};
        if (!is_valid_value(fields[part.row.field], part, indexed ? &index : nullptr, values[i]))
            return false;
        i += indexed;
    }
    return true;
}

}  // namespace

bool check_contents(const RecordBytes& record, uint64_t id, uint32_t position,
                    const std::vector<FieldRule>& fields, CheckedRecords& found) {
    const size_t before = found.rows.size();
    bool valid = read_part_rows(record, id, position, true, found.rows).empty();
    const size_t n_rows = found.rows.size() - before;
    found.values.resize(found.rows.size());
    const PartRow* rows = found.rows.data() + before;
    valid = valid && has_strict_layout(record, rows, n_rows) &&
            are_valid_parts(record.bytes, rows, n_rows, fields, found.values.data() + before);
    if (!valid) {
        found.rows.resize(before);
        found.values.resize(before);
    }
    return valid;
}

CheckedRecords check_records(const ShardFile& file, uint64_t first, size_t n,
                             const std::vector<FieldRule>& fields) {
    CheckedRecords found;
    LeafPage leaf;
    std::unique_ptr<uint8_t[]> buffer;
    size_t capacity = 0;
    for (size_t i = 0; i < n; ++i) {
        std::string error;
        const RecordPlace place = file.find(first + i, leaf, error);
        RecordBytes record{place.bytes, place.size};
        if (place.size && !place.bytes) {
            if (place.size > capacity) {
                buffer.reset(new uint8_t[place.size]);
                capacity = place.size;
            }
            if (file.read(place.offset, buffer.get(), place.size, error))
                record.bytes = buffer.get();
        }
        if (!record.bytes || !check_contents(record, first + i, uint32_t(i), fields, found))
            found.doubtful.push_back(uint32_t(i));
    }
    return found;
}

}  // namespace fastload
