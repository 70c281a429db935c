#include "pool/sample_loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "jpeg/cut.h"
#include "jpeg/image_limits.h"
#include "jpeg/layout.h"
#include "pixels/orientation.h"
#include "shard/record.h"

namespace fastload {
namespace {

// Buffers larger than this are freed after each sample.
constexpr size_t kKeepBytes = size_t(16) << 20;

std::string text(int64_t number) {
    return std::to_string(number);
}
std::string text(int64_t width, int64_t height) {
    return text(width) + "x" + text(height);
}

// Grows the buffer to at least `size` bytes.
uint8_t* grow(std::vector<uint8_t>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
}

uint64_t now_ns() {
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count());
}

}  // namespace

SampleStatus SampleLoader::load(const DecodeRequest& request, const SourceBytes& source,
                                const BatchOutput& output, const NormalizeTable* table,
                                int64_t slot, StageTimes& times, std::string& error) {
    times_ = {};
    clock_ = now_ns();
    SampleStatus status;
    try {
        status = run(request, source, output, table, slot);
        if (status != SampleStatus::kOk) error.swap(error_);
    } catch (const std::bad_alloc&) {
        decoder_.close();
        status = SampleStatus::kNoMemory;
        error = "out of memory";
    }
    if (status != SampleStatus::kOk) RowWriter::fill_slot(output, table, slot);
    trim();
    tick(kFinish);
    times = times_;
    return status;
}

SampleStatus SampleLoader::refuse(SampleStatus status, std::string error) {
    error_ = std::move(error);
    return status;
}

void SampleLoader::tick(Stage stage) {
    const uint64_t now = now_ns();
    times_[stage] += uint32_t(std::min<uint64_t>(now - clock_, UINT32_MAX - times_[stage]));
    clock_ = now;
}

void SampleLoader::trim() {
    if (record_.capacity() + strip_.capacity() + cut_.capacity() + whole_.capacity() +
            rotated_.capacity() + resizer_.memory() + wide_resizer_.memory() <=
        kKeepBytes)
        return;
    for (auto* buffer : {&record_, &strip_, &cut_, &whole_, &rotated_})
        std::vector<uint8_t>().swap(*buffer);
    resizer_.release_memory();
    wide_resizer_.release_memory();
}

// Returns the bytes of the source, verified if they are a record. Returns null with the reason in
// error_ if they are damaged. What is decoded is what was verified: the bytes of a record are in
// memory that only this process writes.
const uint8_t* SampleLoader::read_source(const SourceBytes& source, bool check) {
    if (const uint8_t* verified = source.verified_bytes()) return verified;
    if (source.bytes || !source.stored.file) {
        if (!check) return source.bytes;
        error_ = check_record({source.bytes, source.size});
        if (!error_.empty()) return nullptr;
        source.set_verified(source.bytes);
    } else if (source.shared) {
        std::unique_ptr<uint8_t[]> copy(new uint8_t[source.size]);
        error_ = read_checked(source.stored, copy.get());
        if (!error_.empty()) return nullptr;
        if (source.set_verified(copy.get())) copy.release();  // the batch deletes it
    } else {
        uint8_t* bytes = grow(record_, source.size);
        error_ = read_checked(source.stored, bytes);
        return error_.empty() ? bytes : nullptr;
    }
    return source.verified_bytes();
}

