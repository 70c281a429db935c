// The position of a reader of Huffman symbols: the next bits of the data, and the place in the
// block. A lookup advances both with one addition.
#pragma once

#include <cstdint>
#include <cstring>

#include "jpeg/bit_reader.h"

namespace fastload {

// The result of a lookup. In the low byte: the bits used. Above it: the advance of the place in the
// block. The place is 1 before the first AC symbol, and the block ends at 64. An end of block and a
// DC symbol advance by kEnd more.
using Entry = uint16_t;
constexpr Entry make_entry(uint32_t n_bits, uint32_t advance) {
    return Entry(n_bits | advance << 8);
}
constexpr uint32_t kEnd = 129;
constexpr uint32_t kUnknown = 64;  // a search is needed; no symbol advances that far
// Joined symbols may not advance further, apart from kEnd. Then is_regular() detects any run that
// exceeds the block.
constexpr uint32_t kMaxAdvance = 64;

struct SymbolBits {
    uint64_t bits = 0;              // the next bits, from the top
    const uint8_t* next = nullptr;  // the bytes after the first 63 bits
    // Sum of the entries of the lookups. In the low byte: the number of those 63 bits that are
    // used. Above it: the place in the block, minus 65.
    int32_t progress = kStart;
    static constexpr int32_t kStart = (1 - 65) * 256, kFull = (64 - 65) * 256;

    void start(const uint8_t* from) {
        bits = 0;
        next = from;
        progress = kStart + 63;
    }

    // Returns the number of bits from `data` to the next bit.
    uint64_t position(const uint8_t* data) const {
        return 8 * uint64_t(next - data) + uint32_t(progress & 255) - 63;
    }

    // Loads the next kBits or more. Reads 8 bytes, even beyond the end of the data. The address
    // does not depend on the last lookups, so that they need not wait for the load. Bits that are
    // loaded twice have the same value.
    static constexpr uint32_t kBits = 56;
    void refill() {
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        bits |= swap_to_big_endian(word) >> (~progress & 63);
        next += (progress & 255) >> 3;
        progress &= ~0xF8;
    }

    // Uses the bits of an entry.
    void advance(Entry entry) {
        bits <<= entry & 63;  // the mask costs nothing
        progress += entry;
    }

    // The place in the block is below 65, or the block ended before it exceeded 64.
    bool is_regular() const { return progress & 64 * 256; }

    // Moves to the start of the next block, or from a DC symbol to the first AC symbol.
    void start_block() { progress = kStart + (progress & 255); }

    // Loads the bits after the used ones again, for when `bits` lost some of them.
    void reload() {
        const int32_t n_unused = 63 - (progress & 255), n_used_of_byte = -n_unused & 7;
        next -= (n_unused + 7) / 8;
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        bits = swap_to_big_endian(word) << n_used_of_byte;
        next += 7;
        progress = (progress & ~255) + 7 + n_used_of_byte;
    }
};

}  // namespace fastload
