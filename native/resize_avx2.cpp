// The two passes of the resize. A weight of 22 bits does not fit the 16 x 16 bit multiply-add, so it is split into a high
// and a low part and the sums are joined: twice the multiplies, and exactly the portable path's whole numbers.
#include "cpu.h"
#include "resize.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#include <cstring>

namespace fastload::detail {
namespace {

__m256i load_two(const uint8_t* row0, const uint8_t* row1) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row0))),
                                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(row1)), 1);
}

__m256i join(__m256i high, __m256i low) { return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low), kWeightBits); }

__m256i broadcast(const uint32_t* word) { return _mm256_set1_epi32(int(*word)); }

// One output pixel of two rows (low half: row 0, high half: row 1): r, g, b, 0 as 32 bits.
struct RgbPixel {
    __m256i pair0, pair1, round, coarse_round;

    RgbPixel() {
        const char z = -128;  // a zero; each colour of two neighbours side by side as 16 bits
        pair0 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, z, 3, z, 1, z, 4, z, 2, z, 5, z, z, z, z, z));
        pair1 = _mm256_broadcastsi128_si256(_mm_setr_epi8(6, z, 9, z, 7, z, 10, z, 8, z, 11, z, z, z, z, z));
        round = _mm256_set1_epi32(1 << (kWeightBits - 1));
        coarse_round = _mm256_set1_epi32(1 << (kWeightBits - kLowBits - 1));
    }

    template <int kPairs, bool kCoarse>  // kPairs 0: `pairs` says how many
    __m256i sum(const uint8_t* row0, const uint8_t* row1, const uint32_t* high, const uint32_t* low, int pairs) const {
        if (kPairs) pairs = kPairs;
        __m256i highs = kCoarse ? coarse_round : _mm256_setzero_si256(), lows = round;
        int j = 0;
        for (; j + 2 <= pairs; j += 2, row0 += 12, row1 += 12) {
            const __m256i bytes = load_two(row0, row1);
            const __m256i a = _mm256_shuffle_epi8(bytes, pair0), b = _mm256_shuffle_epi8(bytes, pair1);
            highs = _mm256_add_epi32(highs, _mm256_add_epi32(_mm256_madd_epi16(a, broadcast(high + j)), _mm256_madd_epi16(b, broadcast(high + j + 1))));
            if (!kCoarse) lows = _mm256_add_epi32(lows, _mm256_add_epi32(_mm256_madd_epi16(a, broadcast(low + j)), _mm256_madd_epi16(b, broadcast(low + j + 1))));
        }
        if (j < pairs) {
            const __m256i a = _mm256_shuffle_epi8(load_two(row0, row1), pair0);
            highs = _mm256_add_epi32(highs, _mm256_madd_epi16(a, broadcast(high + j)));
            if (!kCoarse) lows = _mm256_add_epi32(lows, _mm256_madd_epi16(a, broadcast(low + j)));
        }
        return kCoarse ? _mm256_srai_epi32(highs, kWeightBits - kLowBits) : join(highs, lows);
    }
};

template <int kPairs, bool kCoarse>
void columns_rgb(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1, const Taps& columns) {
    const RgbPixel pixel;
    const char z = -128;
    const __m256i drop = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, z, z, z, z));
    const int pairs = columns.width / 2, n = columns.out;
    const uint32_t *high = columns.high.data(), *low = columns.low.data();
    const int32_t* first = columns.first.data();
    for (int i = 0; i < n; i += 4) {
        __m256i sums[4];
        for (int k = 0; k < 4; ++k) {
            const int at = i + k < n ? i + k : n - 1;  // the last pixel again: its bytes fall into the padding
            const ptrdiff_t from = ptrdiff_t(first[at]) * 3;
            const size_t weight = size_t(at) * size_t(pairs);
            sums[k] = pixel.sum<kPairs, kCoarse>(in0 + from, in1 + from, high + weight, low + weight, pairs);
        }
        const __m256i words01 = _mm256_packs_epi32(sums[0], sums[1]), words23 = _mm256_packs_epi32(sums[2], sums[3]);
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words01, words23), drop);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out0 + 3 * i), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out1 + 3 * i), _mm256_extracti128_si256(bytes, 1));
    }
}

}  // namespace

void columns_rgb_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1, const Taps& columns) {
    switch (columns.coarse ? -columns.width / 2 : columns.width / 2) {
        case 1: return columns_rgb<1, false>(in0, in1, out0, out1, columns);
        case 2: return columns_rgb<2, false>(in0, in1, out0, out1, columns);
        case 3: return columns_rgb<3, false>(in0, in1, out0, out1, columns);
        case -2: return columns_rgb<2, true>(in0, in1, out0, out1, columns);
        default: return columns.coarse ? columns_rgb<0, true>(in0, in1, out0, out1, columns) : columns_rgb<0, false>(in0, in1, out0, out1, columns);
    }
}

