#include "shard/crc32c.h"

#include <array>
#include <cstring>

#include "cpu/simd.h"

namespace fastload {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reversed

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_tables() {
    CrcTables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) ? kPolynomial : 0);
        tables[0][byte] = state;
    }
    for (uint32_t byte = 0; byte < 256; ++byte)
        for (size_t i = 1; i < 8; ++i)
            tables[i][byte] = (tables[i - 1][byte] >> 8) ^ tables[0][tables[i - 1][byte] & 255];
    return tables;
}

constexpr CrcTables kTables = make_tables();

// A linear map on the 32-bit register, stored as the images of its 32 unit vectors.
using CrcMatrix = std::array<uint32_t, 32>;

constexpr uint32_t apply(const CrcMatrix& matrix, uint32_t state) {
    uint32_t result = 0;
    for (size_t bit = 0; state; ++bit, state >>= 1)
        if (state & 1) result ^= matrix[bit];
    return result;
}

constexpr detail::LaneShift make_lane_shift() {
    CrcMatrix power{};  // one zero byte; squaring gives 2, 4, 8 ... zero bytes
    for (size_t bit = 0; bit < 32; ++bit) {
        const uint32_t unit = uint32_t(1) << bit;
        power[bit] = (unit >> 8) ^ kTables[0][unit & 255];
    }
    static_assert((detail::kLane & (detail::kLane - 1)) == 0);
    for (size_t zeros = 1; zeros < detail::kLane; zeros *= 2) {
        CrcMatrix square{};
        for (size_t bit = 0; bit < 32; ++bit) square[bit] = apply(power, power[bit]);
        power = square;
    }
    detail::LaneShift shift{};
    for (uint32_t byte = 0; byte < 256; ++byte)
        for (unsigned i = 0; i < 4; ++i) shift.table[i][byte] = apply(power, byte << (8 * i));
    return shift;
}

}  // namespace

namespace detail {

uint32_t crc32c_portable(uint32_t crc, const uint8_t* bytes, size_t size) {
    uint32_t state = ~crc;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint32_t low = state ^ (uint32_t(bytes[0]) | uint32_t(bytes[1]) << 8 |
                                uint32_t(bytes[2]) << 16 | uint32_t(bytes[3]) << 24);
        state = kTables[7][low & 255] ^ kTables[6][low >> 8 & 255] ^ kTables[5][low >> 16 & 255] ^
                kTables[4][low >> 24] ^ kTables[3][bytes[4]] ^ kTables[2][bytes[5]] ^
                kTables[1][bytes[6]] ^ kTables[0][bytes[7]];
    }
    for (; size; ++bytes, --size) state = (state >> 8) ^ kTables[0][(state ^ *bytes) & 255];
    return ~state;
}

// Computed at compile time. If a decode thread initialized it at first use, a fork at that moment
// would leave it half initialized in the child forever.
constexpr LaneShift kLaneShift = make_lane_shift();

}  // namespace detail

uint32_t crc32c(uint32_t crc, const uint8_t* bytes, size_t size) {
#ifdef FASTLOAD_X86
    if (use_avx2()) return detail::crc32c_avx2(crc, bytes, size);
#endif
    return detail::crc32c_portable(crc, bytes, size);
}

}  // namespace fastload
