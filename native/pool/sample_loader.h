// One sample from encoded bytes to finished pixels in the caller's memory: check -> cut -> decode
// -> orient -> resize -> place.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "jpeg/decoder.h"
#include "pixels/resize.h"
#include "pixels/row_writer.h"

namespace fastload {

enum class Codec : uint8_t { kJpeg = 0, kRaw = 1 };

enum class Status : uint8_t {
    kOk = 0,
    kBadImage = 1,    // the bytes cannot be decoded, or are refused
    kBadRequest = 2,  // what was asked does not fit the image or the output
    kCorrupt = 3,     // the record's checksum is wrong
    kCancelled = 4,   // the batch was dropped, or the pool closed, before the sample's turn
    kNoMemory = 5,
};

// What to do for one sample, in whole numbers; the layout of the numpy array that Python hands over
// (bind/decode.cpp).
struct Request {
    uint64_t offset = 0, size = 0;  // the encoded image in its source; size 0: up to its end
    uint64_t index_offset =
        0;  // its restart-segment index in the same source (uint32 little-endian)
    uint32_t index_count = 0;            // entries of the index, 0 = none
    uint32_t interval = 0;               // MCUs per segment
    uint32_t source = 0;                 // which of the batch's sources
    int32_t x = 0, y = 0, w = 0, h = 0;  // ROI in the oriented image; w = h = 0: all of it
    int32_t out_w = 0, out_h = 0;        // what the ROI becomes
    int32_t pad_left = 0,
            pad_top = 0;  // where that is placed in the canvas (the output's height x width)
    int32_t raw_w = 0, raw_h = 0;  // raw: size as stored
    uint8_t codec = 0;
    uint8_t raw_channels = 0, raw_bits = 0;  // raw: 8 bits; 16 or 32 with nearest
    uint8_t orientation = 1;                 // EXIF 1..8, to be applied
    uint8_t flip = 0;
    uint8_t filter = 0;
    uint8_t exact = 0;  // never decode at a smaller scale
    uint8_t check = 0;  // the source is a whole record: check its length and CRC first
};

enum Stage { kRead, kCut, kDecode, kResize, kFinish, kStages };
using StageTimes = std::array<uint32_t, kStages>;  // nanoseconds

struct Source {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    // Set once its checksum was right: several images may lie in one record. Two threads may both
    // find out.
    std::atomic<bool>* right = nullptr;

    bool checked() const { return right && right->load(std::memory_order_relaxed); }
    void set_checked() const {
        if (right) right->store(true, std::memory_order_relaxed);
    }
};

// Works on one sample at a time; keeps its decoder and buffers for the next.
class SampleLoader {
public:
    // Never throws. The slot is always written: with the fill colour where the status is not kOk.
    Status load(const Request& request, const Source& source, const Output& output,
                const NormaliseTable* table, int64_t slot, StageTimes& times, std::string& why);

private:
    struct Plan;  // of one sample: sizes, scale, boxes

    Status run(const Request& asked, const Source& source, const Output& output,
               const NormaliseTable* table, int64_t slot);
    Status load_jpeg(const Request& request, const Source& source, Plan& plan);
    Status load_raw(const Request& request, const Source& source, Plan& plan);
    Status decode_jpeg(Plan& plan, bool plain);
    Status stream_jpeg(Plan& plan);
    Status stream_raw(Plan& plan, const uint8_t* pixels, ptrdiff_t stride);
    Status stream_oriented(Plan& plan);
    void begin_output(Plan& plan, int channels);
    Status refuse(Status status, std::string why);
    Status refuse_jpeg();  // as the decoder says
    void tick(Stage stage);
    void trim();

    JpegDecoder decoder_;
    Resizer resizer_;
    RowWriter writer_;
    std::vector<uint8_t> strip_, cut_, whole_, turned_;
    std::string why_;
    StageTimes times_{};  // of the sample under way; the caller's lie beside those that other
                          // threads write
    uint64_t clock_ = 0;
};

}  // namespace fastload
