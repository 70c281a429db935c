// Huffman tables of EntropyReader: they map the next bits of a scan to decoded values.
#pragma once

#include <cstdint>

#include "jpeg/libjpeg_errors.h"

namespace fastload {

// The codes of a DHT table. `fast` maps the next kBits bits to one or two values (see below).
struct EntropyTable {
    static constexpr int kBits = 11;
    uint32_t fast[1 << kBits];
    uint32_t limit[17];  // by length: left-aligned 16-bit codes of at most this length are below it
    int32_t offset[17];  // index of a code's symbol - the code
    uint8_t lengths[17], symbols[256];
    bool valid = false, dc = false;

    void make(const JHUFF_TBL& table, bool is_dc);
    // Returns a symbol and the length of its code; length 0: no such code.
    unsigned find(uint32_t next16, unsigned& length) const;

private:
    void fill_single(unsigned symbol, int length, uint32_t*& to) const;
    void join_pairs();
};

// An entry of EntropyTable::fast describes one value, or two consecutive values, with their extra
// bits:
//   bits 0-5    number of bits used
//   bits 6-9    run of zeros before the first value
//   bits 10-16  by how much the position in the block advances
//   bits 17-22  second value
//   bits 23-31  first value
// The position of the second value is the last one that the advance covers. For a single value that
// is its own position, and the first value is stored later. An end of block is an advance by
// kEndOfBlock with the value 0. If kSlow is set, the value is too large or the bits are too few for
// an entry: bits 6-13 then hold the symbol and bits 14-18 the length of its code, or 0 for a code
// of more than kBits.
constexpr uint32_t kSlow = 32;

inline int32_t first_of(uint32_t found) {
    return int32_t(found) >> 23;
}
inline int32_t second_of(uint32_t found) {
    return int32_t(found << 9) >> 26;
}
inline unsigned run_of(uint32_t found) {
    return found >> 6 & 15;
}
inline unsigned advance_of(uint32_t found) {
    return found >> 10 & 127;
}
inline unsigned bits_of(uint32_t found) {
    return found & 31;
}

// An advance that two runs cannot reach: from position 63 they lead to 63 + 16 + 16 at most.
constexpr unsigned kEndOfBlock = 96;

// Maps zigzag order to row order. An end of block and runs beyond it are stored like values, as a 0
// in the last position. That coefficient is 0 anyway, because it was not reached, and this saves a
// branch.
struct NaturalOrder {
    uint8_t place[64 + kEndOfBlock + 16];
};
constexpr NaturalOrder make_natural_order() {
    NaturalOrder order{};
    int x = 0, y = 0, direction = 1;  // up and right
    for (int i = 0; i < 64; ++i) {
        order.place[i] = uint8_t(8 * y + x);
        const bool blocked = direction > 0 ? x == 7 || y == 0 : y == 7 || x == 0;
        if (!blocked) {
            x += direction, y -= direction;
            continue;
        }
        if (direction > 0)
            x == 7 ? ++y : ++x;
        else
            y == 7 ? ++x : ++y;
        direction = -direction;
    }
    for (unsigned i = 64; i < sizeof order.place; ++i) order.place[i] = 63;
    return order;
}
inline constexpr NaturalOrder kNatural = make_natural_order();

// Returns the value of `size` extra bits.
inline int32_t extended(uint32_t extra, unsigned size) {
    return extra < (1u << (size - 1)) ? int32_t(extra) - (1 << size) + 1 : int32_t(extra);
}

inline unsigned EntropyTable::find(uint32_t next16, unsigned& length) const {
    const uint32_t found = fast[next16 >> (16 - kBits)];
    if (found & kSlow && found != kSlow) {
        length = found >> 14;
        return found >> 6 & 255;
    }
    for (length = found & kSlow ? kBits + 1 : 1; length <= 16; ++length)
        if (next16 < limit[length])
            return symbols[(int32_t(next16 >> (16 - length)) + offset[length]) & 255];
    length = 0;
    return 0;
}

}  // namespace fastload
