// The symbols of one Huffman table, one at a time: their meaning, and the search for a code of any
// length.
#pragma once

#include <cstdint>

#include "jpeg/huffman.h"
#include "jpeg/symbol_bits.h"

namespace fastload {

// `valid` is false for symbols that a regular 8-bit file does not have.
struct SymbolMeaning {
    uint32_t extra_bits, advance;  // advance: as in Entry
    bool valid;

    SymbolMeaning(uint32_t symbol, bool dc) {
        extra_bits = dc ? symbol : symbol & 15;
        advance = dc || symbol == 0 ? kEnd : symbol == 0xF0 ? 16 : (symbol >> 4) + 1;
        valid =
            dc ? symbol <= 11 : extra_bits <= 10 && (extra_bits || symbol == 0 || symbol == 0xF0);
    }
};

// A symbol with its extra bits.
struct DecodedSymbol {
    uint32_t symbol = 0, extra_bits = 0, extra = 0;
    uint32_t advance = 0;  // as in Entry
};

constexpr uint32_t kMaxDcSize = 11;

// A DC difference: a leading 0 means a negative number.
inline int32_t dc_difference(uint32_t size, uint32_t extra) {
    return int32_t(extra) - ((1 << size) - 1) * (extra < 1u << size >> 1);
}

// The reverse. Without branches: about every second difference is 0.
inline uint32_t dc_size(int32_t difference) {
    const uint32_t magnitude = uint32_t(difference < 0 ? -difference : difference);
    return 31 - uint32_t(__builtin_clz(2 * magnitude + 1));
}
inline uint16_t dc_extra(int32_t difference, uint32_t size) {
    return uint16_t(uint32_t(difference - (difference < 0)) & ((1u << size) - 1));
}

class SymbolSearch {
public:
    // Returns false for an invalid table by the rules of libjpeg: too many codes, a code of ones
    // only, a DC symbol above 15.
    bool set(const HuffmanCode& code, bool dc);

    const HuffmanCode& code() const { return code_; }
    bool is_dc() const { return dc_; }

    // Reads one symbol of any length. `bits` are the next 64 bits. Returns the number of bits used,
    // or 0 if the code does not exist or is invalid in an 8-bit file.
    uint32_t find(uint64_t bits, DecodedSymbol& found) const;
    // The same if the symbol and the length of its code are known.
    uint32_t read(uint64_t bits, uint32_t symbol, uint32_t length, DecodedSymbol& found) const;

    // Calls each(symbol, code, length) for each code of at most `longest` bits and a valid symbol,
    // in the order of the codes.
    template <typename Each>
    void each_code(uint32_t longest, Each each) const {
        uint32_t next = 0, i = 0;
        for (uint32_t length = 1; length <= longest; ++length, next <<= 1)
            for (uint32_t n = code_.lengths[length]; n; --n, ++i, ++next)
                if (SymbolMeaning(code_.symbols[i], dc_).valid)
                    each(uint32_t(code_.symbols[i]), next, length);
    }

private:
    HuffmanCode code_;
    bool dc_ = false;
    int32_t offset_[17];  // index of a symbol - its code, by code length
    uint32_t limit_[17];  // codes of this length are below it
};

}  // namespace fastload
