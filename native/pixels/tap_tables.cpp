#include "pixels/tap_tables.h"

#include <algorithm>
#include <cstdlib>

#include "cpu/simd.h"

namespace fastload {
namespace {

// Shuffle control for the bytes of two neighbors, widened to 16 bits: kWidened + kTwice * the
// position of the first one.
constexpr uint32_t kTwice = 0x00010001, kWidened = 0x80038000;

// Largest distance in pixels of two outputs whose first two taps fit a window of 16 bytes.
constexpr int kWindowPixels = (16 - 2 * 3) / 3;

// The upper part of a weight. The low bits are signed.
int32_t upper(int32_t weight) {
    return (weight + (1 << (kLowBits - 1))) >> kLowBits;
}

uint32_t halves(int32_t first, int32_t second) {
    return uint32_t(first & 0xFFFF) | uint32_t(second) << 16;
}

uint32_t bytes_twice(int32_t first, int32_t second) {
    return uint32_t((first & 0xFF) | (second & 0xFF) << 8) * kTwice;
}

// Four consecutive sums belong to two pixels, a and b. The first sum is channel `channel` of a.
struct FourSums {
    size_t channel;

    uint32_t choose(size_t sum, uint32_t a, uint32_t b) const { return channel + sum < 3 ? a : b; }
    void put(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 4; ++i) to[i] = choose(i, a, b);
    }
    // Packs two sums per word, from words that contain theirs twice.
    void put_bytes(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 2; ++i)
            to[i] = (choose(2 * i, a, b) & 0xFFFF) | (choose(2 * i + 1, a, b) & 0xFFFF0000);
    }
    void put_places(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 4; ++i)
            to[i] = kWidened + kTwice * uint32_t(3 * choose(i, a, b) + (channel + i) % 3);
    }
};

void make_pairs(Taps& taps) {
    const size_t pairs = taps.weights.size() / 2;
    taps.high.resize(pairs);
    taps.low.resize(pairs);
    for (size_t i = 0; i < pairs; ++i) {
        const int32_t a = taps.weights[2 * i], b = taps.weights[2 * i + 1];
        taps.high[i] = halves(upper(a), upper(b));
        taps.low[i] = halves(a, b);
    }
}

void make_byte_pairs(Taps& taps) {
    const size_t pairs = taps.weights.size() / 2;
    taps.high.resize(pairs);
    taps.low.resize(pairs);
    const auto lower = [](int32_t weight) {
        return (weight >> kCoarseBits) - (upper(weight) << (kLowBits - kCoarseBits));
    };
    for (size_t i = 0; i < pairs; ++i) {
        const int32_t a = taps.weights[2 * i], b = taps.weights[2 * i + 1];
        taps.high[i] = bytes_twice(upper(a), upper(b));
        taps.low[i] = taps.few_coarse() ? bytes_twice(lower(a), lower(b)) : halves(a, b);
    }
}

// Returns the largest distance between the first inputs of output i and output i + steps (or of the
// last output if there are fewer).
int farthest(const Taps& taps, int steps) {
    int max_count = 0;
    steps = std::min(steps, taps.out - 1);
    for (int i = 0; i + steps < taps.out; ++i)
        max_count =
            std::max(max_count, std::abs(taps.first[size_t(i + steps)] - taps.first[size_t(i)]));
    return max_count;
}

void make_windows(Taps& taps) {
    taps.windows = farthest(taps, 1) > kWindowPixels   ? Windows::kPixel
                   : farthest(taps, 3) > kWindowPixels ? Windows::kFour
                                                       : Windows::kEight;  // 8 sums: up to 4 pixels
    const size_t n = size_t(taps.groups()) * 4, each = size_t(taps.window_sums()),
                 words = taps.two_windows_words();
    const size_t pairs = size_t(taps.width) / 2, last = size_t(taps.out) - 1;
    const bool bytes = taps.few_coarse();
    taps.bases.resize(n);
    taps.lanes.resize(n / 2 * words);
    // Beyond the last pixel, the last one is repeated. Its bytes are written to the padding.
    const auto pixel = [last](size_t sum) { return std::min(sum / 3, last); };
    for (size_t i = 0; i < n; ++i) {
        const size_t second = i % 2,
                     begin = taps.windows == Windows::kEight ? 4 * (i - second) : each * i;
        const int32_t base = std::min(
            taps.first[pixel(begin)],
            taps.first[pixel(taps.windows == Windows::kEight ? begin + 7 : begin + each - 1)]);
        taps.bases[i] = 3 * base;
        const FourSums sums{each * i % 3};
        const size_t a = pixel(each * i), b = pixel(each * i + each - 1);
        uint32_t* to = &taps.lanes[i / 2 * words];
        sums.put_places(to + 4 * second, uint32_t(taps.first[a] - base),
                        uint32_t(taps.first[b] - base));
        to += Taps::kPlaceWords;
        const uint32_t *high_a = &taps.high[a * pairs], *high_b = &taps.high[b * pairs],
                       *low_a = &taps.low[a * pairs], *low_b = &taps.low[b * pairs];
        for (size_t j = 0; j < pairs; ++j, to += bytes ? 8 : 12) {
            sums.put_bytes(to + 2 * second, high_a[j], high_b[j]);
            bytes ? sums.put_bytes(to + 4 + 2 * second, low_a[j], low_b[j])
                  : sums.put(to + 4 + 4 * second, low_a[j], low_b[j]);
        }
    }
}

void make_digits(Taps& taps) {
    // The kernels read whole vectors.
    for (auto& digit : taps.digits)
        digit.resize((taps.weights.size() + 15) / 16 * 4 + Taps::kLaneWords);
#ifdef FASTLOAD_X86
    detail::split_digits_avx512(taps.weights.data(), taps.weights.size(), taps.digits[2].data(),
                                taps.digits[1].data(), taps.digits[0].data());
#endif
}

// Returns false if the pixels of a group are too far apart for one load of 64 bytes.
bool make_lanes(Taps& taps) {
    const size_t n_groups = size_t(taps.out + Taps::kGroup - 1) / Taps::kGroup;
    taps.bases.resize(n_groups);
    // Largest distance in pixels, so that four taps of three bytes are still loaded.
    constexpr int kFarthest = (64 - 4 * 3) / 3;
    for (size_t i = 0; i < n_groups; ++i) {
        const auto begin = taps.first.begin() + ptrdiff_t(i * Taps::kGroup),
                   end = taps.first.begin() +
                         std::min<ptrdiff_t>(ptrdiff_t(i * Taps::kGroup) + Taps::kGroup, taps.out);
        const auto [least, max_count] = std::minmax_element(begin, end);
        if (*max_count - *least > kFarthest) return false;
        taps.bases[i] = *least * 3;
    }
    taps.lanes.resize(n_groups * taps.group_words());
#ifdef FASTLOAD_X86
    detail::fill_lanes_avx512(taps);
#endif
    return true;
}

}  // namespace

void make_tap_tables(Taps& taps, TapTables requested) {
    taps.tables = requested;
    if (requested == TapTables::kQuads || requested == TapTables::kQuadColumns) make_digits(taps);
    if (requested == TapTables::kQuadColumns && !make_lanes(taps))
        taps.tables = TapTables::kPairColumns;
    if (taps.tables == TapTables::kEights) make_pairs(taps);
    if (taps.tables == TapTables::kBytePairs || taps.tables == TapTables::kPairColumns)
        make_byte_pairs(taps);
    if (taps.tables == TapTables::kPairColumns) make_windows(taps);
}

}  // namespace fastload
