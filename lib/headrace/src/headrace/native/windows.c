// Packs windows of documents, one after the other: what pack/stream.py says, for whole windows. tests/pack has the same in
// a few lines of Python.

#include "native.h"

typedef u64 Words __attribute__((vector_size(64), aligned(8), may_alias)); // as many at a time as the machine can

// The items that no pack has yet, the largest first. The first `due` of them must be packed.
typedef struct {
    i64 *item, *size, count, due;
} Waiting;

// What choosing a pack needs.
typedef struct {
    i64 capacity, candidates;
    i64 *chosen;  // positions among the waiting items
    u8 *used;     // by position; all 0 between packs
    u64 *reached; // row k: a bit for each gap that some of the first k candidates leave
    i64 row_words;
} Choice;

enum { FEW = 16, BESIDE = 16 }; // BESIDE: words of each row of `reached` that are 0: whole vectors are read and written
EXPORT i64 headrace_words_beside(void) { return BESIDE; }

static void sift(u64 *keys, i64 root, i64 count) {
    for (i64 child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && keys[child] < keys[child + 1])
            child++;
        if (keys[root] >= keys[child])
            return;
        u64 key = keys[root];
        keys[root] = keys[child], keys[child] = key;
    }
}

// Sorts keys, ascending.
static void sort(u64 *keys, i64 count) {
    if (count <= FEW) { // by insertion
        for (i64 k = 1; k < count; k++) {
            u64 key = keys[k];
            i64 slot = k;
            for (; slot && keys[slot - 1] > key; slot--)
                keys[slot] = keys[slot - 1];
            keys[slot] = key;
        }
        return;
    }
    for (i64 root = count / 2; root--;)
        sift(keys, root, count);
    for (i64 end = count; end-- > 1;) {
        u64 key = keys[0];
        keys[0] = keys[end], keys[end] = key;
        sift(keys, 0, end);
    }
}

// Adds items behind the others, the largest first, equal sizes in order. Sizes are below 2**31.
static void add(Waiting *w, const i64 *items, i64 first, i64 count, const i64 *sizes, u64 *keys) {
    for (i64 k = 0; k < count; k++)
        keys[k] = (u64)(0x7FFFFFFF - sizes[items ? items[k] : first + k]) << 32 | (u64)k;
    sort(keys, count);
    for (i64 k = 0; k < count; k++) {
        i64 nth = (i64)(keys[k] & 0xFFFFFFFF), item = items ? items[nth] : first + nth;
        w->item[w->count] = item, w->size[w->count++] = sizes[item];
    }
}

// The gaps of a row, and those that an item of this size leaves in them.
static inline __attribute__((always_inline)) void take_words(const u64 *gaps, u64 *out, i64 words, i64 size) {
    i64 skip = size / 64, shifted = words > skip ? words - skip : 0, k = 0;
    u64 rest = (u64)size % 64;
    for (; k < shifted; k += 8) {
        Words low = *(const Words *)&gaps[k + skip], high = *(const Words *)&gaps[k + skip + 1];
        *(Words *)&out[k] = *(const Words *)&gaps[k] | low >> rest | (high << 1) << (63 - rest);
    }
    for (; k < words + BESIDE; k++)
        out[k] = gaps[k];
}

#if defined(__x86_64__)
// The same, compiled for processors with wider vectors: which one is called is asked when the program runs.
__attribute__((target("avx2"))) static void take_wide(const u64 *gaps, u64 *out, i64 words, i64 size) {
    take_words(gaps, out, words, size);
}
static void take_from(const u64 *gaps, u64 *out, i64 words, i64 size) {
    (headrace_has_avx2 ? take_wide : take_words)(gaps, out, words, size);
}
#else
static void take_from(const u64 *gaps, u64 *out, i64 words, i64 size) { take_words(gaps, out, words, size); }
#endif

static u64 has(const u64 *bits, i64 bit) { return bits[bit / 64] >> (bit % 64) & 1; }

