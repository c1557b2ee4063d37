"""Braided shuffle: mixes like a full shuffle, and each stored block is read about once, whatever the number of hosts.

With H hosts, every row of a batch lands on some host. If a window of K open blocks is mixed freely (block shuffle),
every host reads every block: H times the reads, and K blocks of cache on each. A braid opens the same K blocks, one for
each of K *strands*, and says of each row where in the store's reading front it lies (its *locality*). The loader sorts
the rows of a batch by locality: host h then always meets the strands around h/H, holds about K/H blocks, and nobody
else reads them. The order itself does not know H.

How a draw finds its row::

    v     virtual sequence of an epoch: full blocks in keyed order, then the partial tail block. No special case
    L_k   v is cut into K strands of equal length (two lengths that differ by 1), one after the other
    lap   draws go round the strands; one lap passes over the whole front once. Its `lap` draws (not always a whole
          number: then one lap in so many has one draw more) are best the rows that the component gives to a batch
    row   the (turn + phase_k)-th example of strand k (modulo L_k) -> its block -> place inside the block

A strand belongs to a *cell* of the front. Cells follow each other on a golden lattice, ``q -> (q g + shift) mod cells``
with g near cells / phi, which spreads any run of draws evenly, also over the end of a lap. So do the rows inside a
block, with a keyed shift and direction for each block: neighbours in the store, which may be one document, are drawn
far apart. Phases are spread evenly over a block, so strands change blocks at different times and reads come without
bursts. Laps go on over the end of an epoch.

**Why laps of a real length.** In a mixture, a component gives rho rows to a batch, now floor(rho), now ceil(rho). An
extra row somewhere shifts the sorted rows after it by one, over the borders of hosts, and these read blocks that are
not theirs. With lap = rho every batch takes the same cells of each component. The rows that come and go, the first of
a lap and the extra one, all have their localities at the very front: their shifts cancel there, since a batch has the
same number of rows in all. Blocks read per block and epoch, 20 components, 64 hosts, default budget: 1.06; 1.69 with
laps of round(rho), 2.46 with one lap over all strands (scripts/bench/bench_braid_reads.py).

Invariants: a bijection for every n, block size, strands, lap and epoch; O(1) memory in n, and a table of at most 1 MiB
where blocks are few (:mod:`headrace.index.braid_blocks`); successive draws come from
different strands, so VR_w <= 1 up to chance for w up to K (see order_quality).
Price: one keyed permutation and about 100 vector operations, 0.5 us an index in batches of 1,024 rows, any n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from headrace.index.braid_blocks import BLOCK, Placed, PlacedBlocks, place_blocks
from headrace.index.braid_spec import GOLDEN32, MAX_STRANDS, BraidSpec, braid_spec
from headrace.index.intervals import Intervals
from headrace.index.remap import IndexMap
from headrace.index.seeds import derive, fold

_SLICE = 8192  # rows per pass: the temporaries stay in the second-level cache
_PLASTIC32 = np.uint64(0x91E10DA5)  # 2**32 / plastic number squared: independent of GOLDEN32
_LOW32, _S32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_EPOCHS = np.uint64((1 << 21) - 1)
_ONE = np.uint64(1)
_EXACT = np.uint64(1 << 40)  # draws times cells stay below 2**63; beyond, gaps are whole numbers
_LAST = np.uint64(8)  # blocks of a strand over which that is spread: fewer give bursts, more disturb the others' times
_LONG = np.uint64(16)  # blocks of a strand from which on it is rare that neighbours meet in one block
# What a child key is for; see also braid_blocks. A vector: numpy warns of overflow, which hashing needs, for scalars.
_PHASE = np.array([1], np.uint64)


class _Draw(NamedTuple):
    """Where in the laps a draw is."""

    key: np.ndarray  # of its epoch
    begin: np.ndarray  # place of the epoch's first draw in the period
    visits: np.ndarray  # draws of cells (not extra ones) in the period before this one
    place: np.ndarray  # in its lap
    extra: np.ndarray  # bool: the extra draw of a lap
    cell: np.ndarray


def _laps(x: np.ndarray, s: BraidSpec) -> tuple[np.ndarray, np.ndarray]:
    """Draws of cells before the ``x``-th draw, and place in the lap: lap t begins with draw floor(t * lap)."""
    periods = x // s.period
    inside = x - periods * s.period
    lap = (((inside + _ONE) << s.bits) - _ONE) // s.period
    place = inside - ((lap * s.period) >> s.bits)
    lap += periods << s.bits
    return lap * s.cells + np.minimum(place, s.cells), place


def _draw(i: np.ndarray, epoch: np.ndarray, s: BraidSpec) -> _Draw:
    # Epoch e begins with draw e * n of the run, taken modulo the period and 2**21 epochs
    begin = (s.begin * (epoch & _EPOCHS)) % s.period
    visits, place = _laps(begin + i, s)
    cell = np.maximum(place, s.first) - s.first
    cell *= s.step
    cell += s.shift
    cell %= s.ring
    cell += s.first
    cell *= place >= s.first  # place 0 keeps cell 0 if that one comes and goes
    return _Draw(fold(s.key, epoch), begin, visits, place, place >= s.cells, cell)


def _locality(d: _Draw, s: BraidSpec) -> np.ndarray:
    inner = s.low + ((d.cell - s.first).view(np.int64) + s.corner) * s.pitch
    edge = s.low * (s.corner + d.extra * 2.0**-21)
    return np.where(d.extra | (d.place < s.first), edge, inner)


class _Spot(NamedTuple):
    """A draw's strand, and where it is on it."""

    strand: np.ndarray
    rounds_before: np.ndarray  # over all strands, in earlier epochs
    turn: np.ndarray  # examples of the strand that were drawn before in this one
    start: np.ndarray  # of the strand, among the examples of ``draws`` that are not left over
    length: np.ndarray
    draws: np.ndarray  # of the epoch, of this kind
    base: np.ndarray  # where their examples begin
    over: np.ndarray  # examples left over by whole laps, less than a lap; the last draws take them
    late: np.ndarray  # int64: number of the last draws, from 0; negative for others


