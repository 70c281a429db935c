// Entropy-coded data of a JPEG as a list of Huffman symbols with their extra bits. ScanReader fills
// it, and write_symbols() writes it with other Huffman tables and restart markers. The lossless
// rewrite needs nothing else: except for DC, no coefficient is decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "jpeg/symbol_tables.h"

namespace fastload {

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
    std::vector<size_t> segment_ends;
    uint32_t counts[256 * kTables] = {};
    std::vector<uint8_t> unstuffed;   // bytes of a segment without stuffed zeros
    std::vector<uint8_t> packed;      // the same of a new segment
    std::vector<uint32_t> turn_ends;  // see SymbolStream

    // Number of occurrences of each symbol of a table.
    const uint32_t* symbol_counts(size_t table) const { return counts + 256 * table; }

    void make_tables();
    void reserve(size_t n_more_tokens);
    void grow_unstuffed(size_t n_bytes);
    // Frees buffers that are larger than this.
    void shrink(size_t keep_bytes);
};

}  // namespace fastload
