// Keyed permutations (order/permutation.py says what they are), and rows and localities of draws of braids, one draw after
// the other (order/braid.py). What the draws of a component have in common is computed once per epoch. The tests of
// both have the same in plain Python.
//
// All integers are unsigned and wrap, as NumPy's uint64 does.

#include "native.h"

// A component's parameters: BraidSpec, and the sides of the rectangles over which blocks and rows are permuted.
typedef struct {
    u64 n, block, part, full_blocks, part_step, tail_step, cells, depth, regular, extra, extra_step, bits, period;
    u64 begin, first, ring, step, shift, key, spread;
    double corner, low, pitch;
    u64 permuted;
    u64 block_sides[2], row_sides[2];
} Spec;

// What draws of one kind have in common in an epoch: draws of cells, or extra draws.
//
// The strands of a kind cut its examples of the epoch evenly: each has as many as there are `rounds`, in which every strand
// is drawn from once. What does not fill a round is dealt with in one of two ways.
//
// Strands of many blocks (not `is_short`) follow each other as a round visits them, and the first `rest` have one more.
//
// Of short ones, those that successive laps take must not lie in one block, and neighbours in the store must have neighbouring
// localities. So the `depth` strands of a cell lie side by side, and laps take them by columns: they are dealt to `apart`
// columns, about as many as they fill blocks, of `height` strands, the first `columns_higher` one higher; a lap takes the
// next column. Whole laps of the rest make `longer` strands of each cell one example longer: `above` rows of them in every
// column, and one more in the first `column_longer`. What is less than a lap belongs to no strand: `over` examples are left
// over, evenly spread over the epoch, and its last draws take them.
//
//     depth 5, apart 2:     column 0   0 1 2      laps 0 1 2 3 4 take strands 0 3 1 4 2
//                           column 1   3 4
typedef struct {
    u64 draws, cells, depth, strands, rounds, rest, is_short, longer, apart, height, columns_higher;
    u64 above, column_longer, over, rounds_before, among;
} Kind;

// What the draws of a component have in common in an epoch. Components share entries.
typedef struct {
    const Spec *spec;
    u64 number, key, mark, begin, first_visit, regular, phase_key, block_key, inside_key, all_rows_key;
    Kind kinds[2];
} Epoch;

// A part of a block that was placed: one of many shares its entry with it.
typedef struct {
    const Spec *spec;
    u64 key, part, first, keyed;
} Placed;

// What draws of a strand have in common in an epoch.
typedef struct {
    u64 start, length, phase; // the first two among the examples of its kind that are not left over
} Strand;

EXPORT u64 headrace_spec_bytes(void) { return sizeof(Spec); } // order/braid.py asks
EXPORT u64 headrace_epoch_bytes(void) { return sizeof(Epoch); }
EXPORT u64 headrace_placed_bytes(void) { return sizeof(Placed); }

enum { PHASE = 1, BLOCK = 2, INSIDE = 3, ALL_ROWS = 5, LONG = 16, LAST = 8 };
static const u64 LOW32 = 0xFFFFFFFF, EXACT = 1ull << 40, EPOCHS = (1ull << 21) - 1;
static const u64 GOLDEN = 0x9E3779B97F4A7C15, GOLDEN32 = 0x9E3779B9, PLASTIC32 = 0x91E10DA5;
static const u64 MIX1 = 0xBF58476D1CE4E5B9, MIX2 = 0x94D049BB133111EB, FOLD = 0xD1B54A32D192ED03;

static u64 least(u64 a, u64 b) { return a < b ? a : b; }
static u64 most(u64 a, u64 b) { return a > b ? a : b; }

static u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * MIX1;
    x = (x ^ (x >> 27)) * MIX2;
    return x ^ (x >> 31);
}

static u64 fold(u64 key, u64 data) { return mix((key + GOLDEN) ^ mix(data * FOLD + MIX1)); }

// What a round adds to a coordinate below `side`, given the other one.
static u64 added(u64 other, u64 key, u64 round, u64 side) {
    u64 h = other ^ (key + round * GOLDEN);
    h = (h ^ (h >> 30)) * MIX1;
    h = (h ^ (h >> 27)) * MIX2;
    return (h >> 32) * side >> 32;
}

static u64 rounds_of(u64 n) { return n < 64 ? 16 : 8; }

