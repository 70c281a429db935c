// Which vector code may run here. Decided once, at run time: one binary serves every x86-64 and aarch64 machine.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define FASTLOAD_X86 1
#endif

// For a function of which there is a second copy with BMI2, in the same file: all it calls is built into it, so that no inline
// function of that kind can get into other code. To be called where use_avx2().
#ifdef FASTLOAD_X86
#define FASTLOAD_BMI2 __attribute__((target("bmi,bmi2"), flatten))
#else
#define FASTLOAD_BMI2
#endif

namespace fastload {

// True where the *_avx2.cpp kernels may be called (AVX2, BMI2, F16C, SSE4.2, PCLMUL) and they were not switched off.
bool use_avx2();

// Switches the vector kernels off or on again (on has no effect where the processor lacks them). For tests: both paths
// must give identical bytes. Returns what use_avx2() says from now on.
bool set_avx2(bool wanted);

// "avx2" or "portable".
const char* simd_level();

}  // namespace fastload
