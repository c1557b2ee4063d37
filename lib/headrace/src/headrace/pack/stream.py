"""Plans any number of documents in chunks and bounded memory, by the algorithms that take documents
in order.

Next fit keeps documents whole, wrap cuts them at pack boundaries: both look at each item once and
keep only the open pack.

Windowed packs are packs of neighbours: almost full, and each read from little more than one stored
block. How documents are packed:

1. Take the documents that begin in one window: an I/O block, or a few, if blocks are small.
2. Start a pack with the largest document left.
3. Fill the rest by exact subset sums over the others, larger ones first. A set of reachable sums is
   one integer, a bit a sum, and adding a document is one shift: a pack costs 1 us in compiled code
   (``native/windows.c``), beside which lengths are read and files written.
4. Again from 2, until no pack can be filled. What is left, about half a pack, and the document that
   crosses the window's end go together into the first pack of the next window: no document is
   packed later than that.

With pencil and paper: documents of 7, 5, 4, 3, 3 and 2 tokens, packs of 10. The first pack starts
with 7, and 3 fills it. The next starts with 5; of 4, 3 and 2, the sum 3 + 2 fills it. 4 is left.

    >>> from headrace.pack.plan import plan_packs
    >>> plan_packs([7, 5, 4, 3, 3, 2], 10, "windowed").raw_plan
    [[0, 3], [1, 4, 5], [2]]

Measured (scripts/bench/bench_packing.py): for documents of 600 tokens in the median, packs of 4096
and blocks of 65,536 tokens, fill 0.9997 and 1.09 blocks a pack, where best fit decreasing over all
documents has 0.9999 and 4.9.

Invariant: the chunks together equal the plan of all documents at once. Price: 0.2 us an item for
next fit, 1 us for wrap, 0.2 to 0.3 us for windowed packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import ConfigError
from headrace.native import native_library
from headrace.order.intervals import run_numbers
from headrace.pack.items import Items, PackCounts, Packed, check_lengths, cut_documents
from headrace.pack.spec import PackSpec

_MOST = (1 << 31) - 1
# A pack may leave 1 part in this many empty; with more, its documents wait for the next window
_TOLERANCE = 64
# Fewest packs in a window: with fewer, too large a share of them carries something over
_MIN_PACKS = 8
# Items whose sums are tried for one pack; after these, anything that fits is taken
_CANDIDATES = 512


class PackStream:
    """Plans packs as the lengths of documents arrive.

    Args:
        spec: How they are packed: ``next_fit``, ``wrap`` or ``windowed``.
        array_documents: Documents in each of the arrays that they are stored in; None: one array.

    Attributes:
        counts: What happened to the documents so far.

    Raises:
        ConfigError: the algorithm needs all lengths at once.

    Example:
        >>> stream = PackStream(PackSpec(10, "next_fit"))
        >>> packed = stream.add(np.array([4, 8])), stream.add(np.array([1, 4])), stream.finish()
        >>> [p.item_counts.tolist() for p in packed]
        [[1], [2], [1]]
    """

    def __init__(self, spec: PackSpec, array_documents: object = None) -> None:
        if not spec.in_order:
            raise ConfigError(
                "needs the lengths of all documents at once",
                field="algorithm",
                value=spec.algorithm,
                cure="Plan in chunks with windowed, next_fit or wrap.",
            )
        self.spec = spec
        self.counts = PackCounts()
        self._documents = 0
        self._open = Items.join([])
        self._windowed = WindowedPacks(spec.capacity, spec.block_tokens)
        self._places = _Places(array_documents)
        self._last_cut = -1  # the last document counted as split

    def plan(self, chunks: Iterable[Int64[np.ndarray, " n"]]) -> Iterator[Packed]:
        """Yields the whole plan in chunks, the last one after all lengths were seen."""
        for lengths in chunks:
            yield self.add(lengths)
        yield self.finish()

    def add(self, lengths: Int64[np.ndarray, " n"]) -> Packed:
        """Adds documents; returns the packs that are now complete."""
        return self._plan(lengths, last=False)

    def finish(self) -> Packed:
        """Returns the remaining packs. Nothing can be added afterwards."""
        return self._plan(np.zeros(0, np.int64), last=True)

    def _plan(self, lengths: np.ndarray, *, last: bool) -> Packed:
        cutting = self.spec.algorithm == "wrap"
        policy = "keep" if cutting else self.spec.policy
        items, counts = cut_documents(
            lengths,
            self.spec.capacity,
            policy,
            self._documents,
            None if cutting else self.spec.row_tokens,
        )
        self._documents += lengths.size
        if self.spec.algorithm == "windowed":
            array, start = self._places.add(lengths)
            at = items.document - (self._documents - lengths.size)
            packed = self._windowed.add(items, start[at] + items.offset, array[at], last=last)
        else:
            items = Items.join([self._open, items])
            capacity = self.spec.capacity
            if cutting:
                packed, self._open = wrap(items, capacity, last=last)
            else:
                packed, self._open = next_fit(items, capacity, self.spec.max_documents, last=last)
        if cutting:
            counts = replace(counts, split_documents=self._newly_cut(packed.items))
        packed, dropped = drop_underfilled(packed, self.spec)
        self.counts += counts + dropped
        return packed

    def _newly_cut(self, items: Items) -> int:
        cut = np.unique(items.document[items.offset > 0])
        new = cut[cut > self._last_cut]
        self._last_cut = int(cut[-1]) if cut.size else self._last_cut
        return new.size


class _Places:
    """Locates documents: their array, and their first token in it."""

    def __init__(self, array_documents: object) -> None:
        self._limits = (
            None if array_documents is None else np.cumsum(check_lengths(array_documents))
        )
        self._documents = 0
        self._array = -1
        self._tokens = 0  # of the last document's array

    def add(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        number = np.arange(self._documents, self._documents + lengths.size)
        self._documents += lengths.size
        if self._limits is None:
            array = np.zeros(lengths.size, np.int64)
        else:
            array = np.searchsorted(self._limits, number, side="right")
            if lengths.size and array[-1] == self._limits.size:
                raise ConfigError(
                    "are fewer than the documents:"
                    f" {int(self._limits[-1]) if self._limits.size else 0}",
                    field="array_documents",
                    cure="They must add up to the number of lengths.",
                )
        if lengths.size == 0:
            return array, array
        start = np.cumsum(lengths) - lengths
        new = np.diff(array, prepend=self._array) != 0
        # tokens of this chunk before each array's first token; negative for an array that continues
        previous = np.concatenate([[-self._tokens], start[new]])
        start -= previous[np.cumsum(new)]
        self._array = int(array[-1])
        self._tokens = int(start[-1] + lengths[-1])
        return array, start


def drop_underfilled(packed: Packed, spec: PackSpec) -> tuple[Packed, PackCounts]:
    """Drops packs below ``min_fill``, and counts packs and their tokens."""
    begin = np.cumsum(packed.item_counts) - packed.item_counts
    tokens = np.add.reduceat(packed.items.size, begin) if begin.size else begin
    total = int(packed.items.size.sum())
    low = tokens < spec.min_fill * spec.capacity
    if not low.any():
        return packed, PackCounts(packs=tokens.size, packed_tokens=total)
    filled = Packed(packed.items.at(~np.repeat(low, packed.item_counts)), packed.item_counts[~low])
    lost = int(tokens[low].sum())
    return filled, PackCounts(
        packs=filled.item_counts.size,
        packed_tokens=total - lost,
        underfilled_packs=int(low.sum()),
        underfilled_items=int(packed.item_counts[low].sum()),
        underfilled_tokens=lost,
    )


def next_fit(
    items: Items, capacity: int, max_documents: int | None = None, *, last: bool
) -> tuple[Packed, Items]:
    """Adds each item to the open pack if it fits, otherwise opens the next pack.

    Args:
        items: Items, those of the open pack first.
        capacity: Tokens of a pack. A larger item is a pack of its own.
        max_documents: Most items in a pack; None: as many as fit.
        last: Whether to close the open pack, too.

    Returns:
        The closed packs, and the items of the open one.

    Example:
        >>> sizes = np.array([4, 8, 1, 4])
        >>> packed, rest = next_fit(
        ...     Items(np.arange(4), np.zeros(4, np.int64), sizes), 10, last=False
        ... )
        >>> packed.item_counts.tolist(), rest.document.tolist()
        ([1, 2], [3])
    """
    ends = np.cumsum(items.size)
    # Where a pack would end that began with each item; an item too large for any pack is one by
    # itself. Then follow these links from the first item on
    stop = np.searchsorted(ends, ends - items.size + capacity, side="right")
    number = np.arange(ends.size)
    stop = stop if max_documents is None else np.minimum(stop, number + max_documents)
    following: list[int] = np.maximum(stop, number + 1).tolist()
    bounds = [0]
    at = 0
    while at < ends.size:
        at = following[at]
        bounds.append(at)
    if not last and len(bounds) > 1:
        bounds.pop()  # the last pack remains open
    return Packed(items.at(slice(0, bounds[-1])), np.diff(bounds)), items.at(
        slice(bounds[-1], None)
    )


def wrap(items: Items, capacity: int, *, last: bool) -> tuple[Packed, Items]:
    """Concatenates items and cuts them into packs. Arguments and result as :func:`next_fit`; the
    open pack may begin with a piece.

    Example:
        >>> packed, rest = wrap(
        ...     Items(np.arange(2), np.zeros(2, np.int64), np.array([3, 7])), 4, last=False
        ... )
        >>> packed.items.document.tolist(), packed.items.offset.tolist(), packed.items.size.tolist()
        ([0, 1, 1], [0, 0, 1], [3, 1, 4])
        >>> rest.offset.tolist(), rest.size.tolist()
        ([5], [2])
    """
    ends = np.cumsum(items.size)
    total = int(ends[-1]) if ends.size else 0
    starts = ends - items.size
    cuts = np.arange(0, total, capacity)
    # A piece begins where an item begins, or a pack; no item is empty, so starts are distinct
    begin = np.union1d(starts, cuts)
    of = np.searchsorted(ends, begin, side="right")
    size = np.append(begin[1:], total)[: begin.size] - begin
    pieces = Items(items.document[of], items.offset[of] + begin - starts[of], size)
    packs = -(-total // capacity) if last else total // capacity
    bounds = np.searchsorted(begin, np.arange(packs + 1) * capacity)
    return Packed(pieces.at(slice(0, int(bounds[-1]))), np.diff(bounds)), pieces.at(
        slice(int(bounds[-1]), None)
    )


def window_tokens(capacity: int, block_tokens: int) -> int:
    """Tokens of a window: one block, or as many blocks as it takes to hold a few packs.

    Example:
        >>> window_tokens(4096, 65_536), window_tokens(4096, 8192)
        (65536, 32768)
    """
    return max(-(-_MIN_PACKS * capacity // block_tokens), 1) * block_tokens


class WindowedPacks:
    """Plans packs of neighbours as items arrive, in order. An item larger than ``capacity`` is a
    pack of its own.
    """

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.window = window_tokens(capacity, block_tokens)
        self._held = Items.join([])  # carried items, then those of a window that may continue
        self._carried = 0
        self._window_of = np.zeros(0, np.int64)
        self._runs_over = np.zeros(0, bool)
        # Packs that a later pack may precede.
        self._waiting = Packed(Items.join([]), np.zeros(0, np.int64))

    def add(
        self,
        items: Items,
        start: Int64[np.ndarray, " m"],
        array: Int64[np.ndarray, " m"],
        *,
        last: bool,
    ) -> Packed:
        """Packs the complete windows, given the next items (by document and offset) and where each
        begins in its stored array. Returns packs ordered by their first items, as far as no later
        pack can precede them.
        """
        # 1. The window in which each item begins, and whether it ends in another. An array
        #    has fewer than 2**40 windows, so arrays share none
        begins = start // self.window
        items_here = Items.join([self._held, items])
        window_of = np.concatenate([self._window_of, (array << 40) + begins])
        runs_over = np.concatenate(
            [self._runs_over, (start + items.size - 1) // self.window > begins]
        )
        fresh = self._carried + np.flatnonzero(np.diff(window_of[self._carried :], prepend=-1))
        bounds = np.append(fresh, items_here.size.size)
        if not last:
            bounds = bounds[: max(bounds.size - 1, 1)]  # the last window may continue
        over = runs_over[bounds[1:] - 1]
        # 2. to 4. for each complete window; then keep what is carried, and the open window
        settings = (self._carried, self.capacity, _TOLERANCE, _CANDIDATES)
        number, count, carried = pack_windows(items_here.size, bounds, over, settings, last)
        waiting = np.concatenate([carried, np.arange(bounds[-1], items_here.size.size)])
        self._held = items_here.at(waiting)
        self._carried = carried.size
        self._window_of = window_of[waiting]
        self._runs_over = runs_over[waiting]
        return self._in_order(items_here, number, count)

    def _in_order(self, items: Items, number: np.ndarray, count: np.ndarray) -> Packed:
        """All packs that can be released, waiting ones included, ordered by their first items."""
        every = Items.join([self._waiting.items, items.at(number)])
        count = np.concatenate([self._waiting.item_counts, count])
        begin = np.cumsum(count) - count
        document = every.document[begin]
        offset = every.offset[begin]
        order = np.lexsort((offset, document))
        going = order.size
        # A pending item may go into any pack; they are not in order, as carried items are old.
        if self._held.size.size:
            first = np.lexsort((self._held.offset, self._held.document))[0]
            is_earlier = document[order] < self._held.document[first]
            is_earlier |= (document[order] == self._held.document[first]) & (
                offset[order] < self._held.offset[first]
            )
            going = int(is_earlier.sum())
        self._waiting = _select(every, begin, count, order[going:])
        return _select(every, begin, count, order[:going])


def _select(items: Items, begin: np.ndarray, count: np.ndarray, packs: np.ndarray) -> Packed:
    size = count[packs]
    return Packed(items.at(run_numbers(begin[packs], size)), size)


def pack_windows(
    sizes: Int64[np.ndarray, " n"],
    bounds: Int64[np.ndarray, " w1"],
    over: Bool[np.ndarray, " w"],
    settings: tuple[int, int, int, int],
    last: bool,
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " p"], Int64[np.ndarray, " c"]]:
    """Packs windows, one after the other.

    Args:
        sizes: Tokens of all items: carried items first, then those of the windows.
        bounds: Where the items of each window begin, and where the last window's end.
        over: Whether each window's last item crosses its end.
        settings: Number of carried items, capacity, tolerance, and most candidates.
        last: Whether nothing may be carried after the last window.

    Returns:
        Items of all packs, ascending in each, the number in each pack, and the carried items.
    """
    calls = native_library().calls
    carried, capacity, tolerance, candidates = settings
    n = sizes.size
    count = np.array([carried])
    order, counts, carry, *_ = scratch = np.empty((7, n), np.int64)
    carry[:carried] = np.arange(carried)
    used = np.zeros(n, np.bool_)
    reached = np.empty(
        (min(candidates, n) + 1) * (capacity // 64 + 1 + calls.words_beside()), np.uint64
    )
    dtypes = (np.int64, np.int64, np.bool_)
    # Items of 2**31 tokens and more are larger than any pack, and each is one of its own, in
    # whatever order
    sizes = np.minimum(sizes, _MOST)
    inputs = [
        np.ascontiguousarray(*pair) for pair in zip((sizes, bounds, over), dtypes, strict=True)
    ]
    packs = calls.pack_windows(
        over.size,
        *(a.ctypes.data for a in inputs),
        capacity,
        tolerance,
        candidates,
        int(last),
        *(a.ctypes.data for a in (order, counts, carry, count, scratch[3:], used, reached)),
        n,
    )
    return order[: counts[:packs].sum()].copy(), counts[:packs].copy(), carry[: count[0]].copy()
