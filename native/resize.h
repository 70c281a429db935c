// Resizing, one strip of rows at a time: columns first (into a ring of 8-bit rows), rows as soon as enough are there.
//
// Arithmetic is Pillow's: 22-bit fixed point, 8-bit rows between the two passes, so `antialias` without DCT scaling gives
// Pillow's bytes. Whole numbers only, therefore the vector kernels (resize_avx2.cpp) give the same bytes as the portable ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

class RowWriter;

enum class Filter : uint8_t {
    kAntialias = 0,  // Pillow BILINEAR: a triangle as wide as the scale, taps outside dropped and the rest renormalised
    kBilinear = 1,   // OpenCV INTER_LINEAR: always two taps
    kNearest = 2,    // floor((i + 0.5) * scale), for masks: values are never mixed
};

// What one axis needs: output i is the weighted sum of `width` inputs from `first[i]` on.
struct Taps {
    int in = 0, out = 0;           // sizes
    int width = 0;                 // weights stored per output, the same for all, zeros where an output has fewer
    bool copy = false;             // output equals input: no pass needed
    bool coarse = false;           // all `low` parts below are 0: half the multiplications
    std::vector<int32_t> first;    // first[i] + width <= in, where in >= width
    std::vector<int32_t> weights;  // 22-bit fixed point, `width` per output
    // The same for the vector kernels: weight = high * 2^11 + low, two neighbours in one word as 16-bit halves.
    std::vector<uint32_t> high, low;

    // For [begin, end) of `in_size` inputs -> `out_size` outputs. `reversed` gives the outputs in reverse order.
    // `scaled`: DCT scaling has filtered already (see resize.cpp). `width` becomes a multiple of `align`.
    void make(int in_size, double begin, double end, int out_size, Filter filter, bool scaled, bool reversed, int align);

private:
    void make_antialias(double begin, double end, bool scaled);
    void make_bilinear();
    void make_nearest();
    void pack(bool reversed, int align);
    void coarsen();
    void split();

    double key_[8] = {};                // what the tables were made for: batches often ask for the same again
    std::vector<double> values_;        // weights before rounding, packed; count_[i] of them per output
    std::vector<int32_t> starts_, counts_;
};

struct ResizeJob {
    int in_w = 0, in_h = 0, channels = 0;          // of the pixels handed in
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;         // the box in them that becomes the output; may be fractional
    int out_w = 0, out_h = 0;
    Filter filter = Filter::kAntialias;
    bool flip = false;                             // left-right, after resizing
    bool scaled = false;                           // the pixels come from a DCT-scaled decode
};

class Resizer {
public:
    void begin(const ResizeJob& job);
    // True where nothing is to be done to the pixels: rows can go to their place as they are.
    bool copies() const { return columns_.copy && rows_.copy; }
    // Takes the next n rows; each finished output row goes to `out`. Behind each row kRowPadding bytes must be readable.
    void push(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out);
    void release_memory();
    size_t memory() const { return ring_.capacity() + row_.capacity(); }

    static constexpr int kStripRows = 16;
    static constexpr size_t kRowPadding = 64;

private:
    void push_nearest(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out);
    void columns(const uint8_t* pixels, ptrdiff_t stride, int n);
    void emit(RowWriter& out);
    uint8_t* ring_row(int y) { return ring_.data() + size_t(y % ring_rows_) * ring_stride_; }

    ResizeJob job_;
    Taps columns_, rows_;
    std::vector<uint8_t> ring_, row_;
    std::vector<const uint8_t*> sources_;
    size_t ring_stride_ = 0;
    int ring_rows_ = 0;
    int received_ = 0, next_out_ = 0;
    bool vector_ = false;
};

namespace detail {

// One row: out[i] = sum of columns.weights * in. `channels` interleaved.
void columns_portable(const uint8_t* in, uint8_t* out, const Taps& columns, int channels);
// Two rows at once, 3 and 1 channels. Reads up to kRowPadding bytes behind the rows, writes up to 16 behind the output.
void columns_rgb_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1, const Taps& columns);
void columns_gray_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1, const Taps& columns);

// One output row of n bytes from `taps` rows.
void rows_portable(const uint8_t* const* in, const int32_t* weights, int taps, uint8_t* out, size_t n);
// Output row `y` of `rows`, from rows.width inputs; n >= 32, nothing is written behind n.
void rows_avx2(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n);

}  // namespace detail
}  // namespace fastload
