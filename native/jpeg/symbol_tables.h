// Look-up tables of the lossless rewrite, from the old file's codes to the new file's.
//
// A token stands for what one look-up found: up to three symbols with their extra bits. It is made
// of the very bits that were looked up and of some that follow, so a token says all, the reader
// stores four bytes for several symbols, and what the writer has to put out for each token is one
// more look-up. How often each symbol occurs follows from how often each token does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/bit_reader.h"
#include "jpeg/huffman.h"

namespace fastload {

// A number, and below it kTailBits bits. What these are worth follows from the number: as many of
// them as the last symbol's extra bits go beyond what was looked up, from the top on.
using Token = uint32_t;
constexpr size_t kTables = 4;  // of the new file: 0, 1 DC; 2, 3 AC
constexpr uint32_t kMaxComponents = 3;

// Bits looked up at once, and how far beyond them a look-up's last symbol may reach. A photograph
// has 6.3 bits a symbol, but only 4 of them are the code, and nothing but codes must be looked up.
// The rewrite of a photo with 11 and 7 takes the same time, with 12 and 6 a fifth more: the tables
// leave the first-level cache (native/tests/bench_transform.cpp, Ice Lake Xeon).
constexpr uint32_t kLookBits = 10, kTailBits = 7;

// The ranges of tokens' numbers.
constexpr uint32_t kCodeTokens = 0;  // + table * 256 + symbol: its code alone
constexpr uint32_t kDcTokens =
    256 * kTables;  // + table * 8 + size: a code and `size` bits of the tail
constexpr uint32_t kAcTokens =
    kDcTokens + 2 * (kTailBits + 1);  // + kLookBits of the old file, for each component
constexpr uint32_t kCountedTokens =
    kAcTokens + (kMaxComponents << kLookBits);     // the others have no symbols
constexpr uint32_t kExtraTokens = kCountedTokens;  // + (1 << n) + value: n extra bits alone
constexpr uint32_t kAllTokens = kExtraTokens + 4096;
static_assert(kAllTokens << kTailBits >> kTailBits == kAllTokens);

// What a token is written as: bits, above 3 that tell how many of the tail follow, above 6 with the
// number of all of them.
using TokenCode = uint64_t;
constexpr uint32_t kTokenCodeBits = 64 - 9;  // without the tail
inline TokenCode make_token_code(uint64_t bits, uint32_t n_bits, uint32_t tail) {
    return bits << 9 | tail << 6 | (n_bits + tail);
}

// A symbol with its extra bits.
struct DecodedSymbol {
    uint32_t symbol = 0, extra_bits = 0, extra = 0;
    uint32_t advance = 0;  // as look() has it
};

// The DC difference that `size` extra bits stand for: with a 0 on top, the negative numbers.
inline int32_t dc_difference(uint32_t size, uint32_t extra) {
    return int32_t(extra) - ((1 << size) - 1) * (extra < 1u << size >> 1);
}

// The codes of one old table, for symbols that go into one new table.
class SymbolTable {
public:
    // False for what is no table, by libjpeg's rules: too many codes, a code of ones only, a DC
    // symbol above 15.
    bool build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token);

    // An AC look-up: in the lowest 6 bits how many bits were used, above them how far the place in
    // the block moves on; kEnd more where the block ends, kUnknown where search() must be asked.
    uint32_t look(uint32_t bits) const { return fast_[bits]; }
    static constexpr uint32_t kEnd = 128, kUnknown = 512;

    // One DC symbol. The reader must have 56 bits. As search().
    bool find_dc(BitReader& bits, DecodedSymbol& found) const {
        const uint32_t listed = single_[bits.peek(kLookBits)], length = listed >> 8;
        if (!listed) return search(bits, found);
        found.symbol = found.extra_bits = listed & 255;
        found.extra = bits.peek_behind(length, found.extra_bits);
        bits.drop(length + found.extra_bits);
        return true;
    }

    // One symbol of any length. False where there is no such code, or it has no business in an
    // 8-bit file.
    bool search(BitReader& bits, DecodedSymbol& found) const {
        BitReader copy =
            bits;  // whose address is known elsewhere, so that the caller's can stay in registers
        DecodedSymbol answer;
        const bool good = search_long(copy, answer);
        bits = copy;
        found = answer;
        return good;
    }

    // 16 zeros and nothing else. No branch: it is asked for every block.
    bool is_zeros(Token token) const {
        const uint32_t number = token >> kTailBits;
        return bool(number - zeros_ < n_zeros_) | bool(number == code_number(0xF0));
    }

    Token first_token() const { return first_token_ << kTailBits; }
    Token code_token(uint32_t symbol) const { return code_number(symbol) << kTailBits; }
    // Of a DC table: a size, kTailBits at most, with its bits.
    Token dc_token(uint32_t size, uint32_t extra) const {
        return (kDcTokens + (kTailBits + 1) * new_table_ + size) << kTailBits |
               extra << (kTailBits - size);
    }

    // Of an AC table. Adds up how often each symbol occurs; `tokens`, by number, and `symbols`
    // begin at token 0.
    void count(const uint32_t* tokens, uint32_t* symbols) const;
    // Of an AC table. Lists what its tokens are written as, given that for the tokens of codes.
    void translate(TokenCode* token_codes) const;

private:
    bool search_long(BitReader& bits, DecodedSymbol& found) const;
    bool is_dc() const { return new_table_ < 2; }
    uint32_t code_number(uint32_t symbol) const { return kCodeTokens + 256 * new_table_ + symbol; }
    void list(uint32_t symbol, uint32_t code, uint32_t length);
    void join();
    template <typename Each>
    void each_symbol(uint32_t looked_up, Each each) const;

    bool built_ = false;  // from code_, for the new table and tokens below
    HuffmanCode code_;
    uint32_t new_table_ = 0, first_token_ = 0, zeros_ = 0, n_zeros_ = 0;
    int32_t offset_[17];               // index of a code's symbol - the code, by length
    uint32_t limit_[17];               // codes of this length are below it
    uint16_t single_[1 << kLookBits];  // the next symbol, above it the length of its code; 0 = a
                                       // longer code, or one that search() refuses
    uint16_t fast_[1 << kLookBits];
};

// What remains to be listed: the tokens of codes (`codes` by new table), of DC sizes and of extra
// bits.
void list_token_codes(const HuffmanCode codes[kTables], TokenCode* token_codes);

}  // namespace fastload