SampleStatus SampleLoader::run(const DecodeRequest& original, const SourceBytes& source,
                               const BatchOutput& output, const NormalizeTable* table,
                               int64_t slot) {
    DecodeRequest request = original;
    if (!request.size && request.offset <= source.size) request.size = source.size - request.offset;
    const uint8_t* bytes = nullptr;
    if (source.size || request.check) {
        bytes = read_source(source, request.check);
        if (!bytes) return SampleStatus::kCorrupt;
        tick(kRead);
    }
    if (request.size > source.size || request.offset > source.size - request.size ||
        uint64_t(request.index_count) * 4 > source.size ||
        request.index_offset > source.size - uint64_t(request.index_count) * 4)
        return refuse(SampleStatus::kBadRequest,
                      "image or restart index is outside its source of " +
                          text(int64_t(source.size)) + " bytes");
    if (request.out_w < 1 || request.out_h < 1 || request.pad_left < 0 || request.pad_top < 0 ||
        int64_t(request.pad_left) + request.out_w > output.width ||
        int64_t(request.pad_top) + request.out_h > output.height)
        return refuse(SampleStatus::kBadRequest,
                      text(request.out_w, request.out_h) + " pixels at " + text(request.pad_left) +
                          "," + text(request.pad_top) + " do not fit the output of " +
                          text(output.width, output.height));
    if (request.orientation < 1 || request.orientation > 8)
        return refuse(SampleStatus::kBadRequest,
                      "orientation " + text(request.orientation) + ": expected 1 to 8");
    if (request.filter > uint8_t(Filter::kNearest))
        return refuse(SampleStatus::kBadRequest,
                      "filter " + text(request.filter) + ": expected 0 to 2");
    SamplePlan plan{request, output, table, slot};
    if (request.codec == uint8_t(RequestCodec::kJpeg)) return load_jpeg(request, bytes, plan);
    if (request.codec == uint8_t(RequestCodec::kRaw)) return load_raw(request, bytes, plan);
    return refuse(SampleStatus::kBadRequest, "unknown codec " + text(request.codec));
}

// Sets up writing, and returns how to resize. In oriented samples the pixels handed in are already
// upright.
ResizeJob SampleLoader::begin_output(SamplePlan& plan) {
    const DecodeRequest& request = plan.request;
    const double d = plan.denominator;
    Rectangle box{plan.roi.x0 / d - plan.x0, plan.roi.y0 / d - plan.y0, plan.roi.x1 / d - plan.x0,
                  plan.roi.y1 / d - plan.y0};
    ResizeJob job;
    job.in_w = plan.columns();
    job.in_h = plan.rows();
    if (plan.oriented()) {
        box = to_upright(box, request.orientation, job.in_w, job.in_h);
        if (swaps_sides(request.orientation)) std::swap(job.in_w, job.in_h);
    }
    job.channels = plan.channels;
    job.x0 = box.x0, job.y0 = box.y0, job.x1 = box.x1, job.y1 = box.y1;
    job.out_w = request.out_w;
    job.out_h = request.out_h;
    job.filter = Filter(request.filter);
    job.flip = request.flip != 0;
    job.scaled = plan.denominator > 1;
    writer_.begin(plan.output, plan.table, plan.slot, request.pad_left, request.pad_top,
                  request.out_w, request.out_h, plan.channels, plan.swap_red_blue);
    writer_.fill_borders();
    return job;
}

