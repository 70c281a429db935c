// What a scan contains, for the two readers of the lossless rewrite.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.h"

namespace fastload {

constexpr size_t kTables = 4;  // Huffman tables of the new file: 0, 1 DC; 2, 3 AC
constexpr uint32_t kMaxComponents = 3;
constexpr uint32_t kMaxBlocks = 10;  // in an MCU

// Components are in scan order.
struct ScanShape {
    struct Component {
        uint32_t h = 1, v = 1;  // blocks in an MCU; at most kMaxBlocks over all components
        uint32_t width_in_blocks = 0, height_in_blocks = 0;
        uint8_t table = 0;                // in the new file: 0 or 1, for DC and AC alike
        const HuffmanCode* dc = nullptr;  // in the old file
        const HuffmanCode* ac = nullptr;
    };
    Component components[kMaxComponents];
    uint32_t n_components = 0;
    uint32_t mcus_per_row = 0, mcu_rows = 0;
    uint32_t old_interval = 0, new_interval = 0;  // MCUs between restart markers; 0: none

    uint64_t n_mcus() const { return uint64_t(mcus_per_row) * mcu_rows; }
    uint32_t n_blocks() const {  // in an MCU
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_components; ++i) n += components[i].h * components[i].v;
        return n;
    }
};

}  // namespace fastload
