// The seam between fastload and whatever turns JPEG bytes into rows of pixels: libjpeg-turbo, with
// our own Huffman decoder (jpeg/entropy_reader.h) for regular baseline images.
//
// One object per thread, used for one image after the other: open -> start -> read ... -> finish
// (or close). Every method that can fail returns false, and why() then says what was wrong; the
// object can be used again at once.
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

    // Reads the header and checks it against jpeg/image_limits.h, before anything of the image's
    // size is allocated. The bytes must stay where they are until finish() or close().
    bool open(const uint8_t* bytes, size_t size);
    int width() const { return int(decoder_.image_width); }
    int height() const { return int(decoder_.image_height); }
    bool gray() const { return decoder_.num_components == 1; }

    // Decodes at 1/denominator (1, 2, 4, 8) the columns [x0, x1) from row y0 on, in scaled
    // coordinates. Rows then come with left() pixels too many in front and columns() pixels
    // altogether; pixels inside are those of a whole decode, bit for bit. After a failure with
    // irregular(): open and start again with `plain`, and libjpeg alone will judge the image.
    enum class Pixels { kGray = 1, kRgb = 3, kBgr };
    bool start(int denominator, Pixels pixels, int x0, int x1, int y0, bool plain = false);
    bool irregular() const { return taken_over_; }
    int channels() const { return decoder_.out_color_components; }
    int columns() const { return int(decoder_.output_width); }
    int left() const { return left_; }

    // The next n rows, `stride` bytes apart.
    bool read(uint8_t* rows, ptrdiff_t stride, int n);

    // Behind the last row: where the image was read to its end, checks that the file was, too.
    bool finish();
    void close();

    const std::string& why() const { return why_; }
    bool out_of_memory() const;  // that was wrong, not the image

private:
    bool fail(const char* text);
    bool within_limits(size_t size);
    void forget_tables();
    void drop_missing_tables();

    JpegErrors errors_;
    jpeg_decompress_struct decoder_;
    EntropyReader entropy_;
    bool taken_over_ = false, renew_ = false;
    const uint8_t* bytes_ = nullptr;
    size_t size_ = 0;
    int left_ = 0;
    std::string why_;
};

}  // namespace fastload
