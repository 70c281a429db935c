#include "shard/record.h"

#include <cstring>

#include "shard/crc32c.h"
#include "shard/little_endian.h"

namespace fastload {
namespace {

constexpr size_t kHeader = 24, kRow = 24, kChecksumFrom = 8;
constexpr uint8_t kVersion = 1, kLastCodec = 5, kLastRole = 1;

std::string wrong(const char* what, uint64_t found, uint64_t expected) {
    return std::string(what) + " is " + std::to_string(found) + ", expected " +
           std::to_string(expected);
}

}  // namespace

std::string read_part_rows(const RecordView& record, uint32_t sample, bool check_crc,
                           std::vector<PartRow>& rows) {
    const uint8_t* bytes = record.bytes;
    if (record.size < kHeader || std::memcmp(bytes, "FLR1", 4))
        return "it does not start like a record";
    if (bytes[8] != kVersion) return wrong("record version", bytes[8], kVersion);
    if (little<uint64_t>(bytes + 16) != record.id)
        return wrong("sample id", little<uint64_t>(bytes + 16), record.id);
    if (little<uint32_t>(bytes + 12) != record.size)
        return wrong("record length", record.size, little<uint32_t>(bytes + 12));
    if (check_crc) {
        uint32_t found = crc32c(0, bytes + kChecksumFrom, record.size - kChecksumFrom),
                 expected = little<uint32_t>(bytes + 4);
        if (found != expected) return wrong("checksum", found, expected);
    }
    size_t n_parts = little<uint16_t>(bytes + 10), end = kHeader + kRow * n_parts;
    if (end > record.size) return wrong("end of the part table", end, record.size);
    for (size_t i = 0; i < n_parts; ++i) {
        const uint8_t* row = bytes + kHeader + kRow * i;
        PartRow part{sample,
                     little<uint32_t>(row + 8),
                     little<uint32_t>(row + 12),
                     little<uint16_t>(row),
                     little<uint16_t>(row + 2),
                     little<uint16_t>(row + 16),
                     little<uint16_t>(row + 18),
                     little<uint16_t>(row + 20),
                     row[4],
                     row[5],
                     row[6],
                     row[7],
                     row[22],
                     0};
        end = (end + 7) / 8 * 8;  // a part's place follows from the one before it
        if (part.offset != end) return wrong("offset of a part", part.offset, end);
        end += part.length;
        if (end > record.size) return wrong("end of a part", end, record.size);
        if (part.codec > kLastCodec || part.role > kLastRole || part.orientation > 8)
            return "a part has an unknown codec, role or orientation";
        rows.push_back(part);
    }
    return end == record.size ? "" : wrong("end of the last part", end, record.size);
}

}  // namespace fastload
