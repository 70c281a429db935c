// CRC-32C with the instruction of the processor. Its latency is 3 cycles, but one can start every
// cycle. So three independent lanes run in parallel and are combined by shifting the register of a
// lane over the bytes that follow it.
#include "cpu/simd.h"
#include "shard/crc32c.h"

#ifdef FASTLOAD_X86
#include <nmmintrin.h>

#include <cstring>

namespace fastload::detail {
namespace {

uint64_t word(const uint8_t* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

// The register after kLane zero bytes.
uint32_t shift(uint32_t state) {
    const auto& table = kLaneShift.table;
    return table[0][state & 255] ^ table[1][state >> 8 & 255] ^ table[2][state >> 16 & 255] ^
           table[3][state >> 24];
}

}  // namespace

uint32_t crc32c_avx2(uint32_t crc, const uint8_t* bytes, size_t size) {
    uint64_t state = ~crc;
    for (; size >= 3 * kLane; bytes += 3 * kLane, size -= 3 * kLane) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < kLane; i += 8) {
            state = _mm_crc32_u64(state, word(bytes + i));
            second = _mm_crc32_u64(second, word(bytes + kLane + i));
            third = _mm_crc32_u64(third, word(bytes + 2 * kLane + i));
        }
        state = shift(shift(uint32_t(state)) ^ uint32_t(second)) ^ uint32_t(third);
    }
    for (; size >= 8; bytes += 8, size -= 8) state = _mm_crc32_u64(state, word(bytes));
    for (; size; ++bytes, --size) state = _mm_crc32_u8(uint32_t(state), *bytes);
    return ~uint32_t(state);
}

}  // namespace fastload::detail
#endif
