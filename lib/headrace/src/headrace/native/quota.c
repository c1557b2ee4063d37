// Walks a quota through consecutive steps: the rule, with numbers, is in mix/quota.py. tests/mix has the same in a few
// lines of Python. Everything is exact: whole numbers, and floats whose operations come in the order in which NumPy does
// them (mix/schedule.py `Curves`, mix/blend.py `_evaluate`, mix/shares.py `fixed_point`, mix/quota_walk.py).
//
// Numbers of all components stand in rows, padded to a multiple of LANES with components that have no weight.

#include "native.h"

typedef double Reals __attribute__((vector_size(32), aligned(8), may_alias)); // as many at a time as the machine can
typedef i64 Wholes __attribute__((vector_size(32), aligned(8), may_alias));
typedef u64 Naturals __attribute__((vector_size(32), aligned(8), may_alias));

enum { LANES = 4, BLOCK = 8, BITS = 44, FEW = 2, ROUNDS = 8 };
enum { ROWS = BLOCK + 7 }; // of the scratch memory: those of `Room`
EXPORT i64 headrace_quota_rows(void) { return ROWS; }

#define ONE (1ll << BITS)
#define NEVER 0x7FFFFFFFFFFFFFFFll
#define LEAST 0x1p-1022 // the smallest weight that is not 0
#define AT(type, row, k) (*(type *)&(row)[k])
#define REAL(whole) ((Reals)((whole) | (Wholes)((Reals){} + 0x1p52)) - 0x1p52) // of a number below 2**52

// What Python passes, each field 8 bytes. Shares follow from `lines` of weights; or they are given, with rates, which are
// weights in units of 2**-44. Rows of one number for each component are not padded, except those of lines.
typedef struct {
    i64 steps, components, padded, margin, low_bits;
    const i64 *step, *size, *total;   // of each step: its number, its examples, all examples after it
    const i64 *largest;               // rows: the most examples of a component in a step; 0: none has a largest share
    const u8 *live;                   // rows: whether a component has weight, used up or not; 0: if it has a rate
    const i64 *rates, *whole, *part;  // rows, the shares after each step; or 0
    const double *lines;              // rows: the first and the last step of each, its values there, its scale; or 0
    i64 *due, *above, *drawn;         // the state: what is due, the share above that with the margin, what was drawn
    double *off;                      // how far a component is off, at steps at which it may be more than is promised
    i64 *counts;                      // rows: examples drawn after each step; 0: nobody asks
} Walk;

// What is known of the components at a step.
typedef struct {
    i64 *rate;    // BLOCK rows
    i64 *due, *above;
    i64 *crossed; // examples that became due in the step
    i64 *ahead;   // -1: one example more than is due was drawn
    i64 *left;    // the same, without those whose example became due now
    i64 *base;    // what else was drawn more than is due; mostly 0
    i64 *key;     // deadlines, for sorting
} Room;

#define INLINE static inline __attribute__((always_inline))

INLINE i64 sum_of(Wholes v) { return v[0] + v[1] + v[2] + v[3]; }

// Weights of some steps in units of 2**-44 that sum to 2**44, from straight lines: one row for each step.
INLINE void rates_of(const Walk *w, const i64 *step, i64 steps, i64 *rates) {
    const double *first = w->lines, *last = first + w->padded, *low = last + w->padded;
    const double *high = low + w->padded, *scale = high + w->padded;
    double total[BLOCK] = {0};
    i64 together = 1; // whether all lines begin and end at the same steps, as they mostly do: a division for each step
    for (i64 d = 1; d < w->components; d++)
        together &= first[d] == first[0] && last[d] == last[0];
    // 1. Values
    for (i64 s = 0; s < steps; s++) {
        double *value = (double *)rates + s * w->padded;
        double number = (double)step[s], way = (number - first[0]) / (last[0] - first[0]);
        for (i64 d = 0; d < w->padded; d += LANES) {
            Reals x = (Reals){} + way;
            if (!together)
                x = (number - AT(const Reals, first, d)) / (AT(const Reals, last, d) - AT(const Reals, first, d));
            x = x * (AT(const Reals, high, d) - AT(const Reals, low, d)) + AT(const Reals, low, d);
            AT(Reals, value, d) = x * AT(const Reals, scale, d);
        }
    }
    // 2. Their sums, one after the other, of all steps side by side
    for (i64 d = 0; d < w->components; d++)
        for (i64 s = 0; s < BLOCK; s++)
            total[s] += ((double *)rates)[(s < steps ? s : 0) * w->padded + d];
    // 3. Shares, rounded; a weight is never nothing, and the largest takes what rounding leaves
    for (i64 s = 0; s < steps; s++) {
        i64 *rate = rates + s * w->padded;
        Wholes sum = {}, largest = {};
        for (i64 d = 0; d < w->padded; d += LANES) {
            Reals value = AT(Reals, rate, d);
            Reals share = value / total[s], least = (Reals)((Wholes)((Reals){} + LEAST) & (value > 0));
            Wholes vanishes = share < least;
            share = (Reals)(((Wholes)least & vanishes) | ((Wholes)share & ~vanishes));
            const Reals middle = (Reals){} + 0x1.8p52; // added, it rounds to the nearest whole number, of two to the even
            Wholes whole = (Wholes)(share * ONE + middle) - (Wholes)middle;
            whole -= (whole == 0) & (share > 0);
            AT(Wholes, rate, d) = whole;
            sum += whole;
            Wholes more = whole > largest;
            largest = (whole & more) | (largest & ~more);
        }
        i64 most = 0, d = 0;
        for (i64 k = 0; k < LANES; k++)
            most = largest[k] > most ? largest[k] : most;
        while (rate[d] != most)
            d++;
        rate[d] += ONE - sum_of(sum);
    }
}

