#include "pixels/normalize.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

}  // namespace

NormalizeTable::NormalizeTable(const BatchOutput& output)
    : dtype_(output.dtype),
      table_(size_t(256) * size_t(output.channels)),
      fill_(size_t(output.channels)),
      patterns_(size_t(output.channels)) {
    const int step = output.bits == 16 ? 257 : 1;  // white is 65535 = 257 * 255
    for (int i = 0; i < 24; ++i) {
        interleaved_.mean[i] = output.mean[i % 3];
        interleaved_.std[i] = output.std[i % 3];
    }
    for (int channel = 0; channel < output.channels; ++channel) {
        Pattern& pattern = patterns_[size_t(channel)];
        std::fill(std::begin(pattern.mean), std::end(pattern.mean), output.mean[channel]);
        std::fill(std::begin(pattern.std), std::end(pattern.std), output.std[channel]);
        for (int pixel = 0; pixel < 256; ++pixel)
            table_[size_t(256 * channel + pixel)] = item(float(step * pixel), channel);
        fill_[size_t(channel)] = item(output.fill[channel], channel);
    }
}

uint32_t NormalizeTable::item(float pixel, int channel) const {
    if (dtype_ == Dtype::kUint16) return uint32_t(pixel);
    const Pattern& pattern = patterns_[size_t(channel)];
    const float value = (pixel - pattern.mean[0]) / pattern.std[0];
    if (dtype_ == Dtype::kFloat16) return detail::to_float16(value);
    if (dtype_ == Dtype::kBfloat16) return detail::to_bfloat16(value);
    return bits_of(value);
}

void NormalizeTable::write_wide(const uint16_t* pixels, int step, int n, int channel, uint8_t* to,
                                ptrdiff_t stride) const {
    const float mean = patterns_[size_t(channel)].mean[0], std = patterns_[size_t(channel)].std[0];
    for (int i = 0; i < n; ++i, pixels += step, to += stride) {
        if (dtype_ == Dtype::kUint16) {
            std::memcpy(to, pixels, 2);
        } else if (dtype_ == Dtype::kFloat32) {
            const float value = (float(*pixels) - mean) / std;
            std::memcpy(to, &value, 4);
        } else {
            const uint16_t half = uint16_t(item(*pixels, channel));
            std::memcpy(to, &half, 2);
        }
    }
}

namespace detail {

uint16_t to_float16(float value) {
    uint32_t bits = bits_of(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return uint16_t(sign | 0x7E00);   // NaN
    if (bits >= 0x47800000) return uint16_t(sign | 0x7C00);  // 65536 and above, infinity
    if (bits < 0x38800000) {                                 // below 2^-14: subnormal in float16
        if (bits < 0x33000000) return uint16_t(sign);        // rounds to zero
        const uint32_t exponent = bits >> 23, mantissa = (bits & 0x7FFFFF) | 0x800000;
        const uint32_t shift = 126 - exponent;  // 14..24
        const uint32_t half = 1u << (shift - 1), rest = mantissa & ((half << 1) - 1);
        uint32_t result = mantissa >> shift;
        result += rest > half || (rest == half && (result & 1));
        return uint16_t(sign | result);
    }
    // may carry into infinity, which is correct
    uint32_t result = (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13;
    return uint16_t(sign | result);
}

uint16_t to_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace detail
}  // namespace fastload
