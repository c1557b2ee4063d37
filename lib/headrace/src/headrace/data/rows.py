"""Where training rows are stored: the interface between datasets (which row) and feeding (read it).

A row is a fixed number of stored elements, usually in one piece. Datasets map an index to rows
(``Rows``), sources map a row to its storage (``Pieces``), and a ``BlockSpace`` numbers the stored
blocks that pieces lie in; all are pure, without I/O. Rows are read in two places: here, with
coalesced ranges for ``get_batch``, and in ``feed``, with planned blocks for training.
"""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, Shaped, UInt8

from headrace.data.columns import Column, RunColumn, run_columns
from headrace.errors import ConfigError
from headrace.metrics import ReadStats
from headrace.order.intervals import Intervals, run_numbers, starts
from headrace.order.windows import Windows, WindowsTable
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.layout import TOKENS
from headrace.store.leaf import ArrayList, ChunkPages, DocumentEnds


class Rows(NamedTuple):
    """The rows of a request, in the order of the request.

    Attributes:
        source: Number of the row's source.
        row: Row number within the source.
        locality: Position in the store's reading front, in [0, 1); see ``Order.locality``.
    """

    source: Int64[np.ndarray, " n"]
    row: Int64[np.ndarray, " n"]
    locality: Float64[np.ndarray, " n"]


class Explained(NamedTuple):
    """The origin of examples; arrays int64 ``[n]``.

    Attributes:
        names: Name of each component; a single empty name if there is no mixture.
        component: Component of each example.
        ordinal: Number of examples of the component that were drawn before it.
        epoch: Number of complete passes over the component before it.
    """

    names: tuple[str, ...]
    component: Int64[np.ndarray, " n"]
    ordinal: Int64[np.ndarray, " n"]
    epoch: Int64[np.ndarray, " n"]


class Pieces(NamedTuple):
    """Rows as runs of stored elements; all int64 vectors of one length, ordered by row and column.

    Attributes:
        row: Number of the row in the request.
        column: Position in the row where the piece begins.
        array: Array of the piece.
        start: Its first element in the array.
        size: Number of elements. Where a row has no piece, it is filled with zeros or with
            :attr:`RowSource.fill`.
    """

    row: Int64[np.ndarray, " p"]
    column: Int64[np.ndarray, " p"]
    array: Int64[np.ndarray, " p"]
    start: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """The pieces of different rows of one request."""
        every = cls(*(np.concatenate(field) for field in zip(*parts, strict=True)))
        order = np.argsort(every.row, kind="stable")
        return cls(*(field[order] for field in every))


