// Resizes one strip of rows at a time: columns first (into a ring of 8-bit rows), then rows as soon
// as their inputs are available.
//
// The arithmetic is that of Pillow: 22-bit fixed point, with 8-bit rows between the two passes. So
// `antialias` without DCT scaling produces the bytes of Pillow. It uses integers only, so the
// vector kernels (pixels/resize_avx2.cpp, pixels/resize_avx512.cpp) produce the same bytes as the
// portable ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pixels/taps.h"

namespace fastload {

class RowWriter;

struct ResizeJob {
    int in_w = 0, in_h = 0, channels = 0;  // input size
    // The box of the input that becomes the output; may be fractional.
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
    int out_w = 0, out_h = 0;
    Filter filter = Filter::kAntialias;
    bool flip = false;    // left-right, after resizing
    bool scaled = false;  // the input comes from a DCT-scaled decode
};

class Resizer {
public:
    void begin(const ResizeJob& job);
    // True if the pixels do not change, so that rows can be copied.
    bool is_identity() const { return columns_.copy && rows_.copy; }
    // Processes the next n rows and writes each finished output row to `out`. kRowPadding bytes
    // after each row must be readable.
    void push(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out);
    void release_memory();
    size_t memory() const { return ring_.capacity() + row_.capacity(); }

    static constexpr int kStripRows = 16;
    static constexpr size_t kRowPadding = 64;

private:
    void push_nearest(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out);
    void columns(const uint8_t* pixels, ptrdiff_t stride, int n);
    void columns_in_groups(const uint8_t* pixels, ptrdiff_t stride, int n);
    void emit(RowWriter& out);
    uint8_t* ring_row(int y) { return ring_.data() + size_t(y % ring_rows_) * ring_stride_; }

    ResizeJob job_;
    Taps columns_, rows_;
    std::vector<uint8_t> ring_, row_;
    std::vector<const uint8_t*> sources_;
    size_t ring_stride_ = 0;
    int ring_rows_ = 0;
    int received_ = 0, next_out_ = 0;
};

namespace detail {

// One row: out[i] = sum of columns.weights * in, for interleaved `channels`.
void columns_portable(const uint8_t* in, uint8_t* out, const Taps& columns, int channels);
// Two rows at once, 1 channel (TapTables::kEights). Reads up to kRowPadding bytes after the rows
// and writes up to 16 after the output.
void columns_gray_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1,
                       const Taps& columns);
// Groups [begin, end) of four rows at once, 3 channels, with TapTables::kPairColumns and
// kQuadColumns. Reads and writes beyond the rows like columns_gray_avx2().
void columns_rgb_avx2(const uint8_t* const* in, uint8_t* const* out, const Taps& columns, int begin,
                      int end);
void columns_rgb_avx512(const uint8_t* const* in, uint8_t* const* out, const Taps& columns,
                        int begin, int end);

// One output row of n bytes from `taps` rows.
void rows_portable(const uint8_t* const* in, const int32_t* weights, int taps, uint8_t* out,
                   size_t n);
// Output row `y` of `rows` (TapTables::kBytePairs), from rows.width inputs. n >= 32; writes exactly
// n bytes.
void rows_avx2(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n);
// The same with TapTables::kQuads, for any n. Reads up to 63 bytes after the n bytes of an input.
void rows_avx512(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n);

}  // namespace detail
}  // namespace fastload
