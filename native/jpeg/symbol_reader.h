// Converts entropy-coded data to tokens: segments, MCUs, and the DC changes at their edges.
// jpeg/symbol_stream.h reads the symbols of one block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "jpeg/scan_shape.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// Reads the entropy-coded data of a scan into a list. Blocks beyond the edge of the image (MCUs are
// always complete) get the values that libjpeg writes: the DC of the previous block and no AC. No
// decoder shows them.
class ScanReader {
public:
    ScanReader();
    ~ScanReader();
    ScanReader(const ScanReader&) = delete;
    ScanReader& operator=(const ScanReader&) = delete;

    // Starts to read. The data must end with the end marker. The arguments must stay valid until
    // finish(). Returns false for any irregularity, damage or not; the caller then uses libjpeg.
    bool start(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list);
    // Reads the rest. Returns false for any irregularity.
    bool finish();

    // Reads both scans until one of them is nearly at its end. One scan alone waits for each table
    // lookup.
    static void read_together(ScanReader& one, ScanReader& other);
    // Whether read_together() can read more of this scan.
    bool has_more() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fastload
