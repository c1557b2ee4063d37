// Processes tables of addresses without Python's interpreter: copies pieces of rows, and verifies
// chunks of mapped files against their checksums. feed/gather_kernel.py says what it is for, and
// fills the tables.
//
// The way of a table, whose steps the comments below number in the same way:
//
// 1. Python lays the table out, and writes its address into `next` of the table before it.
// 2. headrace_worker_submit counts it and wakes the thread. The count says that the link is there.
// 3. serve follows the link from the table that it took last, and lets go of the mutex.
// 4. headrace_process notes the table for its thread: from here on, a page that a mapped file has
//    lost is replaced by zeros and counted (on_bus_error), where it would end the process.
// 5. copy_pieces copies each piece to its place, or check_chunks compares chunks with checksums.
// 6. serve counts the table as done. Whoever reads that count sees the bytes: it is written last.
//
// A table may also be processed in the caller's thread: steps 4 and 5 alone.

#define _GNU_SOURCE
#include "native.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// Bytes. LINE: what the processor fetches at a time. Pieces below LARGE_PIECE are faster with
// memcpy.
enum { LINE = 64, LARGE_PIECE = 1 << 10, LARGE_TABLE = 1 << 21 };

// In place of a checksum: the chunk is of a plain file, and its file is all that can be checked.
enum { NO_CHECKSUM = -2 };

// What there is to do: the fields of Copies or Checks, each 8 bytes. All pointers are addresses of
// NumPy arrays, which Python keeps until the table is done, and the table itself until the next one
// is: its `next` is read only then.
typedef struct Table {
    u8 **addresses;
    u8 **places; // copies: their targets; checks: where the first pages of chunks begin
    i64 *bytes;  // of each piece; checks: of the pages of each chunk
    i64 count;
    struct Table *next; // that was submitted after it; null at the end of the thread
    i64 is_checks;
    union {
        // Of copies that fill an array: its bounds, and what is repeated where there is no piece
        struct {
            u8 *begin, *end;
            const u8 *blank;
            i64 blank_bytes;
        };
        struct {         // of checks
            i64 *sizes;  // bytes of each chunk, which its checksum follows
            i64 *named;  // the checksums named for them; -1: none; NO_CHECKSUM: none follows either
            u8 *results; // 1 where a chunk is right
            i64 advice;  // so that pages come
            i64 ahead;   // chunks that the system begins to read before the first is looked at
        };
    };
} Table;

_Static_assert(sizeof(Table) == 11 * 8, "feed/gather_kernel.py lays it out");

// ---- Copies

// Stores a line past the caches; `to` is a multiple of LINE, so the processor has all of a line
// before it writes it, and need not read what was there.
static inline void store_past_caches(u8 *to, const u8 *from) {
#if defined(__x86_64__)
    for (int k = 0; k < LINE; k += 16)
        _mm_stream_si128((__m128i *)(to + k), _mm_loadu_si128((const __m128i *)(from + k)));
#else
    for (int k = 0; k < LINE; k += 16) {
        u64 pair[2];
        memcpy(pair, from + k, 16);
        __asm__ volatile("stnp %x0, %x1, [%2]" : : "r"(pair[0]), "r"(pair[1]), "r"(to + k) : "memory");
    }
#endif
}

// Copies a piece past the caches, and asks for as many bytes of the next one: pieces lie anywhere
// in memory, so the processor cannot guess where the next one begins, and would wait for it.
static void copy_past_caches(u8 *to, const u8 *from, i64 bytes, const u8 *next, i64 next_bytes) {
    // Up to the first whole line as usual: fewer than LINE bytes, and a piece has LARGE_PIECE
    i64 k = -(i64)to & (LINE - 1);
    memcpy(to, from, (size_t)k);
    for (; k + LINE <= bytes; k += LINE) {
        if (k < next_bytes)
            __builtin_prefetch(next + k, 0, 2);
        store_past_caches(to + k, from + k);
    }
    memcpy(to + k, from + k, (size_t)(bytes - k));
}

// Fills a gap with what is repeated where there is no piece; an empty or negative one is no gap.
static void fill(const Table *t, u8 *begin, const u8 *end) {
    for (i64 bytes; begin < end; begin += bytes) {
        bytes = end - begin < t->blank_bytes ? end - begin : t->blank_bytes;
        memcpy(begin, t->blank, (size_t)bytes);
    }
}

