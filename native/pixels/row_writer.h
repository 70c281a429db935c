// Writes finished rows of pixels to a batch: any strides, interleaved or planar, uint8,
// uint16 or normalized floating point. Fills letterbox borders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pixels/normalize.h"
#include "pixels/output.h"

namespace fastload {

// Writes the rows of one sample into its slot, at (left, top) of the canvas.
class RowWriter {
public:
    // `table` is null for uint8 only. `channels` is the number of channels of the
    // rows: 1 channel is repeated, and 3 channels become gray if the output has 1. With
    // Color::kStored, channels are the bytes of numbers, and missing bytes are zero.
    void begin(const BatchOutput& output, const NormalizeTable* table, int64_t slot, int left,
               int top, int width, int height, int channels, bool swap_red_blue);
    // Returns the address for writing row y in place, or null.
    uint8_t* direct(int y) const { return direct_ ? place(y, 0) : nullptr; }
    void write(int y, const uint8_t* row);
    void write_wide(int y, const uint16_t* row);  // pixels of 16 bits
    void write_rows(int y, const uint8_t* rows, ptrdiff_t stride, int n);
    // Fills the area that the rows do not cover.
    void fill_borders();

    // Fills the whole slot, for a sample that failed.
    static void fill_slot(const BatchOutput& output, const NormalizeTable* table, int64_t slot);

private:
    uint8_t* place(int y, int channel) const {
        return slot_ + (top_ + y) * output_->row_stride + left_ * output_->pixel_stride +
               channel * output_->channel_stride;
    }
    const uint8_t* zeros(size_t n);
    void write_plane(uint8_t* to, const uint8_t* row, int step, int channel) const;
    void write_contiguous(uint8_t* to, const uint8_t* pixels, size_t n, int channel) const;

    const BatchOutput* output_ = nullptr;
    const NormalizeTable* table_ = nullptr;
    uint8_t* slot_ = nullptr;
    ptrdiff_t left_ = 0, top_ = 0;
    int width_ = 0, height_ = 0, channels_ = 0;
    bool swap_ = false, direct_ = false, vector_ = false;
    // Whether the items of a channel, and of a pixel, are contiguous.
    bool contiguous_planes_ = false, contiguous_pixels_ = false;
    std::vector<uint8_t> gray_, zeros_, split_, narrow_;
    std::vector<uint16_t> wide_gray_;
};

namespace detail {
// Splits n pixels of three interleaved bytes into three planes.
void split3_portable(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n);
void split3_avx2(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n);
}  // namespace detail

}  // namespace fastload
