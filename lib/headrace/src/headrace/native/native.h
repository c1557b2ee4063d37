// What all C files of the library share. `__init__.py` says how they are built and called.
#pragma once

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "headrace needs a 64-bit little-endian processor: x86_64 or aarch64, on Linux or macOS"
#endif
#if !(defined(__x86_64__) || defined(__aarch64__)) || !(defined(__linux__) || defined(__APPLE__))
#error "headrace is built for x86_64 and aarch64 processors, on Linux and macOS"
#endif

typedef unsigned char u8;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

// The library is compiled with -fvisibility=hidden: only what is marked is seen from outside.
#define EXPORT __attribute__((visibility("default")))

// Instructions that the processor at hand has: see features.c.
extern int headrace_has_crc, headrace_has_avx2;

EXPORT u32 headrace_crc32c(u32 before, const u8 *bytes, u64 size);

#ifdef HEADRACE_SOURCES // the SHA-256 of all sources, from the command line; in one of them
EXPORT extern const char *const headrace_sources;
#endif
