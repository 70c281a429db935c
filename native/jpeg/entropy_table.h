// The Huffman tables of EntropyReader: what the next bits of a scan hold, values and all.
#pragma once

#include <cstdint>

#include "jpeg/libjpeg_errors.h"

namespace fastload {

// The codes of a DHT table, and `fast`: what the next kBits bits hold, often two values at once
// (below).
struct EntropyTable {
    static constexpr int kBits = 11;
    uint32_t fast[1 << kBits];
    uint32_t limit[17];  // by length: codes left-aligned to 16 bits are below it, or longer
    int32_t offset[17];  // index of a code's symbol - the code
    uint8_t lengths[17], symbols[256];
    bool valid = false, dc = false;

    void make(const JHUFF_TBL& table, bool is_dc);
    unsigned find(uint32_t next16, unsigned& length)
        const;  // a symbol and the length of its code; 0: there is no such code
private:
    void fill_single(unsigned symbol, int length, uint32_t*& to) const;
    void join_pairs();
};

// An entry of EntropyTable::fast, for one value or two that follow each other, with their extra
// bits:
//   bits 0-5 how many bits they take, 6-9 the run of zeros before the first, 10-16 by how much the
//   place in the block advances, 17-22 the second value, 23-31 the first.
// The second value's place is the last one that the advance covers; of a single value, that is its
// own, and it is stored later. An end of block counts as an advance by kEndOfBlock with the value
// 0. kSlow set: the value is too large, or the bits too few, for this; bits 6-13 the symbol, 14-18
// its code's length, or 0 for a code of more than kBits.
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

// An advance that no two runs can reach: from place 63 they lead to 63 + 16 + 16 at most.
constexpr unsigned kEndOfBlock = 96;

// Zigzag to row order. An end of block and runs beyond it are stored like values, as a 0 in the
// last place: that is 0 then, since it has not been reached, and a branch is saved.
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

// The value that `size` extra bits stand for.
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
