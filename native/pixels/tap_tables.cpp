// The tables that the vector kernels read weights from.
#include <algorithm>
#include <cstdlib>

#include "cpu/simd.h"
#include "pixels/taps.h"

namespace fastload {
namespace {

// Places of two neighbours' bytes, widened to 16 bits: kWidened + kTwice * the first one's.
constexpr uint32_t kTwice = 0x00010001, kWidened = 0x80038000;

constexpr int kWindow =
    (16 - 2 * 3) /
    3;  // pixels from the first to the last one of which two taps are in a window of 16 bytes

// What is left of a weight without its low bits, which are signed.
int32_t upper(int32_t weight) {
    return (weight + (1 << (kLowBits - 1))) >> kLowBits;
}

uint32_t halves(int32_t first, int32_t second) {
    return uint32_t(first & 0xFFFF) | uint32_t(second) << 16;
}

uint32_t bytes_twice(int32_t first, int32_t second) {
    return uint32_t((first & 0xFF) | (second & 0xFF) << 8) * kTwice;
}

// Four sums that follow each other are of two pixels, a and b; the first is a's colour `channel`.
struct FourSums {
    size_t channel;

    uint32_t choose(size_t sum, uint32_t a, uint32_t b) const { return channel + sum < 3 ? a : b; }
    void put(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 4; ++i) to[i] = choose(i, a, b);
    }
    // Two to a word, of words that hold theirs twice.
    void put_bytes(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 2; ++i)
            to[i] = (choose(2 * i, a, b) & 0xFFFF) | (choose(2 * i + 1, a, b) & 0xFFFF0000);
    }
    void put_places(uint32_t* to, uint32_t a, uint32_t b) const {
        for (size_t i = 0; i < 4; ++i)
            to[i] = kWidened + kTwice * uint32_t(3 * choose(i, a, b) + (channel + i) % 3);
    }
};

}  // namespace

void Taps::make_tables(TapTables wanted) {
    tables = wanted;
    if (wanted == TapTables::kQuads || wanted == TapTables::kQuadColumns) make_digits();
    if (wanted == TapTables::kQuadColumns && !make_lanes()) tables = TapTables::kPairColumns;
    if (tables == TapTables::kEights) make_pairs();
    if (tables == TapTables::kBytePairs || tables == TapTables::kPairColumns) make_byte_pairs();
    if (tables == TapTables::kPairColumns) make_windows();
}

void Taps::make_pairs() {
    const size_t pairs = weights.size() / 2;
    high.resize(pairs);
    low.resize(pairs);
    for (size_t i = 0; i < pairs; ++i) {
        const int32_t a = weights[2 * i], b = weights[2 * i + 1];
        high[i] = halves(upper(a), upper(b));
        low[i] = halves(a, b);
    }
}

void Taps::make_byte_pairs() {
    const size_t pairs = weights.size() / 2;
    high.resize(pairs);
    low.resize(pairs);
    const auto lower = [](int32_t weight) {
        return (weight >> kCoarseBits) - (upper(weight) << (kLowBits - kCoarseBits));
    };
    for (size_t i = 0; i < pairs; ++i) {
        const int32_t a = weights[2 * i], b = weights[2 * i + 1];
        high[i] = bytes_twice(upper(a), upper(b));
        low[i] = few_coarse() ? bytes_twice(lower(a), lower(b)) : halves(a, b);
    }
}

// How many pixels there are at most between the beginnings of an output and of the one `steps`
// further, or of all if they are fewer.
int Taps::farthest(int steps) const {
    int most = 0;
    steps = std::min(steps, out - 1);
    for (int i = 0; i + steps < out; ++i)
        most = std::max(most, std::abs(first[size_t(i + steps)] - first[size_t(i)]));
    return most;
}

void Taps::make_windows() {
    windows = farthest(1) > kWindow   ? Windows::kPixel
              : farthest(3) > kWindow ? Windows::kFour
                                      : Windows::kEight;  // 8 sums: up to 4 pixels
    const size_t n = size_t(groups()) * 4, each = size_t(window_sums()),
                 words = two_windows_words();
    const size_t pairs = size_t(width) / 2, last = size_t(out) - 1;
    const bool bytes = few_coarse();
    bases.resize(n);
    lanes.resize(n / 2 * words);
    // Beyond the last pixel it is taken again: its bytes fall into the padding.
    const auto pixel = [last](size_t sum) { return std::min(sum / 3, last); };
    for (size_t i = 0; i < n; ++i) {
        const size_t second = i % 2,
                     begin = windows == Windows::kEight ? 4 * (i - second) : each * i;
        const int32_t base =
            std::min(first[pixel(begin)],
                     first[pixel(windows == Windows::kEight ? begin + 7 : begin + each - 1)]);
        bases[i] = 3 * base;
        const FourSums sums{each * i % 3};
        const size_t a = pixel(each * i), b = pixel(each * i + each - 1);
        uint32_t* to = &lanes[i / 2 * words];
        sums.put_places(to + 4 * second, uint32_t(first[a] - base), uint32_t(first[b] - base));
        to += kPlaceWords;
        const uint32_t *high_a = &high[a * pairs], *high_b = &high[b * pairs],
                       *low_a = &low[a * pairs], *low_b = &low[b * pairs];
        for (size_t j = 0; j < pairs; ++j, to += bytes ? 8 : 12) {
            sums.put_bytes(to + 2 * second, high_a[j], high_b[j]);
            bytes ? sums.put_bytes(to + 4 + 2 * second, low_a[j], low_b[j])
                  : sums.put(to + 4 + 4 * second, low_a[j], low_b[j]);
        }
    }
}

void Taps::make_digits() {
    for (auto& digit : digits)
        digit.resize((weights.size() + 15) / 16 * 4 +
                     kLaneWords);  // the kernels read whole vectors
#ifdef FASTLOAD_X86
    detail::split_digits_avx512(weights.data(), weights.size(), digits[2].data(), digits[1].data(),
                                digits[0].data());
#endif
}

// False where the pixels of a group lie too far apart for one load of 64 bytes.
bool Taps::make_lanes() {
    const size_t groups = size_t(out + kGroup - 1) / kGroup;
    bases.resize(groups);
    constexpr int kFarthest =
        (64 - 4 * 3) / 3;  // pixels, so that four taps of three bytes from there on are loaded
    for (size_t i = 0; i < groups; ++i) {
        const auto begin = first.begin() + ptrdiff_t(i * kGroup),
                   end = first.begin() + std::min<ptrdiff_t>(ptrdiff_t(i * kGroup) + kGroup, out);
        const auto [least, most] = std::minmax_element(begin, end);
        if (*most - *least > kFarthest) return false;
        bases[i] = *least * 3;
    }
    lanes.resize(groups * group_words());
#ifdef FASTLOAD_X86
    detail::fill_lanes_avx512(*this);
#endif
    return true;
}

}  // namespace fastload
