// Huffman codes of JPEG: canonical, at most 16 bits, no code of ones only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// A table as in DHT: the number of codes of each length, and the symbols in the order of their
// codes.
struct HuffmanCode {
    uint8_t lengths[17] = {};  // [1..16]
    uint8_t symbols[256] = {};
    size_t n_symbols = 0;
};

// Computes the optimal code for symbols that occur `counts[symbol]` times. Returns false if an
// intermediate code would have more than 32 bits (counts like Fibonacci numbers, in the millions).
// The result is identical to jpeg_gen_optimal_table of libjpeg.
bool make_optimal_code(const uint32_t counts[256], HuffmanCode& code);

// Whether both have the same codes. Compares all 256 symbols, used or not.
bool is_same(const HuffmanCode& one, const HuffmanCode& other);

// Lists codes and their lengths by symbol; length 0: the symbol has no code.
void list_codes(const HuffmanCode& code, uint16_t codes[256], uint8_t sizes[256]);

}  // namespace fastload
