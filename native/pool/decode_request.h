// The request for one sample of a batch, and its status.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shard/shard_file.h"

namespace fastload {

enum class RequestCodec : uint8_t { kJpeg = 0, kRaw = 1 };

enum class SampleStatus : uint8_t {
    kOk = 0,
    kBadImage = 1,    // the bytes cannot be decoded, or exceed a limit
    kBadRequest = 2,  // the request does not fit the image or the output
    kCorrupt = 3,     // the record's checksum is wrong
    kCancelled = 4,   // the batch was cancelled, or the pool closed, before this sample
    kNoMemory = 5,
};

// One row of the NumPy array that Python passes. A test in tests/decode/ compares the layout with
// fastload/_decode/backend.py.
struct DecodeRequest {
    uint64_t offset = 0, size = 0;       // the encoded image in its source; size 0: up to the end
    uint64_t index_offset = 0;           // restart index in the same source (uint32 little-endian)
    uint32_t index_count = 0;            // entries of the index; 0: no index
    uint32_t interval = 0;               // MCUs per segment
    uint32_t source = 0;                 // index into the sources of the batch
    int32_t x = 0, y = 0, w = 0, h = 0;  // ROI in the oriented image; w = h = 0: the whole image
    int32_t out_w = 0, out_h = 0;        // size of the resized ROI
    // Position of the resized ROI in the canvas (height x width of the output).
    int32_t pad_left = 0, pad_top = 0;
    int32_t raw_w = 0, raw_h = 0;  // raw images: stored size
    uint8_t codec = 0;
    // raw images: 8 or 16 bits; masks: also 32, with the filter nearest
    uint8_t raw_channels = 0, raw_bits = 0;
    uint8_t orientation = 1;  // EXIF orientation to apply, 1..8
    uint8_t flip = 0;
    uint8_t filter = 0;
    uint8_t exact = 0;  // no DCT scaling
    uint8_t check = 0;  // the source is a whole record: verify its length and CRC first
};

enum Stage { kRead, kCut, kDecode, kResize, kFinish, kStages };
using StageTimes = std::array<uint32_t, kStages>;  // nanoseconds

// Encoded bytes of one or more samples: a record or a file.
struct SourceBytes {
    const uint8_t* bytes = nullptr;  // null: `stored` must be read first
    size_t size = 0;
    StoredRecord stored{};
    // The bytes after their checksum was verified, because one record may hold several images. Two
    // threads may verify it at the same time.
    std::atomic<const uint8_t*>* verified = nullptr;
    bool shared = false;  // several samples of the batch use it

    const uint8_t* verified_bytes() const {
        return verified ? verified->load(std::memory_order_acquire) : nullptr;
    }
    // Returns false if another thread was first.
    bool set_verified(const uint8_t* checked) const {
        const uint8_t* none = nullptr;
        return verified &&
               verified->compare_exchange_strong(none, checked, std::memory_order_acq_rel);
    }
};

}  // namespace fastload
