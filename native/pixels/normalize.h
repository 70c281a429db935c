// (pixel - mean) / std in float32, rounded to the dtype of the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pixels/output.h"

namespace fastload {

// One per batch. Portable code looks up the value of each channel and pixel value; vector code
// computes it with the same two operations. IEEE 754 defines the rounding of both, so the results
// are identical.
class NormalizeTable {
public:
    // The mean and std of 24 contiguous items: of one channel, or of three interleaved channels.
    struct Pattern {
        float mean[24], std[24];
    };
    static constexpr int kInterleaved = -1;

    explicit NormalizeTable(const BatchOutput& output);
    // The item of each 8-bit pixel value.
    const uint32_t* values(int channel) const { return table_.data() + 256 * channel; }
    // The item of the fill color.
    uint32_t fill(int channel) const { return fill_[size_t(channel)]; }
    // Writes n pixels of 16 bits, `step` values apart, to items `stride` bytes apart.
    void write_wide(const uint16_t* pixels, int step, int n, int channel, uint8_t* to,
                    ptrdiff_t stride) const;
    const Pattern& pattern(int channel) const {
        return channel == kInterleaved ? interleaved_ : patterns_[size_t(channel)];
    }

private:
    uint32_t item(float pixel, int channel) const;

    Dtype dtype_;
    std::vector<uint32_t> table_;  // the bits of the value, in the low half for 16-bit dtypes
    std::vector<uint32_t> fill_;
    std::vector<Pattern> patterns_;
    Pattern interleaved_{};
};

namespace detail {
// Writes contiguous items, in whole registers only. Returns the number of items written.
size_t normalize_avx2(const uint8_t* pixels, size_t n, const NormalizeTable::Pattern& pattern,
                      Dtype dtype, uint8_t* to);

uint16_t to_float16(float value);  // round to nearest, ties to even
uint16_t to_bfloat16(float value);
}  // namespace detail

}  // namespace fastload
