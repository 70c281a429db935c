#include "pixels/warp.h"

#include <algorithm>
#include <vector>

#include "cpu/simd.h"

namespace fastload {
namespace {

float lerp(float one, float other, float share) {
    return one + (other - one) * share;
}

void origins(const detail::WarpAxis& axis, size_t n, int32_t* whole, float* rest) {
    size_t i = 0;
#ifdef FASTLOAD_X86
    if (use_avx2()) i = detail::origins_avx2(axis, n, whole, rest);
#endif
    for (; i < n; ++i) {
        const float place =
            std::min(std::max(-1.0f, axis.step * (float(i) + 0.5f) + axis.from), axis.max);
        const float towards_0 = float(int32_t(place)),
                    floor = towards_0 > place ? towards_0 - 1 : towards_0;
        whole[i] = int32_t(floor);
        rest[i] = place - floor;
    }
}

// Source positions of the pixels of one row.
class WarpRow {
public:
    explicit WarpRow(const PlaneShape& planes)
        : planes_(planes),
          x_(planes.width),
          y_(planes.width),
          offsets_(planes.width),
          across_(planes.width),
          down_(planes.width) {}

    void place(const float* inverse, size_t number) {
        const float middle = float(number) + 0.5f;
        origins({inverse[0], inverse[1] * middle + inverse[2] - 0.5f, float(planes_.width)},
                planes_.width, x_.data(), across_.data());
        origins({inverse[3], inverse[4] * middle + inverse[5] - 0.5f, float(planes_.height)},
                planes_.width, y_.data(), down_.data());
        for (begin_ = 0; begin_ < planes_.width && !is_inside(begin_);) ++begin_;
        for (end_ = planes_.width; end_ > begin_ && !is_inside(end_ - 1);) --end_;
        for (size_t i = begin_; i < end_; ++i) offsets_[i] = y_[i] * int32_t(planes_.width) + x_[i];
    }

    void write(const float* plane, float fill, float* output) const {
        for (size_t i = 0; i < begin_; ++i) output[i] = sample_at_edge(plane, fill, i);
        size_t i = begin_;
#ifdef FASTLOAD_X86
        if (use_avx2())
            i += detail::mix_avx2(plane, planes_.width, offsets_.data() + i, across_.data() + i,
                                  down_.data() + i, end_ - i, output + i);
#endif
        for (; i < end_; ++i) {
            const float *above = plane + offsets_[i], *below = above + planes_.width;
            output[i] = lerp(lerp(above[0], above[1], across_[i]),
                             lerp(below[0], below[1], across_[i]), down_[i]);
        }
        for (; i < planes_.width; ++i) output[i] = sample_at_edge(plane, fill, i);
    }

private:
    bool is_inside(size_t i) const {  // all four neighbors are on the canvas
        return x_[i] >= 0 && y_[i] >= 0 && size_t(x_[i]) + 1 < planes_.width &&
               size_t(y_[i]) + 1 < planes_.height;
    }

    float sample_at_edge(const float* plane, float fill, size_t i) const {
        const auto at = [&](int32_t x, int32_t y) {
            return x >= 0 && y >= 0 && size_t(x) < planes_.width && size_t(y) < planes_.height
                       ? plane[size_t(y) * planes_.width + size_t(x)]
                       : fill;
        };
        const int32_t x = x_[i], y = y_[i];
        return lerp(lerp(at(x, y), at(x + 1, y), across_[i]),
                    lerp(at(x, y + 1), at(x + 1, y + 1), across_[i]), down_[i]);
    }

    const PlaneShape& planes_;
    std::vector<int32_t> x_, y_, offsets_;
    std::vector<float> across_, down_;
    // All four neighbors of the pixels [begin_, end_) are on the canvas, because it is convex.
    size_t begin_ = 0, end_ = 0;
};

}  // namespace

void warp_affine(const PlaneShape& planes, const float* input, float* output, const float* inverse,
                 const float* fill) {
    const size_t area = planes.height * planes.width;
    WarpRow row(planes);
    for (size_t sample = 0; sample < planes.n; ++sample)
        for (size_t number = 0; number < planes.height; ++number) {
            row.place(inverse + 6 * sample, number);
            for (size_t channel = 0; channel < planes.channels; ++channel) {
                const size_t start = (sample * planes.channels + channel) * area;
                row.write(input + start, fill[channel], output + start + number * planes.width);
            }
        }
}

}  // namespace fastload
