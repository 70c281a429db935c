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

#include "jpeg/bit_reader.h"
#include "jpeg/huffman.h"

namespace fastload {

// A token number above kTailBits bits. The number determines how many of the tail bits are used,
// starting at the top: as many as the extra bits of the last symbol exceed the lookup.
using Token = uint32_t;
constexpr size_t kTables = 4;  // in the new file: 0, 1 DC; 2, 3 AC
constexpr uint32_t kMaxComponents = 3;

// Bits per lookup, and how far the last symbol of a lookup may exceed them. A photograph has 6.3
// bits per symbol, but only 4 of them are the code, and only codes must be looked up. With 11 and
// 7, the rewrite of a photo takes the same time; with 12 and 6, a fifth longer, because the tables
// exceed the L1 cache (native/tests/bench_transform.cpp, Ice Lake Xeon).
constexpr uint32_t kLookupBits = 10, kTailBits = 7;

// Ranges of token numbers:
//   kCodeTokens + table * 256 + symbol    a code only
//   kDcTokens + table * 8 + size          a code and `size` bits of the tail
//   kAcTokens + kLookupBits               bits of the old file, one range per component
//   kExtraTokens + (1 << n) + value       n extra bits only
// Tokens below kCountedTokens contain symbols.
constexpr uint32_t kCodeTokens = 0;
constexpr uint32_t kDcTokens = 256 * kTables;
constexpr uint32_t kAcTokens = kDcTokens + 2 * (kTailBits + 1);
constexpr uint32_t kCountedTokens = kAcTokens + (kMaxComponents << kLookupBits);
constexpr uint32_t kExtraTokens = kCountedTokens;
constexpr uint32_t kAllTokens = kExtraTokens + 4096;
static_assert(kAllTokens << kTailBits >> kTailBits == kAllTokens);

// The output of a token. From the top: the bits, 3 bits with the number of tail bits that follow, 6
// bits with the total number of bits.
using TokenCode = uint64_t;
constexpr uint32_t kTokenCodeBits = 64 - 9;  // bits without the tail
inline TokenCode make_token_code(uint64_t bits, uint32_t n_bits, uint32_t tail) {
    return bits << 9 | tail << 6 | (n_bits + tail);
}

// A symbol with its extra bits.
struct DecodedSymbol {
    uint32_t symbol = 0, extra_bits = 0, extra = 0;
    uint32_t advance = 0;  // as in look_up()
};

// Returns the DC difference of `size` extra bits. A leading 0 means a negative number.
inline int32_t dc_difference(uint32_t size, uint32_t extra) {
    return int32_t(extra) - ((1 << size) - 1) * (extra < 1u << size >> 1);
}

// The codes of one old table whose symbols go into one new table.
class SymbolTable {
public:
    // Returns false for an invalid table by the rules of libjpeg: too many codes, a code of ones
    // only, a DC symbol above 15.
    bool build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token);

    // Looks up AC symbols. The lowest 6 bits of the result are the number of bits used. The bits
    // above them are the advance of the position in the block, plus kEnd if the block ends, or
    // kUnknown if search() is needed.
    uint32_t look_up(uint32_t bits) const { return fast_[bits]; }
    static constexpr uint32_t kEnd = 128, kUnknown = 512;

    // Reads one DC symbol. `bits` must hold 56 bits. Returns the same as search().
    bool find_dc(BitReader& bits, DecodedSymbol& found) const {
        const uint32_t listed = single_[bits.peek(kLookupBits)], length = listed >> 8;
        if (!listed) return search(bits, found);
        found.symbol = found.extra_bits = listed & 255;
        found.extra = bits.peek_after(length, found.extra_bits);
        bits.drop(length + found.extra_bits);
        return true;
    }

    // Reads one symbol of any length. Returns false if the code does not exist or is invalid in an
    // 8-bit file.
    bool search(BitReader& bits, DecodedSymbol& found) const {
        // Only this copy has its address taken, so that the caller can keep its own in registers.
        BitReader copy = bits;
        DecodedSymbol answer;
        const bool good = search_long(copy, answer);
        bits = copy;
        found = answer;
        return good;
    }

    // Returns whether the token is a run of 16 zeros only. Without a branch, because it is
    // evaluated for every block.
    bool is_zeros(Token token) const {
        const uint32_t number = token >> kTailBits;
        return bool(number - zeros_ < n_zeros_) | bool(number == code_number(0xF0));
    }

    Token first_token() const { return first_token_ << kTailBits; }
    Token code_token(uint32_t symbol) const { return code_number(symbol) << kTailBits; }
    // For DC tables: a size of at most kTailBits, with its bits.
    Token dc_token(uint32_t size, uint32_t extra) const {
        return (kDcTokens + (kTailBits + 1) * new_table_ + size) << kTailBits |
               extra << (kTailBits - size);
    }

    // For AC tables: adds the occurrences of each symbol. `tokens` (indexed by number) and
    // `symbols` start at token 0.
    void count(const uint32_t* tokens, uint32_t* symbols) const;
    // For AC tables: computes the output of its tokens from the output of the code tokens.
    void translate(TokenCode* token_codes) const;

private:
    bool search_long(BitReader& bits, DecodedSymbol& found) const;
    bool is_dc() const { return new_table_ < 2; }
    uint32_t code_number(uint32_t symbol) const { return kCodeTokens + 256 * new_table_ + symbol; }
    void list(uint32_t symbol, uint32_t code, uint32_t length);
    void join();
    template <typename Each>
    void each_symbol(uint32_t looked_up, Each each) const;

    bool built_ = false;  // built from code_ for new_table_ and first_token_
    HuffmanCode code_;
    uint32_t new_table_ = 0, first_token_ = 0, zeros_ = 0, n_zeros_ = 0;
    int32_t offset_[17];  // index of a symbol - its code, by code length
    uint32_t limit_[17];  // codes of this length are below it
    // The next symbol, and above it the length of its code. 0: a longer code, or one that search()
    // rejects.
    uint16_t single_[1 << kLookupBits];
    uint16_t fast_[1 << kLookupBits];
};

// Computes the output of the remaining tokens: codes (`codes` by new table), DC sizes and extra
// bits.
void list_token_codes(const HuffmanCode codes[kTables], TokenCode* token_codes);

}  // namespace fastload
