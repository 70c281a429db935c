// Normalizes 8 pixel values at a time.
#include "cpu/simd.h"
#include "pixels/normalize.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

namespace fastload::detail {
namespace {

// Stores eight values, rounded to nearest with ties to even, like to_float16() and to_bfloat16().
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
size_t normalize(const uint8_t* pixels, size_t n, const NormalizeTable::Pattern& pattern,
                 uint8_t* to) {
    constexpr size_t kSize = kDtype == Dtype::kFloat32 ? 4 : 2;
    __m256 mean[3], std[3];
    for (int k = 0; k < 3; ++k) {
        mean[k] = _mm256_loadu_ps(pattern.mean + 8 * k);
        std[k] = _mm256_loadu_ps(pattern.std + 8 * k);
    }
    const auto eight = [&](size_t i, int k) {
        const __m256i wide =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels + i)));
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

size_t normalize_avx2(const uint8_t* pixels, size_t n, const NormalizeTable::Pattern& pattern,
                      Dtype dtype, uint8_t* to) {
    switch (dtype) {
        case Dtype::kFloat32:
            return normalize<Dtype::kFloat32>(pixels, n, pattern, to);
        case Dtype::kFloat16:
            return normalize<Dtype::kFloat16>(pixels, n, pattern, to);
        case Dtype::kBfloat16:
            return normalize<Dtype::kBfloat16>(pixels, n, pattern, to);
        default:
            return 0;
    }
}

}  // namespace fastload::detail
#endif