static u64 permute(u64 x, u64 n, const u64 sides[2], u64 key) {
    u64 rounds = rounds_of(n);
    do {
        u64 halves[2] = {x % sides[0], x / sides[0]};
        for (u64 r = 0; r < rounds; r++) {
            u64 side = sides[r & 1], half = halves[r & 1] + added(halves[~r & 1], key, r, side);
            halves[r & 1] = half - side * (half >= side);
        }
        x = halves[1] * sides[0] + halves[0];
    } while (x >= n);
    return x;
}

static u64 unpermute(u64 x, u64 n, const u64 sides[2], u64 key) {
    u64 rounds = rounds_of(n);
    do {
        u64 halves[2] = {x % sides[0], x / sides[0]};
        for (u64 r = rounds; r--;) {
            u64 side = sides[r & 1], half = halves[r & 1] + side - added(halves[~r & 1], key, r, side);
            halves[r & 1] = half - side * (half >= side);
        }
        x = halves[1] * sides[0] + halves[0];
    } while (x >= n);
    return x;
}

// Images of numbers, or with `back` what has these images: of the permutations of lengths, with the sides of their
// rectangles, and keys. There is one for each number, or, where the step is 0, one for all.
EXPORT void headrace_permute(u64 count, const u64 *x, const u64 *n, const u64 *a, const u64 *b, u64 length_step,
                             const u64 *key, u64 key_step, u64 back, u64 *out) {
    for (u64 k = 0; k < count; k++) {
        u64 at = k * length_step, sides[2] = {a[at], b[at]};
        out[k] = (back ? unpermute : permute)(x[k], n[at], sides, key[k * key_step]);
    }
}

static u64 scatter(u64 row, u64 size, u64 word) {
    for (int round = 0; round < 4; round++) {
        word = (word ^ (word >> 29)) * MIX1;
        u64 other = ((word >> 32) * size >> 32) - row;
        other = least(other, other + size);
        row ^= (other ^ row) * (word >> (most(row, other) & 63) & 1);
    }
    return row;
}

// Draws of cells before the x-th draw, and its position in the lap.
static u64 count_laps(u64 x, const Spec *s, u64 *offset) {
    u64 periods = x / s->period, inside = x - periods * s->period;
    u64 lap = (((inside + 1) << s->bits) - 1) / s->period;
    *offset = inside - (lap * s->period >> s->bits);
    return (lap + (periods << s->bits)) * s->cells + least(*offset, s->cells);
}

// Place of k < n if all are dealt to columns in turn and the columns put in a row.
static u64 transposed(u64 k, u64 n, u64 columns) {
    u64 turn = k / columns, column = k - turn * columns, height = n / columns;
    return column * height + least(column, n - height * columns) + turn;
}

// Nothing is divided by zero: n, block, period, ring, extra and depth are at least 1, and so are the strands of each kind
// of which there are draws.
static void begin_kind(Kind *k, u64 draws, u64 cells, u64 depth, u64 earlier, u64 block) {
    k->draws = draws, k->cells = cells, k->depth = depth, k->strands = cells * depth;
    if (!k->strands) // no draw is of this kind
        return;
    k->rounds = draws / k->strands, k->rest = draws - k->rounds * k->strands;
    k->is_short = k->rounds < block * LONG;
    k->longer = k->is_short ? k->rest / cells : 0;
    k->apart = least(most(depth * k->rounds / block, 1), depth);
    k->height = depth / k->apart, k->columns_higher = depth - k->height * k->apart;
    k->above = k->longer / k->apart, k->column_longer = k->longer - k->above * k->apart;
    k->over = k->is_short ? k->rest - k->longer * cells : 0;
    k->rounds_before = earlier / k->strands; // of the run: where in their blocks strands go on
    k->among = draws < EXACT ? draws - k->over : draws / most(k->over, 1) - 1;
}

static void begin_epoch(Epoch *e, const Spec *s, u64 number, u64 component) {
    u64 offset;
    e->spec = s, e->number = number, e->key = fold(s->key, number);
    e->mark = e->key ^ component * PLASTIC32; // components may share a key
    e->begin = s->begin * (number & EPOCHS) % s->period;
    e->first_visit = count_laps(e->begin, s, &offset);
    e->regular = count_laps(e->begin + s->n, s, &offset) - e->first_visit;
    e->phase_key = fold(e->key, PHASE), e->block_key = fold(e->key, BLOCK);
    e->inside_key = fold(e->key, INSIDE), e->all_rows_key = fold(e->key, ALL_ROWS);
    begin_kind(&e->kinds[0], e->regular, s->cells, s->depth, e->first_visit, s->block);
    begin_kind(&e->kinds[1], s->n - e->regular, s->extra, 1, e->begin - e->first_visit, s->block);
}

