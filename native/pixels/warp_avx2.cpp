#include <immintrin.h>

#include "pixels/warp.h"

// Both functions return the number of pixels done. The caller handles the rest, fewer than eight.
// The arithmetic is identical to pixels/warp.cpp, step by step.
namespace fastload::detail {

size_t origins_avx2(const WarpAxis& axis, size_t n, int32_t* whole, float* rest) {
    const __m256 step = _mm256_set1_ps(axis.step), from = _mm256_set1_ps(axis.from);
    const __m256 least = _mm256_set1_ps(-1.0f), max = _mm256_set1_ps(axis.max),
                 half = _mm256_set1_ps(0.5f);
    __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    size_t i = 0;
    for (; i + 8 <= n; i += 8, number = _mm256_add_epi32(number, _mm256_set1_epi32(8))) {
        const __m256 center = _mm256_add_ps(_mm256_cvtepi32_ps(number), half);
        const __m256 place = _mm256_min_ps(
            _mm256_max_ps(_mm256_add_ps(_mm256_mul_ps(step, center), from), least), max);
        const __m256 floor = _mm256_floor_ps(place);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole + i), _mm256_cvttps_epi32(floor));
        _mm256_storeu_ps(rest + i, _mm256_sub_ps(place, floor));
    }
    return i;
}

size_t mix_avx2(const float* plane, size_t width, const int32_t* offsets, const float* across,
                const float* down, size_t n, float* output) {
    const auto lerp = [](__m256 one, __m256 other, __m256 share) {
        return _mm256_add_ps(one, _mm256_mul_ps(_mm256_sub_ps(other, one), share));
    };
    const float* below = plane + width;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i offset = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets + i));
        const __m256 x = _mm256_loadu_ps(across + i);
        const __m256 upper = lerp(_mm256_i32gather_ps(plane, offset, 4),
                                  _mm256_i32gather_ps(plane + 1, offset, 4), x);
        const __m256 lower = lerp(_mm256_i32gather_ps(below, offset, 4),
                                  _mm256_i32gather_ps(below + 1, offset, 4), x);
        _mm256_storeu_ps(output + i, lerp(upper, lower, _mm256_loadu_ps(down + i)));
    }
    return i;
}

}  // namespace fastload::detail
