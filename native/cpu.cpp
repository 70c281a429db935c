#include "cpu.h"

#include <atomic>

namespace fastload {
namespace {

bool processor_has_avx2() {
#ifdef FASTLOAD_X86
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
#else
    return false;
#endif
}

std::atomic<bool>& switch_state() {
    static std::atomic<bool> on{processor_has_avx2()};
    return on;
}

}  // namespace

bool use_avx2() { return switch_state().load(std::memory_order_relaxed); }

bool set_avx2(bool wanted) {
    switch_state().store(wanted && processor_has_avx2(), std::memory_order_relaxed);
    return use_avx2();
}

const char* simd_level() { return use_avx2() ? "avx2" : "portable"; }

}  // namespace fastload