// Place of the x-th example of the kind that some strand has, among those too that are left over. Of `over` that are spread
// evenly, ((x + 1) over - 1) / (draws - over) lie before it; products beyond 64 bits are spared by gaps of equal length.
static u64 skip_left_over(u64 x, const Kind *k) {
    if (!k->over)
        return x;
    u64 gaps = (k->draws < EXACT ? (x + 1) * k->over - 1 : x) / most(k->among, 1);
    return x + least(gaps, k->over);
}

// Step 2. The cell of a place in the lap; place 0 keeps cell 0 if that one comes and goes.
static u64 cell_of(u64 offset, const Spec *s) {
    return offset < s->first ? 0 : ((offset - s->first) * s->step + s->shift) % s->ring + s->first;
}

// Step 3, and what step 5 needs. The strand of the `visit`-th draw of a round; `cell` is that of a draw of a cell.
static Strand strand_of(u64 visit, u64 cell, u64 extra, const Epoch *e, const Spec *s) {
    const Kind *k = &e->kinds[extra];
    u64 lap = visit / k->cells;
    if (extra)
        cell = visit * s->extra_step % s->extra;
    u64 row = lap / k->apart, column = lap - row * k->apart;
    u64 strand = cell * k->depth + column * k->height + least(column, k->columns_higher) + row;
    u64 start, length;
    if (k->is_short) { // those before it, as long as all are, and what longer ones among them have more
        u64 longer_before = column * k->above + least(column, k->column_longer);
        longer_before += least(row, k->above + (column < k->column_longer));
        start = strand * k->rounds + cell * k->longer + longer_before;
        length = k->rounds + (lap < k->longer);
    } else {
        start = visit * k->rounds + least(visit, k->rest);
        length = k->rounds + (visit < k->rest);
    }
    strand += s->regular * extra;
    // The phase: strand by strand evenly over a block, from where the begin of the strand lies in its block, and on by a row a
    // round, so that an epoch goes on where the one before it ended; then a keyed number of whole blocks
    u64 spread = (strand * GOLDEN32 + s->spread) & LOW32, blocks = length / s->block, phase;
    if (blocks) {
        u64 inside = skip_left_over(start, k) % s->block;
        u64 target = ((spread * s->block >> 32) + k->rounds_before) % s->block;
        u64 turned = ((strand * PLASTIC32 + (e->phase_key >> 32)) & LOW32) * least(blocks, LAST) >> 32;
        phase = target - inside + s->block * (target < inside) + turned * s->block;
    } else {
        u64 offset = (spread + (e->phase_key & LOW32)) & LOW32;
        phase = offset * least(length, s->block) >> 32;
    }
    return (Strand){start, length, phase};
}

// Steps 4 and 5. Position in the epoch's sequence of blocks of a draw, whose number is among those of its kind.
static u64 virtual_place(u64 draw, u64 cell, u64 extra, const Epoch *e, const Spec *s) {
    const Kind *k = &e->kinds[extra];
    u64 base = extra ? e->regular : 0;
    long long late = (long long)(draw + k->over - k->draws);
    if (late >= 0) { // one of the last draws of the epoch, which take what is left over by whole laps
        u64 blocks = least(most(k->draws / s->block, 1), k->over), gap = k->draws / k->over;
        // Successive ones from different blocks; the nth of all lies at the end of the nth of `over` equal stretches
        u64 nth = transposed((u64)late, k->over, blocks) + 1;
        u64 uneven = k->draws < EXACT ? k->draws - gap * k->over : 0;
        return nth * gap + nth * uneven / k->over - 1 + base;
    }
    u64 turn = draw / k->strands;
    Strand t = strand_of(draw - turn * k->strands, cell, extra, e, s);
    u64 offset = turn + t.phase;
    offset -= t.length * (offset >= t.length);
    return skip_left_over(t.start + offset, k) + base;
}

