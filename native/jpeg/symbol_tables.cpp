#include "jpeg/symbol_tables.h"

#include <algorithm>

namespace fastload {
namespace {

// The meaning of a symbol. `valid` is false for symbols that a regular 8-bit file does not have.
struct SymbolMeaning {
    uint32_t extra_bits, advance;
    bool valid;

    SymbolMeaning(uint32_t symbol, bool dc) {
        extra_bits = dc ? symbol : symbol & 15;
        advance = dc               ? 0
                  : symbol == 0    ? SymbolTable::kEnd
                  : symbol == 0xF0 ? 16
                                   : (symbol >> 4) + 1;
        valid =
            dc ? symbol <= 11 : extra_bits <= 10 && (extra_bits || symbol == 0 || symbol == 0xF0);
    }
};

uint32_t low_bits(uint32_t value, uint32_t n) {
    return value & ((1u << n) - 1);
}

bool is_same(const HuffmanCode& one, const HuffmanCode& other) {
    return std::equal(one.lengths, one.lengths + 17, other.lengths) &&
           std::equal(one.symbols, one.symbols + 256, other.symbols);
}

}  // namespace

bool SymbolTable::build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token) {
    if (built_ && new_table == new_table_ && first_token == first_token_ && is_same(code, code_))
        return true;  // most files have the standard tables
    built_ = false;
    code_ = code;
    new_table_ = new_table;
    first_token_ = first_token;
    zeros_ = n_zeros_ = 0;
    std::fill_n(single_, size_t(1) << kLookupBits, uint16_t(0));
    uint32_t next = 0;
    size_t i = 0;
    for (uint32_t length = 1; length <= 16; ++length, next <<= 1) {
        offset_[length] = int32_t(i) - int32_t(next);
        for (size_t n = code.lengths[length]; n; --n, ++i, ++next) {
            if (i >= 256 || next + 1 >= (1u << length) || (is_dc() && code.symbols[i] > 15))
                return false;
            if (length <= kLookupBits) list(code.symbols[i], next, length);
        }
        limit_[length] = next;
    }
    if (!is_dc()) join();
    return built_ = true;
}

void SymbolTable::list(uint32_t symbol, uint32_t code, uint32_t length) {
    if (!SymbolMeaning(symbol, is_dc()).valid) return;
    const uint32_t first = code << (kLookupBits - length), n = 1u << (kLookupBits - length);
    std::fill_n(single_ + first, n, uint16_t(symbol | length << 8));
    if (!is_dc() && symbol == 0xF0) {
        zeros_ = first_token_ + first;
        n_zeros_ = n;
    }
}

// Joins as many symbols as fit, at most three: their new codes, of up to 16 bits, and their extra
// bits must fit a TokenCode. A run of 16 zeros stays alone, because it is removed before an end of
// block.
void SymbolTable::join() {
    constexpr uint32_t kMask = (1u << kLookupBits) - 1, kMost = kLookupBits + kTailBits,
                       kLeast = 3 * 16 + kLookupBits - kTokenCodeBits;
    for (uint32_t i = 0; i <= kMask; ++i) {
        uint32_t used = 0, advance = 0, codes = 0;  // `codes`: number of code bits
        for (int n = 0; n < 3 && used < kLookupBits; ++n) {
            const uint32_t single = single_[i << used & kMask], symbol = single & 255,
                           length = single >> 8;
            const SymbolMeaning meaning(symbol, false);
            if (!single || used + length > kLookupBits ||
                used + length + meaning.extra_bits > kMost || (n && symbol == 0xF0))
                break;
            if (n == 2 && codes + length < kLeast) break;
            codes += length;
            used += length + meaning.extra_bits;
            advance += meaning.advance;
            if (!symbol || symbol == 0xF0) break;
        }
        fast_[i] = uint16_t(used ? used | advance << 6 : kUnknown << 6);
    }
}

bool SymbolTable::search_long(BitReader& reader, DecodedSymbol& found) const {
    reader.refill();
    const uint32_t ahead = reader.peek(16), listed = single_[ahead >> (16 - kLookupBits)];
    uint32_t length = listed >> 8;
    if (listed) {
        found.symbol = listed & 255;
    } else {
        for (length = 1; length <= 16 && ahead >> (16 - length) >= limit_[length];) ++length;
        if (length > 16) return false;
        found.symbol = code_.symbols[int32_t(ahead >> (16 - length)) + offset_[length]];
    }
    const SymbolMeaning meaning(found.symbol, is_dc());
    found.extra_bits = meaning.extra_bits;
    found.extra = reader.peek_after(length, meaning.extra_bits);
    found.advance = meaning.advance;
    reader.drop(length + meaning.extra_bits);
    return meaning.valid;
}

// Calls each(symbol, extra bits, bits used up to its end) for every symbol that an AC lookup finds.
template <typename Each>
void SymbolTable::each_symbol(uint32_t looked_up, Each each) const {
    const uint32_t last = fast_[looked_up] & 63;
    for (uint32_t used = 0; used < last;) {
        const uint32_t single = single_[looked_up << used & ((1u << kLookupBits) - 1)],
                       symbol = single & 255;
        used += (single >> 8) + (symbol & 15);
        each(symbol, symbol & 15, used);
    }
}

void SymbolTable::count(const uint32_t* tokens, uint32_t* symbols) const {
    uint32_t* own = symbols + 256 * new_table_;
    for (uint32_t i = 0; i < 1u << kLookupBits; ++i)
        if (const uint32_t n = tokens[first_token_ + i])
            each_symbol(i, [&](uint32_t symbol, uint32_t, uint32_t) { own[symbol] += n; });
}

void SymbolTable::translate(TokenCode* token_codes) const {
    const TokenCode* codes = token_codes + code_number(0);
    for (uint32_t i = 0; i < 1u << kLookupBits; ++i) {
        uint64_t value = 0;
        uint32_t length = 0, end = 0;
        each_symbol(i, [&](uint32_t symbol, uint32_t extra, uint32_t used) {
            const uint32_t beyond = used > kLookupBits ? used - kLookupBits : 0,
                           within = extra - beyond;
            const TokenCode code = codes[symbol];
            value = (value << (code & 63) | code >> 9) << within |
                    low_bits(i >> (kLookupBits + beyond - used), within);
            length += uint32_t(code & 63) + within;
            end = beyond;
        });
        token_codes[first_token_ + i] = make_token_code(value, length, end);
    }
}

void list_token_codes(const HuffmanCode codes[kTables], TokenCode* token_codes) {
    for (uint32_t table = 0; table < kTables; ++table) {
        uint16_t values[256];
        uint8_t sizes[256];
        list_codes(codes[table], values, sizes);
        for (uint32_t symbol = 0; symbol < 256; ++symbol)
            token_codes[kCodeTokens + 256 * table + symbol] =
                sizes[symbol] ? make_token_code(values[symbol], sizes[symbol], 0) : 0;
        for (uint32_t size = 0; table < 2 && size <= kTailBits; ++size)
            token_codes[kDcTokens + (kTailBits + 1) * table + size] =
                sizes[size] ? make_token_code(values[size], sizes[size], size) : 0;
    }
    for (uint32_t n = 0; n < 12; ++n)
        for (uint32_t value = 0; value < 1u << n; ++value)
            token_codes[kExtraTokens + (1u << n) + value] = make_token_code(value, n, 0);
}

}  // namespace fastload
