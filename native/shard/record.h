// The part tables of records (docs/FORMAT.md), for a whole batch at once: Python would take 5 us a
// record for this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// One row of a part table and the sample of the batch it belongs to; the layout of a numpy array
// (bind/records.cpp).
struct PartRow {
    uint32_t sample;
    uint32_t offset, length;  // bytes in the record
    uint16_t field, item;
    uint16_t width, height, interval;
    uint8_t codec, role, channels, bits, orientation, reserved;
};

struct RecordView {
    const uint8_t* bytes;
    size_t size;
    uint64_t id;  // the sample id it must have
};

// Appends the rows of one record. Checks magic, version, id, length, every offset and, with
// `check_crc`, the checksum; returns what is wrong, empty = nothing.
std::string read_part_rows(const RecordView& record, uint32_t sample, bool check_crc,
                           std::vector<PartRow>& rows);

}  // namespace fastload
