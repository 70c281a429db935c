#include "jpeg/symbol_search.h"

namespace fastload {

bool SymbolSearch::set(const HuffmanCode& code, bool dc) {
    code_ = code;
    dc_ = dc;
    uint32_t next = 0, i = 0;
    for (uint32_t length = 1; length <= 16; ++length, next <<= 1) {
        offset_[length] = int32_t(i) - int32_t(next);
        for (uint32_t n = code.lengths[length]; n; --n, ++i, ++next)
            if (i >= 256 || next + 1 >= (1u << length) || (dc && code.symbols[i] > 15))
                return false;
        limit_[length] = next;
    }
    return true;
}

uint32_t SymbolSearch::find(uint64_t bits, DecodedSymbol& found) const {
    const uint32_t ahead = uint32_t(bits >> 48);
    uint32_t length = 1;
    while (length <= 16 && ahead >> (16 - length) >= limit_[length]) ++length;
    if (length > 16) return 0;
    return read(bits, code_.symbols[int32_t(ahead >> (16 - length)) + offset_[length]], length,
                found);
}

uint32_t SymbolSearch::read(uint64_t bits, uint32_t symbol, uint32_t length,
                            DecodedSymbol& found) const {
    const SymbolMeaning meaning(symbol, dc_);
    found.symbol = symbol;
    found.extra_bits = meaning.extra_bits;
    found.extra = uint32_t(bits << length >> 1 >> (63 - meaning.extra_bits));
    found.advance = meaning.advance;
    return meaning.valid ? length + meaning.extra_bits : 0;
}

}  // namespace fastload
