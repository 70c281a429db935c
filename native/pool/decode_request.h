// One sample of a batch: where its bytes are, what to decode, and what came of it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastload {

enum class RequestCodec : uint8_t { kJpeg = 0, kRaw = 1 };

enum class SampleStatus : uint8_t {
    kOk = 0,
    kBadImage = 1,    // the bytes cannot be decoded, or are refused
    kBadRequest = 2,  // what was asked does not fit the image or the output
    kCorrupt = 3,     // the record's checksum is wrong
    kCancelled = 4,   // the batch was dropped, or the pool closed, before the sample's turn
    kNoMemory = 5,
};

// What to do for one sample. The layout of one row of the numpy array that Python hands over: the
// test in tests/decode/ compares it with fastload/_decode/backend.py.
struct DecodeRequest {
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

// Encoded bytes of one or more samples: a record, or a whole file.
struct SourceBytes {
    const uint8_t* bytes = nullptr;
    size_t size = 0;
    // Set once the checksum was verified: one record may hold several images. Two threads may
    // verify it at the same time.
    std::atomic<bool>* verified = nullptr;

    bool is_verified() const { return verified && verified->load(std::memory_order_relaxed); }
    void set_verified() const {
        if (verified) verified->store(true, std::memory_order_relaxed);
    }
};

}  // namespace fastload
