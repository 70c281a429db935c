#include "jpeg/entropy_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace fastload {
namespace {

constexpr uint32_t entry(int32_t first, int32_t second, unsigned run, unsigned advance,
                         unsigned bits) {
    return uint32_t(first) << 23 | (uint32_t(second) & 63) << 17 | advance << 10 | run << 6 | bits;
}
constexpr uint32_t slow_entry(unsigned symbol, unsigned length) {
    return length << 14 | symbol << 6 | kSlow;
}
// Bits of the largest values that fit an entry, without the sign.
constexpr unsigned kFirstSize = 8, kSecondSize = 5;

}  // namespace

void EntropyTable::make(const JHUFF_TBL& table, bool is_dc) {
    if (valid && !std::memcmp(lengths, table.bits, sizeof lengths) &&
        !std::memcmp(symbols, table.huffval, sizeof symbols))
        return;
    valid = true;
    dc = is_dc;
    std::memcpy(lengths, table.bits, sizeof lengths);
    std::memcpy(symbols, table.huffval, sizeof symbols);
    uint32_t code = 0;
    int32_t index = 0;
    uint32_t* to = fast;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        offset[length] = index - int32_t(code);
        for (int i = 0; i < lengths[length]; ++i, ++code, ++index)
            if (length <= kBits) fill_single(symbols[index], length, to);
        limit[length] = code << (16 - length);
    }
    std::fill(to, std::end(fast), kSlow);
    if (!dc) join_pairs();
}

// Fills the entries of all bit patterns that begin with one code.
void EntropyTable::fill_single(unsigned symbol, int length, uint32_t*& to) const {
    const unsigned size = symbol & 15, run = dc ? 0 : symbol >> 4, spare = unsigned(kBits - length);
    if (size > spare || size > kFirstSize) {
        to = std::fill_n(to, 1u << spare, slow_entry(symbol, unsigned(length)));
        // A DC difference of 0; 16 zeros, the last of which counts as a value; or the end of block.
    } else if (size == 0) {
        const bool end = !dc && run != 15;
        to = std::fill_n(to, 1u << spare,
                         entry(0, 0, end ? 0 : run, end ? kEndOfBlock : run + 1, unsigned(length)));
    } else {
        const unsigned repeat = 1u << (spare - size);
        for (uint32_t extra = 0; extra < (1u << size); ++extra)
            to = std::fill_n(
                to, repeat, entry(extended(extra, size), 0, run, run + 1, unsigned(length) + size));
    }
}

// Adds a second value, or the end of block, to entries with enough bits left.
void EntropyTable::join_pairs() {
    uint32_t single[1 << kBits];
    std::memcpy(single, fast, sizeof single);
    for (uint32_t i = 0; i < (1u << kBits); ++i) {
        const uint32_t first = single[i];
        if (first & kSlow || advance_of(first) >= kEndOfBlock) continue;
        const uint32_t second = single[i << bits_of(first) & ((1u << kBits) - 1)];
        const int32_t value = first_of(second);
        if (second & kSlow || bits_of(first) + bits_of(second) > unsigned(kBits) ||
            value >= (1 << kSecondSize) || value <= -(1 << kSecondSize))
            continue;
        fast[i] = entry(first_of(first), value, run_of(first),
                        advance_of(first) + advance_of(second), bits_of(first) + bits_of(second));
    }
}

}  // namespace fastload
