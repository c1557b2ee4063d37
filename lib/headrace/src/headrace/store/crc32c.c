// CRC-32C with the instructions of x86 processors, three streams at a time: chunks of 64 KiB and more are read as fast as
// memory gives them. scripts/compile_kernels.py compiles it to crc32c.ll.
//
// Features: sse4.2 pclmul

typedef unsigned u32;
typedef unsigned long long u64;
typedef unsigned char u8;
typedef long long Pair __attribute__((vector_size(16)));

// The bytes of a stream, and two powers of x modulo the polynomial, bits reflected: x to 8 * bytes - 33, and to
// 2 * 8 * bytes - 33. The product with them moves a checksum over one stream, and over two. (x**0 is 0x80000000; once
// more times x is a shift to the right, and an exclusive or with 0x82F63B78 if a bit falls out.)
typedef struct {
    u64 bytes, over_one, over_two;
} Stream;

static const Stream STREAMS[] = {{21824, 0x40CA35E7, 0x2F2E10E0}, {1024, 0x170076FA, 0xA51B6135}};

enum { AHEAD = 1024 }; // bytes before their use at which they are fetched: streams end before the processor detects them

static u64 word(const u8 *p) {
    u64 w;
    __builtin_memcpy(&w, p, 8);
    return w;
}

static u64 moved(u64 crc, u64 power) {
    Pair product = (Pair)__builtin_ia32_pclmulqdq128((Pair){(long long)crc}, (Pair){(long long)power}, 0);
    return __builtin_ia32_crc32di(0, (u64)product[0]);
}

u32 crc32c(u32 before, const u8 *p, u64 size) {
    u64 a = ~before;
    for (const Stream *s = STREAMS; s < STREAMS + 2; s++)
        for (; size >= 3 * s->bytes; p += 3 * s->bytes, size -= 3 * s->bytes) {
            const u8 *second = p + s->bytes, *third = second + s->bytes;
            u64 b = 0, c = 0;
            for (u64 at = 0; at < s->bytes; at += 64) {
                __builtin_prefetch(p + at + AHEAD);
                __builtin_prefetch(second + at + AHEAD);
                __builtin_prefetch(third + at + AHEAD);
#pragma unroll
                for (u64 k = 0; k < 64; k += 8) {
                    a = __builtin_ia32_crc32di(a, word(p + at + k));
                    b = __builtin_ia32_crc32di(b, word(second + at + k));
                    c = __builtin_ia32_crc32di(c, word(third + at + k));
                }
            }
            a = moved(a, s->over_two) ^ moved(b, s->over_one) ^ c;
        }
    for (; size >= 8; p += 8, size -= 8)
        a = __builtin_ia32_crc32di(a, word(p));
    for (; size; p++, size--)
        a = __builtin_ia32_crc32qi((u32)a, *p);
    return ~(u32)a;
}
