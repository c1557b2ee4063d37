"""Best, worst and first fit decreasing: longest first, into a bin that has room.

The textbook algorithm, which this equals item by item:

1. Sort items by size, the largest first, equal sizes by number.
2. Put each into a bin with room: the fullest (best fit), the emptiest (worst fit), or the one
   opened first (first fit). Among bins with equal space, the one opened first.
3. If none has room, open a bin.

With pencil and paper: sizes 7, 5, 2, 2 into bins of 10. 7 opens bin 0 and leaves 3; 5 opens bin 1
and leaves 5. The first 2 goes into bin 0 by best fit (3 is less than 5), which then has 1; the next
into bin 1. By worst fit it goes into bin 1, which then has 3, and so does bin 0: a tie, so the next
goes into bin 0.

    >>> [fit_decreasing(np.array([7, 5, 2, 2]), 10, worst=w).tolist() for w in (False, True)]
    [[0, 1, 0, 1], [0, 1, 1, 0]]

Why it is not done item by item: items of equal size are interchangeable until they are numbered,
and so are bins with equal space. Best and worst fit therefore work on groups: all bins with the
same space take as many items of one size as they can at once. The loop runs over the (size, space)
pairs that occur, a few per size, instead of over items; per item there is only sorting and copying.
First fit searches blocks of bins whose largest free space is known. Price: below 1 us an item.

Reference: Johnson, "Near-optimal bin packing algorithms", MIT 1973. ``binpacking`` (and with it
ms-swift and CoordExp) is best fit up to version 1.5.2 and worst fit since 2.0.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

_BLOCK = 4096  # bins in a block of first fit
_DIGIT = 16


def stable_order(keys: Integer[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """``np.argsort(keys, kind="stable")`` for non-negative integers, by 16-bit digits.

    Example:
        >>> stable_order(np.array([2, 70000, 1, 2]))
        array([2, 0, 3, 1])
    """
    largest = int(keys.max(initial=0))
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")  # a radix sort
    shift = _DIGIT
    while largest >> shift:
        digit = ((keys >> shift) & 0xFFFF).astype(np.uint16)[order]
        order = order[np.argsort(digit, kind="stable")]
        shift += _DIGIT
    return order


def runs_of_equal(
    sizes: Int64[np.ndarray, " n"],
) -> tuple[Int64[np.ndarray, " n"], list[tuple[int, int, int]]]:
    """Items by descending size, and the range of each size: ``(size, first, stop)``.

    Example:
        >>> runs_of_equal(np.array([3, 5, 3]))
        (array([1, 0, 2]), [(5, 0, 1), (3, 1, 3)])
    """
    order = stable_order(sizes.max(initial=0) - sizes)
    ranked = sizes[order]
    new = np.ones(ranked.size, bool)
    new[1:] = ranked[1:] != ranked[:-1]
    first = np.flatnonzero(new)
    stop = np.append(first[1:], ranked.size)[: first.size]
    return order, list(zip(ranked[first].tolist(), first.tolist(), stop.tolist(), strict=True))


def _number_dtype(n: int) -> type[np.signedinteger[Any]]:
    """The dtype for numbers below ``n``: int32 where it suffices, for half the memory."""
    return np.int32 if n <= np.iinfo(np.int32).max else np.int64


class _Bins:
    """Open bins, grouped by their free space."""

    def __init__(self) -> None:
        self.spaces: list[int] = []  # ascending: the free spaces that occur
        self._bins: dict[int, list[np.ndarray]] = {}

    def put(self, space: int, bins: np.ndarray) -> None:
        """Adds bins with this free space. Full ones are never visited again."""
        if space <= 0 or bins.size == 0:
            return
        if space in self._bins:
            self._bins[space].append(bins)
        else:
            self._bins[space] = [bins]
            insort(self.spaces, space)

    def take(self, space: int) -> np.ndarray:
        """Removes and returns all bins with this free space, the one opened first in front."""
        del self.spaces[bisect_left(self.spaces, space)]
        bins = self._bins.pop(space)
        return bins[0] if len(bins) == 1 else np.sort(np.concatenate(bins))

    def space_for(self, size: int, *, worst: bool) -> int | None:
        """The smallest free space that holds ``size``, or the largest."""
        at = bisect_left(self.spaces, size)
        return None if at == len(self.spaces) else self.spaces[-1 if worst else at]


def fit_decreasing(
    sizes: Int64[np.ndarray, " n"], capacity: int, *, worst: bool = False
) -> Integer[np.ndarray, " n"]:
    """The bin of each item, by best fit decreasing, or worst fit decreasing.

    Args:
        sizes: Sizes, at least 1. An item larger than ``capacity`` gets a bin of its own.
        capacity: Size of a bin.
        worst: Whether to use the emptiest bin instead of the fullest.

    Returns:
        Bin numbers, in the order in which bins are opened; int32 where it suffices.

    Example:
        >>> fit_decreasing(np.array([4, 8, 1, 4, 2, 1]), 10)
        array([1, 0, 1, 1, 0, 1], dtype=int32)
    """
    # 1. Items by size
    order, runs = runs_of_equal(sizes)
    bin_of = np.empty(sizes.size, _number_dtype(sizes.size))
    bins = _Bins()
    opened = 0
    for size, at, stop in runs:
        # 2. The group of bins to use next. Best fit fills a bin before it goes on, as the bin stays
        #    the fullest; worst fit puts one item into each, as they then are not the emptiest
        while at < stop and (space := bins.space_for(size, worst=worst)) is not None:
            each = 1 if worst else space // size
            group = bins.take(space)
            at += _fill(bins, group, space, size, each, order[at:stop], bin_of)
        # 3. No bin has room: those that the rest of this size takes, each filled as far as it goes
        if at < stop:
            each = max(capacity // size, 1)
            new = np.arange(opened, opened + -(-(stop - at) // each))
            opened += new.size
            _fill(bins, new, capacity, size, each, order[at:stop], bin_of)
    return bin_of


def _fill(
    bins: _Bins,
    group: np.ndarray,
    space: int,
    size: int,
    each: int,
    items: np.ndarray,
    bin_of: np.ndarray,
) -> int:
    """Puts ``each`` items into every bin of a group, in order, until items run out.

    Returns how many were placed.
    """
    placed = min(group.size * each, items.size)
    full, rest = divmod(placed, each)
    used = group[: full + (rest > 0)]
    bin_of[items[:placed]] = used if each == 1 else np.repeat(used, each)[:placed]
    # Back among the others: filled ones, one that items ran out in, and untouched ones
    bins.put(space - each * size, group[:full])
    if rest:
        bins.put(space - rest * size, group[full : full + 1])
    bins.put(space, group[used.size :])
    return placed


def first_fit_decreasing(
    sizes: Int64[np.ndarray, " n"], capacity: int
) -> Integer[np.ndarray, " n"]:
    """The bin of each item, by first fit decreasing. Arguments and result as
    :func:`fit_decreasing`.

    Example:
        >>> first_fit_decreasing(np.array([5, 7, 2, 2]), 10)
        array([1, 0, 0, 1], dtype=int32)
    """
    order, runs = runs_of_equal(sizes)
    bin_of = np.empty(sizes.size, _number_dtype(sizes.size))
    space = np.zeros((1, _BLOCK), np.int64)  # bins in blocks; bins not yet open count as full
    opened = 0
    for size, at, stop in runs:
        blocks = np.flatnonzero(space[: -(-opened // _BLOCK)].max(axis=1) >= size)
        looked = 0
        some = 1
        while at < stop and looked < blocks.size:
            some_blocks = blocks[looked : looked + some]
            looked = looked + some
            some = some * 2
            block, column = np.divmod(np.flatnonzero(space[some_blocks] >= size), _BLOCK)
            bins = some_blocks[block] * _BLOCK + column
            at += _settle(
                space, bins, space.reshape(-1)[bins] // size, size, order[at:stop], bin_of
            )
        if at < stop:
            each = max(capacity // size, 1)
            new = np.arange(opened, opened + -(-(stop - at) // each))
            opened += new.size
            if opened > space.size:
                grown = np.zeros((2 * -(-opened // _BLOCK), _BLOCK), np.int64)
                grown[: space.shape[0]] = space
                space = grown
            space.reshape(-1)[new] = capacity
            _settle(space, new, np.full(new.size, each), size, order[at:stop], bin_of)
    return bin_of


def _settle(
    space: np.ndarray,
    bins: np.ndarray,
    room: np.ndarray,
    size: int,
    items: np.ndarray,
    bin_of: np.ndarray,
) -> int:
    """Fills bins in order, each with as many items as it has room for, until items run out."""
    first_room = np.cumsum(room) - room
    bins = bins[first_room < items.size]
    room = np.minimum(room, items.size - first_room)[first_room < items.size]
    placed = int(room.sum())
    bin_of[items[:placed]] = np.repeat(bins, room)
    space.reshape(-1)[bins] -= room * size
    return placed