// One step of shares: what is due, and how far each component is above it. Returns how many examples became due.
INLINE i64 share_step(const Walk *w, Room *r, const i64 *rate, i64 s) {
    Wholes sum = {};
    if (w->whole) {
        const i64 *whole = w->whole + s * w->components, *part = w->part + s * w->components;
        i64 crossings = 0;
        for (i64 d = 0; d < w->components; d++) {
            i64 above = part[d] + w->margin, due = whole[d] + (above >> BITS);
            crossings += r->crossed[d] = due - r->due[d];
            r->due[d] = due, r->above[d] = above & (ONE - 1);
        }
        return crossings;
    }
    i64 size = w->size[s];
    for (i64 d = 0; d < w->padded; d += LANES) {
        Naturals above = AT(Naturals, r->above, d) + AT(const Naturals, rate, d) * (u64)size;
        Naturals crossed = above >> BITS;
        AT(Naturals, r->above, d) = above & (u64)(ONE - 1);
        AT(Naturals, r->crossed, d) = crossed;
        AT(Naturals, r->due, d) += crossed;
        sum += (Wholes)crossed;
    }
    return sum_of(sum);
}

INLINE i64 count_up_to(const i64 *key, i64 padded, i64 most) {
    Wholes count = {};
    for (i64 d = 0; d < padded; d += LANES)
        count -= AT(const Wholes, key, d) <= most;
    return sum_of(count);
}

INLINE i64 bits_of(double x) {
    union { double real; i64 bits; } both = {x};
    return both.bits;
}

INLINE double real_of(i64 bits) {
    union { i64 bits; double real; } both = {bits};
    return both.real;
}

// The smallest key above another.
INLINE i64 next_key(const i64 *key, i64 padded, i64 low) {
    Wholes next = (Wholes){} + NEVER;
    for (i64 d = 0; d < padded; d += LANES) {
        Wholes one = AT(const Wholes, key, d), closer = (one > low) & (one < next);
        next = (one & closer) | (next & ~closer);
    }
    i64 least = NEVER;
    for (i64 k = 0; k < LANES; k++)
        least = next[k] < least ? next[k] : least;
    return least;
}

// A number that `need` of the `there` keys do not exceed. Keys are positive floats, as bits. The search begins at a guess;
// it goes on where the number of keys between two bounds would lead if they were spread evenly, up to one that a few keys
// too few do not exceed, and takes these one by one.
INLINE i64 find_border(const i64 *key, i64 padded, i64 need, i64 there, i64 guess) {
    if (need == there)
        return NEVER - 1;
    i64 low = 0, below = 0, high = NEVER - 1, up_to = there; // no key is 0
    for (i64 round = 0; need - below > FEW; round++) {
        if (guess <= low || guess >= high)
            guess = low + (high - low) / 2;
        i64 count = count_up_to(key, padded, guess);
        if (count == need)
            return guess;
        if (count < need)
            low = guess, below = count;
        else
            high = guess, up_to = count;
        double reached = real_of(low);
        if (round >= ROUNDS) // keys that lie unevenly: halve
            guess = low + (high - low) / 2;
        else if (high == NEVER - 1)
            guess = bits_of(reached * (below ? 1.1 * (double)need / (double)below : 4));
        else
            guess = bits_of(reached + (real_of(high) - reached) * (double)(need - 1 - below) / (double)(up_to - below));
    }
    for (; below < need; below++)
        low = next_key(key, padded, low);
    return low;
}

