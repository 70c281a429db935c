// Fuzz target: JPEG header, layout, restart index, cut, rewrite and decoding. The last four bytes
// of the input choose the region and the scale.
#include "jpeg/cut.h"
#include "jpeg/decoder.h"
#include "jpeg/header.h"
#include "jpeg/layout.h"
#include "jpeg/rewrite.h"

using namespace fastload;

namespace {

void decode(const uint8_t* bytes, size_t size, uint8_t choice) {
    static JpegDecoder decoder;
    if (!decoder.open(bytes, size)) return;
    const int scale = 1 << (choice & 3), width = (decoder.width() + scale - 1) / scale,
              height = (decoder.height() + scale - 1) / scale;
    // A small file may state a large image; time is limited by libFuzzer's own limit otherwise.
    if (int64_t(width) * height > 1 << 20) return decoder.close();
    const auto pixels = decoder.gray() ? JpegDecoder::Pixels::kGray : JpegDecoder::Pixels::kRgb;
    if (!decoder.start(scale, pixels, 0, width, 0, choice & 4)) return decoder.close();
    const size_t stride = size_t(decoder.columns()) * size_t(decoder.channels());
    std::vector<uint8_t> rows(stride * size_t(height));
    if (decoder.read(rows.data(), ptrdiff_t(stride), height)) decoder.finish();
    decoder.close();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 4) return 0;
    const uint8_t* choice = data + size - 4;
    size -= 4;
    try {
        is_common(read_jpeg_header(data, size));
    } catch (const BadJpeg&) {
    }
    JpegLayout layout;
    std::vector<uint32_t> index;
    if (read_layout(data, size, layout)) {
        find_segments(data, size, layout, index);
        const Roi roi{choice[0], choice[1], choice[2], choice[3]};
        std::vector<uint8_t> out;
        uint32_t x0, y0;
        if (cut_jpeg(data, size, reinterpret_cast<const uint8_t*>(index.data()), index.size(),
                     layout.interval, roi, 1u << (choice[0] & 3), out, x0, y0))
            decode(out.data(), out.size(), choice[1]);
    }
    RewriteOptions options;
    options.restart = choice[2] % 20 - 1;
    options.fast = choice[3] & 1;
    options.keep_tables = choice[3] & 2;
    try {
        rewrite_jpeg(data, size, options);
    } catch (const BadJpeg&) {
    }
    decode(data, size, choice[0]);
    return 0;
}
