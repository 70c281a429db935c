#include <algorithm>
#include <cstring>

#include "jpeg/image_limits.h"
#include "pool/sample_plan.h"

namespace fastload {

Status SampleLoader::load_raw(const Request& request, const Source& source, Plan& plan) {
    const uint64_t w = uint64_t(std::max(request.raw_w, 0)),
                   h = uint64_t(std::max(request.raw_h, 0));
    if (w < 1 || h < 1 || w > MAX_SIDE || h > MAX_SIDE || request.raw_channels < 1 ||
        request.raw_channels > 4 ||
        (request.raw_bits != 8 && request.raw_bits != 16 && request.raw_bits != 32) ||
        request.raw_channels * request.raw_bits / 8 > kMaxChannels)
        return refuse(Status::kBadRequest, "raw image of " + text(request.raw_w, request.raw_h) +
                                               ", " + text(request.raw_channels) + " channels, " +
                                               text(request.raw_bits) +
                                               " bits: expected sides up to " + text(MAX_SIDE) +
                                               ", 1 to 4 channels, 8, 16 or 32 bits");
    plan.channels = request.raw_channels * request.raw_bits /
                    8;  // the bytes of wider numbers are moved like channels
    if (w * h * uint64_t(plan.channels) != request.size)
        return refuse(Status::kBadImage, "raw image of " + text(request.raw_w, request.raw_h) +
                                             ": " + text(int64_t(request.size)) +
                                             " bytes, expected " +
                                             text(int64_t(w * h) * plan.channels));
    if (request.raw_bits != 8 && request.filter != uint8_t(Filter::kNearest))
        return refuse(Status::kBadRequest, "raw images of " + text(request.raw_bits) +
                                               " bits can be resized by 'nearest' only");
    const bool stored = plan.output.colour == Colour::kStored;
    const bool same = plan.channels == plan.output.channels,
               widened =
                   stored && request.raw_channels == 1 && plan.channels < plan.output.channels;
    const bool colour =
        request.raw_bits == 8 && (plan.channels == 1 || plan.channels == 3) && !stored;
    if (!same && !widened && !colour)
        return refuse(Status::kBadRequest, "a raw image of " + text(plan.channels) +
                                               " bytes per pixel does not fit an output of " +
                                               text(plan.output.channels) + " channels");
    if (!plan.set_size(int(w), int(h)))
        return refuse(Status::kBadRequest, "ROI " + text(request.w, request.h) + " at " +
                                               text(request.x) + "," + text(request.y) +
                                               " is not inside the raw image of " +
                                               text(request.raw_w, request.raw_h));
    plan.choose_pixels();
    plan.swap_colours = plan.output.colour == Colour::kBgr;
    const ptrdiff_t stride = ptrdiff_t(w) * plan.channels;
    return stream_raw(
        plan, source.bytes + request.offset + plan.y0 * stride + plan.x0 * plan.channels, stride);
}

Status SampleLoader::stream_raw(Plan& plan, const uint8_t* pixels, ptrdiff_t stride) {
    begin_output(plan, plan.channels);
    int w = plan.columns(), h = plan.rows();
    if (plan.oriented()) {
        uint8_t* turned = room(turned_, size_t(w) * size_t(h) * size_t(plan.channels));
        turn_upright(pixels, stride, w, h, plan.channels, plan.request.orientation, turned);
        if (swaps_sides(plan.request.orientation)) std::swap(w, h);
        pixels = turned;
        stride = ptrdiff_t(w) * plan.channels;
    }
    tick(kFinish);
    if (resizer_.copies() || plan.request.filter == uint8_t(Filter::kNearest)) {
        resizer_.push(pixels, stride, h, writer_);
        tick(kResize);
        return Status::kOk;
    }
    // The kernels read some bytes behind a row, which behind the last one are not ours: through a
    // strip of our own.
    const size_t bytes = size_t(w) * size_t(plan.channels);
    uint8_t* strip = room(strip_, bytes * Resizer::kStripRows + Resizer::kRowPadding);
    for (int y = 0; y < h; y += Resizer::kStripRows) {
        const int n = std::min(h - y, Resizer::kStripRows);
        for (int i = 0; i < n; ++i)
            std::memcpy(strip + size_t(i) * bytes, pixels + (y + i) * stride, bytes);
        resizer_.push(strip, ptrdiff_t(bytes), n, writer_);
    }
    tick(kResize);
    return Status::kOk;
}

}  // namespace fastload
