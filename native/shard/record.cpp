#include "shard/record.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "shard/crc32c.h"
#include "shard/little_endian.h"

namespace fastload {
namespace {

constexpr char kMagic[] = "FLR1";
constexpr uint8_t kVersion = 1;
constexpr uint8_t kLastCodec = 5;
constexpr uint8_t kLastRole = 1;

// Offsets in the header.
constexpr size_t kCrc = 4;
constexpr size_t kVersionByte = 8;  // the checksum covers everything from here to the end
constexpr size_t kReserved = 9;
constexpr size_t kPartCount = 10;
constexpr size_t kLength = 12;
constexpr size_t kId = 16;
constexpr size_t kHeaderSize = kRecordHeaderSize;

// Offsets in a row of the part table.
constexpr size_t kField = 0;
constexpr size_t kItem = 2;
constexpr size_t kCodec = 4;
constexpr size_t kRole = 5;
constexpr size_t kChannels = 6;
constexpr size_t kBits = 7;
constexpr size_t kPartOffset = 8;
constexpr size_t kPartLength = 12;
constexpr size_t kWidth = 16;
constexpr size_t kHeight = 18;
constexpr size_t kInterval = 20;
constexpr size_t kOrientation = 22;
constexpr size_t kRowReserved = 23;
constexpr size_t kRowSize = 24;

struct RecordHeader {
    uint32_t crc;
    uint8_t version;
    uint16_t n_parts;
    uint32_t length;
    uint64_t id;
};

// Returns false if the bytes do not start with a record header.
bool read_header(const RecordBytes& record, RecordHeader& header) {
    const uint8_t* bytes = record.bytes;
    if (record.size < kHeaderSize || std::memcmp(bytes, kMagic, 4)) return false;
    header.crc = read_little_endian<uint32_t>(bytes + kCrc);
    header.version = bytes[kVersionByte];
    header.n_parts = read_little_endian<uint16_t>(bytes + kPartCount);
    header.length = read_little_endian<uint32_t>(bytes + kLength);
    header.id = read_little_endian<uint64_t>(bytes + kId);
    return true;
}

uint32_t checksum(const uint8_t* bytes, size_t size) {
    return crc32c(0, bytes + kVersionByte, size - kVersionByte);
}

PartRow read_row(const uint8_t* row, uint32_t sample) {
    PartRow part{};
    part.sample = sample;
    part.offset = read_little_endian<uint32_t>(row + kPartOffset);
    part.length = read_little_endian<uint32_t>(row + kPartLength);
    part.field = read_little_endian<uint16_t>(row + kField);
    part.item = read_little_endian<uint16_t>(row + kItem);
    part.width = read_little_endian<uint16_t>(row + kWidth);
    part.height = read_little_endian<uint16_t>(row + kHeight);
    part.interval = read_little_endian<uint16_t>(row + kInterval);
    part.codec = row[kCodec];
    part.role = row[kRole];
    part.channels = row[kChannels];
    part.bits = row[kBits];
    part.orientation = row[kOrientation];
    return part;
}

void write_row(const PartRow& part, uint8_t* row) {
    std::memset(row, 0, kRowSize);
    write_little_endian(row + kField, part.field);
    write_little_endian(row + kItem, part.item);
    row[kCodec] = part.codec;
    row[kRole] = part.role;
    row[kChannels] = part.channels;
    row[kBits] = part.bits;
    write_little_endian(row + kPartOffset, part.offset);
    write_little_endian(row + kPartLength, part.length);
    write_little_endian(row + kWidth, part.width);
    write_little_endian(row + kHeight, part.height);
    write_little_endian(row + kInterval, part.interval);
    row[kOrientation] = part.orientation;
}

size_t aligned(size_t offset) {
    return (offset + 7) / 8 * 8;
}

std::string mismatch(const char* what, uint64_t found, uint64_t expected) {
    return std::string(what) + " is " + std::to_string(found) + ", expected " +
           std::to_string(expected);
}

}  // namespace

std::string check_record(const RecordBytes& record) {
    RecordHeader header;
    if (!read_header(record, header) || header.length != record.size)
        return "not a record, or truncated";
    const uint32_t found = checksum(record.bytes, record.size);
    if (found == header.crc) return "";
    return mismatch("checksum", found, header.crc);
}

size_t record_head_size(const uint8_t* bytes, size_t n_bytes, size_t size) {
    RecordHeader header;
    if (!read_header({bytes, n_bytes}, header)) return 0;
    return std::min(size, kHeaderSize + kRowSize * std::min<size_t>(header.n_parts, kMaxParts));
}

std::string read_part_rows(const RecordBytes& record, uint64_t id, uint32_t sample, bool check_crc,
                           std::vector<PartRow>& rows) {
    RecordHeader header;
    if (!read_header(record, header)) return "not a record: no record header";
    if (header.version != kVersion) return mismatch("record version", header.version, kVersion);
    if (header.id != id) return mismatch("sample id", header.id, id);
    if (header.length != record.size) return mismatch("record length", record.size, header.length);
    if (check_crc) {
        const uint32_t found = checksum(record.bytes, record.size);
        if (found != header.crc) return mismatch("checksum", found, header.crc);
    }
    if (header.n_parts > kMaxParts) return mismatch("number of parts", header.n_parts, kMaxParts);
    size_t end = kHeaderSize + kRowSize * header.n_parts;
    if (end > record.size) return mismatch("end of the part table", end, record.size);
    for (size_t i = 0; i < header.n_parts; ++i) {
        const PartRow part = read_row(record.bytes + kHeaderSize + kRowSize * i, sample);
        end = aligned(end);  // the offset of a part follows from the part before it
        if (part.offset != end) return mismatch("offset of a part", part.offset, end);
        end += part.length;
        if (end > record.size) return mismatch("end of a part", end, record.size);
        if (part.codec > kLastCodec || part.role > kLastRole || part.orientation > 8)
            return "a part has an unknown codec, role or orientation";
        rows.push_back(part);
    }
    return end == record.size ? "" : mismatch("end of the last part", end, record.size);
}

bool has_strict_layout(const RecordBytes& record, const PartRow* rows, size_t n_rows) {
    const auto key = [](const PartRow& row) { return std::tie(row.field, row.item, row.role); };
    const auto is_zero = [](uint8_t byte) { return byte == 0; };
    if (record.bytes[kReserved]) return false;
    size_t end = kHeaderSize + kRowSize * n_rows;
    for (size_t i = 0; i < n_rows; ++i) {
        if (record.bytes[kHeaderSize + kRowSize * i + kRowReserved]) return false;
        if (i && !(key(rows[i - 1]) < key(rows[i]))) return false;
        if (!std::all_of(record.bytes + end, record.bytes + rows[i].offset, is_zero)) return false;
        end = size_t(rows[i].offset) + rows[i].length;
    }
    return true;
}

size_t place_parts(std::vector<NewPart>& parts) {
    if (parts.size() > kMaxParts) return 0;
    const auto key = [](const NewPart& part) {
        return std::tie(part.row.field, part.row.item, part.row.role);
    };
    std::sort(parts.begin(), parts.end(),
              [&](const NewPart& a, const NewPart& b) { return key(a) < key(b); });
    size_t end = kHeaderSize + kRowSize * parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
        NewPart& part = parts[i];
        if (i && key(part) == key(parts[i - 1])) return 0;
        const size_t offset = aligned(end);
        end = offset + part.size;
        if (end > kMaxRecordBytes) return 0;
        part.row.offset = uint32_t(offset);
        part.row.length = uint32_t(part.size);
    }
    return end;
}

void write_record(uint64_t id, const std::vector<NewPart>& parts, uint8_t* record, size_t size) {
    std::memset(record, 0, kHeaderSize);
    std::memcpy(record, kMagic, 4);
    record[kVersionByte] = kVersion;
    write_little_endian(record + kPartCount, uint16_t(parts.size()));
    write_little_endian(record + kLength, uint32_t(size));
    write_little_endian(record + kId, id);
    size_t end = kHeaderSize + kRowSize * parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
        const NewPart& part = parts[i];
        write_row(part.row, record + kHeaderSize + kRowSize * i);
        std::memset(record + end, 0, part.row.offset - end);
        if (part.size) std::memcpy(record + part.row.offset, part.data, part.size);
        end = part.row.offset + part.size;
    }
    write_little_endian(record + kCrc, checksum(record, size));
}

}  // namespace fastload