SampleStatus SampleLoader::load_jpeg(const DecodeRequest& request, const uint8_t* source,
                                     SamplePlan& plan) {
    const uint8_t* bytes = source + request.offset;
    size_t size = size_t(request.size);
    const auto outside = [&](int w, int h) {
        return refuse(SampleStatus::kBadRequest,
                      "ROI " + text(request.w, request.h) + " at " + text(request.x) + "," +
                          text(request.y) + " is outside the image of " + text(w, h) +
                          " pixels (stored size, orientation " + text(request.orientation) + ")");
    };
    JpegLayout layout;
    if (request.index_count && (request.w || request.h) && read_layout(bytes, size, layout)) {
        if (!plan.set_size(int(layout.width), int(layout.height)))
            return outside(int(layout.width), int(layout.height));
        plan.choose_scale();
        const Roi roi{uint32_t(plan.roi.x0), uint32_t(plan.roi.y0),
                      uint32_t(plan.roi.x1 - plan.roi.x0), uint32_t(plan.roi.y1 - plan.roi.y0)};
        uint32_t left = 0, top = 0;
        if (cut_jpeg(bytes, size, source + request.index_offset, request.index_count,
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
    SampleStatus status = decode_jpeg(plan, false);
    if (status == SampleStatus::kBadImage && decoder_.used_hook() && decoder_.open(bytes, size))
        status = decode_jpeg(plan, true);
    return status;
}

SampleStatus SampleLoader::refuse_jpeg() {
    return refuse(decoder_.out_of_memory() ? SampleStatus::kNoMemory : SampleStatus::kBadImage,
                  decoder_.error());
}

// Decodes the image that decoder_ has opened.
SampleStatus SampleLoader::decode_jpeg(SamplePlan& plan, bool libjpeg_only) {
    const bool gray = decoder_.gray() || plan.output.channels == 1;
    const int own = decoder_.gray() ? 1 : 3;
    if (plan.output.color == Color::kStored ? own != plan.output.channels
                                            : !gray && plan.output.channels != 3) {
        decoder_.close();
        return refuse(SampleStatus::kBadRequest, "JPEG has " + text(own) +
                                                     " channels, but the output has " +
                                                     text(plan.output.channels));
    }
    const auto pixels = gray                               ? JpegDecoder::Pixels::kGray
                        : plan.output.color == Color::kBgr ? JpegDecoder::Pixels::kBgr
                                                           : JpegDecoder::Pixels::kRgb;
    if (!decoder_.start(plan.denominator, pixels, plan.x0, plan.x1, plan.y0, libjpeg_only))
        return refuse_jpeg();
    plan.channels = gray ? 1 : 3;
    tick(kDecode);
    return plan.oriented() ? stream_oriented(plan) : stream_jpeg(plan);
}

SampleStatus SampleLoader::stream_jpeg(SamplePlan& plan) {
    resizer_.begin(begin_output(plan));
    tick(kFinish);
    if (resizer_.is_identity() && writer_.direct(0) && decoder_.columns() == plan.columns()) {
        if (!decoder_.read(writer_.direct(0), plan.output.row_stride, plan.rows()) ||
            !decoder_.finish())
            return refuse_jpeg();
        tick(kDecode);
        return SampleStatus::kOk;
    }
    const size_t stride = size_t(decoder_.columns()) * size_t(plan.channels);
    uint8_t* strip = grow(strip_, stride * Resizer::kStripRows + Resizer::kRowPadding);
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
    return SampleStatus::kOk;
}

// Rare, because pack applies the orientation if that is lossless. Decodes the whole ROI, rotates
// it, then resizes it.
SampleStatus SampleLoader::stream_oriented(SamplePlan& plan) {
    const size_t stride = size_t(decoder_.columns()) * size_t(plan.channels);
    uint8_t* whole = grow(whole_, stride * size_t(plan.rows()));
    if (!decoder_.read(whole, ptrdiff_t(stride), plan.rows()) || !decoder_.finish())
        return refuse_jpeg();
    tick(kDecode);
    return stream_raw(plan, whole + decoder_.left() * plan.channels, ptrdiff_t(stride));
}

SampleStatus SampleLoader::load_raw(const DecodeRequest& request, const uint8_t* source,
                                    SamplePlan& plan) {
    const uint64_t w = uint64_t(std::max(request.raw_w, 0)),
                   h = uint64_t(std::max(request.raw_h, 0));
    if (w < 1 || h < 1 || w > MAX_SIDE || h > MAX_SIDE || request.raw_channels < 1 ||
        request.raw_channels > 4 ||
        (request.raw_bits != 8 && request.raw_bits != 16 && request.raw_bits != 32) ||
        request.raw_channels * request.raw_bits / 8 > kMaxChannels)
        return refuse(SampleStatus::kBadRequest,
                      "raw image of " + text(request.raw_w, request.raw_h) + ", " +
                          text(request.raw_channels) + " channels, " + text(request.raw_bits) +
                          " bits: expected sides up to " + text(MAX_SIDE) +
                          ", 1 to 4 channels, 8, 16 or 32 bits");
    const bool stored = plan.output.color == Color::kStored;
    plan.wide = request.raw_bits == 16 && !stored;
    // Bytes of a mask's values are moved like channels.
    plan.channels = plan.wide ? request.raw_channels : request.raw_channels * request.raw_bits / 8;
    if (w * h * uint64_t(plan.pixel_bytes()) != request.size)
        return refuse(SampleStatus::kBadImage,
                      "raw image of " + text(request.raw_w, request.raw_h) + ": " +
                          text(int64_t(request.size)) + " bytes, expected " +
                          text(int64_t(w * h) * plan.pixel_bytes()));
    if (stored && request.raw_bits != 8 && request.filter != uint8_t(Filter::kNearest))
        return refuse(SampleStatus::kBadRequest,
                      "masks of " + text(request.raw_bits) +
                          " bits can only be resized with the filter 'nearest'");
    const bool same = plan.channels == plan.output.channels,
               widened = request.raw_channels == 1 && plan.channels < plan.output.channels,
               color = request.raw_bits <= 16 && (plan.channels == 1 || plan.channels == 3);
    if (stored ? !same && !widened : !color)
        return refuse(SampleStatus::kBadRequest, "raw image has " + text(request.raw_channels) +
                                                     " channels of " + text(request.raw_bits) +
                                                     " bits, but the output has " +
                                                     text(plan.output.channels) + " channels");
    if (!plan.set_size(int(w), int(h)))
        return refuse(SampleStatus::kBadRequest,
                      "ROI " + text(request.w, request.h) + " at " + text(request.x) + "," +
                          text(request.y) + " is outside the raw image of " +
                          text(request.raw_w, request.raw_h) + " pixels");
    plan.choose_pixels();
    plan.swap_red_blue = plan.output.color == Color::kBgr;
    const ptrdiff_t stride = ptrdiff_t(w) * plan.pixel_bytes();
    return stream_raw(
        plan, source + request.offset + plan.y0 * stride + plan.x0 * plan.pixel_bytes(), stride);
}

SampleStatus SampleLoader::stream_raw(SamplePlan& plan, const uint8_t* pixels, ptrdiff_t stride) {
    const ResizeJob job = begin_output(plan);
    const int pixel_bytes = plan.pixel_bytes();
    int w = plan.columns(), h = plan.rows();
    if (plan.oriented()) {
        uint8_t* rotated = grow(rotated_, size_t(w) * size_t(h) * size_t(pixel_bytes));
        rotate_upright(pixels, stride, w, h, pixel_bytes, plan.request.orientation, rotated);
        if (swaps_sides(plan.request.orientation)) std::swap(w, h);
        pixels = rotated;
        stride = ptrdiff_t(w) * pixel_bytes;
    }
    tick(kFinish);
    if (plan.wide) {
        wide_resizer_.run(job, pixels, stride, writer_);
        tick(kResize);
        return SampleStatus::kOk;
    }
    resizer_.begin(job);
    if (resizer_.is_identity() || plan.request.filter == uint8_t(Filter::kNearest)) {
        resizer_.push(pixels, stride, h, writer_);
        tick(kResize);
        return SampleStatus::kOk;
    }
    // The kernels read beyond the end of a row. After the last row that memory is not part of the
    // source, so rows are copied to a padded strip first.
    const size_t bytes = size_t(w) * size_t(plan.channels);
    uint8_t* strip = grow(strip_, bytes * Resizer::kStripRows + Resizer::kRowPadding);
    for (int y = 0; y < h; y += Resizer::kStripRows) {
        const int n = std::min(h - y, Resizer::kStripRows);
        for (int i = 0; i < n; ++i)
            std::memcpy(strip + size_t(i) * bytes, pixels + (y + i) * stride, bytes);
        resizer_.push(strip, ptrdiff_t(bytes), n, writer_);
    }
    tick(kResize);
    return SampleStatus::kOk;
}

}  // namespace fastload
