"""Sets of whole numbers as sorted, separate, non-empty ranges: what is removed, held out or left of
something long.

A set of a trillion tokens with a million holes is two vectors of a million numbers. All operations
are a sort or a search in these vectors.

:class:`Removal` is the rest of a stored stream without such a set, numbered consecutively. Its map
to stored positions rises strictly, so a range of it is a few ranges of the stored stream, one more
for each gap inside. It has the lengths of gaps, and of what lies between them, as
:class:`RunningSums`.

Price: 16 bytes per range, for a :class:`Removal` 8 if there are more than a million; a union or
complement takes about 0.1 us per range; looking up a range of the rest takes 0.4 us with a thousand
gaps, 0.5 to 1 with a million and 2 with 20 million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer

from headrace.errors import IndexOutOfRangeError

_CHUNK = 1 << 20  # ranges per pass
_BLOCK = 256  # sums of a block
_STEP = 16
_FEW = 1 << 20
_STEPS_AT_ONCE = 1 << 18


def starts(counts: Sequence[int] | np.ndarray) -> Int64[np.ndarray, " n1"]:
    """Where each of some consecutive stretches begins, and where the last one ends.

    Example:
        >>> starts([3, 0, 2]).tolist()
        [0, 3, 3, 5]
    """
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, dtype=np.int64, out=sums[1:])
    return sums


def run_numbers(
    first: Int64[np.ndarray, " k"] | int, count: Int64[np.ndarray, " k"]
) -> Int64[np.ndarray, " n"]:
    """The numbers of some runs, run after run: from its ``first`` on, as many as its ``count``.

    Example:
        >>> run_numbers(np.array([4, 0]), np.array([2, 3])).tolist()
        [4, 5, 0, 1, 2]
        >>> run_numbers(0, np.array([2, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    begin = starts(count)
    return np.arange(begin[-1]) + np.repeat(first - begin[:-1], count)


def chunks_of(total: int, size: int) -> Iterator[tuple[int, int]]:
    """The numbers below ``total`` as ranges ``first .. stop`` of at most ``size`` numbers each.

    Example:
        >>> list(chunks_of(5, 2))
        [(0, 2), (2, 4), (4, 5)]
    """
    for first in range(0, total, size):
        yield first, min(first + size, total)


class Cuts(NamedTuple):
    """What sections have of ranges, in the order of the ranges.

    Attributes:
        range: Number of the range.
        section: Number of the section.
        start: First position of both.
        stop: One past their last.
    """

    range: Int64[np.ndarray, " m"]
    section: Int64[np.ndarray, " m"]
    start: Int64[np.ndarray, " m"]
    stop: Int64[np.ndarray, " m"]


def cut_ranges(
    start: Int64[np.ndarray, " n"],
    stop: Int64[np.ndarray, " n"],
    begin: Int64[np.ndarray, " k"],
    end: Int64[np.ndarray, " k"],
) -> Cuts:
    """Ranges ``start .. stop``, in any order, cut where sections ``begin .. end`` do, which follow
    each other. What no section has is left out; an empty section inside of a range has nothing of
    it.

    Example:
        >>> ends = np.array([0, 4, 9])
        >>> of, document, low, high = cut_ranges(
        ...     np.array([5, 2]), np.array([8, 6]), ends[:-1], ends[1:]
        ... )
        >>> [*zip(of.tolist(), document.tolist(), low.tolist(), high.tolist())]
        [(0, 1, 5, 8), (1, 0, 2, 4), (1, 1, 4, 6)]
    """
    first = np.searchsorted(end, start, side="right")
    count = np.searchsorted(begin, stop, side="left") - first
    number = np.repeat(np.arange(start.size), count)
    section = run_numbers(first, count)
    low = np.maximum(begin[section], start[number])
    return Cuts(number, section, low, np.minimum(end[section], stop[number]))


class Intervals:
    """A set of whole numbers from 0 up.

    Args:
        start: First number of each range, in any order.
        stop: One past its last. Ranges may be empty, touch and overlap; they are merged.

    Attributes:
        start: int64, strictly rising.
        stop: int64, each above its start and below the next.

    Example:
        >>> Intervals(np.array([7, 0, 2]), np.array([9, 2, 3]))
        Intervals(0..3, 7..9)
    """

    def __init__(self, start: Int64[np.ndarray, " k"], stop: Int64[np.ndarray, " k"]) -> None:
        start = np.asarray(start, np.int64)
        stop = np.asarray(stop, np.int64)
        if (start >= stop).any() or (start[1:] <= stop[:-1]).any():
            start, stop = _merged(start, stop)
        self.start: Int64[np.ndarray, " k"] = start
        self.stop: Int64[np.ndarray, " k"] = stop

    @cached_property
    def _offsets(self) -> Int64[np.ndarray, " k"]:
        """Numbers of the set before each range."""
        return np.cumsum(self.stop - self.start) - (self.stop - self.start)

    @classmethod
    def empty(cls) -> Intervals:
        """The set without numbers."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of_numbers(cls, numbers: Int64[np.ndarray, " n"]) -> Intervals:
        """The set of the given numbers, in any order, repeats allowed.

        Example:
            >>> Intervals.of_numbers(np.array([5, 3, 4, 9, 4]))
            Intervals(3..6, 9..10)
        """
        numbers = np.asarray(numbers, np.int64)
        return cls(numbers, numbers + 1)

    @classmethod
    def of_mask(cls, mask: Bool[np.ndarray, " n"]) -> Intervals:
        """The numbers at which a mask is true.

        Example:
            >>> Intervals.of_mask(np.array([True, False, True, True]))
            Intervals(0..1, 2..4)
        """
        changes = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        ends = np.concatenate(
            [
                np.zeros(int(mask[:1].sum()), np.int64),
                changes,
                np.full(int(mask[-1:].sum()), mask.size),
            ]
        )
        return cls(ends[0::2], ends[1::2])

    @classmethod
    def union(cls, sets: Iterable[Intervals]) -> Intervals:
        """All numbers of any of the sets.

        Example:
            >>> Intervals.union(
            ...     [Intervals.of_numbers(np.array([1, 2])), Intervals.of_numbers(np.array([3]))]
            ... )
            Intervals(1..4)
        """
        every = [cls.empty(), *sets]
        if len(nonempty := [one for one in every if one.start.size]) == 1:
            return nonempty[0]
        return cls(
            np.concatenate([s.start for s in every]), np.concatenate([s.stop for s in every])
        )

    def complement(self, length: int) -> Intervals:
        """The numbers of ``range(length)`` that are not in the set.

        Example:
            >>> Intervals.of_numbers(np.array([0, 4])).complement(7)
            Intervals(1..4, 5..7)
        """
        start = np.minimum(np.append(0, self.stop), length)
        return Intervals(start, np.minimum(np.append(self.start, length), length))

    def without(self, other: Intervals) -> Intervals:
        """The numbers of the set that are not in the other.

        Example:
            >>> Intervals(np.array([0, 6]), np.array([4, 9])).without(
            ...     Intervals(np.array([2]), np.array([7]))
            ... )
            Intervals(0..2, 7..9)
        """
        end = max(
            int(self.stop[-1]) if self.stop.size else 0,
            int(other.stop[-1]) if other.stop.size else 0,
        )
        return Intervals.union([self.complement(end), other]).complement(end)

    def within(self, start: int, stop: int) -> Intervals:
        """The part of the set in ``start .. stop``, counted from ``start``.

        Example:
            >>> Intervals(np.array([2, 8]), np.array([6, 9])).within(4, 10)
            Intervals(0..2, 4..5)
        """
        first, last = (np.clip(ends, start, stop) - start for ends in (self.start, self.stop))
        return Intervals(first[first < last], last[first < last])

    def below(self, length: int) -> Intervals:
        """The numbers of the set that are less than ``length``."""
        return Intervals(np.minimum(self.start, length), np.minimum(self.stop, length))

    @property
    def total(self) -> int:
        """Size of the set."""
        return int((self.stop - self.start).sum())

    def numbers(self, rank: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The ``rank``-th number of the set, from 0, in rising order. Ranks are not checked.

        Example:
            >>> Intervals(np.array([3, 10]), np.array([5, 12])).numbers(np.array([0, 1, 2]))
            array([ 3,  4, 10])
        """
        at = np.searchsorted(self._offsets, rank, side="right") - 1
        return self.start[at] + (rank - self._offsets[at])

    def has(self, numbers: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Which of the numbers, in any order, are in the set.

        Example:
            >>> Intervals(np.array([3, 10]), np.array([5, 12])).has(np.array([11, 5, 3])).tolist()
            [True, False, True]
        """
        if self.start.size == 0:
            return np.zeros(numbers.size, bool)
        at = np.searchsorted(self.start, numbers, side="right") - 1
        return (at >= 0) & (numbers < self.stop[at])

    def split_at(self, borders: Int64[np.ndarray, " b"]) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops of the ranges, divided where they cross borders.

        Example:
            >>> Intervals(np.array([3]), np.array([9])).split_at(np.array([0, 5, 9]))
            (array([3, 5]), array([5, 9]))
        """
        crossing = np.setdiff1d(borders[self.has(borders)], self.start)
        return np.sort(np.append(self.start, crossing)), np.sort(np.append(self.stop, crossing))

    def mask(self, first: int, stop: int) -> Bool[np.ndarray, " n"]:
        """Which of the numbers ``first .. stop`` are in the set.

        Example:
            >>> Intervals(np.array([3, 10]), np.array([5, 12])).mask(4, 7).tolist()
            [True, False, False]
        """
        low = np.searchsorted(self.stop, first, side="right")
        high = np.searchsorted(self.start, stop)
        edges = np.zeros(stop - first + 1, np.int8)
        edges[np.maximum(self.start[low:high] - first, 0)] = 1
        edges[np.minimum(self.stop[low:high], stop) - first] -= 1
        return np.cumsum(edges[:-1], dtype=np.int8).view(bool)

    def ranges(self) -> Iterator[Intervals]:
        """The whole set as consecutive sets."""
        yield self

    def digest(self) -> str:
        """Digest of the set: SHA-256 as 64 hex digits."""
        return ranges_digest(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.stop, other.stop)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it holds arrays

    def __repr__(self) -> str:
        ranges = [
            f"{a}..{b}"
            for a, b in zip(self.start[:6].tolist(), self.stop[:6].tolist(), strict=True)
        ]
        return f"Intervals({', '.join(ranges)}{', ...' if self.start.size > 6 else ''})"


def ranges_digest(sets: Callable[[], Iterable[Intervals]]) -> str:
    """SHA-256, as 64 hex digits, of the starts of all ranges of consecutive sets, and then of the
    stops.
    """
    digest = hashlib.sha256()
    for end in ("start", "stop"):
        for one in sets():
            digest.update(getattr(one, end).astype("<i8").tobytes())
    return digest.hexdigest()


def _merged(start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges, sorted and merged, without empty ones."""
    order = np.argsort(start, kind="stable")
    order = order[stop[order] > start[order]]
    start = start[order]
    reach = np.maximum.accumulate(stop[order])
    first = np.ones(start.size, bool)
    first[1:] = start[1:] > reach[:-1]
    at = np.flatnonzero(first)
    return start[at], reach[np.append(at[1:], start.size) - 1] if at.size else reach


@dataclass(frozen=True, eq=False)
class RunningSums:
    """The sums of the first 0, 1, 2, ... steps, made by :class:`SumsWriter`, in 4 bytes each.

    A block stores its first number, and the differences of the others from it, in 8 bytes if one
    needs more than 4. Short vectors are stored as they are. Only the first numbers must be in
    memory; the others may be in a file, of which a look-up and a search read one piece.

    Price: 4.03 bytes per number; a look-up is two gathers, a search 1 us in batches of 256.

    Attributes:
        size: Number of sums: one more than steps.
        total: Sum of all steps.
        first: First sum of each block; empty for short vectors.
        more: Difference of each from the first of its block; entries after the last are larger than
            any.
    """

    size: int
    total: int
    first: Int64[np.ndarray, " b"]
    more: Integer[np.ndarray, " n"]

    def __getitem__(self, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        if not self.first.size:
            return self.more[places]
        return self.first[places // _BLOCK] + self.more[places]

    def between(self, first: int, stop: int) -> Int64[np.ndarray, " n"]:
        """The sums ``first .. stop``."""
        return self[np.arange(first, stop)]

    def search(self, values: Int64[np.ndarray, " n"], side: str) -> Int64[np.ndarray, " n"]:
        """Like ``np.searchsorted``: the number of sums below each value (``left``), or up to it
        (``right``).
        """
        if not self.first.size:
            return np.searchsorted(self.more, values, "left" if side == "left" else "right")
        block = np.maximum(
            np.searchsorted(self.first, values, "left" if side == "left" else "right") - 1, 0
        )
        targets = np.clip(values - self.first[block], -1, np.iinfo(self.more.dtype).max - 1)
        position = block * _BLOCK
        for step in (
            _STEP,
            1,
        ):  # the last of 16 numbers, 16 apart, that lies before, and how many from there on do
            sums = self.more[position[:, None] + np.arange(_STEP) * step]
            smaller = (sums < targets[:, None] if side == "left" else sums <= targets[:, None]).sum(
                axis=1
            )
            position += np.maximum(smaller - 1, 0) * step if step > 1 else smaller
        return position


class SumsWriter:
    """Adds up at most ``most`` steps, which are non-negative integers; unused capacity takes no
    memory.

    Example:
        >>> writer = SumsWriter(9)
        >>> for steps in ([3, 0], [4]):
        ...     writer.add(np.array(steps))
        >>> sums = writer.finish()
        >>> (
        ...     sums[np.array([0, 1, 2, 3])].tolist(),
        ...     sums.search(np.array([0, 3, 7]), "right").tolist(),
        ...     sums.total,
        ... )
        ([0, 3, 3, 7], [1, 3, 4], 7)
    """

    def __init__(self, most: int) -> None:
        blocks = -(-(most + 1) // _BLOCK)
        self._first = np.zeros(blocks, np.int64)
        self._more = np.empty(blocks * _BLOCK, np.uint32)
        self._size = 1
        self._total = 0
        self._more[0] = 0

    def add(self, steps: Integer[np.ndarray, " n"]) -> None:
        """The next steps."""
        for at in range(0, steps.size, _STEPS_AT_ONCE):
            sums = self._total + np.cumsum(steps[at : at + _STEPS_AT_ONCE], dtype=np.int64)
            indices = np.arange(self._size, self._size + sums.size)
            is_first = indices % _BLOCK == 0
            self._first[indices[is_first] // _BLOCK] = sums[is_first]
            above = sums - self._first[indices // _BLOCK]
            if int(above.max()) >= np.iinfo(self._more.dtype).max - 1:
                narrow = self._more
                self._more = np.empty(self._more.size, np.int64)
                self._more[: self._size] = narrow[: self._size]
            self._more[self._size : self._size + sums.size] = above
            self._size = self._size + sums.size
            self._total = int(sums[-1])

    def finish(self) -> RunningSums:
        """The sums of all."""
        first = self._first[: -(-self._size // _BLOCK)]
        more = self._more
        if self._size > _FEW:
            more[self._size : first.size * _BLOCK] = np.iinfo(more.dtype).max
            return RunningSums(self._size, self._total, first, more[: first.size * _BLOCK])
        every = np.repeat(first, _BLOCK)[: self._size] + more[: self._size]
        return RunningSums(self._size, self._total, first[:0], every)


def bisect(
    numbers: Callable[[Int64[np.ndarray, " n"]], Int64[np.ndarray, " n"]],
    values: Int64[np.ndarray, " n"],
    low: Int64[np.ndarray, " n"],
    high: Int64[np.ndarray, " n"],
) -> Int64[np.ndarray, " n"]:
    """Like ``bisect.bisect_left``, for many values at a time.

    Args:
        numbers: Returns the numbers at given positions; they never decrease.
        values: The values to find.
        low: First possible position of each.
        high: Last possible position.

    Example:
        >>> bisect(
        ...     lambda at: at * at, np.array([9, 10]), np.zeros(2, np.int64), np.full(2, 9)
        ... ).tolist()
        [3, 4]
    """
    low = low.copy()
    high = high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        middle_values = numbers(np.where(open_, middle, 0))
        is_later = middle_values < values
        low = np.where(open_ & is_later, middle + 1, low)
        high = np.where(open_ & ~is_later, middle, high)
    return low


class StoredRanges(NamedTuple):
    """Ranges of the remaining stream as ranges of the stored one: int64 vectors, ordered by range
    and column.
    """

    range: Int64[np.ndarray, " p"]  # number of the requested range
    column: Int64[np.ndarray, " p"]  # where in it the piece begins
    start: Int64[np.ndarray, " p"]  # first stored position
    # Positions. The pieces of a range fill it without gaps; none is empty.
    size: Int64[np.ndarray, " p"]


class Removal:
    """A stream of ``length`` stored positions without those of ``removed``.

    Args:
        length: Number of positions.
        removed: What is removed: a set, or the sets of stretches of the stream, in order.
        most: Largest number of ranges in those sets together.

    Raises:
        IndexOutOfRangeError: a removed position is not in the stream.

    Example:
        >>> left = Removal(10, Intervals(np.array([0, 4]), np.array([2, 7])))  # 2 3 . . . 7 8 9
        >>> left.remaining, left.stored(np.array([0, 1, 2, 4])).tolist()
        (5, [2, 3, 7, 9])
        >>> pieces = left.pieces(np.array([1]), np.array([3]))  # 3, then 7 8
        >>> pieces.start.tolist(), pieces.size.tolist()
        ([3, 7], [1, 2])
    """

    def __init__(
        self, length: int, removed: Intervals | Iterable[Intervals], most: int = 0
    ) -> None:
        if isinstance(removed, Intervals):
            removed, most = [removed], removed.start.size
        # Gap k lies before the remaining position cut[k + 1], and shifts all from there on by
        # removed_upto[k + 1] in all. At the end stands what cuts the last piece.
        self._cut, self._removed_upto = self.sums = _sums(length, removed, most)
        self.length = length
        self.ranges = self._removed_upto.size - 1
        self.remaining = self._cut.total

    @classmethod
    def of_sums(
        cls, length: int, remaining_before: RunningSums, removed_before: RunningSums
    ) -> Removal:
        """Restores a removal from its ``sums``."""
        removal = cls.__new__(cls)
        removal.length = length
        removal.ranges = removed_before.size - 1
        removal.remaining = remaining_before.total
        removal._cut, removal._removed_upto = removal.sums = remaining_before, removed_before
        return removal

    def digest(self) -> str:
        """Digest of what is removed, like that of a set."""
        return ranges_digest(
            lambda: (self.removed(at, at + _CHUNK) for at in range(0, self.ranges, _CHUNK))
        )

    def removed(self, first: int = 0, stop: int | None = None) -> Intervals:
        """What is removed: the ranges ``first .. stop``, or all."""
        stop = self.ranges if stop is None else min(stop, self.ranges)
        upto = self._removed_upto.between(first, stop + 1)
        start = self._cut.between(first + 1, stop + 1) + upto[:-1]
        return Intervals(start, start + np.diff(upto))

    def stored(self, position: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Stored positions of remaining ones. Rises strictly; not checked."""
        return (
            position
            + self._removed_upto[np.minimum(self._cut.search(position, "right") - 1, self.ranges)]
        )

    def kept_before(self, stored: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Number of remaining positions before each stored one: its position in the rest, or where
        it would be.

        Example:
            >>> Removal(10, Intervals(np.array([4]), np.array([7]))).kept_before(
            ...     np.array([4, 5, 7, 10])
            ... ).tolist()
            [4, 4, 4, 7]
        """
        zero = np.zeros_like(stored)
        # gaps that begin before it; it may lie in the last of them
        gap = bisect(
            lambda k: self._cut[k + 1] + self._removed_upto[k],
            stored,
            zero,
            zero + self.ranges,
        )
        return np.maximum(stored - self._removed_upto[gap], self._cut[gap])

    def pieces(self, start: Int64[np.ndarray, " n"], size: Int64[np.ndarray, " n"]) -> StoredRanges:
        """Ranges ``start .. start + size`` of the remaining stream as ranges of the stored one; not
        checked.
        """
        first = self._cut.search(start, "right") - 1
        count = self._cut.search(start + size, "left") - first
        if count.max(initial=1) == 1:
            return StoredRanges(
                np.arange(start.size), np.zeros_like(start), start + self._removed_upto[first], size
            )
        number = np.repeat(np.arange(start.size), count)
        nth = run_numbers(0, count)
        gap = first[number] + nth  # gaps before the piece
        begin = np.where(nth == 0, start[number], self._cut[gap])
        end = np.where(nth == count[number] - 1, (start + size)[number], self._cut[gap + 1])
        return StoredRanges(
            number, begin - start[number], begin + self._removed_upto[gap], end - begin
        )


def _sums(length: int, removed: Iterable[Intervals], most: int) -> tuple[RunningSums, RunningSums]:
    """Positions that remain before each range and after the last, and those of the ranges, summed
    up. Touching ranges of consecutive sets are merged.
    """
    kept_sums = SumsWriter(most + 1)
    gap_sums = SumsWriter(most)
    # the last range so far, which the next set may go on with, and the end before it
    last = Intervals.empty()
    end = 0
    for one in removed:
        if one.start.size and (int(one.start[0]) < 0 or int(one.stop[-1]) > length):
            raise IndexOutOfRangeError(
                f"reach outside the {length} positions", field="removed", value=one
            )
        last_runs = Intervals(np.append(last.start, one.start), np.append(last.stop, one.stop))
        ends = np.append(end, last_runs.stop)
        kept_sums.add(last_runs.start[:-1] - ends[:-2])
        gap_sums.add((last_runs.stop - last_runs.start)[:-1])
        last = Intervals(last_runs.start[-1:], last_runs.stop[-1:])
        end = int(ends[-2:][0])
    kept_sums.add(last.start - end)
    kept_sums.add(length - np.append(end, last.stop)[-1:])
    gap_sums.add(last.stop - last.start)
    return kept_sums.finish(), gap_sums.finish()


def clean_borders(
    removal: Removal, part_ends: Int64[np.ndarray, " p1"], chunk: int, run: int
) -> Int64[np.ndarray, " b"]:
    """Stored chunk borders followed by a long stretch without gaps: good positions to restart rows.

    After a gap, rows no longer start where stored chunks do. If they restart at the next border, at
    the cost of the few tokens before it that fill no row, blocks of rows are chunks again until the
    next gap.

    Args:
        removal: The stream of all parts, with its gaps.
        part_ends: Borders of the parts in the stream: 0, the end of the first, ..., the end of the
            last.
        chunk: Positions of a chunk; each part begins with a new one.
        run: Number of positions without a gap, from the border on, for which a restart pays.

    Returns:
        Borders, strictly rising, at most one per gap and none at the ends of parts.

    Example:
        >>> gaps = Intervals(np.array([5, 22, 31]), np.array([6, 23, 35]))
        >>> clean_borders(Removal(64, gaps), np.array([0, 64]), chunk=10, run=10).tolist()
        [10, 40]
    """
    borders = [np.zeros(0, np.int64)]
    for at in range(0, removal.ranges, _CHUNK):
        removed = removal.removed(at, at + _CHUNK + 1)  # and the first range behind
        stop = removed.stop[:_CHUNK]
        part = np.searchsorted(part_ends, stop, side="right") - 1
        part = np.minimum(part, len(part_ends) - 2)
        border = part_ends[part] - (part_ends[part] - stop) // chunk * chunk
        following = np.append(removed.start[1:], part_ends[-1])[: border.size]
        clean = np.minimum(following, part_ends[part + 1]) - border
        borders.append(border[(clean >= max(run, 1)) & (border > part_ends[part])])
    return np.concatenate(borders)
