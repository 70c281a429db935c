// The lossless rewrite of `fastload pack`: keeps the DCT coefficients and stores them in the form
// that is fastest to load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "jpeg/header.h"

namespace fastload {

struct RewriteOptions {
    int restart = -1;      // MCUs between restart markers; 0: none; -1: restart_interval() chooses
    bool orient = true;    // apply the EXIF orientation if the pixels stay exact
    bool optimize = true;  // optimal Huffman tables instead of the example tables of the standard
    // Keep the Huffman tables of a file whose encoder optimized them, if possible. The new file is
    // a few bytes larger than with optimal tables, but most bits are copied, which is faster.
    bool keep_tables = true;
    // False: always use the libjpeg path. For tests: without keep_tables, both paths must produce
    // the same bytes.
    bool fast = true;
};

struct RewrittenJpeg {
    const uint8_t* bytes = nullptr;  // owned by the rewriter of this thread, until its next call
    size_t size = 0;
    std::vector<uint32_t> index;     // n_segments + 1 offsets; empty without restart markers
    uint32_t width = 0, height = 0;  // of the new JPEG
    uint32_t interval = 0;           // MCUs; 0: no restart markers
    uint8_t orientation = 1;         // EXIF orientation that the loader must apply
    uint32_t n_components = 0;
    bool common = false;  // see is_common()
    std::string warning;  // a harmless libjpeg warning; usually empty
};

// Writes a baseline JPEG with one scan and no metadata except for the colors. Decoders return the
// same pixels for the new JPEG as for the old one. Throws BadJpeg for unsupported files (arithmetic
// coding, 12 bits, CMYK ...) and for any damage, and std::bad_alloc. Each thread has its own
// rewriter, created at its first call. The reference is valid until the next call in the same
// thread.
const RewrittenJpeg& rewrite_jpeg(const uint8_t* bytes, size_t size, const RewriteOptions& options);

struct JpegBytes {
    const uint8_t* bytes;
    size_t size;
};

// Rewrites several JPEGs in less time than one by one. Calls each(number, result) for every JPEG,
// in any order. The result is valid during the call, and null if rewrite_jpeg() would throw
// BadJpeg.
void rewrite_jpegs(const std::vector<JpegBytes>& jpegs, const RewriteOptions& options,
                   const std::function<void(size_t, const RewrittenJpeg*)>& each);

}  // namespace fastload
