// The two passes of the resize with AVX2. A weight of 22 bits does not fit the 16 x 16 bit
// multiply-add, so it is split: its upper part, at most 64, is multiplied as bytes and its lower
// part as 16 bits. The sums are combined to exactly the integers of the portable code. Coarse
// weights have so short a lower part that bytes are enough for both.
#include "cpu/simd.h"
#include "pixels/resize.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#include <cstring>
#include <type_traits>

namespace fastload::detail {
namespace {

__m256i load_two(const uint8_t* row0, const uint8_t* row1) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row0))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(row1)), 1);
}

void store_two(uint8_t* row0, uint8_t* row1, __m256i bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row0), _mm256_castsi256_si128(bytes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row1), _mm256_extracti128_si256(bytes, 1));
}

__m256i broadcast(const uint32_t* word) {
    return _mm256_set1_epi32(int(*word));
}

__m256i twice(const uint32_t* four) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(four)));
}

// Sums of 16 outputs. The sums of the upper parts have 16 bits. The sums of the lower parts have 32
// bits in two registers, or 16 bits in the first register with coarse weights. Overflow is
// harmless, because the 16 bits that are used are correct. kAlternating: every second output is in
// the second register. Otherwise the second four of eight are.
template <bool kCoarse, bool kAlternating>
struct Avx2Sums {
    __m256i upper, lower0, lower1;

    void clear() { upper = lower0 = lower1 = _mm256_setzero_si256(); }
    // `bytes`: two taps of each output side by side; `words`: the same as 16-bit values.
    void add(__m256i bytes, __m256i words0, __m256i words1, __m256i high, __m256i low0,
             __m256i low1) {
        upper = _mm256_add_epi16(upper, _mm256_maddubs_epi16(bytes, high));
        if (kCoarse) {
            lower0 = _mm256_add_epi16(lower0, _mm256_maddubs_epi16(bytes, low0));
        } else {
            lower0 = _mm256_add_epi32(lower0, _mm256_madd_epi16(words0, low0));
            lower1 = _mm256_add_epi32(lower1, _mm256_madd_epi16(words1, low1));
        }
    }
    __m256i joined() const {
        const __m256i carried =
            kCoarse        ? _mm256_srai_epi16(lower0, kLowBits - kCoarseBits)
            : kAlternating ? _mm256_blend_epi16(_mm256_srli_epi32(lower0, kLowBits), lower1, 0xAA)
                           : _mm256_packs_epi32(_mm256_srai_epi32(lower0, kLowBits),
                                                _mm256_srai_epi32(lower1, kLowBits));
        // This multiplication shifts right by the rest of kWeightBits and rounds.
        return _mm256_mulhrs_epi16(_mm256_add_epi16(upper, carried),
                                   _mm256_set1_epi16(1 << (15 - (kWeightBits - kLowBits))));
    }
};

// Calls `kernel` with the number of tap pairs (0: variable) and whether the weights are coarse, as
// constants.
template <typename Kernel>
void with_constants(int pairs, bool coarse, const Kernel& kernel) {
    const auto by_pairs = [&](auto is_coarse) {
        if (pairs == 1) return kernel(std::integral_constant<int, 1>(), is_coarse);
        if (pairs == 2) return kernel(std::integral_constant<int, 2>(), is_coarse);
        return kernel(std::integral_constant<int, 0>(), is_coarse);
    };
    coarse ? by_pairs(std::true_type()) : by_pairs(std::false_type());
}

// Two rows share a register, one half each. Four rows share the table reads.
template <int kPairs, bool kCoarse, Windows kWindows>
void columns_in_windows(const uint8_t* const* in, uint8_t* const* out, const Taps& columns,
                        int begin, int end) {
    const char z = -128;  // writes a zero: the three sums of a pixel are followed by an unused one
    const __m256i drop = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, z, z, z, z));
    const int pairs = kPairs ? kPairs : columns.width / 2;
    const uint32_t* lanes = columns.lanes.data() + size_t(begin) * columns.group_words();
    const int32_t* base = columns.bases.data() + 4 * ptrdiff_t(begin);
    const uint8_t *in0 = in[0], *in1 = in[1], *in2 = in[2], *in3 = in[3];
    constexpr ptrdiff_t kGroupSums = kWindows == Windows::kPixel ? 12 : 16;
    for (ptrdiff_t at = kGroupSums * begin; at < kGroupSums * end; at += kGroupSums) {
        __m256i words[2][2];
        for (int two = 0; two < 2; ++two, base += 2) {
            const __m256i places0 = twice(lanes), places1 = twice(lanes + 4);
            lanes += Taps::kPlaceWords;
            Avx2Sums<kCoarse, false> sums[2];
            for (auto& each : sums) each.clear();
            for (int j = 0; j < pairs; ++j, lanes += kCoarse ? 8 : 12) {
                const __m256i high = twice(lanes), low0 = twice(lanes + 4),
                              low1 = kCoarse ? low0 : twice(lanes + 8);
                const ptrdiff_t from0 = base[0] + 6 * j, from1 = base[1] + 6 * j;
                const auto add = [&](Avx2Sums<kCoarse, false>& to, const uint8_t* row0,
                                     const uint8_t* row1) {
                    const __m256i window0 = load_two(row0 + from0, row1 + from0);
                    const __m256i window1 = kWindows == Windows::kEight
                                                ? window0
                                                : load_two(row0 + from1, row1 + from1);
                    const __m256i words0 = _mm256_shuffle_epi8(window0, places0),
                                  words1 = _mm256_shuffle_epi8(window1, places1);
                    to.add(_mm256_packus_epi16(words0, words1), words0, words1, high, low0, low1);
                };
                add(sums[0], in0, in1);
                add(sums[1], in2, in3);
            }
            words[0][two] = sums[0].joined();
            words[1][two] = sums[1].joined();
        }
        for (int k = 0; k < 2; ++k) {
            const __m256i bytes = _mm256_packus_epi16(words[k][0], words[k][1]);
            store_two(out[2 * k] + at, out[2 * k + 1] + at,
                      kWindows == Windows::kPixel ? _mm256_shuffle_epi8(bytes, drop) : bytes);
        }
    }
}

}  // namespace

