// Checks records as `fastload verify` does, without Python. A record is valid or doubtful. Python
// examines the doubtful ones (fastload/_store/verify/record.py) and describes their faults, so this
// code may reject a record that Python accepts, but never accept one that Python rejects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/record.h"
#include "shard/shard_file.h"

namespace fastload {

// The values of a field that are checked here. fastload/_store/verify/bulk.py has the same numbers.
enum class ValueCheck : uint8_t { kNumber = 0, kText = 1, kBytes = 2, kImage = 3, kMask = 4 };

struct FieldRule {
    ValueCheck check;
    bool list;  // the field may have several values
};

struct CheckedRecords {
    std::vector<PartRow> rows;       // of the valid records; `sample` is the position in the range
    std::vector<int64_t> values;     // one per row: the 8 bytes of a number, otherwise 0
    std::vector<uint32_t> doubtful;  // positions in the range
};

// Checks one record that is completely in memory. Appends its rows and values if it is valid.
bool check_contents(const RecordBytes& record, uint64_t id, uint32_t position,
                    const std::vector<FieldRule>& fields, CheckedRecords& found);

// Reads and checks the `n` records from key `first` on. Memory: one record and the result.
CheckedRecords check_records(const ShardFile& file, uint64_t first, size_t n,
                             const std::vector<FieldRule>& fields);

}  // namespace fastload
