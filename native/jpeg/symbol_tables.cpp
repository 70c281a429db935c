#include "jpeg/symbol_tables.h"

#include <algorithm>

namespace fastload {
namespace {

uint32_t low_bits(uint32_t value, uint32_t n) {
    return value & ((1u << n) - 1);
}

}  // namespace

bool SymbolTable::build(const HuffmanCode& code, uint32_t new_table, uint32_t first_number) {
    std::fill_n(counts, size_t(1) << kLookupBits, 0u);
    const Token first = first_number << kTailBits;
    if (built_ && new_table == new_table_ && first == first_token && is_same(code, search_.code()))
        return true;  // most files have the standard tables
    new_table_ = new_table;
    first_token = first;
    built_ = search_.set(code, is_dc());
    if (!built_) return false;
    zeros_ = n_zeros_ = 0;
    std::fill_n(single_, size_t(1) << kLookupBits, uint16_t(0));
    search_.each_code(kLookupBits, [&](uint32_t symbol, uint32_t value, uint32_t length) {
        const uint32_t begin = value << (kLookupBits - length), n = 1u << (kLookupBits - length);
        std::fill_n(single_ + begin, n, uint16_t(symbol | length << 8));
        if (!is_dc() && symbol == 0xF0) {
            zeros_ = first_number + begin;
            n_zeros_ = n;
        }
    });
    join();
    return true;
}

// Joins as many AC symbols as fit, at most three. A run of 16 zeros stays alone, because it is
// removed before an end of block.
void SymbolTable::join() {
    constexpr uint32_t kMask = (1u << kLookupBits) - 1, kMost = kLookupBits + kTailBits;
    const int most = is_dc() ? 1 : 3;
    for (uint32_t i = 0; i <= kMask; ++i) {
        uint32_t used = 0, advance = 0;
        for (int n = 0; n < most && used < kLookupBits; ++n) {
            const uint32_t single = single_[i << used & kMask], symbol = single & 255,
                           length = single >> 8;
            const SymbolMeaning meaning(symbol, is_dc());
            if (!single || used + length > kLookupBits ||
                used + length + meaning.extra_bits > kMost || (n && symbol == 0xF0))
                break;
            used += length + meaning.extra_bits;
            advance += meaning.advance;
            if (!symbol || symbol == 0xF0) break;
        }
        entries[i] = make_entry(used, used ? advance : kUnknown);
    }
}

// The reverse of dc_token().
DecodedSymbol SymbolTable::dc_of_size(Token token) const {
    const uint32_t number = (token >> kTailBits) - kSizeTokens - kSizesOfTable * new_table_,
                   tail = low_bits(token, kTailBits);
    if (number < kTailBits) return {number, number, tail >> (kTailBits - number), 0};
    const uint32_t high = number - (kTailBits - 1), n = 31 - uint32_t(__builtin_clz(high)),
                   size = kTailBits + n;
    return {size, size, low_bits(high, n) << kTailBits | tail, 0};
}

// Calls each(symbol, extra bits, bits used up to its end) for every symbol that a lookup finds.
template <typename Each>
void SymbolTable::each_symbol(uint32_t looked_up, Each each) const {
    const uint32_t last = entries[looked_up] & 255;
    for (uint32_t used = 0; used < last;) {
        const uint32_t single = single_[looked_up << used & ((1u << kLookupBits) - 1)],
                       symbol = single & 255;
        used += (single >> 8) + (symbol & 15);
        each(symbol, symbol & 15, used);
    }
}

// Calls each(bits) for every lookup that occurs. A small image has few of them.
template <typename Each>
void SymbolTable::each_lookup(Each each) const {
    constexpr uint32_t kGroup = 16;
    for (uint32_t first = 0; first < 1u << kLookupBits; first += kGroup) {
        uint32_t any = 0;
        for (uint32_t i = first; i < first + kGroup; ++i) any |= counts[i];
        for (uint32_t i = first; any && i < first + kGroup; ++i)
            if (counts[i]) each(i);
    }
}

void SymbolTable::count(uint32_t* symbols) const {
    uint32_t* own = symbols + 256 * new_table_;
    each_lookup([&](uint32_t i) {
        each_symbol(i, [&](uint32_t symbol, uint32_t, uint32_t) { own[symbol] += counts[i]; });
    });
}

bool SymbolTable::translate(TokenCode* token_codes) const {
    const TokenCode* codes = token_codes + code_number(0);
    bool fits = true;
    each_lookup([&](uint32_t i) {
        uint64_t value = 0;
        uint32_t length = 0, end = 0;
        each_symbol(i, [&](uint32_t symbol, uint32_t extra, uint32_t used) {
            const uint32_t beyond = used > kLookupBits ? used - kLookupBits : 0,
                           within = extra - beyond;
            const TokenCode code = codes[symbol];
            value = (value << (code & 63) | code >> 12) << within |
                    low_bits(i >> (kLookupBits + beyond - used), within);
            length += uint32_t(code & 63) + within;
            end = beyond;
        });
        // Three codes of 13 or more bits in one lookup: possible, but not observed.
        fits = fits && length + end <= kTokenCodeBits;
        token_codes[(first_token >> kTailBits) + i] = make_token_code(value, length, end);
    });
    return fits;
}

void list_token_codes(const HuffmanCode codes[kTables], TokenCode* token_codes) {
    for (uint32_t table = 0; table < kTables; ++table) {
        uint16_t values[256];
        uint8_t sizes[256];
        list_codes(codes[table], values, sizes);
        for (uint32_t symbol = 0; symbol < 256; ++symbol)
            token_codes[kCodeTokens + 256 * table + symbol] =
                sizes[symbol] ? make_token_code(values[symbol], sizes[symbol], 0) : 0;
        for (uint32_t size = 0; table < 2 && size <= kMaxDcSize; ++size) {
            const uint32_t tail = std::min(size, kTailBits), n = size - tail;
            TokenCode* first = token_codes + (dc_token(table, size, 0) >> kTailBits);
            for (uint32_t high = 0; high < 1u << n; ++high)
                first[high] = sizes[size] ? make_token_code(uint64_t(values[size]) << n | high,
                                                            sizes[size] + n, tail)
                                          : 0;
        }
    }
}

void list_extra_codes(TokenCode* token_codes) {
    for (uint32_t n = 0; n < 12; ++n)
        for (uint32_t value = 0; value < 1u << n; ++value)
            token_codes[kExtraTokens + (1u << n) + value] = make_token_code(value, n, 0);
}

}  // namespace fastload
