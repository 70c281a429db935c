#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "pool/sample_plan.h"
#include "shard/crc32c.h"
#include "shard/little_endian.h"

namespace fastload {
namespace {

constexpr size_t kKeepBytes =
    size_t(16) << 20;  // a thread's buffers beyond this are given back after the sample

uint64_t now_ns() {
    return uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count());
}

}  // namespace

Status SampleLoader::load(const Request& request, const Source& source, const Output& output,
                          const NormaliseTable* table, int64_t slot, StageTimes& times,
                          std::string& why) {
    times_ = {};
    clock_ = now_ns();
    Status status;
    try {
        status = run(request, source, output, table, slot);
        if (status != Status::kOk) why.swap(why_);
    } catch (const std::bad_alloc&) {
        decoder_.close();
        status = Status::kNoMemory;
        why = "out of memory";
    }
    if (status != Status::kOk) RowWriter::fill_slot(output, table, slot);
    trim();
    tick(kFinish);
    times = times_;
    return status;
}

Status SampleLoader::refuse(Status status, std::string why) {
    why_ = std::move(why);
    return status;
}

void SampleLoader::tick(Stage stage) {
    const uint64_t now = now_ns();
    times_[stage] += uint32_t(std::min<uint64_t>(now - clock_, UINT32_MAX - times_[stage]));
    clock_ = now;
}

void SampleLoader::trim() {
    if (strip_.capacity() + cut_.capacity() + whole_.capacity() + turned_.capacity() +
            resizer_.memory() <=
        kKeepBytes)
        return;
    for (auto* buffer : {&strip_, &cut_, &whole_, &turned_}) std::vector<uint8_t>().swap(*buffer);
    resizer_.release_memory();
}

Status SampleLoader::run(const Request& asked, const Source& source, const Output& output,
                         const NormaliseTable* table, int64_t slot) {
    Request request = asked;
    if (!request.size && request.offset <= source.size) request.size = source.size - request.offset;
    if (request.check && !source.checked()) {
        if (source.size < 24 || std::memcmp(source.bytes, "FLR1", 4) ||
            little<uint32_t>(source.bytes + 12) != source.size)
            return refuse(Status::kCorrupt, "not a record, or cut off");
        const uint32_t found = crc32c(0, source.bytes + 8, source.size - 8),
                       expected = little<uint32_t>(source.bytes + 4);
        if (found != expected)
            return refuse(Status::kCorrupt,
                          "checksum " + text(found) + ", expected " + text(expected));
        source.set_checked();
        tick(kRead);
    }
    if (request.size > source.size || request.offset > source.size - request.size ||
        uint64_t(request.index_count) * 4 > source.size ||
        request.index_offset > source.size - uint64_t(request.index_count) * 4)
        return refuse(Status::kBadRequest, "image or index lies outside its source of " +
                                               text(int64_t(source.size)) + " bytes");
    if (request.out_w < 1 || request.out_h < 1 || request.pad_left < 0 || request.pad_top < 0 ||
        int64_t(request.pad_left) + request.out_w > output.width ||
        int64_t(request.pad_top) + request.out_h > output.height)
        return refuse(Status::kBadRequest,
                      text(request.out_w, request.out_h) + " pixels at " + text(request.pad_left) +
                          "," + text(request.pad_top) + " do not fit the output of " +
                          text(output.width, output.height));
    if (request.orientation < 1 || request.orientation > 8)
        return refuse(Status::kBadRequest,
                      "orientation " + text(request.orientation) + ": expected 1 to 8");
    if (request.filter > uint8_t(Filter::kNearest))
        return refuse(Status::kBadRequest, "unknown filter " + text(request.filter));
    Plan plan{request, output, table, slot};
    if (request.codec == uint8_t(Codec::kJpeg)) return load_jpeg(request, source, plan);
    if (request.codec == uint8_t(Codec::kRaw)) return load_raw(request, source, plan);
    return refuse(Status::kBadRequest, "unknown codec " + text(request.codec));
}

// Sets up resizing and writing. In oriented samples the pixels handed in are already upright.
void SampleLoader::begin_output(Plan& plan, int channels) {
    const Request& request = plan.request;
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
    job.channels = channels;
    job.x0 = box.x0, job.y0 = box.y0, job.x1 = box.x1, job.y1 = box.y1;
    job.out_w = request.out_w;
    job.out_h = request.out_h;
    job.filter = Filter(request.filter);
    job.flip = request.flip != 0;
    job.scaled = plan.denominator > 1;
    resizer_.begin(job);
    writer_.begin(plan.output, plan.table, plan.slot, request.pad_left, request.pad_top,
                  request.out_w, request.out_h, channels, plan.swap_colours);
    writer_.fill_borders();
}

}  // namespace fastload