class RowSource(abc.ABC):
    """Rows of equal length in a list of stored arrays. What a kind of rows does not have, such as
    segments or gaps, is here as its absence.

    Attributes:
        cache: The cache that the rows are of.
        name: Name for counters and reports.
        row_elements: Number of elements in a row.
        arrays: The arrays that ``Pieces.array`` numbers: a part of the cache each.
        columns: Columns of the batches.
        ends: For rows that are cut from a stream and divided into the documents that meet in them,
            where documents end: as the cache stores it, or after each of these tokens; None: rows
            are not divided so.
        has_gaps: Whether rows continue behind a gap where no stored token ends a document.
        has_padding: Whether padding is stored behind what rows hold.
        fill: The token of a row where there is no piece.
        max_segments: Upper bound of the segments in a row, for rows that know where these end,
            whatever their tokens; 0: they do not.
        whole_windows: How rows are numbered if they are windows over whole arrays.
    """

    has_gaps: bool = False
    has_padding: bool = False
    fill: int = 0
    max_segments: int = 0
    whole_windows: Windows | None = None

    def __init__(
        self,
        cache: TokenCache,
        name: str,
        row_elements: int,
        columns: Mapping[str, Column] | None = None,
        ends: DocumentEnds | int | None = None,
    ) -> None:
        self.cache = cache
        self.name = name
        self.row_elements = row_elements
        self.arrays: Sequence[StoredArray] = cache.leaf(TOKENS).arrays
        self.columns = columns or {}
        self.ends = ends

    @cached_property
    def first_token(self) -> Int64[np.ndarray, " p1"]:
        """Where each array begins in the stream of all parts, and where the last one ends."""
        return starts(self.cache.part_tokens)

    def in_arrays(
        self, token: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Array of each token of the stream of all parts, and its position there."""
        array = np.searchsorted(self.first_token, token, side="right") - 1
        return array, token - self.first_token[array]

    @property
    @abc.abstractmethod
    def num_rows(self) -> int:
        """Number of rows."""

    @abc.abstractmethod
    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        """The pieces of rows, one per row unless something was cut out of it. Pure; rows are not
        checked.
        """

    def content(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        """The pieces of rows without stored padding. Rows are not checked."""
        pieces = self.pieces(rows)
        if not self.has_padding:
            return pieces
        return without_padding(pieces, self.segment_lengths(rows))

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        """Number of elements of each row's segments, zeros after the last; rows that do not know
        them are one segment. Pure; rows are not checked.
        """
        return np.full((rows.size, 1), self.row_elements, np.int32)

    def count_content(
        self, first: int, stop: int
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Tokens, without padding, and segments of each of the rows ``first .. stop``."""
        lengths = self.segment_lengths(np.arange(first, stop))
        return lengths.sum(axis=1, dtype=np.int64), (lengths > 0).sum(axis=1)

    @property
    def stored_ends(self) -> DocumentEnds | None:
        """Where the ends of documents are stored; None: nowhere."""
        return self.ends if isinstance(self.ends, DocumentEnds) else None

    @property
    def end_token(self) -> int | None:
        """The token that ends documents, if it is not stored where they end."""
        return self.ends if isinstance(self.ends, int) else None

    def last_tokens(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """The last tokens of stored documents in rows, and those before a gap: number of the row in
        the request, and column. What follows a gap in the row is no continuation, wherever in a
        document it begins.
        """
        pieces = self.pieces(rows)
        stop = pieces.start + pieces.size
        continues = (pieces.array[1:] == pieces.array[:-1]) & (pieces.start[1:] == stop[:-1])
        at = np.flatnonzero((pieces.row[1:] == pieces.row[:-1]) & ~continues)
        row = pieces.row[at]
        column = pieces.column[at] + pieces.size[at] - 1
        if self.stored_ends is None:
            return row, column
        piece, position = self.stored_ends.last_tokens(pieces.array, pieces.start, pieces.size)
        return (
            np.concatenate([row, pieces.row[piece]]),
            np.concatenate([column, pieces.column[piece] + position]),
        )

    @property
    def unerased(self) -> RowSource:
        """The rows with all that was ever stored of them."""
        return self

    def is_erased(self, token: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Whether tokens of the cache, by their positions in the stream of all parts, are missing
        from the rows of :attr:`unerased`.
        """
        return np.zeros(token.size, bool)

    def in_stream(self, tokens: Intervals) -> Intervals | None:
        """Positions of tokens of the cache in the stream from which rows are cut; None: they are
        not cut from one.
        """
        return None


def without_padding(pieces: Pieces, segments: Int32[np.ndarray, "n M"]) -> Pieces:
    """The pieces of rows as far as these segments reach.

    Example:
        >>> row = np.arange(2)
        >>> pieces = Pieces(row, row * 0, row * 0, row * 8, row * 0 + 8)
        >>> without_padding(pieces, np.array([[3, 5], [4, 0]])).size.tolist()
        [8, 4]
    """
    remaining = segments.sum(axis=1)[pieces.row] - pieces.column
    if (remaining >= pieces.size).all():
        return pieces
    cut = pieces._replace(size=np.minimum(pieces.size, remaining))
    return Pieces(*(field[remaining > 0] for field in cut))


def segments_of(
    sources: Sequence[RowSource], source: Int64[np.ndarray, " n"], row: Int64[np.ndarray, " n"]
) -> Int32[np.ndarray, "n M"] | None:
    """Segments of rows, one per row if the source does not know its segments; None if no source
    does.
    """
    most = max(s.max_segments for s in sources)
    if most == 0:
        return None
    if len(sources) == 1:
        return sources[0].segment_lengths(row)
    lengths = np.zeros((row.size, most), np.int32)
    lengths[:, 0] = sources[0].row_elements
    for number, s in enumerate(sources):
        if s.max_segments:
            of_source = np.flatnonzero(source == number)
            lengths[of_source] = 0
            lengths[of_source, : s.max_segments] = s.segment_lengths(row[of_source])
    return lengths


def ends_of(
    sources: Sequence[RowSource], source: Int64[np.ndarray, " n"], row: Int64[np.ndarray, " n"]
) -> UInt8[np.ndarray, "n W"] | None:
    """Where documents end within rows, as
    :attr:`headrace.batch.packed_batch.PackedBatch.document_ends`; None if no source stores it. Rows
    of sources whose ends follow from tokens have none yet: see :func:`add_ends_by_token`.
    """
    split = {
        k: s
        for k, s in enumerate(sources)
        if s.ends is not None and (s.stored_ends is not None or s.has_gaps)
    }
    if not split:
        return None
    bits = np.zeros((row.size, -(-sources[0].row_elements // 8)), np.uint8)
    for number, one in split.items():
        of_source = np.flatnonzero(source == number) if len(sources) > 1 else np.arange(row.size)
        if of_source.size:
            request, column = one.last_tokens(row[of_source])
            byte = of_source[request] * bits.shape[1] + (column >> 3)
            np.bitwise_or.at(bits.reshape(-1), byte, (1 << (column & 7)).astype(np.uint8))
    return bits


def add_ends_by_token(
    bits: UInt8[np.ndarray, "n W"] | None,
    sources: Sequence[RowSource],
    source: Int64[np.ndarray, " n"],
    tokens: Shaped[np.ndarray, "n S"],
) -> None:
    """Adds the ends of documents in rows of sources that do not store them, where other sources of
    the batch do.

    Args:
        bits: What :func:`ends_of` returned; these rows are written.
        sources: The sources.
        source: Source of each row; -1 for rows without data.
        tokens: Tokens of the rows.

    Raises:
        ConfigError: this host holds only some columns of the rows.
    """
    if bits is None:
        return
    by_token = ends_by_token(sources)
    if not by_token:
        return
    if tokens.shape[1] < sources[0].row_elements:
        first = sources[next(iter(by_token))].name
        raise ConfigError(
            "needs whole rows on each host, as this source stores no documents and others do",
            field="split_documents",
            value=first,
            cure="Use a mesh that does not split sequences over hosts, or split_documents: false.",
        )
    for number, end in by_token.items():
        of_source = np.flatnonzero(source == number)
        is_end = tokens[of_source] == end
        bits[of_source] |= np.packbits(is_end, axis=1, bitorder="little")


def ends_by_token(sources: Sequence[RowSource]) -> dict[int, int]:
    """The token that ends documents, by the number of each source that does not store where they
    end.
    """
    return {k: s.end_token for k, s in enumerate(sources) if s.end_token is not None}


class FurtherRows(RowSource):
    """The rows of a source, and behind them those of another of its kind over the same arrays.

    A run numbers its sources once. So what is left of an epoch that a change of ``seq_len`` cut
    short is no source of its own: the rows of a dataset keep their numbers, and further rows follow
    them.
    """

    has_gaps = True
    """Further rows continue across what was drawn before, where no stored token ends a document."""

    def __init__(self, rows: RowSource, further: RowSource) -> None:
        super().__init__(rows.cache, rows.name, rows.row_elements, rows.columns, rows.ends)
        self.rows = rows
        self.further = further
        self.max_segments = max(rows.max_segments, further.max_segments)

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows + self.further.num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        if int(rows.max(initial=0)) < self.rows.num_rows:
            return self.rows.pieces(rows)
        of_sides: list[Pieces] = []
        for source, at, rows_of_side in self._sides(rows):
            pieces = source.pieces(rows_of_side)
            of_sides.append(pieces._replace(row=at[pieces.row]))
        return Pieces.joined(of_sides)

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        for source, at, rows_of_side in self._sides(rows):
            lengths[at, : source.max_segments] = source.segment_lengths(rows_of_side)
        return lengths

    def _sides(
        self, rows: Int64[np.ndarray, " n"]
    ) -> Iterator[tuple[RowSource, Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]]:
        """Each of the two sources, where its rows are in the request, and their numbers there."""
        is_further = rows >= self.rows.num_rows
        at = np.flatnonzero(~is_further)
        yield self.rows, at, rows[at]
        at = np.flatnonzero(is_further)
        yield self.further, at, rows[at] - self.rows.num_rows


class JoinedRows:
    """Finds the pieces of rows of several sources: in one pass those of sources whose rows are
    :class:`~headrace.order.windows.Windows` over whole arrays (``RowSource.whole_windows``), others
    source by source.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = sources
        self.has_padding = any(source.has_padding for source in sources)
        windows = [source.whole_windows for source in sources if len(sources) > 1]
        self._joined = np.array([w is not None for w in windows])
        window_sources: list[Windows] = [w for w in windows if w is not None]
        self._table = WindowsTable(window_sources) if window_sources else None
        self._number = np.cumsum(self._joined) - 1
        self._first_part = starts(np.array([w.rows_of_part.size for w in window_sources], np.int64))

    def pieces(
        self,
        source: Int64[np.ndarray, " n"],
        row: Int64[np.ndarray, " n"],
        first_array: Int64[np.ndarray, " s"],
    ) -> Pieces:
        """The pieces of rows, ordered by row and column. Arrays of source s are numbered from
        ``first_array[s]`` on.
        """
        if len(self._sources) == 1 or row.size == 0:  # a host may hold nothing but padding
            return self._sources[0].pieces(row)
        present = np.flatnonzero(np.bincount(source, minlength=len(self._sources)))
        joined = self._joined[present]
        if joined.all():
            return self._pieces_of_joined(np.arange(row.size), source, row, first_array)
        of_sources: list[Pieces] = []
        if joined.any():
            rows = np.flatnonzero(self._joined[source])
            of_sources.append(self._pieces_of_joined(rows, source[rows], row[rows], first_array))
        for number in present[~joined].tolist():
            rows = np.flatnonzero(source == number)
            pieces = self._sources[number].pieces(row[rows])
            of_sources.append(
                pieces._replace(row=rows[pieces.row], array=pieces.array + first_array[number])
            )
        return Pieces.joined(of_sources)

    def _pieces_of_joined(
        self, rows: np.ndarray, source: np.ndarray, row: np.ndarray, first_array: np.ndarray
    ) -> Pieces:
        assert self._table is not None
        number = self._number[source]
        part, start = self._table.locate(number, row)
        size = np.full_like(row, self._sources[0].row_elements)
        array = part - self._first_part[number] + first_array[source]
        return Pieces(rows, np.zeros_like(row), array, start, size)


class BlockSpace:
    """Numbers all blocks (stored chunks) of all arrays of a dataset consecutively. Sources over the
    same cache, such as its buckets, share its arrays, and thus the blocks in memory.

    Attributes:
        arrays: All arrays of tokens, source by source; arrays that sources share appear once.
        kinds: The tokens, in these arrays, and the columns of the sources.
        chunk: Elements of a block, for each array.
        first_block: Number of each array's first block; its last entry is the number of all blocks.
        kind_bytes: For each kind, the bytes that each of its chunks takes in memory.
        slot_bytes: Bytes that each block takes in memory, the sum of these.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        first: dict[object, int] = {}
        arrays = [source.arrays for source in sources]
        number_of = [
            first.setdefault(_stored_in(*one), len(first))
            for one in zip(sources, arrays, strict=True)
        ]
        ends = [source.stored_ends for source in sources]
        sources = [sources[number_of.index(number)] for number in range(len(first))]
        self.arrays = ArrayList.join([ArrayList.of(s.arrays) for s in sources])
        dtypes = {run.dtype for run in self.arrays.runs if run.dtype is not None}
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.int32)
        fill = max(source.fill for source in sources)
        self.kinds = [
            RunColumn("tokens", 1, dtype, 0, self.arrays, fill=fill),
            *run_columns(sources),
        ]
        bounds = np.cumsum([0] + [len(s.arrays) for s in sources])
        self.first_array = bounds[number_of]
        # Stored ends of documents, by the first of the arrays beside which they lie, and one past
        # the last
        self._ends = {
            (int(bounds[number]), int(bounds[number + 1])): one
            for number, one in zip(number_of, ends, strict=True)
            if one is not None
        }
        chunks = [run.chunk for run in self.arrays.runs]
        self.chunk = self.arrays.spread(chunks)
        self._one_chunk = chunks[0] if len(set(chunks)) == 1 else None
        self.first_block = self.arrays.first_chunks()
        self.kind_bytes = [_largest_chunk(kind, self.chunk) for kind in self.kinds]
        self.slot_bytes = sum(self.kind_bytes)

    def block_bytes(self) -> Int64[np.ndarray, " a"]:
        """Bytes of a full block of each array, including its columns."""
        itemsizes = [
            k.width * k.arrays.spread([run.itemsize for run in k.arrays.runs]) for k in self.kinds
        ]
        return self.chunk * sum(itemsizes)  # what is not stored is not read

    def block_requests(self) -> Int64[np.ndarray, " a"]:
        """Requests that a block of each array takes: one for its tokens and one for each column
        stored in chunks.
        """
        return np.sum(
            [k.arrays.spread([run.itemsize > 0 for run in k.arrays.runs]) for k in self.kinds],
            axis=0,
        )

    def index_requests(self, blocks: Int64[np.ndarray, " u"]) -> int:
        """Requests for ``zarr.json``, file indices, pages of checksums and stored ends of documents
        by a host that reads these blocks, which must be distinct.
        """
        kinds = [kind.arrays for kind in self.kinds]
        array = self.array_of(blocks)
        arrays_read = np.unique(array)
        split = self._split_arrays(arrays_read)
        pages: dict[ChunkPages, list[np.ndarray]] = {}
        for pages_of_kind in (
            *(kind.page_requests(arrays_read) for kind in kinds),
            self.arrays.page_requests(np.array(sorted(split), np.int64), "offsets"),
        ):
            for of_cache, numbers in pages_of_kind:
                pages.setdefault(of_cache, []).append(numbers)
        requests = sum(np.unique(np.concatenate(numbers)).size for numbers in pages.values())
        described = self.arrays.spread([run.described for run in self.arrays.runs])
        requests += sum(
            ends.requests(part, described=bool(described[number]))
            for number, (ends, part) in split.items()
        )
        if all(run.computed or run.dtype is None for kind in kinds for run in kind.runs):
            return requests
        chunk = blocks - self.first_block[array]
        for kind in kinds:
            needs_request = (
                kind.spread([not run.described and run.dtype is not None for run in kind.runs])[
                    array
                ]
                != 0
            )
            requests += np.unique(array[needs_request]).size
            needs_request = (
                kind.spread([not run.computed and run.dtype is not None for run in kind.runs])[
                    array
                ]
                != 0
            )
            shard = chunk // kind.spread([run.shard_chunks for run in kind.runs])[array]
            requests += np.unique(
                np.stack([array[needs_request], shard[needs_request]]), axis=1
            ).shape[1]
        return requests

    def _split_arrays(self, arrays: Int64[np.ndarray, " n"]) -> dict[int, tuple[DocumentEnds, int]]:
        """Those of some arrays beside which the ends of documents are read, and the part of each;
        of several over one part, the first, because ends are kept.
        """
        first_of_part: dict[tuple[DocumentEnds, int], int] = {}
        for (first, stop), ends in self._ends.items():
            low, high = np.searchsorted(arrays, (first, stop))
            for number in arrays[low:high].tolist():
                first_of_part.setdefault((ends, number - first), number)
        return {number: part for part, number in first_of_part.items()}

    def chunk_of(self, array: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"] | int:
        """Elements of a block of each array: a single number if all are equal, because it divides
        faster.
        """
        return self.chunk[array] if self._one_chunk is None else self._one_chunk

    def array_of(self, blocks: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The array that each block belongs to."""
        return np.searchsorted(self.first_block, blocks, side="right") - 1

    def place_of(self, block: int) -> tuple[int, int]:
        """The array that a block belongs to, and the number of its chunk in it."""
        # NumPy's search would release the interpreter's lock and wait to get it back
        array = bisect_right(self.first_block, block) - 1
        return array, block - int(self.first_block[array])


def _largest_chunk(kind: RunColumn, chunk: Int64[np.ndarray, " a"]) -> int:
    """Bytes of the largest chunk of a column; 0 if none of it is stored in chunks."""
    if not kind.is_stored:
        return 0
    itemsizes = kind.arrays.spread(
        [run.itemsize or kind.dtype.itemsize for run in kind.arrays.runs]
    )
    return int((chunk * kind.width * itemsizes).max() + 7) // 8 * 8


def _stored_in(source: RowSource, arrays: object) -> object:
    """A key for the place where a source is stored: its arrays, and the leaves that their cache has
    beside them.
    """
    columns = source.columns.items()
    return id(arrays), *sorted(
        (name, c.leaf, len(c.arrays), len(c.documents)) for name, c in columns
    )


async def read_rows(sources: Sequence[RowSource], rows: Rows, stats: ReadStats) -> np.ndarray:
    """Reads rows, in any order and with repeats, with one request for each run of neighbours; adds
    to ``stats``.

    Returns:
        Array ``[n, row_elements]`` in the order of ``rows``; the widest of the sources' dtypes.
    """
    runs = [run for s in sources for run in ArrayList.of(s.arrays).runs]
    dtype = np.result_type(*(run.dtype for run in runs if run.dtype is not None))
    out = np.empty((rows.row.size, sources[0].row_elements), dtype)
    for source, at, distinct, inverse in _by_source(sources, rows):
        pieces = source.content(distinct)
        reads_before = stats.tensorstore_reads_issued
        elements = await _read_pieces(source.arrays, pieces, stats)
        values = _rows_of(elements, pieces, distinct.size, source.row_elements, source.fill)
        out[at] = values[inverse]
        stats.examples_requested += at.size
        stats.unique_examples += distinct.size
        stats.coalesced_ranges += stats.tensorstore_reads_issued - reads_before
    return out


def _by_source(
    sources: Sequence[RowSource], rows: Rows
) -> Iterator[tuple[RowSource, np.ndarray, np.ndarray, np.ndarray]]:
    """Each source of rows, where these are in the request, and which they are: numbers in the
    source, each once, and the place of each row's number among them.
    """
    for number in np.unique(rows.source).tolist():
        of_source = np.flatnonzero(rows.source == number)
        yield sources[number], of_source, *np.unique(rows.row[of_source], return_inverse=True)


async def _read_pieces(
    arrays: Sequence[StoredArray], pieces: Pieces, stats: ReadStats
) -> np.ndarray:
    """The elements of pieces, end to end."""
    first, spans = adjacent_runs(pieces.array, pieces.start, pieces.size)
    ranges = (a[first].tolist() for a in (pieces.array, pieces.start))
    futures = [
        arrays[array].read(start, start + size)
        for array, start, size in zip(*ranges, spans.tolist(), strict=True)
    ]
    elements = np.concatenate([await f for f in futures] or [np.zeros(0, np.int64)])
    stats.tensorstore_reads_issued += len(futures)
    stats.bytes_read += elements.nbytes
    return elements


async def read_columns(
    sources: Sequence[RowSource], rows: Rows, stats: ReadStats
) -> dict[str, np.ndarray]:
    """The columns of rows by name, ``[n, S]`` or ``[n, S, K]``, in the order of ``rows``; adds
    reads to ``stats``.
    """
    return {
        column.name: await _read_column(column, sources, rows, stats)
        for column in run_columns(sources)
    }


async def _read_column(
    column: RunColumn, sources: Sequence[RowSource], rows: Rows, stats: ReadStats
) -> Shaped[np.ndarray, "n S ..."]:
    length = sources[0].row_elements
    out = np.empty((rows.row.size, length * column.width), column.dtype)
    for source, at, distinct, inverse in _by_source(sources, rows):
        pieces = _widened(source.content(distinct), column.width)
        own = source.columns.get(column.name)
        if own is not None and own.arrays:
            values = await _read_pieces(own.arrays, pieces, stats)
        else:
            values = np.full(int(pieces.size.sum()), column.default, column.dtype)
        if own is not None and own.documents:
            begin = starts(pieces.size)
            for array in np.unique(pieces.array).tolist():
                some = np.flatnonzero(pieces.array == array)
                runs = own.documents[array].of_tokens(pieces.start[some], pieces.size[some])
                values[run_numbers(begin[some], pieces.size[some])] = runs
        out[at] = _rows_of(values, pieces, distinct.size, out.shape[1])[inverse]
    return out if column.width == 1 else out.reshape(-1, length, column.width)


def _widened(pieces: Pieces, width: int) -> Pieces:
    """The same where each token has ``width`` elements."""
    return pieces._replace(
        column=pieces.column * width, start=pieces.start * width, size=pieces.size * width
    )


def _rows_of(
    elements: np.ndarray, pieces: Pieces, rows: int, length: int, fill: int = 0
) -> np.ndarray:
    """Pieces, end to end, as rows; gaps have the value ``fill``."""
    if elements.size == rows * length:
        return elements.reshape(rows, length)
    out = np.full(rows * length, fill, elements.dtype)
    out[run_numbers(pieces.row * length + pieces.column, pieces.size)] = elements
    return out.reshape(rows, length)


def adjacent_runs(
    array: Int64[np.ndarray, " p"], start: Int64[np.ndarray, " p"], size: Int64[np.ndarray, " p"]
) -> tuple[Int64[np.ndarray, " r"], Int64[np.ndarray, " r"]]:
    """Maximal runs of consecutive pieces of the same array: the first piece of each, and its number
    of elements.

    Example:
        >>> adjacent_runs(np.array([0, 0, 0, 1]), np.array([0, 4, 9, 13]), np.array([4, 4, 4, 4]))
        (array([0, 2, 3]), array([8, 4, 4]))
    """
    if array.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    follows = (array[1:] == array[:-1]) & (start[1:] == start[:-1] + size[:-1])
    first = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(~follows) + 1])
    return first, np.add.reduceat(size, first)