// Step 5 for copies. Several tables are in flight: together, those of 2 MiB are larger than most
// caches, and are stored past them. Stored as usual, each line would first be read, and be written
// later, when another takes its place.
//
// Gaps are filled on the way, so that bytes are written once: `filled` is the end of all that was
// written so far. What lies between it and the next piece is filled before that piece is copied. A
// piece that begins before `filled` (they need not come in order) overwrites what was filled, never
// the other way round.
static void copy_pieces(Table *t) {
    i64 total = 0;
    for (i64 k = 0; k < t->count; k++)
        total += t->bytes[k];
    u8 *filled = t->begin;
    for (i64 k = 0; k < t->count; k++) {
        u8 *target = t->places[k];
        i64 bytes = t->bytes[k], next = k + 1 < t->count ? k + 1 : k;
        if (t->begin) {
            fill(t, filled, target);
            if (target + bytes > filled)
                filled = target + bytes;
        }
        if (total < LARGE_TABLE || bytes < LARGE_PIECE)
            memcpy(target, t->addresses[k], (size_t)bytes);
        else
            copy_past_caches(target, t->addresses[k], bytes, t->addresses[next], t->bytes[next]);
    }
    if (t->begin)
        fill(t, filled, t->end);
#if defined(__x86_64__)
    // Such stores may become visible later than others that follow: without this, a thread could
    // see the count of step 6, and then read old bytes.
    _mm_sfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// ---- Checks

// Step 5 for checks, of one chunk.
static u8 is_right(const Table *t, i64 k) {
    // a. The pages are brought into memory, which fails where the file does not reach: no SIGBUS
    //    then.
    if (madvise(t->places[k], (size_t)t->bytes[k], (int)t->advice))
        return 0;
    if (t->named[k] == NO_CHECKSUM)
        return 1;
    // b. The checksum follows the chunk, at any byte: it is copied, because it may be unaligned.
    u32 computed = headrace_crc32c(0, t->addresses[k], (u64)t->sizes[k]), stored;
    memcpy(&stored, t->addresses[k] + t->sizes[k], sizeof stored);
    // c. A sound chunk of another place has another checksum than the one that the ledger names for
    //    this place: a file that was exchanged for another one is sound in itself.
    return computed == stored && (t->named[k] < 0 || t->named[k] == stored);
}

static void check_chunks(Table *t) {
    // All reads are begun before the first is waited for: a disk serves many at a time. `ahead` may
    // be larger than `count`, as the chunks of later tables follow in the same arrays.
    for (i64 k = 0; k < t->ahead; k++)
        madvise(t->places[k], (size_t)t->bytes[k], MADV_WILLNEED);
    for (i64 k = 0; k < t->count; k++)
        t->results[k] = is_right(t, k);
}

// ---- SIGBUS: a page of a mapped file that the file no longer has

// Of the table that a thread processes. No thread-local variable: in a library that is loaded
// later, its first use may allocate memory, which a signal handler must not.
static pthread_key_t key;
static i64 lost; // pages that were missing from their files

#ifdef __linux__ // elsewhere, no file is mapped
static i64 page;                  // bytes of a page
static struct sigaction previous; // the action that was replaced

// A page that is missing from its file while a table is processed is counted, and becomes zeros:
// the handler returns, and the instruction that faulted is repeated. Python looks at the count
// afterwards and raises an error, so nobody trains on these zeros. A signal that another handler
// has sent (code 0 or less) needs nothing: the instruction faults again. Every other signal is left
// to the previous action, which is put back: the instruction faults again, and that action has its
// way with it.
static void on_bus_error(int signal, siginfo_t *info, void *context) {
    (void)context;
    if (pthread_getspecific(key)) {
        if (info->si_code <= 0)
            return;
        void *begin = (void *)((i64)info->si_addr & -page);
        if (info->si_code == BUS_ADRERR &&
            mmap(begin, (size_t)page, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_ANON, -1, 0) == begin) {
            __atomic_fetch_add(&lost, 1, __ATOMIC_SEQ_CST);
            return;
        }
    }
    sigaction(signal, &previous, 0);
}
#endif

static int ready; // 0, or the error of getting ready

static void get_ready(void) {
    if ((ready = pthread_key_create(&key, 0)))
        return;
#ifdef __linux__
    page = sysconf(_SC_PAGESIZE);
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous))
        ready = errno;
#endif
}

// Handles SIGBUS from now on, once for the process. Returns 0 or an error number.
EXPORT int headrace_handle_bus_errors(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int failed = pthread_once(&once, get_ready);
    return failed ? failed : ready;
}

