// A JPEG's entropy-coded data as a list of Huffman symbols with their extra bits: what a change of
// Huffman tables and restart markers needs, and no more. No coefficient is ever put together, but
// the DC ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "jpeg/byte_buffer.h"
#include "jpeg/huffman.h"
#include "jpeg/symbol_tables.h"

namespace fastload {

// What the symbols mean. Components in the order of the scan.
struct ScanShape {
    struct Component {
        uint32_t h = 1, v = 1;  // blocks in an MCU; at most 10 in all components together
        uint32_t width_in_blocks = 0, height_in_blocks = 0;
        uint8_t table = 0;                // of the new file: 0 or 1, for DC and AC alike
        const HuffmanCode* dc = nullptr;  // of the old file
        const HuffmanCode* ac = nullptr;
    };
    Component components[kMaxComponents];
    uint32_t n_components = 0;
    uint32_t mcus_per_row = 0, mcu_rows = 0;
    uint32_t old_interval = 0, new_interval = 0;  // MCUs between restart markers, 0 = none
};

class SymbolList {
public:
    // Reads the entropy-coded data at `data`, which must end with the end marker. False for
    // everything that is not perfectly regular, damaged or not: the caller then lets libjpeg judge.
    // Blocks beyond the image's edge (an MCU is always whole) come out as libjpeg writes them: the
    // DC of the block before, no AC. No decoder shows them.
    bool read(const uint8_t* data, size_t size, const ScanShape& shape);

    // Appends the symbols, after read(), in new codes to `out`, with restart markers. `index` gets
    // the offset in `out` of each segment and of the end.
    void write(const HuffmanCode codes[kTables], ByteBuffer& out, std::vector<uint32_t>& index);

    // How often each symbol of a table occurs.
    const uint32_t* counts(size_t table) const { return counts_ + 256 * table; }

    // Frees what a huge image made it keep beyond this many bytes.
    void shrink(size_t keep);

private:
    friend class SymbolReader;
    struct Tables {  // 110 kB, kept between images
        SymbolTable dc[kMaxComponents], ac[kMaxComponents];
        std::vector<SymbolTable*> used;   // AC, of this image
        uint32_t counts[kCountedTokens];  // by token number, as the outputs
        Output outputs[kAllTokens];
    };
    void reserve(size_t more);
    void grow_plain(size_t size);

    std::unique_ptr<Tables> tables_;
    std::unique_ptr<Token[]> tokens_;
    size_t size_ = 0, capacity_ = 0;
    std::vector<size_t> ends_;  // of the segments, in tokens_
    uint32_t counts_[256 * kTables] = {};
    std::vector<uint8_t> plain_;  // bytes of a segment without stuffed zeros
};

}  // namespace fastload
