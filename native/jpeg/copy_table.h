// Lookup tables that find where the symbols of a scan end. The symbols themselves are not needed,
// except for DC, so a lookup may join any number of them.
#pragma once

#include <cstdint>

#include "jpeg/huffman.h"
#include "jpeg/symbol_bits.h"
#include "jpeg/symbol_search.h"

namespace fastload {

class CopyTable {
public:
    // Bits of a lookup, and how many bits one may use: the extra bits of the last symbol need not
    // be looked up. A reader can do kLookups of them after one refill.
    static constexpr uint32_t kLookupBits = 12, kLookups = 3;
    static constexpr uint32_t kMaxBits = SymbolBits::kBits / kLookups;

    // Returns false for an invalid table, see SymbolSearch::set().
    bool build(const HuffmanCode& code);

    // The results of a lookup of n bits. The one of fewer bits finds the same symbols, or only the
    // first ones.
    const Entry* entries(uint32_t n = kLookupBits) const { return all_ + (size_t(1) << n); }
    // As SymbolSearch::find().
    uint32_t search(uint64_t bits, DecodedSymbol& found) const { return search_.find(bits, found); }

private:
    bool built_ = false;
    SymbolSearch search_;
    // Those for n bits start at 1 << n. Each is the sum of the entry of the first symbol and that
    // of the remaining bits.
    Entry all_[2 << kLookupBits];
};

// DC symbols: one at a time, and joined with the AC symbols that follow.
class DcTable {
public:
    struct Found {
        uint32_t n_bits;  // used; 0: the code does not exist or is invalid in an 8-bit file
        int32_t difference;
    };

    // Returns false for an invalid table, see SymbolSearch::set().
    bool build(const HuffmanCode& code, const CopyTable& ac);

    // The results of a lookup of kJoinedBits. Few bits, so that the tables of two scans fit into
    // the L1 cache.
    static constexpr uint32_t kJoinedBits = 9;
    const Entry* joined() const { return joined_; }

    // Reads a symbol with its extra bits. `bits` are the next 56 bits or more.
    Found read(uint64_t bits) const {
        const uint32_t entry = entries_[bits >> (64 - kLookupBits)], n_bits = entry & 255,
                       size = entry >> 8;
        if (__builtin_expect(!entry, 0)) return find(bits);
        return {n_bits, dc_difference(size, uint32_t(bits << (n_bits - size) >> 1 >> (63 - size)))};
    }

    // As SymbolSearch::find().
    uint32_t search(uint64_t bits, DecodedSymbol& found) const { return search_.find(bits, found); }

private:
    __attribute__((noinline)) Found find(uint64_t bits) const;

    static constexpr uint32_t kLookupBits = 10;
    SymbolSearch search_;
    // In the low byte: the bits used. Above it: the size. 0: a search is needed.
    uint16_t entries_[1 << kLookupBits];
    Entry joined_[1 << kJoinedBits];
};

}  // namespace fastload
