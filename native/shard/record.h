// The records of a shard (docs/FORMAT.md). This is the only C++ code that reads or writes a record
// header and part table.
//
//     header   magic "FLR1", CRC-32C of everything after it, version, number of parts, length, id
//     table    one row per part: field, item, codec, role, ..., offset, length
//     parts    each at the next multiple of 8 bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// Limits of every record.
constexpr size_t kMaxRecordBytes = size_t(64) << 20;
constexpr size_t kMaxParts = 1024;
constexpr size_t kRecordHeaderSize = 24;
constexpr uint16_t kSourceField = 0xFFFF;  // field number of the original path

// Codecs of parts. Decode threads read JPEG and raw pixels.
enum class StoredCodec : uint8_t { kPlain = 0, kJpeg = 1, kPng = 2, kRaw = 3, kDeflated = 4 };
enum class PartRole : uint8_t { kData = 0, kRestartIndex = 1 };

// The bytes of one record in memory.
struct RecordBytes {
    const uint8_t* bytes = nullptr;  // null: not found
    size_t size = 0;
};

// One row of a part table, with the position of its sample in the batch. This is one row of a NumPy
// array, PART_ROW of fastload/_store/record.py.
struct PartRow {
    uint32_t sample;
    uint32_t offset, length;  // bytes in the record
    uint16_t field, item;
    uint16_t width, height, interval;
    uint8_t codec, role, channels, bits, orientation, reserved;
};

// Verifies that the bytes are a complete record with a correct checksum. Returns the error, empty
// if the record is valid.
std::string check_record(const RecordBytes& record);

// Returns the size of header and part table as stated by the header, of which `n_bytes` are in
// memory; at most `size` and the size with kMaxParts. Returns 0 if it is not a header.
size_t record_head_size(const uint8_t* bytes, size_t n_bytes, size_t size);

// Appends the rows of one record. Only header and part table need to be in memory, unless
// `check_crc` is set. Verifies magic, version, id, length, every offset and, with
// `check_crc`, the checksum. Returns the error, empty if the record is valid.
std::string read_part_rows(const RecordBytes& record, uint64_t id, uint32_t sample, bool check_crc,
                           std::vector<PartRow>& rows);

// Verifies what read_part_rows() does not need: parts are sorted and unique, and reserved bytes and
// padding are zero. `rows` are the rows of this record, which is completely in memory.
bool has_strict_layout(const RecordBytes& record, const PartRow* rows, size_t n_rows);

// A part of a new record: its data, and `row` except for sample, offset and length.
struct NewPart {
    PartRow row{};
    const uint8_t* data = nullptr;
    size_t size = 0;
};

// Sorts the parts and assigns their offsets. Returns the size of the record, or 0 if two parts have
// the same field, item and role or the record exceeds a limit.
size_t place_parts(std::vector<NewPart>& parts);

// Writes a record of `size` bytes, the value that place_parts() returned.
void write_record(uint64_t id, const std::vector<NewPart>& parts, uint8_t* record, size_t size);

}  // namespace fastload
