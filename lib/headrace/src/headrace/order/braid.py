"""Braided shuffle: batches are mixed like a full shuffle's; each stored block is read about once.

With H hosts, every row of a batch is on some host. If a window of K open blocks is mixed freely
(block shuffle), every host reads every block: H times the reads, and K blocks of cache on each. A
braid opens the same K blocks, one for each of K *strands*, and gives each row a position in the
store's reading front (its *locality*). The loader sorts the rows of a batch by locality: host h
then always has the strands around h/H, holds about K/H blocks, and no other host reads them. The
order itself does not depend on H.

An epoch is a *virtual sequence* v: the full blocks in keyed order, then the partial tail block. It
is cut into K strands of equal length (two lengths that differ by 1), one after the other. Draws go
round the strands in *laps*, each of which passes over the whole front once. A lap has best as many
draws as the component has rows in a batch (not always a whole number: then one lap in so many has
one draw more). How a draw finds its row, and its locality:

1. Its *lap* and *place*: lap t of the run begins with draw floor(t lap), and epoch e with draw e n.
2. Its *cell* of the front. Cells follow each other on a golden lattice: q -> (q g + shift) mod
   cells, with g near cells / phi, which spreads any run of draws evenly, also over the end of a
   lap. The locality is where in the front the cell is: about its number divided by their count.
3. Its *strand*: a cell has ``depth`` strands, which successive laps take in turn.
4. Its *turn*: how many examples of that strand were drawn before in this epoch.
5. Its virtual place: the strand's begin + (turn + phase) modulo the strand's length. Phases are
   spread evenly over a block, so strands change blocks at different times, and reads come without
   bursts.
6. Its row: the block at that place of v, and the row inside it. A keyed shift on another golden
   lattice, and a bijection keyed by block and epoch, permute the rows of a block: neighbours in the
   store, which may be one document, are drawn far apart, and other distances in each epoch. Where
   blocks have parts, each part is permuted like a block, and they follow each other as stored:
   what lies across the border of two parts is then read once.

With pencil and paper: 16 rows in 8 blocks of 2, 4 strands, laps of 2 draws. So there are 2 cells of
2 strands each, and each strand is two blocks long. The key (seed 4) gives the shift 0, and puts the
blocks in the order 4, 2, 6, 3, 7, 0, 1, 5. Phases of the strands: 0, 3, 0, 3. ::

    draw      0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    lap       0  0  1  1  2  2  3  3  4  4  5  5  6  6  7  7    1. two draws each
    cell      0  1  0  1  0  1  0  1  0  1  0  1  0  1  0  1    2. g = 1
    strand    0  2  1  3  0  2  1  3  0  2  1  3  0  2  1  3    3. cell * 2 + lap mod 2
    turn      0  0  0  0  1  1  1  1  2  2  2  2  3  3  3  3    4. 2 laps visit all four strands
    place     0  8  7 15  1  9  4 12  2 10  5 13  3 11  6 14    5. strand * 4 + (turn + phase) mod 4
    row       9 14  7 10  8 15 13  3  4  1 12  2  5  0  6 11    6. place 0 is in block 4: rows 8, 9

    >>> m = BraidShuffle(16, io_block_size=2, strands=4, lap=2, seed=4, first_strand=0)
    >>> draws = np.arange(16)
    >>> m(draws).tolist()
    [9, 14, 7, 10, 8, 15, 13, 3, 4, 1, 12, 2, 5, 0, 6, 11]
    >>> (m.locality(draws) < 0.5).tolist() == [True, False] * 8
    True

A batch of two draws always has one row of the front's first half, which is host 0's, and one of the
second. Host 0 keeps two blocks open, and reads none of host 1's in this epoch.

Laps continue across the end of an epoch.

**Few blocks.** All rows of a source of at most 64 blocks that has as many strands are permuted: its
epochs are those of a full shuffle, where strands would bring nearly the same rows together in each.
Localities stay, so no other source is read more; but **every host draws from all of such a
source**, and memory is counted accordingly.

**Why laps of a real length.** In a mixture, a component has rho rows in a batch, sometimes
floor(rho), sometimes ceil(rho). An extra row shifts the sorted rows after it by one, across the
borders of hosts, which then read blocks of other hosts. With lap = rho, every batch uses the same
cells of each component. The rows that come and go, the first of a lap and the extra one, all have
their localities at the very front, where their shifts cancel, because the total number of rows in a
batch is constant. Reads per block per epoch, 20 components, 64 hosts, default budget: 1.06; 1.69
with laps of round(rho), 2.46 with one lap over all strands (scripts/bench/bench_braid_reads.py).

Invariants: a bijection for every n, block size, strands, lap and epoch; O(1) memory in n;
successive draws come from different strands, so VR_w <= 1 up to chance for w up to K (see
analysis/icc). Over longer windows, VR tends to the rows of a block; analysis/excess forecasts what
that costs in loss.

**In one pass.** A mixture of 200 components has a few rows of each in a batch. Mapping them
component by component costs some 100 us each, whatever the number of rows. So :class:`BraidTable`
has the parameters of all components, and compiled code (``native/braid.c``, which has the six steps
in one place) maps a batch, one row after the other.

Price: one keyed permutation and about 100 operations, 0.07 us per index; any n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt64

from headrace.errors import ConfigError
from headrace.native import native_library
from headrace.order.intervals import Intervals
from headrace.order.order import MAX_LENGTH, OpenWindow, Order
from headrace.order.permutation import rectangle, unpermute
from headrace.order.seeds import derive, fold

MAX_STRANDS = 1 << 22
MAX_BLOCK = 1 << 31
LAP_BITS = 20
"""The smallest lap is 2**-20 of a row."""
GOLDEN32 = np.uint64(0x9E3779B9)
"""2**32 / phi: multiples modulo 2**32 are evenly spread. Strand k changes blocks k of these after
the first one.
"""
_EDGE = 2.0**-10  # localities below belong to the rows that come and go
# What a child key is for; native/braid.c uses others. Vectors: numpy warns of overflow, which
# hashing needs, for scalars
_BLOCK, _CELL = (np.array([k], np.uint64) for k in (2, 4))
FEW_BLOCKS = 64
"""A source of at most this many blocks, and no more blocks than strands, is fully shuffled."""
_LOW32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_MOST_PLACED = 1 << 12


class BraidShuffle(Order):
    """Braided shuffle of ``n`` examples; see the module.

    Args:
        n: Examples, 0 to 2**62.
        io_block_size: Examples in a block; best equal to one stored chunk.
        strands: Blocks that are open at a time, over all hosts together.
        seed: Integer seed.
        lap: Draws in which the front passes once over the whole store: best the number of rows of
            this dataset in one batch, even if it is not a whole number. A whole number must divide
            ``strands``; None for ``strands``.
        first_strand: Number of the first strand among those of all components of a job (the sum of
            the strands of the previous ones), so that strands of the whole job change blocks at
            different times. None: from the seed.
        part: Examples of a block that are permuted among each other: a strand reads a large block
            part by part, as it is stored. Must divide ``io_block_size``; None: all of it.

    Raises:
        ConfigError: a size below 1, more strands than examples, a lap that does not fit the
            strands.

    Example:
        >>> m = BraidShuffle(1000, io_block_size=16, strands=64, lap=8, seed=0)
        >>> sorted(m(np.arange(1000)).tolist()) == list(range(1000))
        True
        >>> sorted(
        ...     (m.locality(np.arange(8)) * 8).astype(int).tolist()
        ... )  # any 8 draws visit each eighth of the store
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    bijective = reorders = True
    in_table = True
    kind = "braid"
    version = 2
    """Of the order, for manifests: it grows if the rows change."""
    described = ("length", "io_block_size", "strands", "lap", "seed", "first_strand", "version")

    def __init__(
        self,
        n: int,
        *,
        io_block_size: int,
        strands: int,
        seed: int,
        lap: float | None = None,
        first_strand: int | None = None,
        part: int | None = None,
    ) -> None:
        super().__init__(n, n)
        self.io_block_size = io_block_size
        self.part = io_block_size if part is None else part
        self.strands = strands
        self.seed = seed
        self.lap = float(strands if lap is None else lap)
        self.first_strand = (
            derive(seed, "braid", "first") % MAX_STRANDS if first_strand is None else first_strand
        )
        self._spec = _spec_of([self])
        self.permutes_all = bool(self._spec.permuted[0])
        """Whether it has so few blocks that all rows are permuted in every epoch; see the module.
        """

    def describe(self) -> dict[str, object]:
        parts = {} if self.part == self.io_block_size else {"part": self.part}
        return super().describe() | parts

    @cached_property
    def _rows(self) -> BraidTable:
        return BraidTable(self._spec)

    def open_window(self) -> OpenWindow:
        rows = min(self.strands * self.part, self.length)
        return OpenWindow(self.strands, rows, everywhere=self.permutes_all)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self._rows(None, i, epoch)[0]

    def resolve(self, i: np.ndarray, epoch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._rows(None, i, epoch)

    def block_permutation(self, epoch: int) -> tuple[str, int, int]:
        """Family, length and key of the permutation of full blocks."""
        key = fold(fold(self._spec.key, np.array([epoch], np.uint64)), _BLOCK)
        return "feistel", int(self._spec.full_blocks[0]), int(key[0])

    def touched_blocks(self, drawn: int, epoch: int) -> Intervals:
        """Blocks of the epoch's sequence with any of the rows at its first ``drawn`` positions. The
        result may include blocks that only the last draws of an epoch touch.
        """
        block = int(self._spec.block[0])
        if not self.permutes_all:
            touched = self._rows.touched_places(drawn, epoch)
            return Intervals(touched.start // block, -(-touched.stop // block))
        # No strands: the rows themselves tell. Back from stored blocks to the sequence; the tail
        # block is its own place
        drawn_rows = self.at(np.arange(drawn), np.full(drawn, epoch))
        stored = np.unique(drawn_rows // block)
        full, key = self.block_permutation(epoch)[1:]
        is_full = stored < full
        stored[is_full] = unpermute(stored[is_full], full, key)
        return Intervals.of_numbers(np.sort(stored))


def _spec_of(orders: Sequence[BraidShuffle]) -> BraidSpec:
    """The parameters of some braids, checked."""
    return braid_spec(
        np.asarray([order.length for order in orders], np.int64),
        io_block_size=np.asarray([order.io_block_size for order in orders]),
        strands=np.asarray([order.strands for order in orders]),
        lap=np.asarray([order.lap for order in orders]),
        key=np.asarray([derive(order.seed, "braid") for order in orders], np.uint64),
        first_strand=np.asarray([order.first_strand for order in orders]),
        part=np.asarray([order.part for order in orders]),
    )


class BraidTable:
    """The braids of a ``spec``, evaluated in one pass over draws of any of them.

    Row for row equal to the passes over each by itself. What the rows of a braid have in
    common is computed once per epoch.

    Price: 0.07 us per row in windows of steps, 0.12 us in batches of 1,024; 15 us per call,
    whatever the number of braids.

    Example:
        >>> table = BraidTable.of(
        ...     [BraidShuffle(n, io_block_size=4, strands=n // 5, seed=n) for n in (10, 100)]
        ... )
        >>> rows, locality = table(
        ...     np.array([0, 1, 0]), np.array([3, 99, 13])
        ... )  # 13: the second epoch of component 0
        >>> bool(
        ...     rows[2]
        ...     == BraidShuffle(10, io_block_size=4, strands=2, seed=10).at(
        ...         np.array([3]), np.array([1])
        ...     )[0]
        ... )
        True
    """

    def __init__(self, spec: BraidSpec) -> None:
        self._spec = spec
        self._is_empty = bool((spec.n == 0).any())

    @classmethod
    def of(cls, orders: Sequence[BraidShuffle]) -> BraidTable:
        """The table of all components of a mixture, which have an order each.

        Raises:
            ConfigError: an empty component.
        """
        check_not_empty(np.asarray([order.length for order in orders], np.int64))
        return cls(_spec_of(orders))

    @cached_property
    def _fields(self) -> UInt64[np.ndarray, "d f"]:
        """The fields of the structure ``Spec`` for each braid."""
        s = self._spec
        columns = [*s, *rectangle(s.full_blocks), *rectangle(s.n)]
        fields = np.stack(
            [np.ascontiguousarray(np.broadcast_to(c, s.n.shape)).view(np.uint64) for c in columns],
            axis=1,
        )
        assert fields.strides == (_bytes_of_structures().spec, 8)
        return fields

    def __call__(
        self,
        component: Integer[np.ndarray, " m"] | None,
        ordinal: Int64[np.ndarray, " m"],
        first_epoch: Int64[np.ndarray, " m"] | None = None,
    ) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """Row in its store and locality of each ``ordinal``-th draw of a component (None: the only
        one). Each pass is re-keyed, starting at ``first_epoch`` (None: 0).

        Raises:
            IndexError: no such component; a draw of an empty braid.
        """
        if self._is_empty:  # the compiled code divides by the number of rows
            if ordinal.size:
                raise IndexError("an empty braid has no draws")
            return np.empty(ordinal.shape, np.int64), np.empty(ordinal.shape, np.float64)
        shape = np.broadcast_shapes(
            *(v.shape for v in (component, ordinal, first_epoch) if v is not None)
        )
        arrays = [
            None
            if values is None
            else np.ascontiguousarray(np.broadcast_to(values, shape), np.int64)
            for values in (component, ordinal, first_epoch)
        ]
        rows = np.empty(shape, np.int64)
        where = np.empty(shape)
        if not rows.size:
            return rows, where
        fields = self._fields
        braids = len(fields)
        if arrays[0] is not None and not 0 <= int(arrays[0].min()) <= int(arrays[0].max()) < braids:
            raise IndexError(f"components {arrays[0].min()} .. {arrays[0].max()} of {braids}")
        # Room for what is computed once per epoch, and once per block
        structures = _bytes_of_structures()
        epochs = 1 << (min(braids, 2 * rows.size) - 1).bit_length()
        placed = min(_MOST_PLACED, 1 << (rows.size // 2).bit_length())
        scratch = np.zeros(epochs * structures.epoch + placed * structures.placed, np.uint8)
        at = scratch.ctypes.data
        library = native_library()
        calls = library.short_calls if rows.size <= library.short_rows else library.calls
        calls.braid_rows(
            rows.size,
            *(None if values is None else values.ctypes.data for values in (fields, *arrays)),
            at,
            epochs - 1,
            at + epochs * structures.epoch,
            placed - 1,
            rows.ctypes.data,
            where.ctypes.data,
        )
        return rows, where

    def touched_places(self, drawn: int, epoch: int) -> Intervals:
        """Places of the epoch's sequence that hold the rows of its first ``drawn`` draws, of the
        only braid: of each strand, all between the first and the last. Costs 0.1 us per strand.
        """
        strands = int(self._spec.regular[0] + self._spec.extra[0])
        ends = np.empty((2, 4 * strands), np.int64)
        count = native_library().calls.braid_touched(
            self._fields.ctypes.data, epoch, drawn, *(end.ctypes.data for end in ends)
        )
        return Intervals(*ends[:, :count])


class _StructureBytes(NamedTuple):
    spec: int
    epoch: int
    placed: int


@cache
def _bytes_of_structures() -> _StructureBytes:
    """Bytes of the structures of ``native/braid.c``."""
    calls = native_library().calls
    return _StructureBytes(calls.spec_bytes(), calls.epoch_bytes(), calls.placed_bytes())


def check_not_empty(lengths: np.ndarray) -> None:
    """Raises ConfigError for a component without examples."""
    if (lengths < 1).any():
        raise ConfigError(
            "cannot be mixed: it is empty",
            field=f"component {int(lengths.argmin())}",
            cure="Leave it out.",
        )


class BraidSpec(NamedTuple):
    """Parameters of one braid, or of many: vectors of one length (1 broadcasts). Made by
    :func:`braid_spec`.

    All uint64 but corner, low and pitch, which are float64.
    """

    n: np.ndarray
    block: np.ndarray
    part: np.ndarray  # rows of a block that are permuted among each other
    full_blocks: np.ndarray
    part_step: np.ndarray  # lattice steps inside a part, and inside the partial one at the end
    tail_step: np.ndarray
    cells: np.ndarray  # whole rows of a lap: floor(lap)
    depth: np.ndarray  # strands of a cell, taken in turn by successive laps
    regular: np.ndarray  # cells * depth
    extra: np.ndarray  # strands for the extra draw of a lap that is not a whole number; at least 1
    extra_step: np.ndarray  # lattice step over these
    bits: np.ndarray  # laps are counted in 2**-bits of a row
    period: np.ndarray  # draws of 2**bits laps
    begin: np.ndarray  # n modulo period
    first: np.ndarray  # cells that come and go: 1 if the lap is not a whole number, else 0
    ring: np.ndarray  # the other cells, at least 1
    step: np.ndarray  # lattice step and shift over the ring
    shift: np.ndarray
    key: np.ndarray
    spread: np.ndarray  # of the first strand; see GOLDEN32
    corner: np.ndarray  # where in its cell the component sits, so that components do not tie
    low: np.ndarray  # locality of the start of the ring
    pitch: np.ndarray  # locality from cell to cell
    permuted: np.ndarray  # uint64: 1 if there are so few blocks that all rows are permuted, else 0


def braid_spec(
    n: Int64[np.ndarray, " d"] | int,
    *,
    io_block_size: Int64[np.ndarray, " d"] | int,
    strands: Int64[np.ndarray, " d"] | int,
    lap: Float64[np.ndarray, " d"] | float | None = None,
    key: UInt64[np.ndarray, " d"] | int,
    first_strand: Int64[np.ndarray, " d"] | int = 0,
    part: Int64[np.ndarray, " d"] | int | None = None,
) -> BraidSpec:
    """Checks and prepares the parameters of ``d`` braids (scalars: of one).

    They are those of :class:`~headrace.order.braid.BraidShuffle`, with a 64-bit key instead
    of the seed; at most 2**22 strands, and laps of 2**-20 draws or more.

    Raises:
        ConfigError: a size below 1, more strands than examples, a lap that does not fit the
            strands.
    """
    part = io_block_size if part is None else part
    lengths, blocks, parts, counts, laps, firsts, keys = np.broadcast_arrays(
        *map(
            np.atleast_1d,
            (n, io_block_size, part, strands, strands if lap is None else lap, first_strand),
        ),
        np.atleast_1d(np.asarray(key, np.uint64)),
    )
    _check_sizes(lengths, blocks, counts, laps)
    if (parts < 1).any() or (blocks % np.maximum(parts, 1)).any():
        raise ConfigError(
            "must divide io_block_size", field="part", value=int(parts.min()), cure="Leave it out."
        )
    # A block larger than the corpus is the corpus, so there is always a full block.
    blocks = np.minimum(blocks, np.maximum(lengths, 1))
    parts = np.minimum(parts, blocks)
    bits, period = _periods(laps, counts)
    cells = period >> bits
    fraction = period & ((1 << bits) - 1)
    depth = (counts << bits) // period
    extra = counts - cells * depth
    bad = np.flatnonzero((fraction == 0) & (extra > 0))
    if bad.size:
        raise _undivided(int(cells[bad[0]]), int(counts[bad[0]]))
    first = ((fraction > 0) & (cells > 0)).astype(np.int64)
    ring = np.maximum(cells - first, 1)
    corner_bits = fold(keys := np.ascontiguousarray(keys), _CELL)
    integers = {
        "n": lengths,
        "block": blocks,
        "part": parts,
        "full_blocks": lengths // blocks,
        "part_step": np.array([lattice_step(int(m)) for m in parts]),
        "tail_step": np.array([lattice_step(int(m)) for m in lengths % parts]),
        "cells": cells,
        "depth": depth,
        "regular": cells * depth,
        "extra": np.maximum(extra, 1),
        "extra_step": np.array([lattice_step(int(m)) for m in np.maximum(extra, 1)]),
        "bits": bits,
        "period": period,
        "begin": lengths % period,
        "first": first,
        "ring": ring,
        "step": np.array([lattice_step(int(m)) for m in ring]),
    }
    low = np.where(fraction > 0, _EDGE, 0.0)
    return BraidSpec(
        **{name: values.astype(np.uint64) for name, values in integers.items()},
        shift=((corner_bits & _LOW32) * ring.astype(np.uint64)) >> _S32,
        key=keys,
        spread=(firsts.astype(np.uint64) * GOLDEN32) & _LOW32,
        corner=(corner_bits >> np.uint64(44)).astype(np.float64) / 2.0**20,
        low=low,
        pitch=(1.0 - low) / ring,
        permuted=(-(-lengths // parts) <= np.minimum(counts, FEW_BLOCKS)).astype(np.uint64),
    )


def lap_bits(laps: Float64[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
    """Binary digits with which laps are counted: as many as 64 bits allow, 20 for the longest lap,
    29 for one of 4 rows.

    An error of the lap adds up over the batches of a run, and rows that drift across the border of
    two batches move all later rows across the borders of hosts. With 20 digits for all, 200
    components on 64 hosts read 1.12 times what they need at the start and 1.44 times after a
    million steps.

    Example:
        >>> lap_bits(np.array([0.3, 4.0, 2.0**22])).tolist()
        [30, 29, 20]
    """
    # Laps < 2**exponent, and draws of a period, shifted by the places, below 2**63.
    _, exponent = np.frexp(laps)
    return np.clip((62 - exponent.astype(np.int64)) // 2, LAP_BITS, 30)


def _periods(laps: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Binary places of each lap, and draws of ``2**bits`` laps."""
    bits = lap_bits(laps)
    period = np.rint(laps * (1 << bits)).astype(np.int64)
    is_whole = (period & ((1 << bits) - 1) == 0) & (counts % np.maximum(period >> bits, 1) > 0)
    # Laps that are whole only in these.
    return bits, period + np.sign(laps - np.rint(laps)).astype(np.int64) * is_whole


def _undivided(lap: int, strands: int) -> ConfigError:
    cure = f"Give strands: {-(-strands // lap) * lap}."
    return ConfigError(f"does not divide the {strands} strands", field="lap", value=lap, cure=cure)


def _check_sizes(
    lengths: np.ndarray, blocks: np.ndarray, counts: np.ndarray, laps: np.ndarray
) -> None:
    for name, values in (("io_block_size", blocks), ("strands", counts)):
        if (values < 1).any():
            raise ConfigError(
                "must be at least 1", field=name, value=int(values.min()), cure="Count in examples."
            )
    if (lengths < 0).any() or (lengths > MAX_LENGTH).any():
        raise ConfigError("must lie in 0 .. 2**62", field="length", value=int(lengths.max()))
    if (blocks > MAX_BLOCK).any():
        raise ConfigError("must be at most 2**31", field="io_block_size", value=int(blocks.max()))
    bad = np.flatnonzero((counts > np.maximum(lengths, 1)) | (counts > MAX_STRANDS))
    if bad.size:
        have = int(counts[bad[0]])
        of = int(lengths[bad[0]])
        raise ConfigError(
            f"more strands than the {of} examples"
            if have > of
            else f"more than {MAX_STRANDS} strands",
            field="strands",
            value=have,
            cure=f"Give at most {min(max(of, 1), MAX_STRANDS)}, or leave strands out to have them"
            " chosen.",
        )
    bad = np.flatnonzero(~((laps >= 2.0**-LAP_BITS) & (laps <= counts)))
    if bad.size:
        raise ConfigError(
            f"must lie in 2**-{LAP_BITS} .. {int(counts[bad[0]])}, the number of strands",
            field="lap",
            value=float(laps[bad[0]]),
            cure="Give the rows that the component has in one batch.",
        )


@lru_cache(maxsize=4096)
def lattice_step(m: int) -> int:
    """A step g, coprime to m, such that any run of ``0, g, 2 g, ...`` modulo m is evenly spread
    over ``range(m)``.

    Near ``m / phi``, the number whose continued fraction ``g / m`` has the smallest sum of partial
    quotients: that sum bounds the discrepancy of every run (Niederreiter, "Random number generation
    and quasi-Monte Carlo methods", 1992, chapter 3; phi itself, all of whose quotients are 1, is
    the best irrational step).

    Example:
        >>> lattice_step(8), lattice_step(13), lattice_step(1)
        (5, 8, 1)
    """
    if m <= 2:
        return 1
    centre = round(m * (math.sqrt(5.0) - 1.0) / 2.0)
    near = [g for g in range(max(1, centre - 48), min(m, centre + 49)) if math.gcd(g, m) == 1]
    return min(near, key=lambda g: (_quotient_sum(g, m), abs(g - centre))) if near else 1


def _quotient_sum(g: int, m: int) -> int:
    total = 0
    while g:
        total += m // g
        g, m = m % g, g
    return total
