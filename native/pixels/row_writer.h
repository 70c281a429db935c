// Where finished rows go: any strides, interleaved or planar, uint8 or normalised floating point;
// letterbox borders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fastload {

enum class Dtype : uint8_t { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };
enum class Colour : uint8_t {
    kRgb = 0,
    kBgr = 1,
    kGray = 2,
    kStored = 3
};  // kStored: channels as they are (masks)

constexpr int kMaxChannels = 8;  // 4 channels of 16 bits, as bytes

// The memory of a whole batch, as the caller owns it; strides in bytes.
struct Output {
    uint8_t* memory = nullptr;
    int64_t slots = 0, height = 0, width = 0;
    int channels = 0;
    ptrdiff_t slot_stride = 0, row_stride = 0, pixel_stride = 0, channel_stride = 0;
    Dtype dtype = Dtype::kUint8;
    Colour colour = Colour::kRgb;
    uint8_t fill[kMaxChannels] = {};  // letterbox borders and failed samples, before normalising
    float mean[kMaxChannels] = {},
          std[kMaxChannels] = {};  // out = (pixel - mean) / std; in levels, 0..255

    size_t item_size() const {
        return dtype == Dtype::kUint8 ? 1 : dtype == Dtype::kFloat32 ? 4 : 2;
    }
};

// (level - mean) / std in float32, rounded to the dtype. One for a batch.
// Portable code looks up the items of each channel and level; vector code computes them by the same
// two operations, each of which IEEE 754 rounds in one way only, so that they cannot differ.
class NormaliseTable {
public:
    // What 24 items that lie side by side are normalised by: all by one channel's, or by those of
    // three channels in turn.
    struct Pattern {
        float mean[24], std[24];
    };
    static constexpr int kInTurn = -1;

    explicit NormaliseTable(const Output& output);
    const uint32_t* levels(int channel) const { return table_.data() + 256 * channel; }
    const Pattern& pattern(int channel) const {
        return channel == kInTurn ? in_turn_ : patterns_[size_t(channel)];
    }

private:
    std::vector<uint32_t> table_;  // the bits of the value, in the low half for 16-bit dtypes
    std::vector<Pattern> patterns_;
    Pattern in_turn_{};
};

// Writes the rows of one sample into its slot, at (left, top) of the canvas.
class RowWriter {
public:
    // `table` is needed for floating point only. `channels` is what the rows have: 1 is repeated, 3
    // to 1 is gray; with Colour::kStored they are the bytes of numbers, and zeros make up for those
    // missing.
    void begin(const Output& output, const NormaliseTable* table, int64_t slot, int left, int top,
               int width, int height, int channels, bool swap_colours);
    // Where row y may be written in place, or null.
    uint8_t* direct(int y) const { return direct_ ? place(y, 0) : nullptr; }
    void write(int y, const uint8_t* row);
    void write_rows(int y, const uint8_t* rows, ptrdiff_t stride, int n);
    // Fills what the rows do not cover.
    void fill_borders();

    // Fills the whole slot: of a sample that failed.
    static void fill_slot(const Output& output, const NormaliseTable* table, int64_t slot);

private:
    uint8_t* place(int y, int channel) const {
        return slot_ + (top_ + y) * output_->row_stride + left_ * output_->pixel_stride +
               channel * output_->channel_stride;
    }
    const uint8_t* zeros(size_t n);
    void write_plane(uint8_t* to, const uint8_t* row, int step, int channel) const;
    void write_side_by_side(uint8_t* to, const uint8_t* levels, size_t n, int channel) const;

    const Output* output_ = nullptr;
    const NormaliseTable* table_ = nullptr;
    uint8_t* slot_ = nullptr;
    ptrdiff_t left_ = 0, top_ = 0;
    int width_ = 0, height_ = 0, channels_ = 0;
    bool swap_ = false, direct_ = false, vector_ = false;
    bool planes_ = false, pixels_ = false;  // items of a channel, or of a pixel, lie side by side
    std::vector<uint8_t> gray_, zeros_, split_;
};

namespace detail {
// n pixels of three interleaved bytes to three planes.
void split3_portable(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n);
void split3_avx2(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n);

// n levels to items that lie side by side, by whole registers; returns how many it did.
size_t normalise_avx2(const uint8_t* levels, size_t n, const NormaliseTable::Pattern& pattern,
                      Dtype dtype, uint8_t* to);

uint16_t to_float16(float value);  // round to nearest, ties to even
uint16_t to_bfloat16(float value);
}  // namespace detail

}  // namespace fastload
