// Which vector code may run here. Decided once, at run time: one binary serves every x86-64 and
// aarch64 machine.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define FASTLOAD_X86 1
#endif

// For a function of which there is a second copy with BMI2, in the same file: all it calls is built
// into it, so that no inline function of that kind can get into other code. To be called where
// use_avx2().
#ifdef FASTLOAD_X86
#define FASTLOAD_BMI2 __attribute__((target("bmi,bmi2"), flatten))
#else
#define FASTLOAD_BMI2
#endif

namespace fastload {

enum class Simd { kPortable, kAvx2, kAvx512 };  // each has what those before it have

// True where the *_avx2.cpp kernels may be called (AVX2, BMI2, F16C, SSE4.2, PCLMUL) and they were
// not switched off.
bool use_avx2();
// The same for the *_avx512.cpp kernels (F, BW, VL, VBMI, VNNI: Intel since Ice Lake, AMD since Zen
// 4).
bool use_avx512();

// Uses vector kernels up to this level, as far as the processor has them. For tests: all must give
// identical bytes. Returns the level from now on.
Simd set_simd(Simd most);

// "avx512", "avx2" or "portable".
const char* simd_level();

}  // namespace fastload
