// A faster Huffman decoder for libjpeg, which spends 70 % of a decode there. It supports baseline
// JPEGs with one scan, which pack writes. At the first irregularity it fails, and the caller
// decodes the image again with libjpeg alone, whose errors and pixels are authoritative.
//
// libjpeg calls its stages through tables of function pointers. This class replaces the function
// that decodes an MCU. The table is private but has not changed from version 6b to libjpeg-turbo
// 3.1, and before the first use an image is decoded both ways and compared (jpeg/entropy_hook.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/bit_reader.h"
#include "jpeg/entropy_table.h"
#include "jpeg/libjpeg_errors.h"

namespace fastload {

// Width and height of a decoded block of this component, in samples.
inline unsigned block_side(const jpeg_component_info& component) {
#if JPEG_LIB_VERSION >= 70
    return unsigned(component.DCT_h_scaled_size);
#else
    return unsigned(component.DCT_scaled_size);
#endif
}

class EntropyReader {
public:
    // Replaces the entropy decoder of an image right after jpeg_start_decompress(). MCUs outside
    // columns [first, last] are read but not stored. Returns false for an unsupported kind of
    // image, which libjpeg then decodes itself. Uses decoder.client_data. The reader must live
    // until the image is finished or aborted.
    bool attach(jpeg_decompress_struct& decoder, unsigned first_column, unsigned last_column);
    bool finished() const { return mcus_left_ == 0; }

private:
    struct Block {
        const EntropyTable *dc, *ac;
        uint8_t component;
        bool store_dc, store_ac;
    };

    static boolean decode_mcu(j_decompress_ptr decoder, JBLOCKROW* blocks);
    bool decode(JBLOCKROW* blocks);
    template <bool kStore>
    static bool decode_ac(BitReader& bits, const EntropyTable& table, JCOEF* block);
    template <bool kStore>
    bool decode_blocks(JBLOCKROW* blocks);
    static bool decode_dc_slow(BitReader& bits, const EntropyTable& table, int32_t& value);
    static bool decode_slow(BitReader& bits, const EntropyTable& table, unsigned& k, JCOEF* block);
    void begin_segment();
    bool end_segment();
    void refill_bytes();

    jpeg_decompress_struct* decoder_ = nullptr;
    EntropyTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];
    Block blocks_[D_MAX_BLOCKS_IN_MCU];
    int n_blocks_ = 0;
    // Unsigned: may overflow with damaged data, as in libjpeg.
    uint32_t last_dc_[MAX_COMPS_IN_SCAN] = {};
    unsigned column_ = 0, columns_ = 0, first_column_ = 0, last_column_ = 0;
    uint64_t mcus_left_ = 0;
    unsigned interval_ = 0, segment_left_ = 0, segment_ = 0;

    // Unstuffed bytes of the file, refilled from next_. Valid from at_ to end_, then zeros.
    std::vector<uint8_t> unstuffed_;
    // Largest size of an MCU in bytes. This much is read without checking for the end.
    size_t worst_mcu_ = 0;
    const uint8_t *next_ = nullptr, *stop_ = nullptr;  // in the file
    const uint8_t *at_ = nullptr, *end_ = nullptr;     // in unstuffed_
    bool at_marker_ = false;  // next_ is at a marker: the segment has no more bytes
    uint64_t buffer_ = 0;     // the next bits, starting at the top
    uint64_t count_ = 0;      // number of valid bits
};

}  // namespace fastload
