// Weights of a resize along one axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

enum class Filter : uint8_t {
    // Pillow BILINEAR: a triangle scaled with the reduction. Taps outside the image are dropped and
    // the rest is renormalized.
    kAntialias = 0,
    kBilinear = 1,  // OpenCV INTER_LINEAR: always two taps
    kNearest = 2,   // floor((i + 0.5) * scale); for masks, because values are never mixed
};

// fixed-point bits as in Pillow: 32 bits - 8 of the pixel - 2 spare
constexpr int kWeightBits = 22;
// The same for 16-bit pixels, whose sums have 64 bits.
constexpr int kWideWeightBits = 30;
// Low bits of a weight that is split in two. The upper part is then at most 64.
constexpr int kLowBits = 16;
constexpr int kCoarseBits = 11;     // low bits of a coarse weight that are 0
constexpr int kMaxCoarseTaps = 64;  // with more taps, the rounding error would be visible

// Tables to build in addition to `weights`.
enum class TapTables : uint8_t {
    kNone,         // for code without tables, and for nearest, which has one weight
    kEights,       // high and low in groups of eight: for gray columns
    kBytePairs,    // the same in pairs, high as bytes: for rows
    kPairColumns,  // high, low and lanes: for columns of three channels
    kQuads,        // digits
    // Digits and lanes: for columns of three channels. Very wide steps use kPairColumns instead.
    kQuadColumns,
    kWide,  // none, but the weights have kWideWeightBits: for 16-bit pixels
};

// How kPairColumns read their input: windows of 16 bytes, each for up to four sums.
enum class Windows : uint8_t {
    kPixel,  // three sums of one pixel: for wide steps
    kFour,   // four sums of two pixels
    kEight,  // the same, and the next window is at the same position
};

// One axis: output i is the weighted sum of `width` inputs starting at `first[i]`.
struct Taps {
    int in = 0, out = 0;  // sizes
    int width = 0;        // weights stored per output; unused weights are 0
    bool copy = false;    // output equals input: no pass is needed
    bool coarse = false;  // weights are multiples of 2^kCoarseBits: half the multiplications
    TapTables tables = TapTables::kNone;
    std::vector<int32_t> first;    // first[i] + width <= in, if in >= width
    std::vector<int32_t> weights;  // `width` per output, never negative
    // For pixels/resize_avx2.cpp: weight = high * 2^16 + low, with signed low, and two neighbors
    // per word as 16-bit halves. With kBytePairs and kPairColumns, high is two bytes, stored twice.
    // With few coarse weights the same holds for low, which then counts 2^11.
    std::vector<uint32_t> high, low;
    bool few_coarse() const { return coarse && width <= 8; }  // sums of `low` fit 16 bits
    // Columns in groups of four windows (starting at bases[window]). Every two windows have 2 x 4
    // words of positions, then, for every two weights, 4 words of high and the words of low.
    Windows windows = Windows::kFour;
    static constexpr int kPlaceWords = 8;
    int window_sums() const { return windows == Windows::kPixel ? 3 : 4; }
    size_t two_windows_words() const {
        return size_t(kPlaceWords + width / 2 * (few_coarse() ? 8 : 12));
    }
    // For pixels/resize_avx512.cpp: weight = digit 2 * 2^16 + digit 1 * 2^8 + digit 0, with signed
    // bytes as digits and four neighbors per word.
    std::vector<uint32_t> digits[3];
    // Columns in groups of five pixels, as 15 sums. Each group has kLaneWords of positions (in
    // bytes from bases[group]), then, for every four weights, 3 x kLaneWords of digits.
    static constexpr int kGroup = 5, kLaneWords = 16;
    std::vector<uint32_t> lanes;
    std::vector<int32_t> bases;
    size_t group_words() const {
        return tables == TapTables::kPairColumns ? 2 * two_windows_words()
                                                 : size_t(kLaneWords) * size_t(1 + 3 * (width / 4));
    }
    int groups() const {
        const int sums = tables == TapTables::kPairColumns ? 4 * window_sums() : 3 * kGroup;
        return (3 * out + sums - 1) / sums;
    }

    // Computes the weights from [begin, end) of `in_size` inputs to `out_size` outputs. `reversed`
    // reverses the order of the outputs. `scaled`: DCT scaling has already filtered (see
    // pixels/taps.cpp).
    void make(int in_size, double begin, double end, int out_size, Filter filter, bool scaled,
              bool reversed, TapTables requested);

private:
    double* reserve_values(int max_count);
    void make_antialias(double begin, double end, bool scaled);
    void make_bilinear(bool wide);
    void make_nearest();
    void pack(bool reversed, int align, int bits);
    void round_coarse();

    double key_[8] = {};          // arguments of the last make(): batches often repeat them
    std::vector<double> values_;  // weights before rounding, packed; counts_[i] per output
    std::vector<int32_t> starts_, counts_;
};

}  // namespace fastload
