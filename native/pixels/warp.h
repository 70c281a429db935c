// PlaneShape of floats moved by an affine map, bilinear: what torch's grid_sample does, for the CPU
// (benchmarks/warp.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

struct PlaneShape {
    size_t n, channels, height, width;
};

// `inverse`: six numbers a sample, the upper two rows of the matrix from result to input; a pixel's
// center is at + 0.5. `fill`: one level a channel, where nothing comes from the input.
void warp_affine(const PlaneShape& planes, const float* input, float* output, const float* inverse,
                 const float* fill);

namespace detail {

// Along one axis: where the pixels of a row come from, as a whole number and what is left of it.
// `most`: beyond -1 and this nothing comes from the input.
struct WarpAxis {
    float step, from, most;
};
size_t origins_avx2(const WarpAxis& axis, size_t n, int32_t* whole, float* rest);
// Pixels between four neighbors each: `offsets` of the upper left one, the lower ones `width`
// behind; how far across and down from there.
size_t mix_avx2(const float* plane, size_t width, const int32_t* offsets, const float* across,
                const float* down, size_t n, float* output);

}  // namespace detail
}  // namespace fastload
