#include "pixels/orientation.h"

#include <cstring>

namespace fastload {
namespace {

// The upright x axis is the stored x axis (or the stored y axis if the sides swap), possibly
// reversed. The same holds for y.
bool x_reversed(int orientation) {
    return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}
bool y_reversed(int orientation) {
    return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}

Rectangle mirrored(Rectangle r, bool x, bool y, double w, double h) {
    if (x) r = {w - r.x1, r.y0, w - r.x0, r.y1};
    if (y) r = {r.x0, h - r.y1, r.x1, h - r.y0};
    return r;
}

Rectangle transposed(const Rectangle& r) {
    return {r.y0, r.x0, r.y1, r.x1};
}

}  // namespace

Rectangle to_stored(const Rectangle& upright, int orientation, double w, double h) {
    const bool swap = swaps_sides(orientation);
    const Rectangle r = mirrored(upright, x_reversed(orientation), y_reversed(orientation),
                                 swap ? h : w, swap ? w : h);
    return swap ? transposed(r) : r;
}

Rectangle to_upright(const Rectangle& stored, int orientation, double w, double h) {
    const bool swap = swaps_sides(orientation);
    return mirrored(swap ? transposed(stored) : stored, x_reversed(orientation),
                    y_reversed(orientation), swap ? h : w, swap ? w : h);
}

void rotate_upright(const uint8_t* stored, ptrdiff_t stride, int w, int h, int channels,
                    int orientation, uint8_t* upright) {
    const bool swap = swaps_sides(orientation);
    const int out_w = swap ? h : w, out_h = swap ? w : h;
    ptrdiff_t step_x = swap ? stride : channels, step_y = swap ? channels : stride;
    if (x_reversed(orientation)) stored += (out_w - 1) * step_x, step_x = -step_x;
    if (y_reversed(orientation)) stored += (out_h - 1) * step_y, step_y = -step_y;
    for (int y = 0; y < out_h; ++y) {
        const uint8_t* from = stored + y * step_y;
        for (int x = 0; x < out_w; ++x, from += step_x, upright += channels)
            std::memcpy(upright, from, size_t(channels));
    }
}

}  // namespace fastload
