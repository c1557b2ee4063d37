"""``CacheLeaf``: one leaf of an open cache, over all its parts; and the arithmetic of parts joined
by a table.

Price: opening a leaf reads nothing. ``values`` of any run of documents costs two small reads of
offsets and one read of values per part; ``lengths`` reads only offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.errors import CacheError, IndexOutOfRangeError, ReadError
from headrace.order.rising import starts
from headrace.store.array import StoredArray
from headrace.store.arrays import ArrayList, MadeList
from headrace.store.chunk_pages import ChunkPages
from headrace.store.layout import TOKENS, CacheLayout, LeafKind
from headrace.store.parts import PartTable
from headrace.store.pending import ArrayFuture
from headrace.store.ragged import data_url, offsets_url

_COPY_AGAIN = (
    "Copy the cache again, with all its files, or build it again; headrace cache verify CACHE"
    " says what is damaged."
)
BLOCK_ELEMENTS = 1 << 22
"""Values per read when a whole leaf is read."""


@dataclass(frozen=True)
class LeafPart:
    """One part of a leaf: the values of its documents end to end, and the offsets of the documents
    (``documents + 1`` values; None: each has one value).
    """

    documents: int
    data: StoredArray
    offsets: StoredArray | None


@dataclass(frozen=True, eq=False)
class OwnParts:
    """The parts of a leaf that headrace wrote. They do not reference the cache, so an unused cache
    is freed at once, with its mapped files, without waiting for the garbage collector. ``offsets``
    is None if documents have one value each.
    """

    root: str
    table: PartTable
    leaf: str
    layout: CacheLayout
    offsets: CacheLayout | None
    elements: Int64[np.ndarray, " parts"]
    pages: ChunkPages | None

    def part(self, number: int) -> LeafPart:
        """One part; nothing is read."""
        part = self.table.name(number)
        documents = int(self.table.documents[number])
        digest = partial(self.table.digest, number, None if self.leaf == TOKENS else self.leaf)

        def array(url: str, length: int, layout: CacheLayout) -> StoredArray:
            folder = url.rsplit("/", 1)[-1]
            names = (
                None
                if self.pages is None
                else partial(self.pages.of_array, self.leaf, folder, number)
            )
            return StoredArray(url, length, layout, digest, names)

        data = array(data_url(self.root, part, self.leaf), int(self.elements[number]), self.layout)
        if self.offsets is None:
            return LeafPart(documents, data, None)
        return LeafPart(
            documents,
            data,
            array(offsets_url(self.root, part, self.leaf), documents + 1, self.offsets),
        )


class CacheLeaf:
    """One leaf of an open cache. Documents are numbered over the whole cache, part after part.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        kind: ``ragged`` or ``fixed`` (one value per document).
        width: Values per token, if it was built with a fixed number; else None.
        parts: Its parts, in order.
        arrays: The array with the values of each part.

    Example:
        >>> import headrace.testing
        >>> tokens = headrace.testing.tiny_cache(documents=5).leaf("input_ids")
        >>> tokens.values(1, 3).size == tokens.lengths(1, 3).sum()
        np.True_
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        kind: LeafKind,
        parts: MadeList[LeafPart],
        arrays: ArrayList,
        first_document: Int64[np.ndarray, " parts1"],
        path: str,
        width: int | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.kind: LeafKind = kind
        self.width = width
        self.parts = parts
        self.arrays = arrays
        self._path = path
        self._first_document = first_document

    @property
    def num_documents(self) -> int:
        return int(self._first_document[-1])

    @property
    def num_elements(self) -> int:
        return int(self.arrays.lengths.sum())

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Number of values of the documents ``start .. stop``; reads no values.

        Returns:
            int64 array ``[stop - start]``.

        Raises:
            IndexOutOfRangeError: the range is not within the documents.
        """
        stop = self.num_documents if stop is None else stop
        spans = self._spans(start, stop)
        if self.kind == "fixed":
            return np.ones(stop - start, np.int64)
        part = self.parts.once if len(spans) > 1 else self.parts.__getitem__
        reads = [
            offsets.read(a, b + 1) for p, a, b in spans if (offsets := part(p).offsets) is not None
        ]
        return np.concatenate([np.zeros(0, np.int64), *(np.diff(r.result()) for r in reads)])

    def values(self, start: int, stop: int) -> np.ndarray:
        """Values of documents ``start .. stop``, end to end.

        Returns:
            One-dimensional array of the leaf's dtype.

        Raises:
            IndexOutOfRangeError: the range is not within the documents.
            ReadError: stored bytes are missing or damaged.
        """
        spans = self._spans(start, stop)
        ends = [
            None
            if (offsets := self.parts[p].offsets) is None
            else (offsets.read(a, a + 1), offsets.read(b, b + 1))
            for p, a, b in spans
        ]
        ranges = [
            (p, a, b) if end is None else (p, int(end[0].result()[0]), int(end[1].result()[0]))
            for (p, a, b), end in zip(spans, ends, strict=True)
        ]
        for p, a, b in ranges:
            data = self.parts[p].data
            if not 0 <= a <= b <= data.length:
                problem = (
                    f"says that values lie at {a} .. {b}, and the ledger that there are"
                    f" {data.length}"
                )
                raise ReadError(problem, field="offsets", value=data.url, cure=_COPY_AGAIN)
        values = np.empty(sum(b - a for _, a, b in ranges), self.dtype)
        filled = 0
        for p, a, b in ranges:
            self.parts[p].data.fill(values[filled : filled + b - a], a)
            filled += b - a
        return values

    def of_part(self, number: int) -> CacheLeaf:
        """The leaf in one part."""
        part = self.parts[number]
        bounds = starts([part.documents])
        parts = MadeList(1, [part].__getitem__)
        return CacheLeaf(
            self.name, self.dtype, self.kind, parts, ArrayList.of([part.data]), bounds, self._path
        )

    def document(self, i: int) -> np.ndarray:
        """Values of document ``i``."""
        return self.values(i, i + 1)

    def blocks(self, elements: int = BLOCK_ELEMENTS) -> Iterator[np.ndarray]:
        """All values in order, in blocks, reading the next while the last is processed."""
        ranges = (
            (part.data, at, min(at + elements, part.data.length))
            for part in self.parts
            for at in range(0, part.data.length, elements)
        )
        yield from _read_ahead(ranges)

    def ends(self, documents: int = BLOCK_ELEMENTS // 4) -> Iterator[np.ndarray]:
        """The end of each document in the values of the whole leaf, as int64 arrays for blocks of
        documents.
        """
        base = 0
        for part in self.parts:
            if part.offsets is None:
                for at in range(0, part.documents, documents):
                    yield np.arange(at + 1, min(at + documents, part.documents) + 1) + base
            else:
                length = part.documents + 1
                ranges = (
                    (part.offsets, at, min(at + documents, length))
                    for at in range(1, length, documents)
                )
                for ends in _read_ahead(ranges):
                    yield ends + base
            base += part.data.length

    def _spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        check_range(start, stop, self.num_documents, "documents", self._path)
        return spans(self._first_document, start, stop)


def _read_ahead(places: Iterator[tuple[StoredArray, int, int]]) -> Iterator[np.ndarray]:
    flying: deque[ArrayFuture] = deque()
    for array, start, stop in places:
        flying.append(array.read(start, stop))
        if len(flying) > 1:
            yield flying.popleft().result()
    for read in flying:
        yield read.result()


def fitting(values: np.ndarray, dtype: np.dtype[Any], url: str) -> np.ndarray:
    """Values as another dtype; CacheError about ``url`` if an integer does not fit.

    Example:
        >>> fitting(np.array([1, 2]), np.dtype("uint8"), "x").dtype
        dtype('uint8')
    """
    if dtype.kind in "iu" and values.size and not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        low = int(values.min())
        high = int(values.max())
        if low < int(limits.min) or high > int(limits.max):
            problem = (
                f"has the value {high if high > int(limits.max) else low}, which {dtype.name} does"
                " not hold"
            )
            raise CacheError(problem, field="array", value=url, cure="Choose a wider dtype.")
    return values.astype(dtype, copy=False)


def data_of(parts: Sequence[LeafPart], number: int) -> StoredArray:
    """The array with the values of a part."""
    return parts[number].data


def check_range(start: int, stop: int, length: int, what: str, path: str) -> None:
    """Raises IndexOutOfRangeError unless ``0 <= start <= stop <= length``."""
    if not 0 <= start <= stop <= length:
        problem = f"is not within {path}"
        cure = f"Give 0 to {length}, as many as it has."
        raise IndexOutOfRangeError(problem, field=what, value=(start, stop), cure=cure)


def spans(starts: np.ndarray, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The range ``start .. stop`` as (part, first, last) pieces in each part's own numbers; empty
    parts are left out.

    Example:
        >>> spans(np.array([0, 3, 3, 5]), 2, 5)
        [(0, 2, 3), (2, 0, 2)]
    """
    if start == stop:
        return []
    first = int(np.searchsorted(starts, start, side="right")) - 1
    last = int(np.searchsorted(starts, stop, side="left"))
    return [
        (p, max(start - int(starts[p]), 0), min(stop, int(starts[p + 1])) - int(starts[p]))
        for p in range(first, last)
        if starts[p + 1] > starts[p]
    ]