void columns_gray_avx2(const uint8_t* in0, const uint8_t* in1, uint8_t* out0, uint8_t* out1, const Taps& columns) {
    const int eights = columns.width / 8, n = columns.out;
    const __m256i round = _mm256_set1_epi32(1 << (kWeightBits - 1));
    for (int i = 0; i < n; i += 4) {
        __m256i sums[4];
        for (int k = 0; k < 4; ++k) {
            const int at = i + k < n ? i + k : n - 1;
            const uint8_t *from0 = in0 + columns.first[size_t(at)], *from1 = in1 + columns.first[size_t(at)];
            const uint32_t* high = &columns.high[size_t(at) * size_t(4 * eights)];
            const uint32_t* low = &columns.low[size_t(at) * size_t(4 * eights)];
            __m256i highs = _mm256_setzero_si256(), lows = _mm256_setzero_si256();
            for (int j = 0; j < eights; ++j) {
                const __m128i bytes = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from0 + 8 * j)),
                                                         _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from1 + 8 * j)));
                const __m256i words = _mm256_cvtepu8_epi16(bytes);
                highs = _mm256_add_epi32(highs, _mm256_madd_epi16(words, _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(high + 4 * j)))));
                lows = _mm256_add_epi32(lows, _mm256_madd_epi16(words, _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low + 4 * j)))));
            }
            sums[k] = _mm256_add_epi32(_mm256_slli_epi32(highs, kLowBits), lows);
        }
        __m256i four = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
        four = _mm256_srai_epi32(_mm256_add_epi32(four, round), kWeightBits);
        const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(four, four), four);
        const int word0 = _mm256_cvtsi256_si32(bytes), word1 = _mm256_extract_epi32(bytes, 4);
        std::memcpy(out0 + i, &word0, 4);
        std::memcpy(out1 + i, &word1, 4);
    }
}

namespace {

template <bool kCoarse>
void blend_rows(const uint8_t* const* in, const uint32_t* high, const uint32_t* low, int pairs, uint8_t* out, size_t n) {
    const __m256i zero = _mm256_setzero_si256(), round = _mm256_set1_epi32(1 << (kWeightBits - 1));
    const __m256i coarse_round = _mm256_set1_epi32(1 << (kWeightBits - kLowBits - 1));
    const auto finish = [](__m256i highs, __m256i lows) { return kCoarse ? _mm256_srai_epi32(highs, kWeightBits - kLowBits) : join(highs, lows); };
    for (size_t x = 0;; x += 32) {
        if (x + 32 > n) {
            if (x >= n) return;
            x = n - 32;  // the last block overlaps the one before
        }
        __m256i highs[4], lows[4];
        for (int k = 0; k < 4; ++k) highs[k] = kCoarse ? coarse_round : zero, lows[k] = round;
        for (int j = 0; j < pairs; ++j) {
            const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[2 * j] + x));
            const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in[2 * j + 1] + x));
            const __m256i ab_low = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
            const __m256i words[4] = {_mm256_unpacklo_epi8(ab_low, zero), _mm256_unpackhi_epi8(ab_low, zero),
                                      _mm256_unpacklo_epi8(ab_high, zero), _mm256_unpackhi_epi8(ab_high, zero)};
            const __m256i weight_high = broadcast(high + j), weight_low = broadcast(low + j);
            for (int k = 0; k < 4; ++k) {
                highs[k] = _mm256_add_epi32(highs[k], _mm256_madd_epi16(words[k], weight_high));
                if (!kCoarse) lows[k] = _mm256_add_epi32(lows[k], _mm256_madd_epi16(words[k], weight_low));
            }
        }
        const __m256i low_words = _mm256_packs_epi32(finish(highs[0], lows[0]), finish(highs[1], lows[1]));
        const __m256i high_words = _mm256_packs_epi32(finish(highs[2], lows[2]), finish(highs[3], lows[3]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), _mm256_packus_epi16(low_words, high_words));
    }
}

}  // namespace

void rows_avx2(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n) {
    const int pairs = rows.width / 2;
    const uint32_t *high = &rows.high[size_t(y) * size_t(pairs)], *low = &rows.low[size_t(y) * size_t(pairs)];
    rows.coarse ? blend_rows<true>(in, high, low, pairs, out, n) : blend_rows<false>(in, high, low, pairs, out, n);
}

}  // namespace fastload::detail
#endif
