// CRC-32C of bytes in memory: by the instructions of the processor where it has them, else by a table.
//
// Which way is taken follows from the processor at hand (features.c): a library that is compiled for every x86-64 or aarch64
// processor uses what the one at hand can do.
//
// With the instructions, three streams are summed at a time, because one instruction takes as long as three can be
// started: chunks of 64 KiB and more are read as fast as memory gives them. The checksum of A B C, one after the other,
// is (sum of A moved over B and C) ^ (sum of B moved over C) ^ (sum of C); moving over n bytes is a product with
// x ** (8 n) modulo the polynomial.

#include "native.h"

enum { AHEAD = 1024 }; // bytes before their use at which they are fetched: streams end before the processor detects them
static const u32 POLYNOMIAL = 0x82F63B78; // bits reflected

// The bytes of a stream, and powers of x modulo the polynomial, bits reflected: `over_one` moves a checksum over one
// stream, `over_two` over two. (x**0 is 0x80000000; once more times x is a shift to the right, and an exclusive or with
// POLYNOMIAL if a bit falls out.)
typedef struct {
    u64 bytes;
    u32 over_one, over_two;
} Stream;

static u64 word(const u8 *p) {
    u64 w;
    __builtin_memcpy(&w, p, 8);
    return w;
}

// Eight tables of 256 entries: table k has the checksum of a byte that k zero bytes follow, so eight bytes take eight
// look-ups that do not wait for each other.
static u32 tables[8][256];

__attribute__((constructor)) static void fill_tables(void) {
    for (u32 byte = 0; byte < 256; byte++) {
        u32 sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = sum;
    }
    for (int k = 1; k < 8; k++)
        for (u32 byte = 0; byte < 256; byte++) {
            u32 sum = tables[k - 1][byte];
            tables[k][byte] = sum >> 8 ^ tables[0][sum & 0xFF];
        }
}

// For processors without instructions for it; exported for the tests, which have such a processor nowhere.
EXPORT u32 headrace_crc32c_by_table(u32 before, const u8 *p, u64 size) {
    u32 sum = ~before;
    for (; size >= 8; p += 8, size -= 8) {
        u64 bytes = word(p) ^ sum;
        sum = 0;
        for (int k = 0; k < 8; k++)
            sum ^= tables[7 - k][bytes >> (8 * k) & 0xFF];
    }
    for (; size; p++, size--)
        sum = sum >> 8 ^ tables[0][(sum ^ *p) & 0xFF];
    return ~sum;
}

#if defined(__x86_64__)
#include <immintrin.h>
#ifdef __clang__ // it counts the instruction apart
#define FEATURES __attribute__((target("crc32,sse4.2,pclmul")))
#else
#define FEATURES __attribute__((target("sse4.2,pclmul")))
#endif

// The instruction multiplies without carries, and a checksum of the product's 64 bits takes the remainder. Both shift by
// 33 bits, so these are powers of x to 8 * bytes - 33 and 16 * bytes - 33.
static const Stream STREAMS[] = {{21824, 0x40CA35E7, 0x2F2E10E0}, {1024, 0x170076FA, 0xA51B6135}};

FEATURES static inline u64 add_word(u64 sum, u64 bytes) { return _mm_crc32_u64(sum, bytes); }
FEATURES static inline u32 add_byte(u32 sum, u8 byte) { return _mm_crc32_u8(sum, byte); }
FEATURES static inline u64 moved(u64 sum, u32 power) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((i64)sum), _mm_cvtsi64_si128(power), 0);
    return _mm_crc32_u64(0, (u64)_mm_cvtsi128_si64(product));
}
#else
#define FEATURES __attribute__((target("+crc")))

static const Stream STREAMS[] = {{21824, 0x31522C3A, 0xD749A52D}, {1024, 0xE4172B16, 0x0D65762A}};

// The instructions by name: what compilers call them differs between versions.
FEATURES static inline u64 add_word(u64 sum, u64 bytes) {
    u32 out;
    __asm__("crc32cx %w0, %w1, %x2" : "=r"(out) : "r"((u32)sum), "r"(bytes));
    return out;
}
FEATURES static inline u32 add_byte(u32 sum, u8 byte) {
    u32 out;
    __asm__("crc32cb %w0, %w1, %w2" : "=r"(out) : "r"(sum), "r"((u32)byte));
    return out;
}
// The product modulo the polynomial, bit by bit: twice for each three streams, little beside these.
static inline u64 moved(u64 sum, u32 power) {
    u32 product = 0, shifted = (u32)sum;
    for (u32 bit = 0x80000000; bit; bit >>= 1) {
        product ^= power & bit ? shifted : 0;
        shifted = shifted >> 1 ^ (shifted & 1 ? POLYNOMIAL : 0);
    }
    return product;
}
#endif

FEATURES static u32 by_instructions(u32 before, const u8 *p, u64 size) {
    u64 a = (u32)~before;
    for (const Stream *s = STREAMS; s < STREAMS + 2; s++)
        for (; size >= 3 * s->bytes; p += 3 * s->bytes, size -= 3 * s->bytes) {
            const u8 *second = p + s->bytes, *third = second + s->bytes;
            u64 b = 0, c = 0;
            for (u64 at = 0; at < s->bytes; at += 64) {
                __builtin_prefetch(p + at + AHEAD);
                __builtin_prefetch(second + at + AHEAD);
                __builtin_prefetch(third + at + AHEAD);
                for (u64 k = 0; k < 64; k += 8) {
                    a = add_word(a, word(p + at + k));
                    b = add_word(b, word(second + at + k));
                    c = add_word(c, word(third + at + k));
                }
            }
            a = moved(a, s->over_two) ^ moved(b, s->over_one) ^ c;
        }
    for (; size >= 8; p += 8, size -= 8)
        a = add_word(a, word(p));
    for (; size; p++, size--)
        a = add_byte((u32)a, *p);
    return (u32)~a;
}

// Continues a checksum `before` (0: begins one) over bytes.
EXPORT u32 headrace_crc32c(u32 before, const u8 *p, u64 size) {
    return headrace_has_crc ? by_instructions(before, p, size) : headrace_crc32c_by_table(before, p, size);
}

#ifdef HEADRACE_SOURCES // what this library was compiled of: __init__.py compares
const char *const headrace_sources = HEADRACE_SOURCES;
#endif
