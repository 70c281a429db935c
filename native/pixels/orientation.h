// Maps pixels of an upright image to the stored image for EXIF orientations 1..8.
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

// Converts a rectangle of the upright image to the stored image of size w x h, and back.
Rectangle to_stored(const Rectangle& upright, int orientation, double w, double h);
Rectangle to_upright(const Rectangle& stored, int orientation, double w, double h);

// Rotates and flips w x h stored pixels to upright rows without gaps.
void rotate_upright(const uint8_t* stored, ptrdiff_t stride, int w, int h, int channels,
                    int orientation, uint8_t* upright);

}  // namespace fastload
