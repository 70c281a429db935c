#include "jpeg/image_limits.h"

#include <algorithm>
#include <string>

namespace fastload {
namespace {

std::string text(uint64_t number) {
    return std::to_string(number);
}

}  // namespace

void check_limits(const JpegHeader& header, size_t size) {
    uint64_t pixels = uint64_t(header.width) * header.height;
    std::string dimensions = text(header.width) + "x" + text(header.height) + " pixels";
    if (std::max(header.width, header.height) > MAX_SIDE)
        throw BadJpeg(dimensions + ": sides may be at most " + text(MAX_SIDE));
    if (pixels > MAX_PIXELS)
        throw BadJpeg(dimensions + ": at most " + text(MAX_PIXELS / 1000000) + " megapixels");
    if (pixels > MAX_PIXELS_PER_BYTE * size)
        throw BadJpeg(dimensions + " in " + text(size) +
                      " bytes: truncated or a decompression bomb (at most " +
                      text(MAX_PIXELS_PER_BYTE) + " pixels per byte)");
    if (header.n_scans > MAX_SCANS)
        throw BadJpeg(text(header.n_scans) + " scans: at most " + text(MAX_SCANS));
}

}  // namespace fastload
