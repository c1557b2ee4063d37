"""Packs of neighbours: almost full, and each read from little more than one stored block.

Documents are taken window by window, a window being one I/O block (or a few, if blocks are small): those that begin in
it. A pack begins with the largest document that is left, and the rest of it is filled by exact subset sums over the
others, the larger ones first: a set of reachable sums is one whole number, and adding a document one shift, so that a
pack costs some 10 us. What is left of a window, about half a pack, and the document that runs over its end go together
into the first pack of the next one: a document is never packed later than that.

Invariant: the packs do not depend on the chunks in which documents arrive. Measured (scripts/bench/bench_packing.py):
on documents of 600 tokens in the median, packs of 4096 and blocks of 65,536 tokens, fill 0.9997 and 1.09 blocks a pack,
where best fit decreasing over all documents has 0.9999 and 4.9. Price: 3 to 8 us a document.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from headrace.index.packing.in_order import Packed
from headrace.index.packing.items import Items

_TOLERANCE = 64  # a pack may stay empty to one part in so many; if more is, its documents wait for the next window
_MIN_PACKS = 8  # packs that a window holds at least: with fewer, too many of them carry something over
_CANDIDATES = 512  # items whose sums are tried for one pack; beyond them, whatever fits is taken


def window_tokens(capacity: int, block_tokens: int) -> int:
    """Tokens of a window: one block, or as many blocks as hold a few packs.

    Example:
        >>> window_tokens(4096, 65_536), window_tokens(4096, 8192)
        (65536, 32768)
    """
    return max(-(-_MIN_PACKS * capacity // block_tokens), 1) * block_tokens


class WindowedPacks:
    """Plans packs as items arrive, in order.

    Args:
        capacity: Tokens of a pack. A larger item is a pack of its own.
        block_tokens: Tokens of a stored block.
    """

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.window = window_tokens(capacity, block_tokens)
        self._held = Items.join([])  # what is carried over, then the items of a window that may go on
        self._carried = 0
        self._window_of = np.zeros(0, np.int64)
        self._runs_over = np.zeros(0, bool)
        self._waiting = Packed(Items.join([]), np.zeros(0, np.int64))  # packs that a later one may precede

    def add(
        self, items: Items, start: Int64[np.ndarray, " m"], array: Int64[np.ndarray, " m"], *, last: bool
    ) -> Packed:
        """Packs the windows that are complete.

        Args:
            items: The next items, ordered by document and offset.
            start: Where each begins in the stored array that it lies in.
            array: Number of that array, which rises.
            last: Whether there are no more items.

        Returns:
            Packs in the order of their first items, as far as no later pack can precede them.
        """
        begins = start // self.window
        held = Items.join([self._held, items])
        window_of = np.concatenate([self._window_of, (array << 40) + begins])
        runs_over = np.concatenate([self._runs_over, (start + items.size - 1) // self.window > begins])
        sizes: list[int] = held.size.tolist()
        carried = list(range(self._carried))
        fresh = self._carried + np.flatnonzero(np.diff(window_of[self._carried :], prepend=-1))
        bounds = [*fresh.tolist(), len(sizes)]
        packs: list[list[int]] = []
        for first, stop in list(pairwise(bounds))[: None if last else -1]:
            over = bool(runs_over[stop - 1])
            final = last and stop == len(sizes)
            carried = _pack_window(carried, range(first, stop), sizes, self.capacity, packs, over=over, final=final)
        if last and carried:
            carried = _pack_window(carried, range(0), sizes, self.capacity, packs, over=False, final=True)
        open_from = len(sizes) if last or len(bounds) < 2 else bounds[-2]
        left = np.concatenate([np.array(carried, np.int64), np.arange(open_from, len(sizes))])
        self._held, self._carried = held.at(left), len(carried)
        self._window_of, self._runs_over = window_of[left], runs_over[left]
        return self._in_order(held, packs)

    def _in_order(self, items: Items, packs: list[list[int]]) -> Packed:
        """Packs that may go, those that wait included, by their first items."""
        number = np.array([k for pack in packs for k in sorted(pack)], np.int64)
        count = np.array([len(pack) for pack in packs], np.int64)
        every = Items.join([self._waiting.items, items.at(number)])
        count = np.concatenate([self._waiting.held, count])
        begin = np.cumsum(count) - count
        document, offset = every.document[begin], every.offset[begin]
        order = np.lexsort((offset, document))
        going = order.size
        if self._held.size.size:  # what is held may come into any pack, but it is not in order: carried items are old
            first = np.lexsort((self._held.offset, self._held.document))[0]
            before = document[order] < self._held.document[first]
            before |= (document[order] == self._held.document[first]) & (offset[order] < self._held.offset[first])
            going = int(before.sum())
        self._waiting = _select(every, begin, count, order[going:])
        return _select(every, begin, count, order[:going])


def _select(items: Items, begin: np.ndarray, count: np.ndarray, packs: np.ndarray) -> Packed:
    size = count[packs]
    places = np.arange(int(size.sum())) + np.repeat(begin[packs] - (np.cumsum(size) - size), size)
    return Packed(items.at(places), size)


def _pack_window(
    carried: list[int],
    window: range,
    sizes: list[int],
    capacity: int,
    packs: list[list[int]],
    *,
    over: bool,
    final: bool,
) -> list[int]:
    """Packs what was carried over, and of a window what fills packs.

    Args:
        carried: Items of earlier windows.
        window: Items of this one.
        sizes: Sizes by item.
        capacity: Tokens of a pack.
        packs: Gets the packs.
        over: Whether the window's last item runs over its end: then it is carried.
        final: Whether nothing may be carried.

    Returns:
        The items that are carried over, ascending.
    """
    running = [window[-1]] if over and not final else []
    here = window[:-1] if running else window
    left = sorted(carried, key=sizes.__getitem__, reverse=True)
    due = len(left)  # so many in front must be packed
    left += sorted(here, key=sizes.__getitem__, reverse=True)
    total = sum(sizes[k] for k in left)
    while left and (final or due or total >= capacity):
        chosen, gap = _choose(left, due, sizes, capacity)
        if not (final or due) and gap * _TOLERANCE > capacity:
            break
        packs.append([left[k] for k in chosen])
        due -= sum(k < due for k in chosen)
        total -= capacity - gap
        for k in sorted(chosen, reverse=True):
            del left[k]
    return sorted(left) + running


def _choose(items: list[int], due: int, sizes: list[int], capacity: int) -> tuple[list[int], int]:
    """A pack: as many of the first ``due`` items as fit, or the first, then what fills it best.

    Returns:
        Places in ``items``, and the space that is left (negative for an item larger than a pack).
    """
    space = capacity - sizes[items[0]]
    chosen = [0]
    for k in range(1, due):
        if sizes[items[k]] <= space:
            chosen.append(k)
            space -= sizes[items[k]]
    if space <= 0:
        return chosen, space
    wanted = 1 << space
    mask = 2 * wanted - 1
    sums = 1  # bit s: some of the items tried so far add up to s
    history = [sums]
    start = at = max(due, 1)
    end = min(len(items), start + _CANDIDATES)
    while at < end and not sums & wanted:
        sums |= (sums << sizes[items[at]]) & mask
        history.append(sums)
        at += 1
    total = sums.bit_length() - 1
    space -= total
    while total:
        if history[-2] >> total & 1:
            history.pop()
            continue
        history.pop()
        taken = start + len(history) - 1
        chosen.append(taken)
        total -= sizes[items[taken]]
    for k in range(at, len(items)):
        if sizes[items[k]] <= space:
            chosen.append(k)
            space -= sizes[items[k]]
    return chosen, space
