// Converts entropy-coded data to tokens: segments, MCUs, and the DC changes at their edges.
// jpeg/block_reader.h reads the symbols of one block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

// Reads the entropy-coded data of a scan into a list. Blocks beyond the edge of the image (MCUs are
// always complete) get the values that libjpeg writes: the DC of the previous block and no AC. No
// decoder shows them.
class ScanReader {
public:
    ScanReader();
    ~ScanReader();
    ScanReader(const ScanReader&) = delete;
    ScanReader& operator=(const ScanReader&) = delete;

    // kTokens: every symbol becomes part of a token. kBlocks: only DC symbols are kept, and AC
    // symbols are found and counted, but stay in the old code. The rewrite of a photo then takes
    // 25 % fewer instructions. It needs data without restart markers.
    enum class Symbols { kTokens, kBlocks };

    // Starts to read. The data must end with the end marker. The arguments must stay valid until
    // finish(). Returns false for any irregularity, damage or not; the caller then uses libjpeg.
    bool start(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list,
               Symbols as);
    // Reads the rest. Returns false for any irregularity.
    bool finish();

    // Reads both scans until one of them is nearly at its end, if both become tokens or both become
    // blocks. One scan alone waits for each table lookup.
    static void read_together(ScanReader& one, ScanReader& other);
    // Whether read_together() can read more of this scan.
    bool has_more() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fastload
