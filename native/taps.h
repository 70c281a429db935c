// The weights of a resize along one axis, and the tables that the kernels read them from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

enum class Filter : uint8_t {
    kAntialias = 0,  // Pillow BILINEAR: a triangle as wide as the scale, taps outside dropped and the rest renormalised
    kBilinear = 1,   // OpenCV INTER_LINEAR: always two taps
    kNearest = 2,    // floor((i + 0.5) * scale), for masks: values are never mixed
};

constexpr int kWeightBits = 22;  // of fixed point, Pillow's: 32 bits - 8 of the pixel - 2 spare
constexpr int kLowBits = 11;     // of a weight, where it is split in two

// Which tables to make beside `weights`.
enum class TapTables : uint8_t {
    kNone,         // nearest: one weight
    kPairs,        // high, low
    kEights,       // the same, in eights: for gray columns
    kQuads,        // digits
    kQuadColumns,  // digits and lanes: for columns of three channels. Very wide steps get kPairs instead
};

// What one axis needs: output i is the weighted sum of `width` inputs from `first[i]` on.
struct Taps {
    int in = 0, out = 0;           // sizes
    int width = 0;                 // weights stored per output, the same for all, zeros where an output has fewer
    bool copy = false;             // output equals input: no pass needed
    bool coarse = false;           // weights are multiples of 2^11: half the multiplications
    TapTables tables = TapTables::kNone;
    std::vector<int32_t> first;    // first[i] + width <= in, where in >= width
    std::vector<int32_t> weights;  // `width` per output, never negative
    // For resize_avx2.cpp: weight = high * 2^11 + low, two neighbours in one word as 16-bit halves.
    std::vector<uint32_t> high, low;
    // For resize_avx512.cpp: weight = digit 2 * 2^16 + digit 1 * 2^8 + digit 0, signed bytes, those of four neighbours in one word.
    std::vector<uint32_t> digits[3];
    // Columns in groups of five pixels, as 15 sums: for each group kLaneWords of places (in bytes from bases[group] on), then
    // for each four weights 3 x kLaneWords of digits.
    static constexpr int kGroup = 5, kLaneWords = 16;
    std::vector<uint32_t> lanes;
    std::vector<int32_t> bases;
    size_t group_words() const { return size_t(kLaneWords) * size_t(1 + 3 * (width / 4)); }

    // For [begin, end) of `in_size` inputs -> `out_size` outputs. `reversed` gives the outputs in reverse order.
    // `scaled`: DCT scaling has filtered already (see taps.cpp).
    void make(int in_size, double begin, double end, int out_size, Filter filter, bool scaled, bool reversed, TapTables wanted);

private:
    double* room_for(int most);
    void make_antialias(double begin, double end, bool scaled);
    void make_bilinear();
    void make_nearest();
    void pack(bool reversed, int align);
    void coarsen();
    void make_pairs();
    void make_digits();
    bool make_lanes();

    double key_[8] = {};                // what the tables were made for: batches often ask for the same again
    std::vector<double> values_;        // weights before rounding, packed; counts_[i] of them per output
    std::vector<int32_t> starts_, counts_;
};

namespace detail {
// Writes the digits of n weights, n a multiple of 4, and of zeros up to the next multiple of 16.
void split_digits_avx512(const int32_t* weights, size_t n, uint32_t* digit2, uint32_t* digit1, uint32_t* digit0);
// Writes Taps::lanes from first, digits and bases.
void fill_lanes_avx512(Taps& columns);
}  // namespace detail

}  // namespace fastload
