// The functions of gather_kernel.py, which says what they are for. scripts/compile_kernels.py compiles them to
// gather_kernel.ll, which is what is loaded.

typedef long long i64;
typedef unsigned char u8;

int pthread_mutex_lock(void *);
int pthread_mutex_unlock(void *);
int pthread_cond_wait(void *, void *);
int pthread_cond_signal(void *);
void *pthread_getspecific(unsigned);
int pthread_setspecific(unsigned, const void *);
void *mmap(void *, i64, int, int, int, i64);
int sigaction(int, const void *, void *);

unsigned key;       // of the table that a thread processes
i64 page;           // bytes of a page
char previous[152]; // the struct sigaction that was replaced
i64 lost;           // pages that were missing from their files

enum { LINE = 64, LARGE_PIECE = 1 << 10, LARGE_TABLE = 1 << 21 }; // bytes; shorter pieces are faster with memcpy
typedef i64 Line __attribute__((vector_size(LINE)));
typedef Line Unaligned __attribute__((aligned(1)));

enum { WILLNEED = 3, BUS_ADRERR = 2, READ = 1, PRIVATE_FIXED_ANONYMOUS = 50 };

// What there is to do: the fields of Copies or Checks, each 8 bytes.
typedef struct Table {
    u8 **addresses;
    u8 **places; // copies: their targets; checks: where the first pages of chunks begin
    i64 *bytes;  // of each piece; checks: of the pages of each chunk
    i64 count;
    struct Table *next; // that was submitted after it; null at the end of the thread
    void (*function)(struct Table *);
    union {
        struct { // of copies that fill an array: its bounds, and what is repeated where there is no piece
            u8 *begin, *end;
            const u8 *blank;
            i64 blank_bytes;
        };
        struct {         // of checks
            i64 *sizes;  // bytes of each chunk, which its checksum follows
            i64 *named;  // the checksums that are named for them; -1: none
            u8 *results; // 1 where a chunk is right
            int (*madvise)(void *, i64, int);
            unsigned (*crc32c)(unsigned, const void *, i64);
            i64 advice; // so that pages come
            i64 ahead;  // chunks that the system is asked to begin reading before the first is looked at
        };
    };
} Table;

typedef struct {
    i64 mutex[16], work[16], result[16]; // conditions: a table was submitted; a table is done
    i64 submitted, done;
    Table *last; // the table that was begun last
} State;

_Static_assert(sizeof(Table) == 13 * 8 && sizeof(State) == 51 * 8, "gather_kernel.py lays them out");

// Copies a piece past the caches, and asks for as many bytes of the next one.
static void copy_past_caches(u8 *to, const u8 *from, i64 bytes, const u8 *next, i64 next_bytes) {
    i64 k = -(i64)to & (LINE - 1);
    __builtin_memcpy(to, from, (unsigned long)k);
    for (; k + LINE <= bytes; k += LINE) {
        if (k < next_bytes)
            __builtin_prefetch(next + k, 0, 2);
        Line line = *(const Unaligned *)(from + k);
        __builtin_nontemporal_store(line, (Line *)(to + k));
    }
    __builtin_memcpy(to + k, from + k, (unsigned long)(bytes - k));
}

// Fills a gap.
static void fill(const Table *t, u8 *begin, const u8 *end) {
    for (i64 bytes; begin < end; begin += bytes) {
        bytes = end - begin < t->blank_bytes ? end - begin : t->blank_bytes;
        __builtin_memcpy(begin, t->blank, (unsigned long)bytes);
    }
}

// Several tables are in flight: together, those of 2 MiB are larger than most caches, and are stored past them. Stored as
// usual, each line would first be read, and be written later, when another takes its place. What comes after all pieces
// so far is filled before the next one is copied, so pieces may come in any order.
void copy_pieces(Table *t) {
    i64 total = 0;
    for (i64 k = 0; k < t->count; k++)
        total += t->bytes[k];
    u8 *filled = t->begin;
    for (i64 k = 0; k < t->count; k++) {
        u8 *target = t->places[k];
        i64 bytes = t->bytes[k], next = k + 1 < t->count ? k + 1 : k;
        if (t->begin)
            fill(t, filled, target);
        if (target + bytes > filled)
            filled = target + bytes;
        if (total < LARGE_TABLE || bytes < LARGE_PIECE)
            __builtin_memcpy(target, t->addresses[k], (unsigned long)bytes);
        else
            copy_past_caches(target, t->addresses[k], bytes, t->addresses[next], t->bytes[next]);
    }
    if (t->begin)
        fill(t, filled, t->end);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); // before others read what was stored past the caches
}

static u8 is_right(const Table *t, i64 k) {
    if (t->madvise(t->places[k], t->bytes[k], (int)t->advice))
        return 0;
    unsigned computed = t->crc32c(0, t->addresses[k], t->sizes[k]), stored;
    __builtin_memcpy(&stored, t->addresses[k] + t->sizes[k], sizeof stored);
    return computed == stored && (t->named[k] < 0 || t->named[k] == stored);
}

void check_chunks(Table *t) {
    for (i64 k = 0; k < t->ahead; k++)
        t->madvise(t->places[k], t->bytes[k], WILLNEED);
    for (i64 k = 0; k < t->count; k++)
        t->results[k] = is_right(t, k);
}

void process(Table *t) {
    pthread_setspecific(key, t);
    t->function(t);
    pthread_setspecific(key, 0);
}

// Handles SIGBUS. A page that is missing from its file while a table is processed is counted, and becomes zeros. A signal
// that another handler has sent (code 0 or less) needs nothing: the instruction faults again. Every other signal is left
// to the previous action: the instruction faults again.
void on_bus_error(int signal, int *info, void *context) {
    (void)context;
    int code = info[2];
    if (pthread_getspecific(key)) {
        if (code <= 0)
            return;
        void *begin = (void *)(*(i64 *)&info[4] & -page);
        if (code == BUS_ADRERR && mmap(begin, page, READ, PRIVATE_FIXED_ANONYMOUS, -1, 0) == begin) {
            __atomic_fetch_add(&lost, 1, __ATOMIC_SEQ_CST);
            return;
        }
    }
    sigaction(signal, previous, 0);
}

void submit(State *s, i64 tables) {
    pthread_mutex_lock(s->mutex);
    s->submitted += tables;
    pthread_cond_signal(s->work);
    pthread_mutex_unlock(s->mutex);
}

i64 wait(State *s, i64 number) {
    pthread_mutex_lock(s->mutex);
    while (s->done < number)
        pthread_cond_wait(s->result, s->mutex);
    i64 done = s->done;
    pthread_mutex_unlock(s->mutex);
    return done;
}

void *serve(State *s) {
    pthread_mutex_lock(s->mutex);
    for (;;) {
        while (s->submitted == s->done)
            pthread_cond_wait(s->work, s->mutex);
        Table *t = s->last = s->last->next;
        pthread_mutex_unlock(s->mutex);
        if (!t)
            return 0;
        process(t);
        pthread_mutex_lock(s->mutex);
        s->done++;
        pthread_cond_signal(s->result);
    }
}
