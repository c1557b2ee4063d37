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
    >>> m.strand(draws).tolist()
    [0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3]
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

Price: one keyed permutation and about 100 operations, 0.07 us per index
(:mod:`headrace.order.braid.table`); any n.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.order.braid.spec import BLOCK, MAX_STRANDS, resolve_strands
from headrace.order.braid.table import (
    BraidTable,
    count_laps,
    find_strands,
    place_draws,
    skip_left_over,
    spec_of,
    virtual_places,
)
from headrace.order.intervals import Intervals
from headrace.order.order import OpenWindow, Order
from headrace.order.permutation import unpermute
from headrace.order.seeds import derive, fold
from headrace.order.subset import Subset

_ONE = np.uint64(1)


class _Places(NamedTuple):
    """Positions of draws in the epoch's sequence; all int64."""

    strand: np.ndarray
    begin: np.ndarray  # of the strand
    place: np.ndarray
    end: np.ndarray  # of the strand
    single: np.ndarray  # positions of the draws that belong to no strand: the last ones


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
        self._spec = spec_of([self])
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

    def strand(
        self, i: Int64[np.ndarray, " m"], epoch: Int64[np.ndarray, " m"] | None = None
    ) -> np.ndarray:
        """Strand of each position, int64 in ``[0, strands)``."""
        position = i.astype(np.uint64)
        epoch = np.zeros_like(i) if epoch is None else epoch
        draw = place_draws(position, epoch.astype(np.uint64), self._spec)
        return find_strands(position, draw, self._spec).strand.astype(np.int64)

    def block_permutation(self, epoch: int) -> tuple[str, int, int]:
        """Family, length and key of the permutation of full blocks."""
        key = fold(fold(self._spec.key, np.array([epoch], np.uint64)), BLOCK)
        return "feistel", int(self._spec.full_blocks[0]), int(key[0])

    def touched_blocks(self, drawn: int, epoch: int) -> Intervals:
        """Blocks of the epoch's sequence with any of the rows at its first ``drawn`` positions.

        1. A strand visits neighbouring places, and continues from its begin when it has reached its
           end. So its first and last draw tell all the places between: one range, or two if it has
           come round.
        2. The same for the strands of extra draws, which have strands of their own.
        3. Blocks of these ranges.

        The result may include blocks that only the last draws of an epoch touch. Costs 2 to 5 us
        per strand.
        """
        if self.permutes_all:  # no strands: the rows themselves tell
            drawn_rows = self.at(np.arange(drawn), np.full(drawn, epoch))
            stored = np.unique(drawn_rows // int(self._spec.block[0]))
            full, key = self.block_permutation(epoch)[1:]
            # Back from stored blocks to the sequence; the tail block is its own place
            numbers = np.where(
                stored < full, unpermute(stored % max(full, 1), max(full, 1), key), stored
            )
            return Intervals.of_numbers(np.sort(numbers))
        start = [np.zeros(0, np.int64)]
        stop = [np.zeros(0, np.int64)]
        for strands, extra in (
            (int(self._spec.regular[0]), False),
            (int(self._spec.extra[0]), True),
        ):
            draws = int(self._count(np.array([drawn], np.uint64), epoch, extra)[0])
            if draws <= 3 * strands:  # so few that each is looked up
                spots = self._place_draws(np.arange(draws), epoch, extra)
                start += [spots.place, spots.single]
                stop += [spots.place + 1, spots.single + 1]
                continue
            # Fewer than `strands` draws belong to no strand, the last ones of an epoch: so the last
            # two times `strands` draws have one of each strand
            first = self._place_draws(np.arange(strands), epoch, extra)
            last = self._place_draws(
                np.arange(draws - 1, draws - 2 * strands - 1, -1), epoch, extra
            )
            by_strand = np.argsort(first.strand)
            # They go backwards: the first of each strand is its last draw
            latest = np.unique(last.strand, return_index=True)[1]
            begin = first.begin[by_strand]
            end = first.end[by_strand]
            first_place = first.place[by_strand]
            upto = last.place[latest] + 1
            round_again = upto <= first_place
            # first_place .. upto, or else first_place .. end and begin .. upto
            start += [first_place, begin[round_again], last.single]
            stop += [np.where(round_again, end, upto), upto[round_again], last.single + 1]
        block = int(self._spec.block[0])
        return Intervals(np.concatenate(start) // block, -(-np.concatenate(stop) // block))

    def _count(self, drawn: np.ndarray, epoch: int, extra: bool) -> np.ndarray:
        """Draws of one kind among the first ``drawn`` of an epoch."""
        begin = place_draws(np.zeros(1, np.uint64), np.array([epoch], np.uint64), self._spec).begin
        regular = count_laps(begin + drawn, self._spec)[0] - count_laps(begin, self._spec)[0]
        return drawn - regular if extra else regular

    def _place_draws(self, nth: np.ndarray, epoch: int, extra: bool) -> _Places:
        """Positions of the draws of one kind with these numbers, from 0, in an epoch."""
        # Draws of one kind only grow in number with the position: bisect for the nth of them
        low = np.zeros(nth.size, np.uint64)
        high = np.full(nth.size, self.length, np.uint64)
        while (low < high).any():
            middle = (low + high) >> _ONE
            enough = self._count(middle + _ONE, epoch, extra) <= nth.astype(np.uint64)
            low = np.where(enough & (low < high), middle + _ONE, low)
            high = np.where(enough, high, middle)
        d = place_draws(low, np.full(nth.size, epoch, np.uint64), self._spec)
        at = find_strands(low, d, self._spec)
        virtual = virtual_places(at, d.key, self._spec).view(np.int64)
        on_strand = at.late < 0
        begin = skip_left_over(at.start, at) + at.base
        end = skip_left_over(at.start + np.maximum(at.length, _ONE) - _ONE, at) + at.base + _ONE
        of_strands = (x[on_strand].astype(np.int64) for x in (at.strand, begin, virtual, end))
        return _Places(*of_strands, single=virtual[~on_strand])


class PendingBraid(Order):
    """A braid whose strands depend on the mixture that contains it, or on the batches in which it
    is loaded.

    Until these are known, it has a length, but its positions have no rows.

    Example:
        >>> PendingBraid(1000, io_block_size=10, seed=0).in_batches(4).strands
        32
    """

    bijective = reorders = is_pending = True
    kind = "braid"

    def __init__(
        self,
        n: int,
        *,
        io_block_size: int,
        seed: int,
        hosts: int | None = None,
        run_blocks: int = 1,
    ) -> None:
        super().__init__(n, n)
        self.io_block_size = io_block_size
        self.run_blocks = run_blocks
        self.seed = seed
        self.hosts = hosts
        """In a shuffled store, the most hosts of its run; see :func:`resolve_strands`."""

    def in_batches(self, batch_size: int, first_strand: int | None = None) -> BraidShuffle:
        """The order of a dataset that is not mixed and has this many examples in a batch."""
        plan = resolve_strands(
            np.asarray([self.length]),
            np.ones(1),
            batch_size=batch_size,
            hosts=self.hosts,
            block_rows=self.io_block_size,
        )
        return self.with_strands(int(plan.strands[0]), float(plan.laps[0]), first_strand)

    def with_strands(
        self, strands: int, lap: float | None, first_strand: int | None
    ) -> BraidShuffle:
        """The order with these strands; see :class:`BraidShuffle`."""
        return BraidShuffle(
            self.length,
            io_block_size=self.io_block_size * self.run_blocks,
            part=self.io_block_size,
            strands=strands,
            lap=lap,
            seed=self.seed,
            first_strand=first_strand,
        )

    def over(self, n: int) -> PendingBraid:
        """The order of ``n`` of its examples."""
        return PendingBraid(
            n,
            io_block_size=self.io_block_size,
            seed=self.seed,
            hosts=self.hosts,
            run_blocks=self.run_blocks,
        )

    def blocks_in_turn(self) -> Order:
        """All examples in a sequence of blocks that follows from the seed alone."""
        return Subset(self.length, self.length, block=self.io_block_size, seed=self.seed)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self._refuse()

    def open_window(self) -> OpenWindow:
        return self._refuse()

    def describe(self) -> dict[str, object]:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "is missing, and so is strands: the order follows from what the dataset is mixed with,"
            " or from its batches",
            field="batch_size",
            cure="Mix or load it, or give braid_shuffle the batch_size.",
        )
