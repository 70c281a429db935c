// The two passes of the resize with AVX-512. One VNNI instruction multiplies four bytes by four
// signed bytes and adds them up. So a weight of 22 bits takes three instructions, one per digit,
// and no byte is widened. The sums of the digits are combined to exactly the integers of the
// portable code.
#include "cpu/simd.h"
#include "pixels/resize.h"
#include "pixels/tap_tables.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#include <type_traits>

namespace fastload::detail {
namespace {

// Sums of 16 outputs, one register per digit. Digit 0 of coarse weights is 0.
template <bool kCoarse>
struct Avx512Sums {
    __m512i sum2, sum1, sum0;

    void clear() {
        sum2 = _mm512_setzero_si512();
        sum1 = kCoarse ? _mm512_set1_epi32(1 << (kWeightBits - 8 - 1)) : sum2;
        sum0 = _mm512_set1_epi32(1 << (kWeightBits - 1));
    }
    void add(__m512i bytes, __m512i digit2, __m512i digit1, __m512i digit0) {
        sum2 = _mm512_dpbusd_epi32(sum2, bytes, digit2);
        sum1 = _mm512_dpbusd_epi32(sum1, bytes, digit1);
        if (!kCoarse) sum0 = _mm512_dpbusd_epi32(sum0, bytes, digit0);
    }
    __m512i joined() const {
        const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sum2, 8), sum1);
        if (kCoarse) return _mm512_srai_epi32(upper, kWeightBits - 8);
        return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), sum0), kWeightBits);
    }
};

__m512i load(const void* from) {
    return _mm512_loadu_si512(from);
}

__m512i broadcast(const uint32_t* word) {
    return _mm512_set1_epi32(int(*word));
}

__m512i pack(__m512i a, __m512i b, __m512i c, __m512i d) {
    return _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
}

// The pixel of a group that each sum belongs to. The 16th sum is unused.
__m512i pixel_of_lane() {
    return _mm512_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4);
}

// kQuads: number of tap quads; 0: columns.width / 4.
template <int kQuads, bool kCoarse>
void columns_rgb(const uint8_t* const* in, uint8_t* const* out, const Taps& columns, int begin,
                 int end) {
    // Packing leaves 4 bytes of each row in each quarter of the register. This moves each row to
    // one quarter.
    const __m512i transpose =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const int quads = kQuads ? kQuads : columns.width / 4;
    const uint32_t* lanes = columns.lanes.data() + size_t(begin) * columns.group_words();
    for (int group = begin; group < end; ++group) {
        const int32_t base = columns.bases.data()[group];
        const ptrdiff_t at = 3 * Taps::kGroup * ptrdiff_t(group);
        const __m512i places = load(lanes);
        lanes += Taps::kLaneWords;
        Avx512Sums<kCoarse> rows[4];
        for (auto& row : rows) row.clear();
        for (int j = 0; j < quads; ++j, lanes += 3 * Taps::kLaneWords) {
            const __m512i digit2 = load(lanes), digit1 = load(lanes + Taps::kLaneWords),
                          digit0 = load(lanes + 2 * Taps::kLaneWords);
            for (int k = 0; k < 4; ++k)
                rows[k].add(_mm512_permutexvar_epi8(places, load(in[k] + base + 12 * j)), digit2,
                            digit1, digit0);
        }
        const __m512i bytes = _mm512_permutexvar_epi32(
            transpose,
            pack(rows[0].joined(), rows[1].joined(), rows[2].joined(), rows[3].joined()));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[0] + at), _mm512_castsi512_si128(bytes));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[1] + at),
                         _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[2] + at),
                         _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[3] + at),
                         _mm512_extracti32x4_epi32(bytes, 3));
    }
}

template <int kQuads, bool kCoarse>
void blend_rows(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n) {
    const int quads = kQuads ? kQuads : rows.width / 4;
    const size_t at = size_t(y) * size_t(quads);
    const uint32_t *digit2 = rows.digits[2].data() + at, *digit1 = rows.digits[1].data() + at,
                   *digit0 = rows.digits[0].data() + at;
    for (size_t x = 0; x < n; x += 64) {
        Avx512Sums<kCoarse> sums[4];
        for (auto& each : sums) each.clear();
        for (int j = 0; j < quads; ++j) {
            const uint8_t* const* from = in + 4 * j;
            const __m512i a = load(from[0] + x), b = load(from[1] + x), c = load(from[2] + x),
                          d = load(from[3] + x);
            const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
            const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
            const __m512i weight2 = broadcast(digit2 + j), weight1 = broadcast(digit1 + j),
                          weight0 = broadcast(digit0 + j);
            sums[0].add(_mm512_unpacklo_epi16(ab_low, cd_low), weight2, weight1, weight0);
            sums[1].add(_mm512_unpackhi_epi16(ab_low, cd_low), weight2, weight1, weight0);
            sums[2].add(_mm512_unpacklo_epi16(ab_high, cd_high), weight2, weight1, weight0);
            sums[3].add(_mm512_unpackhi_epi16(ab_high, cd_high), weight2, weight1, weight0);
        }
        const __m512i bytes =
            pack(sums[0].joined(), sums[1].joined(), sums[2].joined(), sums[3].joined());
        if (n - x >= 64)
            _mm512_storeu_si512(out + x, bytes);
        else
            _mm512_mask_storeu_epi8(out + x, _bzhi_u64(~0ull, unsigned(n - x)), bytes);
    }
}

