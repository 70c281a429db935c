// Bits of entropy-coded JPEG data without its stuffed zeros.
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

// Up to 63 bits in advance, the next one on top. No bounds are checked: whoever reads asks how far
// it is often enough for the padding he gave the data.
struct BitReader {
    uint64_t buffer = 0, count = 0;
    const uint8_t* next = nullptr;

    // To 56 bits at least. Reads 8 bytes, wherever they are in relation to the end. No branch: what
    // is loaded twice is the same.
    void refill() {
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        buffer |= swap_to_big_endian(word) >> count;
        next += (63 - count) >> 3;
        count |= 56;
    }
    uint32_t peek(uint32_t n) const { return uint32_t(buffer >> (64 - n)); }
    // n bits (none, too) that come `from` bits ahead
    uint32_t peek_behind(uint32_t from, uint32_t n) const {
        return uint32_t((buffer << from) >> 1 >> (63 - n));
    }
    void drop(uint32_t n) {
        buffer <<= n;
        count -= n;
    }
    // To where it was n bits ago.
    void go_back(uint32_t n) {
        const uint64_t back = count + n, bytes = (back + 7) / 8;
        next -= bytes;
        buffer = count = 0;
        refill();
        drop(uint32_t(8 * bytes - back));
    }
    // Bits not used yet of data that end there; negative where more were used than there are.
    int64_t left(const uint8_t* end) const { return int64_t(count) + 8 * int64_t(end - next); }
};

}  // namespace fastload
