#include "cpu/simd.h"

#include <algorithm>
#include <atomic>

namespace fastload {
namespace {

Simd processor_level() {
#ifdef FASTLOAD_X86
    __builtin_cpu_init();
    // Every processor with AVX2 has F16C, which clang 14 cannot test.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vnni");
    return avx2 && avx512 ? Simd::kAvx512 : avx2 ? Simd::kAvx2 : Simd::kPortable;
#else
    return Simd::kPortable;
#endif
}

// Initialized when the core is loaded, before any thread starts.
std::atomic<Simd> current_level{processor_level()};

Simd level() {
    return current_level.load(std::memory_order_relaxed);
}

}  // namespace

bool use_avx2() {
    return level() >= Simd::kAvx2;
}

bool use_avx512() {
    return level() >= Simd::kAvx512;
}

Simd set_simd(Simd max_level) {
    current_level.store(std::min(max_level, processor_level()), std::memory_order_relaxed);
    return level();
}

const char* simd_level() {
    switch (level()) {
        case Simd::kAvx512:
            return "avx512";
        case Simd::kAvx2:
            return "avx2";
        default:
            return "portable";
    }
}

}  // namespace fastload
