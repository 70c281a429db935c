// Decodes JPEG bytes to rows of pixels: libjpeg-turbo, with the faster Huffman decoder of
// jpeg/entropy_reader.h for regular baseline images.
//
// One object per thread, used for one image after another: open -> start -> read ... -> finish (or
// close). Every method that can fail returns false, and error() then has the reason. The object can
// be used again immediately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "jpeg/entropy_reader.h"
#include "jpeg/libjpeg_errors.h"

namespace fastload {

class JpegDecoder {
public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder&) = delete;
    JpegDecoder& operator=(const JpegDecoder&) = delete;

    // Reads the header and checks it against jpeg/image_limits.h before memory for the image is
    // allocated. The bytes must stay valid until finish() or close().
    bool open(const uint8_t* bytes, size_t size);
    int width() const { return int(decoder_.image_width); }
    int height() const { return int(decoder_.image_height); }
    bool gray() const { return decoder_.num_components == 1; }

    // Decodes the columns [x0, x1) from row y0 on at 1/denominator (1, 2, 4, 8), in scaled
    // coordinates. Each row then has columns() pixels, of which the first left() are before x0. The
    // pixels are identical to the pixels of a full decode, bit for bit. If decoding fails and
    // used_hook() is true, open and start again with `libjpeg_only`: libjpeg then decides whether
    // the image is valid.
    enum class Pixels { kGray = 1, kRgb = 3, kBgr };
    bool start(int denominator, Pixels pixels, int x0, int x1, int y0, bool libjpeg_only = false);
    bool used_hook() const { return hooked_; }
    int channels() const { return decoder_.out_color_components; }
    int columns() const { return int(decoder_.output_width); }
    int left() const { return left_; }

    // Reads the next n rows, `stride` bytes apart.
    bool read(uint8_t* rows, ptrdiff_t stride, int n);

    // Call after the last row. If the image was read to its end, this checks the end of the file,
    // too.
    bool finish();
    void close();

    const std::string& error() const { return error_; }
    bool out_of_memory() const;  // the cause of the error

private:
    bool fail(const char* text);
    bool within_limits(size_t size);
    void mark_tables_stale();
    void drop_stale_tables();

    JpegErrors errors_;
    jpeg_decompress_struct decoder_;
    EntropyReader entropy_;
    bool hooked_ = false, recreate_ = false;
    const uint8_t* bytes_ = nullptr;
    size_t size_ = 0;
    int left_ = 0;
    std::string error_;
};

}  // namespace fastload
