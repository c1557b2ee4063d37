"""Plans of any number of documents in chunks: the algorithms that take documents in order, in bounded memory.

Invariant: what comes out, chunk after chunk, is the plan of all documents at once. Memory: a chunk of documents, the
open pack, and for ``windowed`` two windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.packing.in_order import Packed, next_fit, wrap
from headrace.index.packing.items import Items, PackCounts, check_lengths, cut_documents
from headrace.index.packing.spec import PackSpec
from headrace.index.packing.windowed import WindowedPacks


class PackStream:
    """Plans packs as the lengths of documents arrive.

    Args:
        spec: How they are packed: ``next_fit``, ``wrap`` or ``windowed``.
        array_documents: Documents in each of the arrays that they are stored in; None: one array.

    Attributes:
        counts: What became of the documents so far.

    Raises:
        ConfigError: the algorithm needs all lengths at once.

    Example:
        >>> stream = PackStream(PackSpec(10, "next_fit"))
        >>> [p.held.tolist() for p in (stream.add(np.array([4, 8])), stream.add(np.array([1, 4])), stream.finish())]
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
        self._last_cut = -1  # the last document that was counted as split

    def plan(self, chunks: Iterable[Int64[np.ndarray, " n"]]) -> Iterator[Packed]:
        """The whole plan, chunk after chunk: the last one when all lengths were seen."""
        for lengths in chunks:
            yield self.add(lengths)
        yield self.finish()

    def add(self, lengths: Int64[np.ndarray, " n"]) -> Packed:
        """Packs that are complete once these documents follow."""
        return self._plan(lengths, last=False)

    def finish(self) -> Packed:
        """The remaining packs. Nothing can be added afterwards."""
        return self._plan(np.zeros(0, np.int64), last=True)

    def _plan(self, lengths: np.ndarray, *, last: bool) -> Packed:
        cutting = self.spec.algorithm == "wrap"
        policy = "keep" if cutting else self.spec.policy
        items, counts = cut_documents(lengths, self.spec.capacity, policy, self._documents)
        self._documents += lengths.size
        if self.spec.algorithm == "windowed":
            array, start = self._places.add(lengths)
            at = items.document - (self._documents - lengths.size)
            packed = self._windowed.add(items, start[at] + items.offset, array[at], last=last)
        else:
            planner = wrap if cutting else next_fit
            packed, self._open = planner(Items.join([self._open, items]), self.spec.capacity, last=last)
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
    """Where documents lie: their array, and their first token there."""

    def __init__(self, array_documents: object) -> None:
        self._limits = None if array_documents is None else np.cumsum(check_lengths(array_documents))
        self._documents = 0
        self._array = -1
        self._tokens = 0  # of the array that the last document lies in

    def add(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        number = np.arange(self._documents, self._documents + lengths.size)
        self._documents += lengths.size
        if self._limits is None:
            array = np.zeros(lengths.size, np.int64)
        else:
            array = np.searchsorted(self._limits, number, side="right")
            if lengths.size and array[-1] == self._limits.size:
                raise ConfigError(
                    f"are fewer than the documents: {int(self._limits[-1]) if self._limits.size else 0}",
                    field="array_documents",
                    cure="They must add up to the number of lengths.",
                )
        if lengths.size == 0:
            return array, array
        start = np.cumsum(lengths) - lengths
        new = np.diff(array, prepend=self._array) != 0
        # what lies before each array's first token, in this chunk; of an array that goes on, less than nothing
        before = np.concatenate([[-self._tokens], start[new]])
        start -= before[np.cumsum(new)]
        self._array, self._tokens = int(array[-1]), int(start[-1] + lengths[-1])
        return array, start


def drop_underfilled(packed: Packed, spec: PackSpec) -> tuple[Packed, PackCounts]:
    """Leaves out packs below ``min_fill``, and counts packs and their tokens."""
    begin = np.cumsum(packed.held) - packed.held
    tokens = np.add.reduceat(packed.items.size, begin) if begin.size else begin
    total = int(packed.items.size.sum())
    low = tokens < spec.min_fill * spec.capacity
    if not low.any():
        return packed, PackCounts(packs=tokens.size, packed_tokens=total)
    left = Packed(packed.items.at(~np.repeat(low, packed.held)), packed.held[~low])
    lost = int(tokens[low].sum())
    return left, PackCounts(
        packs=left.held.size,
        packed_tokens=total - lost,
        underfilled_packs=int(low.sum()),
        underfilled_items=int(packed.held[low].sum()),
        underfilled_tokens=lost,
    )