// Step 6. The row at a place of the sequence.
static u64 physical_row(u64 place, const Epoch *e, const Spec *s, Placed *placed, u64 mask) {
    if (s->permuted)
        return permute(place, s->n, s->row_sides, e->all_rows_key);
    u64 part = place / s->part, begin = part * s->part; // a block has whole parts, or is all there is
    Placed *p = &placed[(part * GOLDEN32 ^ e->mark) & mask];
    if (p->spec != s || p->key != e->key || p->part != part) {
        u64 block = place / s->block, first = block;
        if (block < s->full_blocks)
            first = permute(block, s->full_blocks, s->block_sides, e->block_key);
        *p = (Placed){s, e->key, part, begin + (first - block) * s->block, fold(e->inside_key, part)};
    }
    u64 size = least(s->part, s->n - begin), step = size == s->part ? s->part_step : s->tail_step;
    u64 inner = ((place - begin) * step + ((p->keyed >> 32) * size >> 32)) % size;
    return p->first + scatter(inner, size, p->keyed);
}

// The draws `ordinal` of components (null: the first), counted over epochs from `first_epoch` on (null: 0). `epochs` and
// `placed` have a power of two of entries, all zeros; their masks are one less.
EXPORT void headrace_braid_rows(u64 count, const Spec *specs, const u64 *component, const u64 *ordinal, const u64 *first_epoch,
                Epoch *epochs, u64 epoch_mask, Placed *placed, u64 placed_mask, u64 *rows, double *localities) {
    for (u64 k = 0; k < count; k++) {
        u64 which = component ? component[k] : 0, offset;
        const Spec *s = &specs[which];
        Epoch *e = &epochs[which & epoch_mask];
        u64 passes = ordinal[k] / s->n, i = ordinal[k] - passes * s->n;
        u64 number = passes + (first_epoch ? first_epoch[k] : 0);
        if (e->spec != s || e->number != number)
            begin_epoch(e, s, number, which);
        // Step 1: the lap and the place in it (`offset`); the draws of cells of the epoch before this one
        u64 visits = count_laps(e->begin + i, s, &offset) - e->first_visit;
        u64 extra = offset >= s->cells, cell = cell_of(offset, s), draw = extra ? i - visits : visits;
        if (extra | (offset < s->first))
            localities[k] = s->low * (s->corner + (double)extra * 0x1p-21);
        else
            localities[k] = s->low + ((double)(long long)(cell - s->first) + s->corner) * s->pitch;
        rows[k] = physical_row(virtual_place(draw, cell, extra, e, s), e, s, placed, placed_mask);
    }
}

// The place of the draw with this number among those of its kind.
static u64 place_of(u64 draw, u64 extra, const Epoch *e, const Spec *s) {
    u64 cell = extra ? 0 : cell_of((e->first_visit + draw) % s->cells, s);
    return virtual_place(draw, cell, extra, e, s);
}

// Ranges of places of an epoch's sequence that hold the rows of its first `drawn` draws; returns how many. There is room
// for four of each strand.
EXPORT u64 headrace_braid_touched(const Spec *s, u64 number, u64 drawn, u64 *start, u64 *stop) {
    Epoch e = {0};
    u64 offset, count = 0;
    begin_epoch(&e, s, number, 0);
    u64 regular = count_laps(e.begin + drawn, s, &offset) - e.first_visit;
    for (u64 extra = 0; extra < 2; extra++) {
        const Kind *k = &e.kinds[extra];
        u64 draws = extra ? drawn - regular : regular, of_strands = least(draws, k->draws - k->over), alone = 0;
        if (draws > 3 * k->strands) {
            // A strand visits neighbouring places, and goes on from its begin when it has come to its end: its first and
            // its last draw tell all between them
            for (u64 visit = 0; visit < k->strands; visit++) {
                u64 turns = (of_strands - 1 - visit) / k->strands;
                u64 first = place_of(visit, extra, &e, s), end = place_of(visit + turns * k->strands, extra, &e, s) + 1;
                if (end <= first) { // it has come round
                    u64 cell = extra ? 0 : cell_of((e.first_visit + visit) % s->cells, s), base = extra ? e.regular : 0;
                    Strand t = strand_of(visit, cell, extra, &e, s);
                    start[count] = skip_left_over(t.start, k) + base, stop[count++] = end;
                    end = skip_left_over(t.start + t.length - 1, k) + base + 1;
                }
                start[count] = first, stop[count++] = end;
            }
            alone = of_strands; // the last draws of an epoch belong to no strand
        }
        for (u64 draw = alone; draw < draws; draw++) {
            start[count] = place_of(draw, extra, &e, s);
            stop[count] = start[count] + 1, count++;
        }
    }
    return count;
}
