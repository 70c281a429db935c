// Fuzz target: header and part table of a record, with and without a correct checksum.
#include <cstring>

#include "shard/crc32c.h"
#include "shard/little_endian.h"
#include "shard/record.h"
#include "verify/record_check.h"

using namespace fastload;

// Checks the record with every kind of value in every field.
static void check_as_verify(const RecordBytes& record, uint64_t id) {
    for (uint8_t check = 0; check <= uint8_t(ValueCheck::kMask); ++check) {
        CheckedRecords found;
        const std::vector<FieldRule> fields(16, {ValueCheck(check), check != 0});
        const bool valid = check_contents(record, id, 0, fields, found);
        if (found.rows.size() != found.values.size() || (!valid && !found.rows.empty()))
            __builtin_trap();
    }
}

// Checks that write_record() writes the same bytes for the parts of this record.
static void check_as_writer(const RecordBytes& record, uint64_t id,
                            const std::vector<PartRow>& rows) {
    std::vector<NewPart> parts;
    for (const PartRow& row : rows) parts.push_back({row, record.bytes + row.offset, row.length});
    std::vector<uint8_t> written(record.size);
    if (place_parts(parts) != record.size) __builtin_trap();
    write_record(id, parts, written.data(), written.size());
    if (std::memcmp(written.data(), record.bytes, record.size)) __builtin_trap();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<PartRow> rows;
    check_record({data, size});
    read_part_rows({data, size}, 0, 0, true, rows);
    if (size < kRecordHeaderSize) return 0;
    std::vector<uint8_t> fixed(data, data + size);
    write_little_endian(fixed.data() + 12, uint32_t(size));
    write_little_endian(fixed.data() + 4, crc32c(0, fixed.data() + 8, size - 8));
    const uint64_t id = read_little_endian<uint64_t>(fixed.data() + 16);
    record_head_size(fixed.data(), size, size);
    rows.clear();
    const bool valid = read_part_rows({fixed.data(), size}, id, 0, true, rows).empty();
    // Every part of a valid record is inside it.
    for (const PartRow& row : rows)
        if (valid && (row.offset > size || row.length > size - row.offset)) __builtin_trap();
    if (valid && has_strict_layout({fixed.data(), size}, rows.data(), rows.size()))
        check_as_writer({fixed.data(), size}, id, rows);
    check_as_verify({fixed.data(), size}, id);
    return 0;
}
