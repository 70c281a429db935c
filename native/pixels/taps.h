// The weights of a resize along one axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

enum class Filter : uint8_t {
    kAntialias = 0,  // Pillow BILINEAR: a triangle as wide as the scale, taps outside dropped and
                     // the rest renormalized
    kBilinear = 1,   // OpenCV INTER_LINEAR: always two taps
    kNearest = 2,    // floor((i + 0.5) * scale), for masks: values are never mixed
};

constexpr int kWeightBits = 22;  // of fixed point, Pillow's: 32 bits - 8 of the pixel - 2 spare
constexpr int kLowBits =
    16;  // of a weight, where it is split in two; its upper part is then at most 64
constexpr int kCoarseBits = 11;  // of a coarse weight are 0
constexpr int kMostCoarse = 64;  // taps: with more, rounding would be felt

// Which tables to make beside `weights`.
enum class TapTables : uint8_t {
    kNone,         // for code without tables, and for nearest: one weight
    kEights,       // high, low, in eights: for gray columns
    kBytePairs,    // the same in pairs, high as bytes: for rows
    kPairColumns,  // high, low and lanes: for columns of three channels
    kQuads,        // digits
    kQuadColumns,  // digits and lanes: for columns of three channels. Very wide steps get
                   // kPairColumns instead
};

// How kPairColumns read: windows of 16 bytes, each for up to four sums.
enum class Windows : uint8_t {
    kPixel,  // three sums, of one pixel: for wide steps
    kFour,   // four sums, of two pixels
    kEight,  // the same, and the next window is in the same place
};

// What one axis needs: output i is the weighted sum of `width` inputs from `first[i]` on.
struct Taps {
    int in = 0, out = 0;  // sizes
    int width = 0;  // weights stored per output, the same for all, zeros where an output has fewer
    bool copy = false;    // output equals input: no pass needed
    bool coarse = false;  // weights are multiples of 2^kCoarseBits: half the multiplications
    TapTables tables = TapTables::kNone;
    std::vector<int32_t> first;    // first[i] + width <= in, where in >= width
    std::vector<int32_t> weights;  // `width` per output, never negative
    // For pixels/resize_avx2.cpp: weight = high * 2^16 + low, low signed, two neighbors in one
    // word as 16-bit halves. In kBytePairs and kPairColumns high is two bytes, twice; with few
    // coarse weights low, too, and it counts 2^11.
    std::vector<uint32_t> high, low;
    bool few_coarse() const { return coarse && width <= 8; }  // sums of `low` fit 16 bits
    // Columns in groups of four windows (from bases[window] on). For each two windows 2 x 4 words
    // of places, then for each two weights 4 words of high and those of low.
    Windows windows = Windows::kFour;
    static constexpr int kPlaceWords = 8;
    int window_sums() const { return windows == Windows::kPixel ? 3 : 4; }
    size_t two_windows_words() const {
        return size_t(kPlaceWords + width / 2 * (few_coarse() ? 8 : 12));
    }
    // For pixels/resize_avx512.cpp: weight = digit 2 * 2^16 + digit 1 * 2^8 + digit 0, signed
    // bytes, those of four neighbors in one word.
    std::vector<uint32_t> digits[3];
    // Columns in groups of five pixels, as 15 sums: for each group kLaneWords of places (in bytes
    // from bases[group] on), then for each four weights 3 x kLaneWords of digits.
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

    // For [begin, end) of `in_size` inputs -> `out_size` outputs. `reversed` gives the outputs in
    // reverse order. `scaled`: DCT scaling has filtered already (see pixels/taps.cpp).
    void make(int in_size, double begin, double end, int out_size, Filter filter, bool scaled,
              bool reversed, TapTables wanted);

private:
    double* room_for(int most);
    void make_antialias(double begin, double end, bool scaled);
    void make_bilinear();
    void make_nearest();
    void pack(bool reversed, int align);
    void coarsen();

    double key_[8] = {};  // what the tables were made for: batches often ask for the same again
    std::vector<double> values_;  // weights before rounding, packed; counts_[i] of them per output
    std::vector<int32_t> starts_, counts_;
};

}  // namespace fastload
