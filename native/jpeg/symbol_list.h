// Entropy-coded data of a JPEG as a list of Huffman symbols with their extra bits. ScanReader fills
// it, and write_symbols() writes it with other Huffman tables and restart markers. The lossless
// rewrite needs nothing else: except for DC, no coefficient is decoded. If the AC tables stay the
// same, a list of blocks is enough, and write_blocks() copies their AC symbols as bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "jpeg/bit_reader.h"
#include "jpeg/symbol_tables.h"

namespace fastload {

// A block whose AC symbols are copied.
struct CopiedBlock {
    uint32_t ac;      // position of the AC symbols, in bits
    uint32_t n_bits;  // 0: an end of block only
    uint16_t dc_extra;
    uint8_t dc_size;
    uint8_t table;  // in the new file: 0 or 1, for DC and AC alike
};

struct SymbolList {
    struct Tables {  // 180 kB, kept between images
        SymbolTable dc[kMaxComponents], ac[kMaxComponents];
        std::vector<SymbolTable*> used;               // tables of this image
        uint32_t counts[kExtraTokens - kCodeTokens];  // of the tokens that no lookup finds
        TokenCode token_codes[kAllTokens];
    };

    std::unique_ptr<Tables> tables;
    std::unique_ptr<Token[]> tokens;
    size_t size = 0;
    size_t capacity = 0;
    std::vector<CopiedBlock> blocks;
    std::vector<size_t> segment_ends;  // in tokens or blocks
    uint32_t counts[256 * kTables] = {};
    std::vector<uint8_t> unstuffed;   // bytes of a segment without stuffed zeros
    std::vector<uint8_t> packed;      // the same of a new segment
    std::vector<uint32_t> turn_ends;  // see SymbolStream

    // The next 57 bits or more of `unstuffed` at a position in bits, from the top.
    uint64_t bits_at(uint32_t position) const {
        uint64_t word;
        std::memcpy(&word, unstuffed.data() + (position >> 3), sizeof word);
        return swap_to_big_endian(word) << (position & 7);
    }

    // Number of occurrences of each symbol of a table.
    const uint32_t* symbol_counts(size_t table) const { return counts + 256 * table; }

    void make_tables();
    void reserve(size_t n_more_tokens);
    void grow_unstuffed(size_t n_bytes);
    // Frees buffers that are larger than this.
    void shrink(size_t keep_bytes);
};

}  // namespace fastload