void columns_rgb_avx2(const uint8_t* const* in, uint8_t* const* out, const Taps& columns, int begin,
                      int end) {
    with_constants(columns.width / 2, columns.few_coarse(), [&](auto pairs, auto coarse) {
        switch (columns.windows) {
            case Windows::kPixel:
                return columns_in_windows<pairs(), coarse(), Windows::kPixel>(in, out, columns,
                                                                              begin, end);
            case Windows::kFour:
                return columns_in_windows<pairs(), coarse(), Windows::kFour>(in, out, columns,
                                                                             begin, end);
            case Windows::kEight:
                return columns_in_windows<pairs(), coarse(), Windows::kEight>(in, out, columns,
                                                                              begin, end);
        }
    });
}

void columns_gray_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1,
                       const Taps& columns) {
    const int eights = columns.width / 8, n = columns.out;
    const __m256i round = _mm256_set1_epi32(1 << (kWeightBits - 1));
    for (int i = 0; i < n; i += 4) {
        __m256i sums[4];
        for (int k = 0; k < 4; ++k) {
            const int at = i + k < n ? i + k : n - 1;
            const uint8_t *from0 = in0 + columns.first[size_t(at)],
                          *from1 = in1 + columns.first[size_t(at)];
            const uint32_t* high = &columns.high[size_t(at) * size_t(4 * eights)];
            const uint32_t* low = &columns.low[size_t(at) * size_t(4 * eights)];
            __m256i highs = _mm256_setzero_si256(), lows = _mm256_setzero_si256();
            for (int j = 0; j < eights; ++j) {
                const __m128i bytes = _mm_unpacklo_epi64(
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from0 + 8 * j)),
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from1 + 8 * j)));
                const __m256i words = _mm256_cvtepu8_epi16(bytes);
                highs = _mm256_add_epi32(
                    highs,
                    _mm256_madd_epi16(words, _mm256_broadcastsi128_si256(_mm_loadu_si128(
                                                 reinterpret_cast<const __m128i*>(high + 4 * j)))));
                lows = _mm256_add_epi32(
                    lows,
                    _mm256_madd_epi16(words, _mm256_broadcastsi128_si256(_mm_loadu_si128(
                                                 reinterpret_cast<const __m128i*>(low + 4 * j)))));
            }
            sums[k] = _mm256_add_epi32(_mm256_slli_epi32(highs, kLowBits), lows);
        }
        __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]),
                                         _mm256_hadd_epi32(sums[2], sums[3]));
        four = _mm256_srai_epi32(_mm256_add_epi32(four, round), kWeightBits);
        const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(four, four), four);
        const int word0 = _mm256_cvtsi256_si32(bytes), word1 = _mm256_extract_epi32(bytes, 4);
        std::memcpy(out0 + i, &word0, 4);
        std::memcpy(out1 + i, &word1, 4);
    }
}

namespace {

template <int kPairs, bool kCoarse>
void blend_rows(const uint8_t* const* in, const uint32_t* high, const uint32_t* low, int pairs,
                uint8_t* __restrict out, size_t n) {
    if (kPairs) pairs = kPairs;
    const char z = -128;  // writes a zero: widens the bytes of every second output
    const __m256i even = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, z, 1, z, 4, z, 5, z, 8, z, 9, z, 12, z, 13, z));
    const __m256i odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, z, 3, z, 6, z, 7, z, 10, z, 11, z, 14, z, 15, z));
    for (size_t x = 0;; x += 32) {
        if (x + 32 > n) {
            if (x >= n) return;
            x = n - 32;  // the last block overlaps the previous one
        }
        Avx2Sums<kCoarse, true> sums[2];
        for (auto& each : sums) each.clear();
        for (int j = 0; j < pairs; ++j) {
            const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[2 * j] + x));
            const __m256i b =
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[2 * j + 1] + x));
            const __m256i bytes[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
            const __m256i weight_high = broadcast(high + j), weight_low = broadcast(low + j);
            for (int k = 0; k < 2; ++k)
                sums[k].add(bytes[k], _mm256_shuffle_epi8(bytes[k], even),
                            _mm256_shuffle_epi8(bytes[k], odd), weight_high, weight_low,
                            weight_low);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x),
                            _mm256_packus_epi16(sums[0].joined(), sums[1].joined()));
    }
}

}  // namespace

void rows_avx2(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n) {
    int pairs = rows.width / 2;
    const uint32_t *high = &rows.high[size_t(y) * size_t(pairs)],
                   *low = &rows.low[size_t(y) * size_t(pairs)];
    while (pairs > 1 && !high[pairs - 1] && !low[pairs - 1])
        --pairs;  // many outputs have fewer taps than the widest
    with_constants(pairs, rows.few_coarse(), [&](auto constant, auto coarse) {
        blend_rows<constant(), coarse()>(in, high, low, pairs, out, n);
    });
}

}  // namespace fastload::detail
#endif
