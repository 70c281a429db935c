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

// Up to 63 bits in advance, the next one on top. No bounds are checked: whoever reads asks overrun() often enough for the
// padding he gave the data.
class BitReader {
public:
    BitReader() = default;
    BitReader(const uint8_t* bytes, size_t size) : next_(bytes), end_(bytes + size) {}

    // To 56 bits at least. Reads 8 bytes, wherever they are in relation to the end.
    void refill() {
        uint64_t word;
        std::memcpy(&word, next_, sizeof word);
        buffer_ |= swap_to_big_endian(word) >> count_;
        next_ += (63 - count_) >> 3;
        count_ |= 56;
    }
    uint32_t peek(uint32_t n) const { return uint32_t(buffer_ >> (64 - n)); }
    // n bits (none, too) that come `from` bits ahead
    uint32_t peek_behind(uint32_t from, uint32_t n) const { return uint32_t((buffer_ << from) >> 1 >> (63 - n)); }
    void drop(uint32_t n) {
        buffer_ <<= n;
        count_ -= n;
    }
    bool overrun() const { return next_ > end_ + 8; }
    // Bits not used yet; negative where more were used than there are.
    int64_t left() const { return int64_t(count_) + 8 * int64_t(end_ - next_); }

private:
    uint64_t buffer_ = 0, count_ = 0;
    const uint8_t *next_ = nullptr, *end_ = nullptr;
};

}  // namespace fastload
