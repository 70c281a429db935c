// From entropy-coded data to tokens: segments, MCUs, and how DC changes at their edges.
// jpeg/block_reader.h reads the symbols of one block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// What the symbols of a scan mean. Components in the order of the scan.
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

// Reads the entropy-coded data at `data`, which must end with the end marker. False for everything
// that is not perfectly regular, damaged or not: the caller then leaves the file to libjpeg. Blocks
// beyond the image's edge (an MCU is always whole) get the values that libjpeg writes: the DC of
// the block before, no AC. No decoder shows them.
bool read_symbols(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list);

}  // namespace fastload
