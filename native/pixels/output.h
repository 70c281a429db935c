// The memory that a batch of decoded images is written to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

enum class Dtype : uint8_t { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3, kUint16 = 4 };
// kStored: the channels of the image, unconverted (masks).
enum class Color : uint8_t { kRgb = 0, kBgr = 1, kGray = 2, kStored = 3 };

constexpr int kMaxChannels = 8;  // 4 channels of 16 bits, as bytes

// Owned by the caller; strides in bytes.
struct BatchOutput {
    uint8_t* memory = nullptr;
    int64_t slots = 0;
    int64_t height = 0;
    int64_t width = 0;
    int channels = 0;
    ptrdiff_t slot_stride = 0;
    ptrdiff_t row_stride = 0;
    ptrdiff_t pixel_stride = 0;
    ptrdiff_t channel_stride = 0;
    Dtype dtype = Dtype::kUint8;
    Color color = Color::kRgb;
    // Depth of the batch, 8 or 16. Images of the other depth are converted after resizing: times
    // 257, or the upper 8 bits. 8 for kUint8, 16 for kUint16; masks are bytes and have 8.
    int bits = 8;
    // Letterbox borders and failed samples, before normalizing, in units of `bits`.
    uint16_t fill[kMaxChannels] = {};
    // out = (pixel - mean) / std, where pixel, mean and std are in 0..255, or 0..65535 with 16 bits
    float mean[kMaxChannels] = {};
    float std[kMaxChannels] = {};

    size_t item_size() const {
        if (dtype == Dtype::kUint8) return 1;
        return dtype == Dtype::kFloat32 ? 4 : 2;
    }
};

}  // namespace fastload
