// Look-up tables of the lossless rewrite, from the old file's codes to the new file's.
//
// A token stands for what one look-up found: up to three symbols with their extra bits. Its number is the very bits that were
// looked up, so a token says all, the reader stores two bytes for several symbols, and what the writer has to put out for
// each token is one more look-up. How often each symbol occurs follows from how often each token does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bit_reader.h"
#include "huffman.h"

namespace fastload {

using Token = uint16_t;
constexpr size_t kTables = 4;          // of the new file: 0, 1 DC; 2, 3 AC
constexpr uint32_t kMaxComponents = 3;

// Bits looked up at once. With 12 for AC a look-up finds 1.55 of a photograph's symbols, but it is no faster than with 11: the
// larger tables leave less room in the first-level cache.
constexpr uint32_t kAcBits = 11, kDcBits = 10;

// The ranges of tokens.
constexpr uint32_t kCodeTokens = 0;                                               // + table * 256 + symbol: its code alone
constexpr uint32_t kExtraTokens = 256 * kTables;                                  // + (1 << n) + value: n extra bits alone
constexpr uint32_t kDcTokens = kExtraTokens + 4096;                               // + kDcBits of the old file, for each component
constexpr uint32_t kAcTokens = kDcTokens + (kMaxComponents << kDcBits);
constexpr uint32_t kAllTokens = kAcTokens + (kMaxComponents << kAcBits);
static_assert(kAllTokens <= 1 << 16);

// What a token is written as: the bits above, their number (57 at most) in the lowest 6.
using Output = uint64_t;

// A symbol that a look-up did not find.
struct Found {
    uint32_t symbol = 0, extra_bits = 0, extra = 0;
    uint32_t advance = 0;                // as look() has it
};

// The DC difference that `size` extra bits stand for: with a 0 on top, the negative numbers.
inline int32_t dc_difference(uint32_t size, uint32_t extra) { return int32_t(extra) - ((1 << size) - 1) * (extra < 1u << size >> 1); }

// The codes of one old table, for symbols that go into one new table.
class SymbolTable {
public:
    // False for what is no table, by libjpeg's rules: too many codes, a code of ones only, a DC symbol above 15.
    bool build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token);

    // An AC look-up: in the lowest 6 bits how many bits were used, above them how far the place in the block moves on;
    // kEnd more where the block ends, kUnknown where search() must be asked.
    uint32_t look(uint32_t bits) const { return fast_[bits]; }
    static constexpr uint32_t kEnd = 128, kUnknown = 512;

    // A DC look-up: in the lowest 6 bits how many bits were used (0: ask search), from bit 16 on the difference.
    uint32_t look_dc(uint32_t bits) const { return differences_[bits]; }

    // One symbol of any length. False where there is no such code, or it has no business in an 8-bit file.
    bool search(BitReader& bits, Found& found) const;

    // 16 zeros and nothing else. No branch: it is asked for every block.
    bool is_zeros(Token token) const { return bool(token - zeros_ < n_zeros_) | bool(token == code_token(0xF0)); }

    Token first_token() const { return Token(first_token_); }
    Token code_token(uint32_t symbol) const { return Token(kCodeTokens + 256 * new_table_ + symbol); }

    // Adds up how often each symbol occurs; `tokens` and `symbols` begin at token 0.
    void count(const uint32_t* tokens, uint32_t* symbols) const;
    // Lists what this table's tokens are written as, given that for the tokens of codes.
    void translate(Output* outputs) const;

private:
    bool is_dc() const { return new_table_ < 2; }
    uint32_t bits() const { return is_dc() ? kDcBits : kAcBits; }
    void list(uint32_t symbol, uint32_t code, uint32_t length);
    void join();
    void list_differences();

    const HuffmanCode* code_ = nullptr;
    uint32_t new_table_ = 0, first_token_ = 0, zeros_ = 0, n_zeros_ = 0;
    int32_t offset_[17];                 // index of a code's symbol - the code, by length
    uint32_t limit_[17];                 // codes of this length are below it
    uint16_t single_[1 << kAcBits];      // the next symbol, and above it the bits it takes with its extra bits (symbol_tables.cpp); 0 = a longer code
    union {
        uint16_t fast_[1 << kAcBits];
        uint32_t differences_[1 << kDcBits];
    };
};

// What remains to be listed: the tokens of codes (`codes` by new table) and of extra bits.
void list_outputs(const HuffmanCode codes[kTables], Output* outputs);

}  // namespace fastload
