#include <algorithm>

#include "jpeg/cut.h"
#include "jpeg/layout.h"
#include "pool/sample_plan.h"

namespace fastload {

Status SampleLoader::load_jpeg(const Request& request, const Source& source, Plan& plan) {
    const uint8_t* bytes = source.bytes + request.offset;
    size_t size = size_t(request.size);
    const auto outside = [&](int w, int h) {
        return refuse(Status::kBadRequest,
                      "ROI " + text(request.w, request.h) + " at " + text(request.x) + "," +
                          text(request.y) + " is not inside the image of " + text(w, h) +
                          " as stored, orientation " + text(request.orientation));
    };
    JpegLayout layout;
    if (request.index_count && (request.w || request.h) && read_layout(bytes, size, layout)) {
        if (!plan.set_size(int(layout.width), int(layout.height)))
            return outside(int(layout.width), int(layout.height));
        plan.choose_scale();
        const Roi roi{uint32_t(plan.roi.x0), uint32_t(plan.roi.y0),
                      uint32_t(plan.roi.x1 - plan.roi.x0), uint32_t(plan.roi.y1 - plan.roi.y0)};
        uint32_t left = 0, top = 0;
        if (cut_jpeg(bytes, size, source.bytes + request.index_offset, request.index_count,
                     request.interval, roi, uint32_t(plan.denominator), cut_, left, top)) {
            bytes = cut_.data();
            size = cut_.size();
            plan.roi = {plan.roi.x0 - left, plan.roi.y0 - top, plan.roi.x1 - left,
                        plan.roi.y1 - top};
        }
        tick(kCut);
        if (!decoder_.open(bytes, size)) return refuse_jpeg();
    } else {
        if (!decoder_.open(bytes, size)) return refuse_jpeg();
        if (!plan.set_size(decoder_.width(), decoder_.height())) {
            decoder_.close();
            return outside(decoder_.width(), decoder_.height());
        }
        plan.choose_scale();
    }
    plan.choose_pixels();
    Status status = decode_jpeg(plan, false);
    if (status == Status::kBadImage && decoder_.irregular() && decoder_.open(bytes, size))
        status = decode_jpeg(plan, true);
    return status;
}

Status SampleLoader::refuse_jpeg() {
    return refuse(decoder_.out_of_memory() ? Status::kNoMemory : Status::kBadImage, decoder_.why());
}

// From the open decoder to the output.
Status SampleLoader::decode_jpeg(Plan& plan, bool plain) {
    const bool gray = decoder_.gray() || plan.output.channels == 1;
    const int own = decoder_.gray() ? 1 : 3;
    if (plan.output.colour == Colour::kStored ? own != plan.output.channels
                                              : !gray && plan.output.channels != 3) {
        decoder_.close();
        return refuse(Status::kBadRequest, "a JPEG of " + text(own) +
                                               " channels does not fit an output of " +
                                               text(plan.output.channels));
    }
    const auto pixels = gray                                 ? JpegDecoder::Pixels::kGray
                        : plan.output.colour == Colour::kBgr ? JpegDecoder::Pixels::kBgr
                                                             : JpegDecoder::Pixels::kRgb;
    if (!decoder_.start(plan.denominator, pixels, plan.x0, plan.x1, plan.y0, plain))
        return refuse_jpeg();
    plan.channels = gray ? 1 : 3;
    tick(kDecode);
    return plan.oriented() ? stream_oriented(plan) : stream_jpeg(plan);
}

Status SampleLoader::stream_jpeg(Plan& plan) {
    begin_output(plan, plan.channels);
    tick(kFinish);
    if (resizer_.copies() && writer_.direct(0) && decoder_.columns() == plan.columns()) {
        if (!decoder_.read(writer_.direct(0), plan.output.row_stride, plan.rows()) ||
            !decoder_.finish())
            return refuse_jpeg();
        tick(kDecode);
        return Status::kOk;
    }
    const size_t stride = size_t(decoder_.columns()) * size_t(plan.channels);
    uint8_t* strip = room(strip_, stride * Resizer::kStripRows + Resizer::kRowPadding);
    for (int left = plan.rows(); left > 0;) {
        const int n = std::min(left, Resizer::kStripRows);
        if (!decoder_.read(strip, ptrdiff_t(stride), n)) return refuse_jpeg();
        tick(kDecode);
        resizer_.push(strip + decoder_.left() * plan.channels, ptrdiff_t(stride), n, writer_);
        tick(kResize);
        left -= n;
    }
    if (!decoder_.finish()) return refuse_jpeg();
    tick(kDecode);
    return Status::kOk;
}

// Rare: pack turns pictures upright where that is lossless. The whole ROI is decoded, turned, then
// resized.
Status SampleLoader::stream_oriented(Plan& plan) {
    const size_t stride = size_t(decoder_.columns()) * size_t(plan.channels);
    uint8_t* whole = room(whole_, stride * size_t(plan.rows()));
    if (!decoder_.read(whole, ptrdiff_t(stride), plan.rows()) || !decoder_.finish())
        return refuse_jpeg();
    tick(kDecode);
    return stream_raw(plan, whole + decoder_.left() * plan.channels, ptrdiff_t(stride));
}

}  // namespace fastload
