"""``CacheLeaf``: one leaf of an open cache, over all its parts; the list of its arrays; the
arithmetic of parts joined by a table; and where documents end (:class:`DocumentEnds`).

Price: opening a leaf reads nothing. ``values`` of any run of documents costs two small reads of
offsets and one read of values per part; ``lengths`` reads only offsets.

Code that plans over all arrays of a cache or of several (lengths, numbers of chunks) uses the
columns of an :class:`ArrayList`; no object is created for an array until it is read. Price: 8 bytes
per array and column, 1 us for the first use of an array.

Arrays in a store over HTTP have the checksums of their chunks from ``ledger.bin``, page by page
(:class:`ChunkPages`). A page that was not read when the cache was opened is requested once per
process, when the first array with chunks in it is read, and kept. Price: one request for 65,536
chunks, 256 KiB; 4 bytes of memory per chunk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64, UInt

from headrace.errors import CacheError, IndexOutOfRangeError, ReadError
from headrace.order.intervals import run_numbers, starts
from headrace.store import files
from headrace.store.array import ArrayFuture, StoredArray
from headrace.store.layout import TOKENS, CacheLayout, LeafKind, LeafSpec
from headrace.store.ledger_table import (
    PAGE_BYTES,
    PAGE_CHUNKS,
    TABLE_NAME,
    ArrayChunks,
    ByNumber,
    ColumnTable,
    PartTable,
    chunks_of,
    command_to_rewrite,
    from_page,
    pages_of,
)
from headrace.store.location import Location
from headrace.store.ragged import data_url, offsets_url
from headrace.store.requests import Store, get

_COPY_AGAIN = (
    "Copy the cache again, with all its files, or build it again; headrace cache verify CACHE"
    " says what is damaged."
)
_READS_IN_FLIGHT = 32
BLOCK_ELEMENTS = 1 << 22
"""Values per read when a whole leaf is read."""


T = TypeVar("T")


class MadeList(ByNumber[T]):
    """Objects by number, each created at its first use.

    Example:
        >>> squares = MadeList(4, lambda number: number**2)
        >>> squares[-1], squares[1:3], len(squares)
        (9, [1, 4], 4)
    """

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size = size
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._size

    def item(self, number: int) -> T:
        item = self._made.get(number)
        # Another thread may have been faster.
        return self._made.setdefault(number, self._make(number)) if item is None else item

    def once(self, number: int) -> T:
        """One of them, without keeping it if it did not exist: for a pass over many."""
        item = self._made.get(number)
        return self._make(number) if item is None else item


class ChunkPages:
    """The checksums of the chunks of a cache.

    Args:
        table: Table of its parts.
        layout: Layout of its tokens.
        leaves: Its other leaves.
    """

    def __init__(self, table: ColumnTable, layout: CacheLayout, leaves: Sequence[LeafSpec]) -> None:
        self._table = table
        self._layout = layout
        self._leaves = tuple(leaves)
        self._pages: dict[int, asyncio.Task[np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pages": {}}

    async def of_array(self, leaf: str, folder: str, part: int) -> np.ndarray | None:
        """The checksum of each chunk of an array, uint32; None if the table does not name them. For
        the loop's thread.

        Raises:
            ReadError: the number of chunks in the table differs from its parts.
            StoreFailedError: the store failed.
        """
        if not self._table.chunks:
            return None
        first, stop = self._kinds[leaf, folder].first[part : part + 2].tolist()
        pages = range(first // PAGE_CHUNKS, pages_of(stop)) if stop > first else range(0)
        contents = [await self._page(page) for page in pages]
        begin = pages.start * PAGE_CHUNKS
        return np.concatenate([np.zeros(0, np.uint32), *contents])[first - begin : stop - begin]

    def requests(
        self, leaf: str, parts: Int64[np.ndarray, " n"], folder: str = "data"
    ) -> Int64[np.ndarray, " pages"]:
        """The pages that have to be requested to read the values of a leaf in some parts, or its
        ``offsets``.
        """
        if not self._table.chunks:
            return np.zeros(0, np.int64)
        first = self._kinds[leaf, folder].first
        low = first[parts] // PAGE_CHUNKS
        high = -(-first[parts + 1] // PAGE_CHUNKS)
        steps = np.zeros(pages_of(self._table.chunks) + 1, np.int64)
        np.add.at(steps, low, 1)
        np.add.at(steps, np.maximum(low, high), -1)
        last_of_request = np.flatnonzero(np.cumsum(steps[:-1]))
        return last_of_request[last_of_request >= self._at_hand]

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], ArrayChunks]:
        kinds = chunks_of(self._table, self._layout, self._leaves)
        if (count := int(kinds[-1].first[-1])) != self._table.chunks:
            root = self._table.url.removesuffix(f"/{TABLE_NAME}")
            cure = f"Write it anew: {command_to_rewrite(root)}"
            problem = f"names {self._table.chunks} chunks, and its parts have {count}"
            raise ReadError(problem, field="ledger", value=self._table.url, cure=cure)
        return {(kind.leaf, kind.folder): kind for kind in kinds}

    @cached_property
    def _at_hand(self) -> int:
        """Pages in the bytes that were read when the cache was opened."""
        begin, stop = self._table.chunk_place
        if len(self._table.data) >= stop:
            return pages_of(self._table.chunks)
        return max(len(self._table.data) - begin, 0) // PAGE_BYTES

    async def _page(self, page: int) -> np.ndarray:
        task = self._pages.get(page)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._pages[page] = asyncio.ensure_future(self._read(page))
        return await asyncio.shield(task)

    async def _read(self, page: int) -> np.ndarray:
        begin, end = self._table.chunk_place
        start = begin + page * PAGE_BYTES
        stop = min(start + PAGE_BYTES, end)
        if page < self._at_hand:
            return from_page(page, self._table.data[start:stop])

        async def decode(stored: bytes) -> np.ndarray:
            return from_page(page, stored)

        folder, name = Location.parse(self._table.url).up()
        store = Store(files.kvstore_spec(str(folder)), str(folder))
        return await get(store, name, slice(start, stop), decode, index=True)


@dataclass(frozen=True, eq=False)
class ArrayRun:
    """Arrays of one dtype, in chunks of one size.

    Attributes:
        lengths: Elements of each.
        chunk: Elements of a chunk.
        dtype: Dtype of all of them; None: placeholders for arrays that do not exist.
        get: Returns an array by its number.
        shard_chunks: Chunks per file.
        described: Whether chunks can be requested over HTTP without reading ``zarr.json`` first
            (see :class:`~headrace.store.array.StoredArray`).
        computed: Whether they can be requested without the index of their file, too.
        pages: Where to read the checksums of their chunks over HTTP, and their leaf.
    """

    lengths: Int64[np.ndarray, " n"]
    chunk: int
    dtype: np.dtype[Any] | None
    get: Callable[[int], StoredArray | None]
    shard_chunks: int = 1
    described: bool = False
    computed: bool = False
    pages: tuple[ChunkPages, str] | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0: nothing is stored."""
        return 0 if self.dtype is None else self.dtype.itemsize


