// EXIF orientations 1..8 as plain numbers: where the pixel (x, y) of the upright picture lies in
// the stored one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

struct Rectangle {
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

// Orientations 5 to 8 swap width and height.
inline bool swaps_sides(int orientation) {
    return orientation >= 5;
}

// A rectangle of the upright picture in the stored one of size w x h, and back.
Rectangle to_stored(const Rectangle& upright, int orientation, double w, double h);
Rectangle to_upright(const Rectangle& stored, int orientation, double w, double h);

// Turns w x h stored pixels upright, into rows packed without gaps.
void rotate_upright(const uint8_t* stored, ptrdiff_t stride, int w, int h, int channels,
                    int orientation, uint8_t* upright);

}  // namespace fastload
