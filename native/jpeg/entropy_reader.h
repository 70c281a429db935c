// A faster Huffman decoder in libjpeg's place: 70 % of a decode is that. It serves baseline JPEGs
// with one scan, the kind that pack writes; at the first irregularity it gives up, and the caller
// decodes the image again with libjpeg alone, whose verdict and pixels count.
//
// libjpeg keeps its parts behind tables of function pointers; here the one entry "decode an MCU" is
// replaced. That table is private but has not changed from version 6b to libjpeg-turbo 3.1, and
// before the first use an image is decoded both ways and compared (jpeg/entropy_hook.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/bit_reader.h"
#include "jpeg/entropy_table.h"
#include "jpeg/libjpeg_errors.h"

namespace fastload {

// How many samples wide, and high, a block of this component is decoded.
inline unsigned block_side(const jpeg_component_info& component) {
#if JPEG_LIB_VERSION >= 70
    return unsigned(component.DCT_h_scaled_size);
#else
    return unsigned(component.DCT_scaled_size);
#endif
}

class EntropyReader {
public:
    // Takes over the image that jpeg_start_decompress() has just been called for. MCUs outside
    // columns [first, last] are read but not stored. False: not this kind of image, libjpeg goes on
    // by itself. Needs decoder.client_data for itself. The reader must live until the image is
    // finished or aborted.
    bool take_over(jpeg_decompress_struct& decoder, unsigned first_column, unsigned last_column);
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
    static bool decode_dc_slowly(BitReader& bits, const EntropyTable& table, int32_t& value);
    static bool decode_slowly(BitReader& bits, const EntropyTable& table, unsigned& k,
                              JCOEF* block);
    void begin_segment();
    bool end_segment();
    void more_bytes();

    jpeg_decompress_struct* decoder_ = nullptr;
    EntropyTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];
    Block blocks_[D_MAX_BLOCKS_IN_MCU];
    int n_blocks_ = 0;
    uint32_t last_dc_[MAX_COMPS_IN_SCAN] =
        {};  // unsigned: damaged data may let it run over, as libjpeg does
    unsigned column_ = 0, columns_ = 0, first_column_ = 0, last_column_ = 0;
    uint64_t mcus_left_ = 0;
    unsigned interval_ = 0, segment_left_ = 0, segment_ = 0;

    // Bytes of the file without stuffing, refilled from next_ on; valid from at_ to end_, then
    // zeros.
    std::vector<uint8_t> plain_;
    size_t worst_mcu_ =
        0;  // bytes that one MCU can take: so much is read without looking for the end
    const uint8_t *next_ = nullptr, *stop_ = nullptr;  // in the file
    const uint8_t *at_ = nullptr, *end_ = nullptr;     // in plain_
    bool at_marker_ = false;  // next_ is at a marker: the segment has no more bytes
    uint64_t buffer_ = 0;     // the next bits, from the top
    uint64_t count_ = 0;      // how many of them are there
};

}  // namespace fastload
