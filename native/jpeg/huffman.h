// Huffman codes as JPEG has them: canonical, at most 16 bits, no code of ones only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// A table as DHT lists it: how many codes of each length, and the symbols in order of their codes.
struct HuffmanCode {
    uint8_t lengths[17] = {};  // [1..16]
    uint8_t symbols[256] = {};
    size_t n_symbols = 0;
};

// The best code for symbols that occur `counts[symbol]` times. False where a code of more than 32
// bits would come up on the way (counts like Fibonacci numbers, in the millions). Same result, to
// the byte, as libjpeg's jpeg_gen_optimal_table.
bool make_optimal_code(const uint32_t counts[256], HuffmanCode& code);

// Codes and their lengths by symbol; length 0 = the symbol has none.
void list_codes(const HuffmanCode& code, uint16_t codes[256], uint8_t sizes[256]);

}  // namespace fastload
