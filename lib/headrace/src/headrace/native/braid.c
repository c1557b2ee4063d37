// Rows and localities of draws of braids, one draw after the other; order/braid/shuffle.py says what a braid is. What the
// draws of a component have in common is computed once per epoch. tests/order/braid has the same in NumPy.
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

EXPORT u64 headrace_spec_bytes(void) { return sizeof(Spec); } // order/braid/table.py asks
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

static u64 permute(u64 x, u64 n, const u64 sides[2], u64 key) {
    u64 rounds = n < 64 ? 16 : 8;
    do {
        u64 halves[2] = {x % sides[0], x / sides[0]};
        for (u64 r = 0; r < rounds; r++) {
            u64 side = sides[r & 1], h = halves[~r & 1] ^ (key + r * GOLDEN);
            h = (h ^ (h >> 30)) * MIX1;
            h = (h ^ (h >> 27)) * MIX2;
            u64 half = halves[r & 1] + ((h >> 32) * side >> 32);
            halves[r & 1] = half - side * (half >= side);
        }
        x = halves[1] * sides[0] + halves[0];
    } while (x >= n);
    return x;
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
    k->rounds_before = earlier / k->strands;
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

static u64 skip_left_over(u64 x, const Kind *k) {
    if (!k->over)
        return x;
    u64 gaps = (k->draws < EXACT ? (x + 1) * k->over - 1 : x) / most(k->among, 1);
    return x + least(gaps, k->over);
}

// Position in the epoch's sequence of blocks of its i-th draw.
static u64 virtual_place(u64 i, u64 visits, u64 cell, u64 extra, const Epoch *e, const Spec *s) {
    const Kind *k = &e->kinds[extra];
    u64 base = extra ? e->regular : 0, own_visits = visits - e->first_visit, draw = extra ? i - own_visits : own_visits;
    long long late = (long long)(draw + k->over - k->draws);
    if (late >= 0) { // one of the last draws of the epoch, which take what is left over by whole laps
        u64 blocks = least(most(k->draws / s->block, 1), k->over), gap = k->draws / k->over;
        u64 nth = transposed((u64)late, k->over, blocks) + 1;
        u64 uneven = k->draws < EXACT ? k->draws - gap * k->over : 0;
        return nth * gap + nth * uneven / k->over - 1 + base;
    }
    u64 turn = draw / k->strands, visit = draw - turn * k->strands, lap = visit / k->cells;
    if (extra)
        cell = visit * s->extra_step % s->extra;
    u64 row = lap / k->apart, column = lap - row * k->apart;
    u64 strand = cell * k->depth + column * k->height + least(column, k->columns_higher) + row;
    u64 start, length;
    if (k->is_short) {
        u64 longer_before = column * k->above + least(column, k->column_longer);
        longer_before += least(row, k->above + (column < k->column_longer));
        start = strand * k->rounds + cell * k->longer + longer_before;
        length = k->rounds + (lap < k->longer);
    } else {
        start = visit * k->rounds + least(visit, k->rest);
        length = k->rounds + (visit < k->rest);
    }
    strand += s->regular * extra;
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
    u64 offset = turn + phase;
    offset -= length * (offset >= length);
    return skip_left_over(start + offset, k) + base;
}

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
        u64 visits = count_laps(e->begin + i, s, &offset), extra = offset >= s->cells, cell = 0;
        if (offset >= s->first) // place 0 keeps cell 0 if that one comes and goes
            cell = ((offset - s->first) * s->step + s->shift) % s->ring + s->first;
        if (extra | (offset < s->first))
            localities[k] = s->low * (s->corner + (double)extra * 0x1p-21);
        else
            localities[k] = s->low + ((double)(long long)(cell - s->first) + s->corner) * s->pitch;
        rows[k] = physical_row(virtual_place(i, visits, cell, extra, e, s), e, s, placed, placed_mask);
    }
}
