// Bilinear affine warp of float planes on the CPU. Does the same as grid_sample of torch
// (benchmarks/warp.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

struct PlaneShape {
    size_t n, channels, height, width;
};

// `inverse` has six numbers per sample, the upper two rows of the matrix from output to input. The
// center of a pixel is at + 0.5. `fill` has one value per channel for pixels outside the input.
void warp_affine(const PlaneShape& planes, const float* input, float* output, const float* inverse,
                 const float* fill);

namespace detail {

// Source positions along one axis, as an integer and a fraction. Positions at or below -1 and at or
// above `max` are outside the input.
struct WarpAxis {
    float step, from, max;
};
size_t origins_avx2(const WarpAxis& axis, size_t n, int32_t* whole, float* rest);
// Interpolates between four neighbors: `offsets` of the upper left one, the lower ones `width`
// later, and the fractions `across` and `down`.
size_t mix_avx2(const float* plane, size_t width, const int32_t* offsets, const float* across,
                const float* down, size_t n, float* output);

}  // namespace detail
}  // namespace fastload