def _spot(i: np.ndarray, d: _Draw, s: BraidSpec) -> _Spot:
    """Strand of each draw. Draws of cells, and extra draws, each go round their own strands from the epoch's begin."""
    before, after = _laps(d.begin, s)[0], _laps(d.begin + s.n, s)[0]
    regular = after - before
    mine = d.visits - before
    # Where no lap has an extra draw, numbers of the braid stay single numbers, which are far cheaper to divide by
    extra = bool(d.extra.any())
    either = np.where if extra else _second
    draw = either(d.extra, i - mine, mine)
    draws = either(d.extra, s.n - regular, regular)
    # Extra draws have a cell for each of their strands
    cells, depth = either(d.extra, s.extra, s.cells), either(d.extra, _ONE, s.depth)
    strands = cells * depth
    turn = draw // strands
    visit = draw - turn * strands
    lap = visit // cells
    cell = np.where(d.extra, visit * s.extra_step % s.extra, d.cell) if extra else d.cell
    rounds = draws // strands
    rest = draws - rounds * strands
    # Strands of many blocks lie in the order of their draws; the first of them are one longer. Of short strands, many
    # share a block. So that successive draws do not, these lie in the order of their cells, and those of a cell that
    # are next to each other are drawn `apart` laps apart. There, draws that make no whole lap are left over.
    short = rounds < s.block * _LONG
    longer = np.where(short, rest // cells, 0)  # laps whose strands are one longer
    apart = np.minimum(np.maximum(depth * rounds // s.block, _ONE), depth)
    nth, column = _transposed(lap, depth, apart)
    above = longer // apart
    column_longer = longer - above * apart
    longer_before = column * above + np.minimum(column, column_longer)
    longer_before += np.minimum(lap // apart, above + (column < column_longer))
    strand = cell * depth + nth
    over = np.where(short, rest - longer * cells, 0)
    return _Spot(
        strand=strand + s.regular * d.extra,
        rounds_before=either(d.extra, d.begin - before, before) // strands,
        turn=turn,
        start=np.where(
            short, strand * rounds + cell * longer + longer_before, visit * rounds + np.minimum(visit, rest)
        ),
        length=rounds + np.where(short, lap < longer, visit < rest),
        draws=draws,
        base=regular * d.extra,
        over=over,
        late=(draw + over - draws).view(np.int64),
    )


def _second(_which: np.ndarray, _first: object, second: np.ndarray) -> np.ndarray:
    """``np.where`` of a condition that is true nowhere; the answer may be one number for all."""
    return second


def _transposed(k: np.ndarray, n: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Place of ``k < n`` if all are dealt to columns in turn and the columns put in a row; and its column."""
    turn = k // columns
    column = k - turn * columns
    height = n // columns
    return column * height + np.minimum(column, n - height * columns) + turn, column


def _virtual(at: _Spot, key: np.ndarray, s: BraidSpec) -> np.ndarray:
    """Place in the epoch's sequence of blocks."""
    # A strand changes blocks when its virtual place is a multiple of the block: spread that, not the phase itself. It
    # begins at one of its first blocks and so comes round to its begin, which cuts two blocks, near the epoch's end.
    spread = (at.strand * GOLDEN32 + s.spread) & _LOW32
    inside, wanted = _with_gaps(at.start, at) % s.block, (((spread * s.block) >> _S32) + at.rounds_before) % s.block
    blocks = at.length // s.block
    turned = ((((at.strand * _PLASTIC32 + (key >> _S32)) & _LOW32) * np.minimum(blocks, _LAST)) >> _S32) * s.block
    phase = np.where(
        blocks > 0,
        wanted - inside + s.block * (wanted < inside) + turned,
        (spread * np.minimum(at.length, s.block)) >> _S32,
    )
    offset = at.turn + phase
    offset -= at.length * (offset >= at.length)
    place = _with_gaps(at.start + offset, at)
    last = np.flatnonzero(at.late >= 0)
    if last.size:
        over, draws = (np.broadcast_to(x, place.shape)[last] for x in (at.over, at.draws))
        blocks = np.minimum(np.maximum(draws // (s.block if s.block.size == 1 else s.block[last]), _ONE), over)
        k = _transposed(at.late[last].view(np.uint64), over, blocks)[0] + _ONE
        gap = draws // over
        uneven = np.where(draws < _EXACT, draws - gap * over, 0)
        place[last] = k * gap + k * uneven // over - _ONE
    place += at.base
    return place


def _with_gaps(x: np.ndarray, at: _Spot) -> np.ndarray:
    """The ``x``-th example of those that are not left over. The others stand evenly between them."""
    exact = at.draws < _EXACT
    among = np.where(exact, at.draws - at.over, at.draws // np.maximum(at.over, _ONE) - _ONE)
    gaps = np.where(exact, (x + _ONE) * at.over - (at.over > 0), x) // np.maximum(among, _ONE)
    return x + np.minimum(gaps, at.over)


def _rows(i: np.ndarray, d: _Draw, s: BraidSpec, placed: Placed | None) -> np.ndarray:
    """Physical rows."""
    virtual = _virtual(_spot(i, d, s), fold(d.key, _PHASE), s)
    block = virtual // s.block
    place = virtual - block * s.block
    if placed is None:
        first, keyed = place_blocks(block, d.key, s)
    else:
        first, keyed = placed.first[block], placed.keyed[block]
    in_tail = block >= s.full_blocks
    size, step = np.where(in_tail, s.tail, s.block), np.where(in_tail, s.tail_step, s.block_step)
    inner = (place * step + ((keyed >> _S32) * size >> _S32)) % size
    return first + np.where(keyed & _ONE, size - _ONE - inner, inner)


def braid(
    i: Int64[np.ndarray, " m"], epoch: Int64[np.ndarray, " m"], spec: BraidSpec, blocks: PlacedBlocks | None = None
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Rows and localities of positions ``i``; ``spec`` holds one braid for all or one for each position.

    Args:
        i: Positions in the epoch, ``0 <= i < n``. Not checked.
        epoch: Epoch of each position.
        spec: Parameters, of length 1 or m.
        blocks: Of the one braid, if it is one, what is kept from call to call; nothing but time depends on it.

    Returns:
        Rows in ``[0, n)``, a bijection of the positions of an epoch, and localities in [0, 1).

    Example:
        >>> spec = braid_spec(10, io_block_size=3, strands=4, lap=1.7, key=1)
        >>> rows, locality = braid(np.arange(10), np.zeros(10, np.int64), spec)
        >>> sorted(rows.tolist()) == list(range(10))
        True
    """
    places, rows = i.astype(np.uint64), np.empty(i.shape, np.int64)
    epochs, where = epoch.astype(np.uint64), np.empty(i.shape, np.float64)
    for lo in range(0, i.size, _SLICE):
        part = slice(lo, lo + _SLICE)
        s = spec if spec.n.size == 1 else BraidSpec(*(field[part] for field in spec))
        of_part = epochs[part]
        if (of_part == of_part[0]).all():  # the rule: what depends on the epoch alone is computed once
            of_part = of_part[:1]
        d = _draw(places[part], of_part, s)
        placed = blocks.of(d.key, places[part].size) if blocks is not None and d.key.size == 1 else None
        rows[part] = _rows(places[part], d, s, placed).view(np.int64)
        where[part] = _locality(d, s)
    return rows, where


class _Places(NamedTuple):
    """Places of draws in the epoch's sequence; all int64."""

    strand: np.ndarray
    begin: np.ndarray  # of the strand
    place: np.ndarray
    end: np.ndarray  # of the strand
    single: np.ndarray  # places of the draws that belong to no strand: the last ones


class BraidShuffle(IndexMap):
    """Braided shuffle of ``n`` examples; see the module.

    Args:
        n: Examples, 0 to 2**62.
        io_block_size: Examples in a block; best equal to one stored chunk.
        strands: Blocks that are open at a time, over all hosts together.
        seed: Integer seed.
        lap: Draws in which the front passes over the whole store once: best the rows that this dataset gives to one
            batch, also where that is no whole number. A whole number divides ``strands``; None for ``strands``.
        first_strand: Number of the first strand among those of all components of a job (the sum of the strands of
            those before): strands of the whole job then change blocks at different times. None: taken from the seed.

    Raises:
        ConfigError: a size below 1, more strands than examples, a lap that does not fit the strands.

    Example:
        >>> m = BraidShuffle(1000, io_block_size=16, strands=64, lap=8, seed=0)
        >>> sorted(m(np.arange(1000)).tolist()) == list(range(1000))
        True
        >>> sorted((m.locality(np.arange(8)) * 8).astype(int).tolist())  # any 8 draws visit each eighth of the store
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    bijective = True
    reorders = True

    def __init__(
        self,
        n: int,
        *,
        io_block_size: int,
        strands: int,
        seed: int,
        lap: float | None = None,
        first_strand: int | None = None,
    ) -> None:
        super().__init__(n, n)
        self.io_block_size, self.strands, self.seed = io_block_size, strands, seed
        self.lap = float(strands if lap is None else lap)
        self.first_strand = derive(seed, "braid", "first") % MAX_STRANDS if first_strand is None else first_strand
        self._spec = braid_spec(
            n,
            io_block_size=io_block_size,
            strands=strands,
            lap=lap,
            key=braid_key(seed),
            first_strand=self.first_strand,
        )
        self._placed = PlacedBlocks(self._spec)

    @property
    def described(self) -> tuple[str, ...]:
        return ("length", "io_block_size", "strands", "lap", "seed", "first_strand")

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return braid(i, epoch, self._spec, self._placed)[0]

    def resolve(self, i: np.ndarray, epoch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return braid(i, epoch, self._spec, self._placed)

    def locality(self, i: np.ndarray, epoch: np.ndarray | None = None) -> np.ndarray:
        return _locality(self._draw(i, epoch), self._spec)

    def strand(self, i: Int64[np.ndarray, " m"], epoch: Int64[np.ndarray, " m"] | None = None) -> np.ndarray:
        """Strand of each position, int64 in ``[0, strands)``."""
        at = _spot(i.astype(np.uint64), self._draw(i, epoch), self._spec)
        return at.strand.astype(np.int64)

    def block_permutation(self, epoch: int) -> tuple[str, int, int]:
        """Family, length and key of the permutation of full blocks."""
        key = fold(fold(self._spec.key, np.array([epoch], np.uint64)), BLOCK)
        return "feistel", int(self._spec.full_blocks[0]), int(key[0])

    def touched_blocks(self, drawn: int, epoch: int) -> Intervals:
        """Blocks of the epoch's sequence that hold any of the rows at its first ``drawn`` positions.

        A strand goes through neighbouring places, from its begin on when it has come to its end: its first and its last
        draw say all that it has touched. Some blocks that only the last draws of an epoch will touch may be among them.
        Costs 2 to 5 us a strand.
        """
        start, stop = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for strands, extra in ((int(self._spec.regular[0]), False), (int(self._spec.extra[0]), True)):
            draws = int(self._count(np.array([drawn], np.uint64), epoch, extra)[0])
            if draws <= 3 * strands:
                places = self._places(np.arange(draws), epoch, extra)
                start += [places.place, places.single]
                stop += [places.place + 1, places.single + 1]
                continue
            # Fewer than `strands` draws belong to no strand, the last ones of an epoch
            first = self._places(np.arange(strands), epoch, extra)
            last = self._places(np.arange(draws - 1, draws - 2 * strands - 1, -1), epoch, extra)
            at, of = np.argsort(first.strand), np.unique(last.strand, return_index=True)[1]
            begin, end, place, upto = first.begin[at], first.end[at], first.place[at], last.place[of] + 1
            round_again = upto <= place
            start += [place, begin[round_again], last.single]
            stop += [np.where(round_again, end, upto), upto[round_again], last.single + 1]
        block = int(self._spec.block[0])
        return Intervals(np.concatenate(start) // block, -(-np.concatenate(stop) // block))

    def _count(self, drawn: np.ndarray, epoch: int, extra: bool) -> np.ndarray:
        """Draws of one kind among the first ``drawn`` of an epoch."""
        begin = _draw(np.zeros(1, np.uint64), np.array([epoch], np.uint64), self._spec).begin
        regular = _laps(begin + drawn, self._spec)[0] - _laps(begin, self._spec)[0]
        return drawn - regular if extra else regular

    def _places(self, nth: np.ndarray, epoch: int, extra: bool) -> _Places:
        """Places of the draws of one kind with these numbers, from 0, in an epoch."""
        low, high = np.zeros(nth.size, np.uint64), np.full(nth.size, self.length, np.uint64)
        while (low < high).any():  # bisect
            middle = (low + high) >> _ONE
            before = self._count(middle + _ONE, epoch, extra) <= nth.astype(np.uint64)
            low, high = np.where(before & (low < high), middle + _ONE, low), np.where(before, high, middle)
        d = _draw(low, np.full(nth.size, epoch, np.uint64), self._spec)
        at = _spot(low, d, self._spec)
        place = _virtual(at, fold(d.key, _PHASE), self._spec).view(np.int64)
        held = at.late < 0
        begin = _with_gaps(at.start, at) + at.base
        end = _with_gaps(at.start + np.maximum(at.length, _ONE) - _ONE, at) + at.base + _ONE
        of_strands = (x[held].astype(np.int64) for x in (at.strand, begin, place, end))
        return _Places(*of_strands, single=place[~held])

    def _draw(self, i: np.ndarray, epoch: np.ndarray | None) -> _Draw:
        epoch = np.zeros_like(i) if epoch is None else epoch
        return _draw(i.astype(np.uint64), epoch.astype(np.uint64), self._spec)


def braid_key(seed: int) -> int:
    """The key of the braid under an integer seed."""
    return derive(seed, "braid")
