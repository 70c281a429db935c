// Converts entropy-coded data to tokens: segments, MCUs, and the DC changes at their edges.
// jpeg/block_reader.h reads the symbols of one block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// Describes the symbols of a scan. Components are in scan order.
struct ScanShape {
    struct Component {
        uint32_t h = 1, v = 1;  // blocks in an MCU; at most 10 over all components
        uint32_t width_in_blocks = 0, height_in_blocks = 0;
        uint8_t table = 0;                // in the new file: 0 or 1, for DC and AC alike
        const HuffmanCode* dc = nullptr;  // in the old file
        const HuffmanCode* ac = nullptr;
    };
    Component components[kMaxComponents];
    uint32_t n_components = 0;
    uint32_t mcus_per_row = 0, mcu_rows = 0;
    uint32_t old_interval = 0, new_interval = 0;  // MCUs between restart markers; 0: none
};

// Reads the entropy-coded data at `data`, which must end with the end marker. Returns false for any
// irregularity, damage or not; the caller then uses libjpeg. Blocks beyond the edge of the image
// (MCUs are always complete) get the values that libjpeg writes: the DC of the previous block and
// no AC. No decoder shows them.
bool read_symbols(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list);

}  // namespace fastload