class ArrayList(ByNumber[StoredArray]):
    """Arrays, run after run.

    Attributes:
        runs: What they are made of.
        lengths: Elements of each array.

    Example:
        >>> import headrace.testing
        >>> arrays = headrace.testing.tiny_cache(parts=3).leaf("input_ids").arrays
        >>> len(arrays), bool((arrays.lengths == [array.length for array in arrays]).all())
        (3, True)
    """

    def __init__(self, runs: Sequence[ArrayRun]) -> None:
        self.runs = tuple(runs)
        self._first = np.cumsum([0, *(run.lengths.size for run in self.runs)])
        lengths = [run.lengths for run in self.runs] or [np.zeros(0, np.int64)]
        self.lengths: Int64[np.ndarray, " n"] = (
            lengths[0] if len(lengths) == 1 else np.concatenate(lengths)
        )

    @classmethod
    def of(cls, arrays: Sequence[StoredArray]) -> ArrayList:
        """Converts arrays to such a list, unless they are one already."""
        if isinstance(arrays, ArrayList):
            return arrays
        return cls([_run_of(array) for array in arrays])

    @classmethod
    def join(cls, lists: Sequence[ArrayList]) -> ArrayList:
        """Lists one after the other."""
        return cls(list(chain.from_iterable(one.runs for one in lists)))

    @classmethod
    def missing(cls, size: int) -> ArrayList:
        """Placeholders for this many arrays that do not exist."""
        return cls([ArrayRun(np.zeros(size, np.int64), 1, None, dict[int, StoredArray]().get)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def item(self, number: int) -> StoredArray:
        array = self.get(number)
        if array is None:
            raise IndexError(f"array {number} is not stored")
        return array

    def get(self, number: int) -> StoredArray | None:
        """An array by its number; None if it is not stored."""
        run = (
            0
            if len(self.runs) == 1
            else int(np.searchsorted(self._first, number, side="right")) - 1
        )
        return self.runs[run].get(number - int(self._first[run]))

    def page_requests(
        self, arrays: Int64[np.ndarray, " n"], folder: str = "data"
    ) -> list[tuple[ChunkPages, Int64[np.ndarray, " pages"]]]:
        """The distinct pages of checksums that have to be requested to read some of the arrays, or
        the ``offsets`` beside them; see :class:`ChunkPages`.
        """
        bounds = np.searchsorted(arrays, self._first)
        requests: list[tuple[ChunkPages, np.ndarray]] = []
        for run, first, low, high in zip(
            self.runs, self._first.tolist(), bounds, bounds[1:], strict=False
        ):
            if run.pages is not None and high > low:
                pages, leaf = run.pages
                requests.append((pages, pages.requests(leaf, arrays[low:high] - first, folder)))
        return requests

    def spread(self, values: Sequence[Any]) -> np.ndarray:
        """Expands one value per run to one per array; takes no memory if all are the same."""
        by_run = np.asarray(values, np.int64)
        if by_run.size and (by_run == by_run[0]).all():
            return np.broadcast_to(by_run[0], len(self))
        return np.repeat(by_run, np.diff(self._first))

    def first_chunks(self) -> Int64[np.ndarray, " n1"]:
        """Number of the first chunk of each array, and the end of the last, counting chunks over
        all arrays.
        """
        sizes = {run.chunk for run in self.runs}  # dividing by one number is faster
        size = sizes.pop() if len(sizes) == 1 else self.spread([r.chunk for r in self.runs])
        return starts((self.lengths + (size - 1)) // size)


def _run_of(array: StoredArray) -> ArrayRun:
    length = np.array([array.length])
    shard = array.layout.shard_chunks
    return ArrayRun(
        length, array.chunk_elements, array.dtype, [array].__getitem__, shard_chunks=shard
    )


@dataclass(frozen=True)
class LeafPart:
    """One part of a leaf: the values of its documents end to end, and the offsets of the documents
    (``documents + 1`` values; None: each has one value).
    """

    documents: int
    data: StoredArray
    offsets: StoredArray | None

    @property
    def borders(self) -> StoredArray:
        """The offsets, where documents have several values, as tokens do."""
        assert self.offsets is not None
        return self.offsets

    @property
    def arrays(self) -> list[StoredArray]:
        """The array with its values, and the one with its offsets."""
        return [self.data] if self.offsets is None else [self.data, self.offsets]


class DocumentEnds:
    """Where the documents of a cache end: the last tokens of documents within runs of its tokens,
    from its stored offsets.

    Price: the offsets of a part are read whole when one of its documents is first asked for, and
    kept: 4 bytes for each document, 8 in parts of 2**32 tokens or more. Then two searches for each
    run.

    Args:
        parts: The parts of its tokens, in order.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=6)
        >>> cache.lengths(0, 3).tolist()
        [44, 33, 27]
        >>> run, last = cache.document_ends.last_tokens(
        ...     np.array([0, 0]), np.array([40, 60]), np.array([40, 10])
        ... )
        >>> run.tolist(), last.tolist()
        ([0, 0], [3, 36])
    """

    def __init__(self, parts: MadeList[LeafPart]) -> None:
        self._parts = parts
        # By part: one past the last token of each document, ascending. Threads that meet store
        # equal values.
        self._ends: dict[int, UInt[np.ndarray, " d"]] = {}
        self._requests: dict[tuple[int, bool], int] = {}

    def last_tokens(
        self,
        part: Int64[np.ndarray, " n"],
        start: Int64[np.ndarray, " n"],
        size: Int64[np.ndarray, " n"],
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """The last tokens of documents in runs of ``size`` tokens, each within one part.

        Args:
            part: Number of each run's part.
            start: Its first token in the part.
            size: Its tokens.

        Returns:
            For each end: the number of its run, and its position in the run. Empty documents may
            repeat one.

        Raises:
            ReadError: offsets cannot be read.
        """
        by_part = np.argsort(part, kind="stable")
        numbers, begins = np.unique(part[by_part], return_index=True)
        self._load(numbers.tolist())
        ends_per_array: list[np.ndarray] = []
        runs: list[np.ndarray] = []
        for number, some in zip(numbers.tolist(), np.split(by_part, begins[1:]), strict=False):
            ends = self._ends[number]
            # A run holds the last token of a document if the end lies behind its first token, and
            # not behind its last.
            first = np.searchsorted(ends, start[some].astype(ends.dtype), side="right")
            stop = np.searchsorted(ends, (start[some] + size[some]).astype(ends.dtype), "right")
            count = stop - first
            run = np.repeat(some, count)
            document = run_numbers(first, count)
            runs.append(run)
            ends_per_array.append(ends[document].astype(np.int64) - 1 - start[run])
        nothing = [np.zeros(0, np.int64)]
        return np.concatenate(runs or nothing), np.concatenate(ends_per_array or nothing)

    def requests(self, part: int, *, described: bool) -> int:
        """Requests over HTTP with which the offsets of a part are read; ``described`` as in
        :class:`~headrace.store.leaf.ArrayRun`. Reads nothing.
        """
        key = (part, described)
        if key not in self._requests:
            offsets = self._parts.once(part).borders
            self._requests[key] = offsets.requests_of_all(described=described)
        return self._requests[key]

    def _load(self, numbers: Iterable[int]) -> None:
        """Reads the offsets of parts that are not there yet, several at a time."""
        flying: deque[tuple[int, ArrayFuture]] = deque()

        def take() -> None:
            number, read = flying.popleft()
            offsets = read.result()
            fits = int(offsets[-1]) < 1 << 32
            self._ends[number] = offsets[1:].astype(np.uint32 if fits else np.uint64)

        for number in numbers:
            if number in self._ends:
                continue
            offsets = self._parts.once(number).borders  # an open one takes 70 KB
            flying.append((number, offsets.read(0, offsets.length)))
            if len(flying) > _READS_IN_FLIGHT:
                take()
        while flying:
            take()


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


@dataclass(frozen=True, eq=False)
class CacheLeaf:
    """One leaf of an open cache. Documents are numbered over the whole cache, part after part.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        kind: ``ragged`` or ``fixed`` (one value per document).
        parts: Its parts, in order.
        arrays: The array with the values of each part.
        first_document: The first document of each part, and the end of the last.
        path: The cache, for errors.
        width: Values per token, if it was built with a fixed number; else None.

    Example:
        >>> import headrace.testing
        >>> tokens = headrace.testing.tiny_cache(documents=5).leaf("input_ids")
        >>> tokens.values(1, 3).size == tokens.lengths(1, 3).sum()
        np.True_
    """

    name: str
    dtype: np.dtype[Any]
    kind: LeafKind
    parts: MadeList[LeafPart]
    arrays: ArrayList
    first_document: Int64[np.ndarray, " parts1"]
    path: str
    width: int | None = None

    @property
    def num_documents(self) -> int:
        return int(self.first_document[-1])

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
            self.name, self.dtype, self.kind, parts, ArrayList.of([part.data]), bounds, self.path
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
        check_range(start, stop, self.num_documents, "documents", self.path)
        return spans(self.first_document, start, stop)


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


def data_of(parts: MadeList[LeafPart], number: int) -> StoredArray:
    """The array with the values of a part."""
    return parts.item(number).data


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
