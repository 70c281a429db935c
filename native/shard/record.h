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

enum class StoredCodec : uint8_t { kJpeg = 1, kRaw = 3 };  // the codecs that decode threads read
enum class PartRole : uint8_t { kData = 0, kRestartIndex = 1 };

// The bytes of one record in the memory map of its shard.
struct RecordBytes {
    const uint8_t* bytes = nullptr;  // null: not found
    size_t size = 0;
};

// One row of a part table, with the position of its sample in the batch. This is one row of a NumPy
// array: a test compares the layout with fastload/_load/records.py.
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

// Appends the rows of one record. Verifies magic, version, id, length, every offset and, with
// `check_crc`, the checksum. Returns the error, empty if the record is valid.
std::string read_part_rows(const RecordBytes& record, uint64_t id, uint32_t sample, bool check_crc,
                           std::vector<PartRow>& rows);

// Limits for new records.
constexpr size_t kMaxRecordBytes = size_t(64) << 20;
constexpr size_t kMaxParts = 1024;

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
