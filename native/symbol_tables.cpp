#include "symbol_tables.h"

#include <algorithm>

namespace fastload {
namespace {

// How a symbol is to be read; `valid` is false for what a regular 8-bit file does not have.
struct Meaning {
    uint32_t extra_bits, advance;
    bool valid;

    Meaning(uint32_t symbol, bool dc) {
        extra_bits = dc ? symbol : symbol & 15;
        advance = dc ? 0 : symbol == 0 ? SymbolTable::kEnd : symbol == 0xF0 ? 16 : (symbol >> 4) + 1;
        valid = dc ? symbol <= 11 : extra_bits <= 10 && (extra_bits || symbol == 0 || symbol == 0xF0);
    }
};

constexpr uint32_t kTooMany = 64;  // bits for a look-up; the length of the code alone is added

uint32_t low_bits(uint32_t value, uint32_t n) { return value & ((1u << n) - 1); }

}  // namespace

bool SymbolTable::build(const HuffmanCode& code, uint32_t new_table, uint32_t first_token) {
    code_ = &code;
    new_table_ = new_table;
    first_token_ = first_token;
    zeros_ = n_zeros_ = 0;
    std::fill_n(single_, size_t(1) << bits(), uint16_t(0));
    uint32_t next = 0;
    size_t i = 0;
    for (uint32_t length = 1; length <= 16; ++length, next <<= 1) {
        offset_[length] = int32_t(i) - int32_t(next);
        for (size_t n = code.lengths[length]; n; --n, ++i, ++next) {
            if (i >= 256 || next + 1 >= (1u << length) || (is_dc() && code.symbols[i] > 15)) return false;
            if (length <= bits()) list(code.symbols[i], next, length);
        }
        limit_[length] = next;
    }
    if (is_dc()) list_differences();
    else join();
    return true;
}

void SymbolTable::list(uint32_t symbol, uint32_t code, uint32_t length) {
    Meaning meaning(symbol, is_dc());
    uint32_t used = length + meaning.extra_bits;
    const uint32_t first = code << (bits() - length), n = 1u << (bits() - length);
    std::fill_n(single_ + first, n, uint16_t(symbol | (meaning.valid && used <= bits() ? used : kTooMany + length) << 8));
    if (!is_dc() && symbol == 0xF0) {
        zeros_ = first_token_ + first;
        n_zeros_ = n;
    }
}

// As many symbols as fit, three at most: their new codes must fit an Output. 16 zeros stay alone, because they go where the
// end of the block follows.
void SymbolTable::join() {
    constexpr uint32_t kMask = (1u << kAcBits) - 1;
    for (uint32_t i = 0; i <= kMask; ++i) {
        uint32_t used = 0, advance = 0;
        for (int n = 0; n < 3; ++n) {
            const uint32_t single = single_[i << used & kMask], symbol = single & 255, more = single >> 8;
            if (!single || used + more > kAcBits || (n && symbol == 0xF0)) break;
            used += more;
            advance += Meaning(symbol, false).advance;
            if (!symbol || symbol == 0xF0) break;
        }
        fast_[i] = uint16_t(used ? used | advance << 6 : kUnknown << 6);
    }
}

void SymbolTable::list_differences() {
    for (uint32_t i = 0; i < 1u << kDcBits; ++i) {
        uint32_t size = single_[i] & 255, used = single_[i] >> 8;
        differences_[i] = used && used < kTooMany ? used | uint32_t(dc_difference(size, low_bits(i >> (kDcBits - used), size))) << 16 : 0;
    }
}

bool SymbolTable::search(BitReader& reader, Found& found) const {
    reader.refill();
    uint32_t ahead = reader.peek(16), listed = single_[ahead >> (16 - bits())], length = bits() + 1;
    if (listed) {
        found.symbol = listed & 255;
    } else {
        while (length <= 16 && ahead >> (16 - length) >= limit_[length]) ++length;
        if (length > 16) return false;
        found.symbol = code_->symbols[int32_t(ahead >> (16 - length)) + offset_[length]];
    }
    const Meaning meaning(found.symbol, is_dc());
    // Not by symbol: a table may list one twice.
    if (listed) length = listed >> 8 < kTooMany ? (listed >> 8) - meaning.extra_bits : (listed >> 8) - kTooMany;
    found.extra_bits = meaning.extra_bits;
    found.extra = reader.peek_behind(length, meaning.extra_bits);
    found.advance = meaning.advance;
    reader.drop(length + meaning.extra_bits);
    return meaning.valid;
}

void SymbolTable::count(const uint32_t* tokens, uint32_t* symbols) const {
    uint32_t* own = symbols + 256 * new_table_;
    const uint32_t n_bits = bits(), mask = (1u << n_bits) - 1;
    for (uint32_t i = 0; i <= mask; ++i) {
        const uint32_t n = tokens[first_token_ + i];
        if (!n) continue;
        const uint32_t last = (is_dc() ? differences_[i] : fast_[i]) & 63;
        for (uint32_t used = 0; used < last;) {
            const uint32_t single = single_[i << used & mask];
            own[single & 255] += n;
            used += single >> 8;
        }
    }
}

void SymbolTable::translate(Output* outputs) const {
    const Output* codes = outputs + code_token(0);
    const uint32_t n_bits = bits(), mask = (1u << n_bits) - 1;
    for (uint32_t i = 0; i <= mask; ++i) {
        const uint32_t last = (is_dc() ? differences_[i] : fast_[i]) & 63;
        uint64_t value = 0, length = 0;
        for (uint32_t used = 0; used < last;) {
            const uint32_t single = single_[i << used & mask], symbol = single & 255;
            const uint32_t end = used + (single >> 8), extra = is_dc() ? symbol : symbol & 15;
            const Output code = codes[symbol];
            value = (value << (code & 63) | code >> 6) << extra | low_bits(i >> (n_bits - end), extra);
            length += (code & 63) + extra;
            used = end;
        }
        outputs[first_token_ + i] = value << 6 | length;
    }
}

void list_outputs(const HuffmanCode codes[kTables], Output* outputs) {
    for (size_t table = 0; table < kTables; ++table) {
        uint16_t values[256];
        uint8_t sizes[256];
        list_codes(codes[table], values, sizes);
        for (size_t symbol = 0; symbol < 256; ++symbol)
            outputs[kCodeTokens + 256 * table + symbol] = sizes[symbol] ? Output(values[symbol]) << 6 | sizes[symbol] : 0;
    }
    for (uint32_t n = 0; n < 12; ++n)
        for (uint32_t value = 0; value < 1u << n; ++value) outputs[kExtraTokens + (1u << n) + value] = value << 6 | n;
}

}  // namespace fastload
