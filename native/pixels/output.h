// The memory that a batch of decoded images is written to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

enum class Dtype : uint8_t { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };
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
    uint8_t fill[kMaxChannels] = {};  // letterbox borders and failed samples, before normalizing
    // out = (pixel - mean) / std, where pixel, mean and std are in 0..255
    float mean[kMaxChannels] = {};
    float std[kMaxChannels] = {};

    size_t item_size() const {
        if (dtype == Dtype::kUint8) return 1;
        return dtype == Dtype::kFloat32 ? 4 : 2;
    }
};

}  // namespace fastload