// Walks. Returns the number of steps that it took: a step that it does not take is one that a bit for each component is
// not enough for (`_settle` in mix/quota_walk.py). The state then is that step's, and what was drawn before it.
INLINE i64 walk(const Walk *w, Room *r) {
    i64 components = w->components, padded = w->padded, due = 0, base = 0, odd = 0, s = 0;
    i64 border = bits_of((double)w->size[0]);
    // What was drawn beyond what is due: a bit where that may be, and the rest
    for (i64 d = 0; d < padded; d++) {
        i64 extra = 0;
        r->due[d] = r->above[d] = r->base[d] = r->crossed[d] = r->ahead[d] = 0;
        if (d >= components)
            continue;
        r->due[d] = w->due[d], r->above[d] = w->above[d], extra = w->drawn[d] - w->due[d];
        r->ahead[d] = -(extra > 0 && w->above[d] >= 2 * w->margin);
        r->base[d] = extra + r->ahead[d];
        due += w->due[d], base += r->base[d], odd += r->base[d] != 0;
    }
    for (; s < w->steps; s++) {
        i64 *rate = r->rate + s % BLOCK * padded;
        if (w->rates)
            for (i64 d = 0; d < padded; d++)
                rate[d] = d < components ? w->rates[s * components + d] : 0;
        else if (s % BLOCK == 0)
            rates_of(w, w->step + s, w->steps - s < BLOCK ? w->steps - s : BLOCK, r->rate);
        // 1. and 2. Shares, and what is due; the example of who was ahead may be due now
        due += share_step(w, r, rate, s);
        const i64 *largest = w->largest ? w->largest + s * components : 0;
        Wholes ahead = {}, there = {};
        for (i64 d = 0; d < padded; d += LANES) {
            Wholes left = AT(Wholes, r->ahead, d) & (AT(Wholes, r->crossed, d) == 0);
            // 3. Who may be drawn, and 4. when the next example is due, at the current rates: floats, the lowest bits of
            //    which are the component's number
            Wholes of = AT(Wholes, rate, d), above = AT(Wholes, r->above, d);
            Wholes may = (above >= 2 * w->margin) & (of > 0) & ~left;
            if (largest) // who is due its largest share has no example more, unless it had one early before
                for (i64 k = 0; k < LANES && d + k < components; k++)
                    may[k] &= ~(i64)-(r->crossed[d + k] >= largest[d + k]) | r->ahead[d + k];
            Wholes deadline = (Wholes)(REAL(ONE - above) / REAL(of | ((of == 0) & 1)));
            Wholes number = (Wholes){0, 1, 2, 3} + d;
            deadline = (deadline & ~w->low_bits) | number;
            AT(Wholes, r->key, d) = (deadline & may) | (~may & NEVER);
            AT(Wholes, r->left, d) = left;
            ahead -= left;
            there -= may;
        }
        // 5. The first of them
        i64 need = w->total[s] - due - base - sum_of(ahead), eligible = sum_of(there);
        if (need < 0 || need > eligible)
            break;
        if (odd) { // off by more than a bit can say, which may last only while their weight is 0
            i64 alive = 0;
            for (i64 d = 0; d < components; d++)
                alive |= r->base[d] && (w->live ? w->live[s * components + d] : rate[d] > 0);
            if (alive)
                break;
        }
        border = need ? find_border(r->key, padded, need, eligible, border) : -1;
        for (i64 d = 0; d < padded; d += LANES)
            AT(Wholes, r->ahead, d) = AT(Wholes, r->left, d) | (AT(Wholes, r->key, d) <= border);
        if (w->counts)
            for (i64 d = 0; d < components; d++)
                w->counts[s * components + d] = r->due[d] + r->base[d] - r->ahead[d];
        w->off[s] = 0;
        for (i64 d = 0; odd && d < components; d++) {
            i64 early = r->base[d] - r->ahead[d]; // and the share is `above` less the margin above what is due
            double off = (double)(r->above[d] - w->margin) / (double)ONE - (double)early;
            off = off < 0 ? -off : off;
            w->off[s] = off > w->off[s] ? off : w->off[s];
        }
    }
    for (i64 d = 0; d < components; d++) {
        i64 before = r->due[d] - (s < w->steps ? r->crossed[d] : 0);
        w->due[d] = r->due[d], w->above[d] = r->above[d], w->drawn[d] = before + r->base[d] - r->ahead[d];
    }
    return s;
}

#if defined(__x86_64__)
// The same, compiled for processors with wider vectors: which one is called is asked when the program runs.
__attribute__((target("avx2"))) static i64 walk_wide(const Walk *w, Room *r) { return walk(w, r); }
static i64 walk_narrow(const Walk *w, Room *r) { return walk(w, r); }
static i64 walk_any(const Walk *w, Room *r) { return (headrace_has_avx2 ? walk_wide : walk_narrow)(w, r); }
#else
static i64 walk_any(const Walk *w, Room *r) { return walk(w, r); }
#endif

EXPORT i64 headrace_walk_quota(const Walk *w, i64 *scratch) {
    i64 *row = scratch + BLOCK * w->padded;
    Room r = {.rate = scratch};
    r.due = row, row += w->padded;
    r.above = row, row += w->padded;
    r.crossed = row, row += w->padded;
    r.ahead = row, row += w->padded;
    r.left = row, row += w->padded;
    r.base = row, row += w->padded;
    r.key = row;
    return walk_any(w, &r);
}
