// What the processor at hand can do beyond what all of its kind can: asked once, when the library is loaded.
//
// The processor and the system are asked directly. Compilers have __builtin_cpu_supports, but what ziglang links answers
// no to everything.

#include "native.h"
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

int headrace_has_crc, headrace_has_avx2;

__attribute__((constructor)) static void ask(void) {
#if defined(__x86_64__)
    u32 a, b, c = 0, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return;
    headrace_has_crc = (c >> 20 & 1) && (c >> 1 & 1); // SSE 4.2 and PCLMULQDQ
    // AVX2 also takes a system that saves its registers: that one says so (27), and which it saves (1: SSE, 2: AVX)
    if ((c >> 27 & 1) && (c >> 28 & 1)) {
        u32 saved, high;
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
        if ((saved & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d))
            headrace_has_avx2 = b >> 5 & 1;
    }
#elif defined(__APPLE__)
    headrace_has_crc = 1; // every one of Apple's
#else
    headrace_has_crc = getauxval(AT_HWCAP) >> 7 & 1; // HWCAP_CRC32
#endif
}

// For the tests: 1 for checksums, 2 for AVX2.
EXPORT int headrace_features(void) { return headrace_has_crc | headrace_has_avx2 << 1; }
