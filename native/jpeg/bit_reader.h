// Reads bits of entropy-coded JPEG data after byte unstuffing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastload {

inline uint64_t swap_to_big_endian(uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(value);
#else
    return value;
#endif
}

// Holds up to 63 bits, the next one at the top. Does not check bounds: the user pads the data and
// checks left() often enough for that padding.
struct BitReader {
    uint64_t buffer = 0, count = 0;
    const uint8_t* next = nullptr;

    // Fills the buffer to at least 56 bits. Reads 8 bytes, even beyond the end of the data. There
    // is no branch: bits that are loaded twice have the same value.
    void refill() {
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        buffer |= swap_to_big_endian(word) >> count;
        next += (63 - count) >> 3;
        count |= 56;
    }
    uint32_t peek(uint32_t n) const { return uint32_t(buffer >> (64 - n)); }
    // Returns n bits (n may be 0) after the next `from` bits.
    uint32_t peek_after(uint32_t from, uint32_t n) const {
        return uint32_t((buffer << from) >> 1 >> (63 - n));
    }
    void drop(uint32_t n) {
        buffer <<= n;
        count -= n;
    }
    // Rewinds by n bits.
    void go_back(uint32_t n) {
        const uint64_t back = count + n, bytes = (back + 7) / 8;
        next -= bytes;
        buffer = count = 0;
        refill();
        drop(uint32_t(8 * bytes - back));
    }
    // Returns the number of unused bits before `end`, negative if more bits were used than exist.
    int64_t left(const uint8_t* end) const { return int64_t(count) + 8 * int64_t(end - next); }
};

}  // namespace fastload
