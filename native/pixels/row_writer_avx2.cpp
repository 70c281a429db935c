// Splits three interleaved channels into three planes, 16 pixels at a time.
#include "cpu/simd.h"
#include "pixels/row_writer.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

namespace fastload::detail {

void split3_avx2(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n) {
    // Byte 3i + k of 48 goes to position i of plane k. Each plane takes 5 or 6 bytes from each of
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

}  // namespace fastload::detail
#endif