EXPORT i64 headrace_lost_pages(void) { return __atomic_load_n(&lost, __ATOMIC_SEQ_CST); }

// Processes a table in this thread; headrace_handle_bus_errors comes first.
EXPORT void headrace_process(Table *t) {
    // 4. Note the table: on_bus_error asks for it.
    pthread_setspecific(key, t);
    // 5. Copy or check.
    if (t->is_checks)
        check_chunks(t);
    else
        copy_pieces(t);
    pthread_setspecific(key, 0); // a fault of this thread in other code is not ours
}

// Copies bytes of a mapped file in this thread; those of pages that it has lost are zeros.
EXPORT void headrace_copy_mapped(u8 *to, u8 *from, i64 bytes) {
    Table t = {.addresses = &from, .places = &to, .bytes = &bytes, .count = 1};
    headrace_process(&t);
}

// Whether a chunk of a mapped file, in place, is what was written, in this thread; the fields are
// those of a table of checks.
EXPORT int headrace_is_right(u8 *at, u8 *low, i64 bytes, i64 size, i64 named, i64 advice) {
    u8 result = 0;
    Table t = {.addresses = &at, .places = &low, .bytes = &bytes, .count = 1, .is_checks = 1,
               .sizes = &size, .named = &named, .results = &result, .advice = advice};
    headrace_process(&t);
    return result;
}

// ---- A thread that processes tables one after the other

typedef struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, result; // a table was submitted; a table is done
    i64 submitted, done;
    Table *last; // the table that was begun last; the next one hangs on it
} Worker;

static void *serve(void *of) {
    Worker *w = of;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        // 3. Wait for a table, and take it. Its link was written before it was submitted, and is
        //    read only after the count says so. That no table hangs there is the end.
        while (w->submitted == w->done)
            pthread_cond_wait(&w->work, &w->mutex);
        Table *t = w->last = w->last->next;
        pthread_mutex_unlock(&w->mutex);
        if (!t)
            return 0;
        // 4., 5. Without the mutex, so that others can be submitted meanwhile.
        headrace_process(t);
        // 6. Count it, and tell the one who waits. headrace_worker_done reads the count without the
        //    mutex: what was copied must be visible before it, hence the release.
        pthread_mutex_lock(&w->mutex);
        __atomic_store_n(&w->done, w->done + 1, __ATOMIC_RELEASE);
        pthread_cond_signal(&w->result);
    }
}

// Starts a thread; `first` is a table that counts as done, on which the first one hangs: so the
// first one is no special case. Null, and an error number, if there can be none.
EXPORT Worker *headrace_worker_start(Table *first, int *failed) {
    Worker *w = calloc(1, sizeof *w);
    if (!w) {
        *failed = ENOMEM;
        return 0;
    }
    w->last = first;
    pthread_mutex_init(&w->mutex, 0);
    pthread_cond_init(&w->work, 0);
    pthread_cond_init(&w->result, 0);
    // Signals are for Python's threads, except those that an instruction of this one causes:
    // blocked, these would end the process. A thread begins with the mask of the one that starts
    // it, which therefore blocks them for a moment; set by the thread itself, one could come before
    // that.
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    for (int k = 0; k < 4; k++)
        sigdelset(&blocked, faults[k]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    *failed = pthread_create(&w->thread, 0, serve, w);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (*failed) {
        free(w);
        return 0;
    }
    return w;
}

// Submits tables, which hang on those before them. Returns how many there were in all.
EXPORT i64 headrace_worker_submit(Worker *w, i64 tables) {
    // 2. The mutex orders the links, which Python has written, before the count.
    pthread_mutex_lock(&w->mutex);
    i64 submitted = w->submitted += tables;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
    return submitted;
}

// Waits until so many tables are done. Returns how many are.
EXPORT i64 headrace_worker_wait(Worker *w, i64 number) {
    pthread_mutex_lock(&w->mutex);
    while (w->done < number)
        pthread_cond_wait(&w->result, &w->mutex);
    i64 done = w->done;
    pthread_mutex_unlock(&w->mutex);
    return done;
}

// How many tables are done, without waiting.
EXPORT i64 headrace_worker_done(Worker *w) { return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE); }

// Ends the thread after the tables that were submitted: one more is counted, but the last one has
// no next.
EXPORT void headrace_worker_stop(Worker *w) {
    headrace_worker_submit(w, 1);
    pthread_join(w->thread, 0);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->result);
    free(w);
}
