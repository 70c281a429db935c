// Lookup tables of the lossless rewrite, from the codes of the old file to the codes of the new
// one.
//
// A token represents the result of one lookup: up to three symbols with their extra bits. It
// consists of the bits that were looked up and some that follow them. So a token is self-contained,
// the reader stores four bytes for several symbols, and the writer finds the output of each token
// with one more lookup. The number of occurrences of each symbol follows from the number of
// occurrences of each token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/scan_shape.h"
#include "jpeg/symbol_search.h"

namespace fastload {

// A token number above kTailBits bits. The number determines how many of the tail bits are used,
// starting at the top: as many as the extra bits of the last symbol exceed the lookup.
using Token = uint32_t;

// Bits per lookup, and how far the last symbol of a lookup may exceed them. A photograph has 6.3
// bits per symbol, but only 4 of them are the code, and only codes must be looked up. With 11 and
// 7, the rewrite of a photo takes the same time; with 12 and 6, a fifth longer, because the tables
// exceed the L1 cache (native/tests/bench_transform.cpp, Ice Lake Xeon).
constexpr uint32_t kLookupBits = 10, kTailBits = 7;

// Ranges of token numbers:
//   kAcTokens, kDcTokens + kLookupBits    bits of the old file, one range per component
//   kCodeTokens + table * 256 + symbol    a code only
//   kSizeTokens + table * 38 + ...        a DC code and its extra bits, see dc_token()
//   kExtraTokens + (1 << n) + value       n extra bits only
// Tokens below kExtraTokens contain symbols.
constexpr uint32_t kAcTokens = 0;
constexpr uint32_t kDcTokens = kAcTokens + (kMaxComponents << kLookupBits);
constexpr uint32_t kCodeTokens = kDcTokens + (kMaxComponents << kLookupBits);
constexpr uint32_t kSizeTokens = kCodeTokens + 256 * kTables;
constexpr uint32_t kSizesOfTable = kTailBits + (2u << (kMaxDcSize - kTailBits)) - 1;
constexpr uint32_t kExtraTokens = kSizeTokens + 2 * kSizesOfTable;
constexpr uint32_t kAllTokens = kExtraTokens + 4096;
static_assert(kAllTokens << kTailBits >> kTailBits == kAllTokens);
// A token without bits, in place of one that was removed.
constexpr Token kNoToken = (kExtraTokens + 1) << kTailBits;

// The output of a token. From the top: the bits, with zeros in place of the tail bits; 6 bits with
// the number of tail bits that are not used; 6 bits with the total number of bits.
using TokenCode = uint64_t;
constexpr uint32_t kTokenCodeBits = 64 - 12;
inline TokenCode make_token_code(uint64_t bits, uint32_t n_bits, uint32_t tail) {
    return bits << tail << 12 | (kTailBits - tail) << 6 | (n_bits + tail);
}

// A DC code of new table 0 or 1 with its extra bits, at most kMaxDcSize of them.
inline Token dc_token(uint32_t new_table, uint32_t size, uint32_t extra) {
    const uint32_t first = kSizeTokens + kSizesOfTable * new_table;
    if (size < kTailBits) return (first + size) << kTailBits | extra << (kTailBits - size);
    return ((first + kTailBits - 1 + (1u << (size - kTailBits))) << kTailBits) + extra;
}

// The codes of one old table whose symbols go into one new table.
class SymbolTable {
public:
    // Returns false for an invalid table, see SymbolSearch::set().
    bool build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token);

    // As SymbolSearch::find().
    uint32_t search(uint64_t bits, DecodedSymbol& found) const {
        const uint32_t single = single_[bits >> (64 - kLookupBits)];
        return single ? search_.read(bits, single & 255, single >> 8, found)
                      : search_.find(bits, found);
    }
    // For DC tables: returns the size and the extra bits of a DC token.
    DecodedSymbol dc_symbol(Token token) const {
        if (!has(token)) return dc_of_size(token);
        constexpr uint32_t kBits = kLookupBits + kTailBits;
        const uint32_t bits = token - first_token, single = single_[bits >> kTailBits],
                       size = single & 255;
        return {size, size, (bits >> (kBits - (single >> 8) - size)) & ((1u << size) - 1), 0};
    }

    // Returns whether the token is a run of 16 zeros only.
    bool is_zeros(Token token) const {
        const uint32_t number = token >> kTailBits;
        return bool(number - zeros_ < n_zeros_) | bool(number == code_number(0xF0));
    }
    // Returns whether the token is an end of block only.
    bool is_end(Token token) const {
        const uint32_t number = token >> kTailBits;
        return number == code_number(0) ||
               (has(token) && entries[number - (first_token >> kTailBits)] >> 8 == kEnd);
    }
    // Returns whether the token is the result of a lookup in this table.
    bool has(Token token) const { return (token - first_token) >> kTailBits < 1u << kLookupBits; }
    bool is_dc() const { return new_table_ < 2; }
    uint32_t new_table() const { return new_table_; }
    Token code_token(uint32_t symbol) const { return code_number(symbol) << kTailBits; }

    // Adds the occurrences of each symbol in `counts`. `symbols` starts at table 0.
    void count(uint32_t* symbols) const;
    // Computes the output of the tokens in `counts` from the output of the code tokens. Returns
    // false if one does not fit.
    bool translate(TokenCode* token_codes) const;

    // For the reader. The entries have offset 0, so that one pointer is enough for a lookup.
    Entry entries[1 << kLookupBits];
    uint32_t counts[1 << kLookupBits];  // occurrences of each lookup
    Token first_token = 0;

private:
    uint32_t code_number(uint32_t symbol) const { return kCodeTokens + 256 * new_table_ + symbol; }
    DecodedSymbol dc_of_size(Token token) const;
    void join();
    template <typename Each>
    void each_lookup(Each each) const;
    template <typename Each>
    void each_symbol(uint32_t looked_up, Each each) const;

    bool built_ = false;  // built from search_.code() for new_table_ and first_token
    SymbolSearch search_;
    uint32_t new_table_ = 0, zeros_ = 0, n_zeros_ = 0;
    // The next symbol, and above it the length of its code. 0: a longer code, or one that search()
    // rejects.
    uint16_t single_[1 << kLookupBits];
};

// Computes the output of the remaining tokens: codes (`codes` by new table) and DC sizes.
void list_token_codes(const HuffmanCode codes[kTables], TokenCode* token_codes);
// Computes the output of the extra bits, which is always the same.
void list_extra_codes(TokenCode* token_codes);

}  // namespace fastload
