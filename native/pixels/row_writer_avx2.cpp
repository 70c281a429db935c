// Three interleaved bytes to three planes, 16 pixels at a time; levels to normalised numbers, 8 at
// a time.
#include "cpu/simd.h"
#include "pixels/row_writer.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

namespace fastload::detail {

void split3_avx2(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n) {
    // Byte 3i + k of 48 is wanted at place i of plane k; each plane takes 5 or 6 bytes from each of
    // three registers.
    const char z = -128;
    const __m128i a0 = _mm_setr_epi8(0, 3, 6, 9, 12, 15, z, z, z, z, z, z, z, z, z, z);
    const __m128i a1 = _mm_setr_epi8(z, z, z, z, z, z, 2, 5, 8, 11, 14, z, z, z, z, z);
    const __m128i a2 = _mm_setr_epi8(z, z, z, z, z, z, z, z, z, z, z, 1, 4, 7, 10, 13);
    const __m128i b0 = _mm_setr_epi8(1, 4, 7, 10, 13, z, z, z, z, z, z, z, z, z, z, z);
    const __m128i b1 = _mm_setr_epi8(z, z, z, z, z, 0, 3, 6, 9, 12, 15, z, z, z, z, z);
    const __m128i b2 = _mm_setr_epi8(z, z, z, z, z, z, z, z, z, z, z, 2, 5, 8, 11, 14);
    const __m128i c0 = _mm_setr_epi8(2, 5, 8, 11, 14, z, z, z, z, z, z, z, z, z, z, z);
    const __m128i c1 = _mm_setr_epi8(z, z, z, z, z, 1, 4, 7, 10, 13, z, z, z, z, z, z);
    const __m128i c2 = _mm_setr_epi8(z, z, z, z, z, z, z, z, z, z, 0, 3, 6, 9, 12, 15);
    auto join = [](__m128i x, __m128i y, __m128i w, __m128i sx, __m128i sy, __m128i sw) {
        return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x, sx), _mm_shuffle_epi8(y, sy)),
                            _mm_shuffle_epi8(w, sw));
    };
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i* from = reinterpret_cast<const __m128i*>(in + 3 * i);
        const __m128i x = _mm_loadu_si128(from), y = _mm_loadu_si128(from + 1),
                      w = _mm_loadu_si128(from + 2);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(a + i), join(x, y, w, a0, a1, a2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(b + i), join(x, y, w, b0, b1, b2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(c + i), join(x, y, w, c0, c1, c2));
    }
    split3_portable(in + 3 * i, a + i, b + i, c + i, n - i);
}

namespace {

// Eight numbers, rounded to the nearest, ties to even, as to_float16() and to_bfloat16() do.
void store(__m256 values, Dtype dtype, uint8_t* to) {
    if (dtype == Dtype::kFloat32) {
        _mm256_storeu_ps(reinterpret_cast<float*>(to), values);
        return;
    }
    __m128i halves;
    if (dtype == Dtype::kFloat16) {
        halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    } else {
        const __m256i bits = _mm256_castps_si256(values);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i upper = _mm256_srli_epi32(
            _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
        halves =
            _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

template <Dtype kDtype>
size_t normalise(const uint8_t* levels, size_t n, const NormaliseTable::Pattern& pattern,
                 uint8_t* to) {
    constexpr size_t kSize = kDtype == Dtype::kFloat32 ? 4 : 2;
    __m256 mean[3], std[3];
    for (int k = 0; k < 3; ++k) {
        mean[k] = _mm256_loadu_ps(pattern.mean + 8 * k);
        std[k] = _mm256_loadu_ps(pattern.std + 8 * k);
    }
    const auto eight = [&](size_t i, int k) {
        const __m256i wide =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels + i)));
        store(_mm256_div_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(wide), mean[k]), std[k]), kDtype,
              to + kSize * i);
    };
    size_t i = 0;
    for (; i + 24 <= n; i += 24) {
        eight(i, 0);
        eight(i + 8, 1);
        eight(i + 16, 2);
    }
    for (int k = 0; i + 8 <= n; i += 8, ++k) eight(i, k);
    return i;
}

}  // namespace

size_t normalise_avx2(const uint8_t* levels, size_t n, const NormaliseTable::Pattern& pattern,
                      Dtype dtype, uint8_t* to) {
    switch (dtype) {
        case Dtype::kFloat32:
            return normalise<Dtype::kFloat32>(levels, n, pattern, to);
        case Dtype::kFloat16:
            return normalise<Dtype::kFloat16>(levels, n, pattern, to);
        case Dtype::kBfloat16:
            return normalise<Dtype::kBfloat16>(levels, n, pattern, to);
        default:
            return 0;
    }
}

}  // namespace fastload::detail
#endif
