// CRC-32C (Castagnoli), the checksum of every record.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Continues `crc` (0 to start) over `size` bytes.
uint32_t crc32c(uint32_t crc, const uint8_t* bytes, size_t size);

namespace detail {
uint32_t crc32c_portable(uint32_t crc, const uint8_t* bytes, size_t size);
uint32_t crc32c_avx2(uint32_t crc, const uint8_t* bytes, size_t size);

// The value of each byte of the CRC register after kLane zero bytes. It combines the three lanes of
// the vector code.
constexpr size_t kLane = 1024;
struct LaneShift {
    uint32_t table[4][256];
};
extern const LaneShift kLaneShift;
}  // namespace detail

}  // namespace fastload
