// The fastest path of the lossless rewrite: keeps the Huffman tables of the old file and copies its
// entropy-coded data. A new restart marker changes only the next DC symbol of each component, so
// only these are encoded again. Finding them takes one pass over all symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/byte_buffer.h"
#include "jpeg/copy_table.h"
#include "jpeg/scan_shape.h"

namespace fastload {

class ScanCopier {
public:
    // Whether the encoder of the file optimized its tables: they do not hold every symbol, and so
    // are not the example tables of the standard. Also checks that the new file can have the same
    // tables, and that there are no restart markers to remove.
    static bool may_copy(const ScanShape& shape, size_t size);

    // Starts to read. The data must end with the end marker. The tables of the shape must stay
    // valid until finish(). Returns false for any irregularity, damage or not.
    bool start(const uint8_t* data, size_t size, const ScanShape& shape);
    // Reads both scans to the end of one of them. One scan alone waits for each table lookup.
    static void read_together(ScanCopier& one, ScanCopier& other);
    // Whether read_together() can read more of this scan.
    bool has_more() const { return state_ == State::kReading; }
    // Reads the rest, and returns the tables of the new file: the old ones, and maybe some more DC
    // symbols. Returns false for any irregularity.
    bool finish(HuffmanCode codes[kTables]);

    // Appends the data of the new file with its restart markers. `index` receives the offset in
    // `out` of each segment and of the end.
    void write(const HuffmanCode codes[kTables], ByteBuffer& out, std::vector<uint32_t>& index);

    // Frees buffers that are larger than this.
    void shrink(size_t keep_bytes);

private:
    enum class State { kReading, kDone, kFailed };
    // A block of an MCU. The last one is followed by the first one.
    struct Block {
        const CopyTable* ac;
        const DcTable *dc, *next_dc;  // next_dc: of the next block
        const Block* next;
        uint32_t component;
    };
    struct Stream : SymbolBits {
        const Block* block = nullptr;
        uint32_t* to = nullptr;  // receives the place where the next block starts

        bool turn(Entry found[CopyTable::kLookups]);
        // The position in bits, as a difference to an unknown origin.
        uint32_t place() const {
            return 8 * uint32_t(reinterpret_cast<uintptr_t>(next)) + uint32_t(progress & 255);
        }
    };
    // The first DC symbol of a component in a segment of the new file.
    struct FirstDc {
        uint32_t begin, end;  // in bits
        int32_t value;
    };

    void read();
    void read_with(ScanCopier& other);
    static void read_bmi2(ScanCopier& copier);
    static void read_together_bmi2(ScanCopier& one, ScanCopier& other);
    bool take_turn(Stream& stream) const;
    bool read_slowly(Stream& stream, const Entry found[CopyTable::kLookups]) const;
    size_t safe_turns(const Stream& stream) const;
    void end_reading(const Stream& stream, bool good);
    bool find_firsts();
    static bool find_firsts_bmi2(ScanCopier& copier);
    void write_segments(const HuffmanCode codes[kTables], ByteBuffer& out,
                        std::vector<uint32_t>& index) const;
    static void write_segments_bmi2(const ScanCopier& copier, const HuffmanCode codes[kTables],
                                    ByteBuffer& out, std::vector<uint32_t>& index);

    State state_ = State::kFailed;
    const ScanShape* shape_ = nullptr;
    CopyTable ac_[2];  // by table of the new file
    DcTable dc_[2];
    std::vector<uint8_t> bytes_;  // without stuffed zeros
    size_t n_bytes_ = 0;
    Stream stream_;
    Block blocks_[kMaxBlocks];
    std::vector<uint32_t> starts_;  // places of all blocks and of the end
    std::vector<FirstDc> firsts_;   // n_components for each segment
    uint32_t end_ = 0;              // of the last block, in bits
};

}  // namespace fastload
