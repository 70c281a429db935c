// Selects the vector code at run time, so that one binary runs on every x86-64 and aarch64 machine.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define FASTLOAD_X86 1
#endif

// Marks the BMI2 copy of a function in the same file. `flatten` inlines everything it calls, so
// that no inline function compiled with BMI2 can leak into other code. Call it only if use_avx2().
#ifdef FASTLOAD_X86
#define FASTLOAD_BMI2 __attribute__((target("bmi,bmi2"), flatten))
#else
#define FASTLOAD_BMI2
#endif

namespace fastload {

enum class Simd { kPortable, kAvx2, kAvx512 };  // each includes the ones before it

// True if the *_avx2.cpp kernels may be called: the processor has AVX2, BMI2, F16C, SSE4.2 and
// PCLMUL, and set_simd() has not disabled them.
bool use_avx2();
// The same for the *_avx512.cpp kernels (F, BW, VL, VBMI, VNNI: Intel since Ice Lake, AMD since Zen
// 4).
bool use_avx512();

// Limits the vector kernels to this level and to what the processor supports. For tests: all
// kernels must produce identical bytes. Returns the level in use.
Simd set_simd(Simd max_level);

// "avx512", "avx2" or "portable".
const char* simd_level();

}  // namespace fastload