// Calls `kernel` with the number of tap quads (0: variable) and whether the weights are coarse, as
// constants.
template <typename Kernel>
void with_constants(const Taps& taps, const Kernel& kernel) {
    const auto by_width = [&](auto coarse) {
        if (taps.width == 4) return kernel(std::integral_constant<int, 1>(), coarse);
        if (taps.width == 8) return kernel(std::integral_constant<int, 2>(), coarse);
        return kernel(std::integral_constant<int, 0>(), coarse);
    };
    taps.coarse ? by_width(std::true_type()) : by_width(std::false_type());
}

}  // namespace

void columns_rgb_avx512(const uint8_t* const* in, uint8_t* const* out, const Taps& columns,
                        int begin, int end) {
    with_constants(columns, [&](auto quads, auto coarse) {
        columns_rgb<quads(), coarse()>(in, out, columns, begin, end);
    });
}

void rows_avx512(const uint8_t* const* in, const Taps& rows, int y, uint8_t* out, size_t n) {
    with_constants(
        rows, [&](auto quads, auto coarse) { blend_rows<quads(), coarse()>(in, rows, y, out, n); });
}

void split_digits_avx512(const int32_t* weights, size_t n, uint32_t* digit2, uint32_t* digit1,
                         uint32_t* digit0) {
    const __m512i half = _mm512_set1_epi32(128);  // compensates for the sign of the digit below
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = n - i >= 16 ? __mmask16(0xFFFF) : __mmask16((1u << (n - i)) - 1);
        const __m512i weight0 = _mm512_maskz_loadu_epi32(mask, weights + i);
        const __m512i weight1 = _mm512_srai_epi32(_mm512_add_epi32(weight0, half), 8),
                      weight2 = _mm512_srai_epi32(_mm512_add_epi32(weight1, half), 8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(digit0 + i / 4), _mm512_cvtepi32_epi8(weight0));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(digit1 + i / 4), _mm512_cvtepi32_epi8(weight1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(digit2 + i / 4), _mm512_cvtepi32_epi8(weight2));
    }
}

void fill_lanes_avx512(Taps& columns) {
    const int quads = columns.width / 4, last = columns.out - 1;
    const __m512i tap_places = _mm512_set1_epi32(0x09060300),
                  every_byte = _mm512_set1_epi32(0x01010101);
    const __m512i color = _mm512_mullo_epi32(
        _mm512_setr_epi32(0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 2), every_byte);
    uint32_t* to = columns.lanes.data();
    for (int i = 0; i <= last; i += Taps::kGroup) {
        // Beyond the last pixel, the last one is repeated. Its bytes are written to the padding.
        const __m512i pixel = _mm512_min_epi32(
            _mm512_add_epi32(_mm512_set1_epi32(i), pixel_of_lane()), _mm512_set1_epi32(last));
        const __m512i first = _mm512_i32gather_epi32(pixel, columns.first.data(), 4);
        const __m512i begin =
            _mm512_sub_epi32(_mm512_mullo_epi32(first, _mm512_set1_epi32(3)),
                             _mm512_set1_epi32(columns.bases.data()[i / Taps::kGroup]));
        _mm512_storeu_si512(
            to, _mm512_add_epi8(_mm512_add_epi8(_mm512_mullo_epi32(begin, every_byte), tap_places),
                                color));
        to += Taps::kLaneWords;
        __m512i word = _mm512_mullo_epi32(pixel, _mm512_set1_epi32(quads));
        for (int j = 0; j < quads; ++j, word = _mm512_add_epi32(word, _mm512_set1_epi32(1)))
            for (int digit = 2; digit >= 0; --digit, to += Taps::kLaneWords)
                _mm512_storeu_si512(to,
                                    _mm512_i32gather_epi32(word, columns.digits[digit].data(), 4));
    }
}

}  // namespace fastload::detail
#endif
