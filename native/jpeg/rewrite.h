// The lossless rewrite that `pack` does: the same DCT coefficients, in the form that is fastest to
// load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "jpeg/header.h"

namespace fastload {

struct RewriteOptions {
    int restart = -1;      // MCUs between restart markers; 0 none, -1 chosen by restart_interval()
    bool orient = true;    // apply the EXIF orientation where the pixels stay exact
    bool optimize = true;  // Huffman tables made for this image instead of the standard's examples
    bool fast = true;      // false: libjpeg's way even where our own would do. For tests: both must
                           // give the same bytes
};

struct RewrittenJpeg {
    const uint8_t* bytes = nullptr;  // owned by this thread's rewriter, until its next call
    size_t size = 0;
    std::vector<uint32_t> index;     // n_segments + 1 offsets; empty without restart markers
    uint32_t width = 0, height = 0;  // of the new JPEG
    uint32_t interval = 0;           // MCUs, 0 = no restart markers
    uint8_t orientation = 1;         // EXIF, still to be applied at load
    uint32_t n_components = 0;
    bool common = false;  // whole, and gray or sampled 4:4:4, 4:2:2, 4:2:0, 4:4:0 or 4:1:1
    std::string warning;  // libjpeg's words on something harmless; mostly empty
};

// Baseline, one scan, no metadata but what fixes the colors. Decoders give the same pixels for the
// new JPEG as for the old. Throws BadJpeg for what cannot be rewritten (arithmetic, 12 bit, CMYK
// ...: the text says which) and for any damage, std::bad_alloc where memory is short. Each thread
// has its own rewriter, made at its first call; the reference is good until the thread's next call.
const RewrittenJpeg& rewrite_jpeg(const uint8_t* bytes, size_t size, const RewriteOptions& options);

}  // namespace fastload