// Chooses a pack: as many of the due items as fit, or the first, then what fills it best. Returns the number of positions
// that it wrote; `gap` becomes the space left, negative for an item larger than a pack.
static i64 choose(Choice *c, const Waiting *w, i64 *gap) {
    i64 space = c->capacity - w->size[0], number = 1;
    c->chosen[0] = 0;
    for (i64 k = 1; k < w->due; k++)
        if (w->size[k] <= space)
            c->chosen[number++] = k, space -= w->size[k];
    *gap = space;
    if (space <= 0)
        return number;
    i64 start = w->due > 1 ? w->due : 1, words = space / 64 + 1, tried = 0;
    i64 most = w->count < start + c->candidates ? w->count : start + c->candidates;
    while (start < most && w->size[start] > space)
        start++;
    u64 *row = c->reached;
    for (i64 k = 0; k < words + BESIDE; k++)
        row[k] = 0;
    row[space / 64] = 1ull << (space % 64);
    for (; start + tried < most && !(row[0] & 1); tried++, row += c->row_words)
        take_from(row, row + c->row_words, words, w->size[start + tried]);
    i64 rest = 0;
    while (!has(row, rest))
        rest++;
    *gap = rest;
    for (i64 k = tried, left = rest; left < space;) { // back to the gap before anything was taken
        row -= c->row_words, k--;
        if (!has(row, left))
            c->chosen[number++] = start + k, left += w->size[start + k];
    }
    for (i64 k = start + tried; *gap && k < w->count; k++)
        if (w->size[k] <= *gap)
            c->chosen[number++] = k, *gap -= w->size[k];
    return number;
}

// Moves the chosen items to a pack, in order.
static void move_chosen(Choice *c, i64 number, Waiting *w, i64 *pack) {
    i64 due = w->due, count = 0;
    for (i64 nth = 0; nth < number; nth++) {
        i64 position = c->chosen[nth];
        c->used[position] = 1, due -= position < w->due;
        pack[nth] = w->item[position];
    }
    sort((u64 *)pack, number);
    for (i64 k = 0; k < w->count; k++)
        if (c->used[k])
            c->used[k] = 0;
        else
            w->item[count] = w->item[k], w->size[count++] = w->size[k];
    w->count = count, w->due = due;
}

// Window k has the items bounds[k] .. bounds[k + 1]; over[k]: its last one crosses its end. `last`: nothing may be carried
// after the last window. `carry` holds carried[0] items, and gets those that are carried on. Writes the items of all
// packs, in order in each, and how many each has; returns the number of packs.
EXPORT i64 headrace_pack_windows(i64 windows, const i64 *sizes, const i64 *bounds, const u8 *over, i64 capacity, i64 tolerance,
                 i64 candidates, i64 last, i64 *order, i64 *counts, i64 *carry, i64 *carried, i64 *scratch, u8 *used,
                 u64 *reached, i64 most_waiting) {
    i64 packs = 0, row_words = capacity / 64 + 1 + BESIDE;
    Waiting w = {scratch, scratch + most_waiting, 0, 0};
    Choice c = {capacity, candidates, scratch + 2 * most_waiting, used, reached, row_words};
    u64 *keys = (u64 *)scratch + 3 * most_waiting;
    for (i64 window = 0; window < windows || (window == windows && last && *carried); window++) {
        i64 first = bounds[window < windows ? window : windows], stop = bounds[window < windows ? window + 1 : windows];
        i64 is_final = last && stop == bounds[windows];
        i64 runs_over = stop > first && !is_final && over[window], total = 0;
        w.count = 0, w.due = *carried;
        add(&w, carry, 0, *carried, sizes, keys);
        add(&w, 0, first, stop - runs_over - first, sizes, keys);
        for (i64 k = 0; k < w.count; k++)
            total += w.size[k];
        while (w.count && (is_final || w.due || total >= capacity)) {
            i64 gap, number = choose(&c, &w, &gap);
            if (!(is_final || w.due) && gap * tolerance > capacity)
                break;
            move_chosen(&c, number, &w, order);
            counts[packs++] = number, order += number, total -= capacity - gap;
        }
        for (i64 k = 0; k < w.count; k++)
            keys[k] = (u64)w.item[k];
        sort(keys, w.count);
        for (i64 k = 0; k < w.count; k++)
            carry[k] = (i64)keys[k];
        *carried = w.count;
        if (runs_over)
            carry[(*carried)++] = stop - 1;
    }
    return packs;
}
