"""The two passes that shuffle a cache: the first deals documents to slices of the new order, the
second sorts each part.

A *run* is a range of documents of the cache that fits into memory. The first pass reads a run, and
writes its documents slice by slice: ``runs/parts/<run>/<file>.bin`` and ``index.bin``, which has
the position of each slice, with its crc32c. A *slice* is a range of positions of the new order that
fits into memory. The second pass reads a slice from all runs, sorts its documents and appends them
to its part.

Invariant: a part depends only on the documents, the seed and its first and last position; runs and
slices, which depend on the memory, do not affect it. Every run and part is written completely or
not at all.

Price: the values are read twice and written twice; runs x slices reads of intermediate files.
Memory: a run and a slice of it, or a slice twice, and the writer of one part
(:func:`writer_bytes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from jaxtyping import Int64, UInt8

from headrace.errors import CacheCorruptError
from headrace.ingest.progress import Progress
from headrace.ingest.resume import RUNS_FOLDER
from headrace.ingest.schedule import BuildPart
from headrace.order.document_shuffle import (
    DocumentGroups,
    DocumentPieces,
    DocumentShuffle,
    cut_lengths,
)
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.joined import open_cache
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.layouts import FormatConfig
from headrace.store.lease import remove_tree
from headrace.store.ledger import part_folder, write_part_record
from headrace.store.ledger_table import PartRecord
from headrace.store.memory import return_freed_memory
from headrace.store.ragged import LeafValues, PartWriter
from headrace.store.retry import RetryPolicy, policy

INDEX_NAME = "index.bin"
FILE_BYTES = 16 << 20
_BATCH_BYTES = 8 << 20
_SHORT_DOCUMENT = 64  # values; shorter ones are gathered by index, longer ones copied one by one
_READS_AT_ONCE = 16


@dataclass(frozen=True)
class ShuffleTask:
    """A run to deal, or a part to sort: documents of the cache, or positions of the new order."""

    name: str
    first: int
    last: int
    stored_bytes: int

    @property
    def has_known_size(self) -> bool:
        return True


@dataclass(frozen=True)
class Column:
    """The tokens or another leaf: any number of values per document if it is
    ``ragged``, else one. Those with as many values ``per_token`` are cut with the tokens; others
    are those of each piece of a document.
    """

    name: str
    dtype: np.dtype[Any]
    ragged: bool
    per_token: int | None = None

    def of_pieces(
        self, lengths: Int64[np.ndarray, " d"], pieces: Pieces
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """First value of each piece in its document, and number of values, given those of the
        documents.
        """
        length = lengths[pieces.document]
        width = self.per_token or 0
        is_cut = length == pieces.document_tokens * width
        return pieces.offset * width * is_cut, np.where(is_cut, pieces.length * width, length)


class Pieces(NamedTuple):
    """Pieces of documents: the document of each, its first token there, its tokens, and those of
    the whole document.
    """

    document: Int64[np.ndarray, " n"]
    offset: Int64[np.ndarray, " n"]
    length: Int64[np.ndarray, " n"]
    document_tokens: Int64[np.ndarray, " n"]

    @classmethod
    def of(cls, tokens: Int64[np.ndarray, " d"], split: int) -> Pieces:
        """The pieces of documents with so many tokens."""
        document, offset = cut_lengths(tokens, split)
        of_document = tokens[document]
        return cls(document, offset, np.minimum(of_document - offset, split), of_document)


@dataclass(frozen=True)
class ShufflePlan:
    """What all tasks of a pass over the documents share.

    Attributes:
        deals: Whether it is the first pass, whose tasks deal runs; those of the second order parts.
        cache: Path of the cache to shuffle; only the first pass reads it.
        output: Folder or URL of the shuffled cache.
        pieces: How its documents are cut; from here on, documents are pieces.
        split: Tokens of a piece.
        shuffle: The shuffle of the original's documents.
        earlier: The order of the cache itself.
        layout: Layout of the tokens to write.
        columns: The tokens and the other leaves.
        leaves: Leaves other than the tokens.
        runs: int64 ``[runs + 1]``: the first document of each run, and the end. No document of the
            cache goes through two.
        slices: int64 ``[slices + 1]``: the first position of each slice, and the end. Parts begin
            with slices.
        memory: Bytes that a worker may use.
        counters: Counters for the record of the first part; the others get zeros.
        snapshot: The snapshot of the cache that is shuffled.
        settings: How its files are read, if they are another system's.
        pack: Tokens of a row, if documents are packed; None: they are not.
    """

    deals: bool
    cache: str
    output: str
    pieces: DocumentPieces
    split: int
    shuffle: DocumentShuffle | DocumentGroups
    earlier: DocumentShuffle | DocumentGroups
    layout: CacheLayout
    columns: list[Column]
    leaves: tuple[LeafSpec, ...]
    runs: Int64[np.ndarray, " r"]
    slices: Int64[np.ndarray, " s"]
    memory: int
    counters: dict[str, Any]
    snapshot: int = 1
    settings: FormatConfig | None = None
    pack: int | None = None
    retries: RetryPolicy = field(default_factory=policy)

    @property
    def runs_root(self) -> str:
        """Folder of the runs."""
        return files.join(self.output, RUNS_FOLDER)

    @property
    def root(self) -> str:
        """Where the results of the tasks are."""
        return self.runs_root if self.deals else self.output

    @property
    def worker_bytes(self) -> int:
        return self.memory

    def part_builder(self) -> BuildPart:
        return_freed_memory()
        if not self.deals:
            return partial(write_part, self)
        # It is opened once for all runs.
        cache = open_cache(self.cache, self.snapshot, settings=self.settings)
        return partial(deal_run, self, cache)

    def new_places(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """New positions of documents of the cache."""
        return self.shuffle.stored_at(self.earlier.originals(documents))

    def old_places(self, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Documents of the cache at new positions."""
        return self.earlier.stored_at(self.shuffle.originals(places))


@dataclass(frozen=True)
class _Documents:
    """Values of one leaf of documents in several arrays: each document's array, begin and number of
    values.
    """

    arrays: list[np.ndarray]
    array: Int64[np.ndarray, " n"]
    start: Int64[np.ndarray, " n"]
    length: Int64[np.ndarray, " n"]

    @classmethod
    def end_to_end(
        cls, arrays: list[np.ndarray], documents: np.ndarray, length: np.ndarray
    ) -> _Documents:
        """Documents end to end in arrays, with their number in each. Short ones are joined in one
        array.
        """
        if len(arrays) > 1 and sum(a.size for a in arrays) < _SHORT_DOCUMENT * length.size:
            arrays = [np.concatenate(arrays)]
            documents = documents.sum(keepdims=True)
        array = np.repeat(np.arange(len(arrays)), documents)
        ends = np.cumsum(length)
        first = np.cumsum([0, *(a.size for a in arrays[:-1])])
        return cls(arrays, array, ends - length - first[array], length)

    def cut(self, column: Column, pieces: Pieces) -> _Documents:
        """The pieces of the documents."""
        offset, length = column.of_pieces(self.length, pieces)
        start = self.start[pieces.document] + offset
        return _Documents(self.arrays, self.array[pieces.document], start, length)

    def with_zeros(self, column: Column, tokens: Int64[np.ndarray, " p"]) -> _Documents:
        """These documents, and others of so many tokens whose values are zeros."""
        values = tokens * (column.per_token or 0) if column.ragged else np.ones_like(tokens)
        zeros = np.zeros(int(values.max(initial=0)), column.dtype)
        return _Documents(
            [*self.arrays, zeros],
            np.append(self.array, np.full(tokens.size, len(self.arrays))),
            np.append(self.start, np.zeros(tokens.size, np.int64)),
            np.append(self.length, values),
        )

    def take(self, order: Int64[np.ndarray, " m"]) -> np.ndarray:
        """The values of documents in another order."""
        start = self.start[order]
        length = self.length[order]
        total = int(length.sum())
        if len(self.arrays) == 1 and total < _SHORT_DOCUMENT * order.size:
            ends = np.cumsum(length)
            at = np.arange(total)
            at += np.repeat(start - ends + length, length)
            return self.arrays[0].take(at)
        arrays = [self.arrays[k] for k in self.array[order].tolist()]
        ends = (start + length).tolist()
        pieces = [array[a:b] for array, a, b in zip(arrays, start.tolist(), ends, strict=True)]
        return np.concatenate(pieces) if pieces else self.arrays[0][:0]


def deal_run(
    plan: ShufflePlan,
    cache: TokenCache,
    task: ShuffleTask,
    root: str,
    report: Callable[[Progress], None],
) -> PartRecord:
    """Writes the documents of a run slice by slice; its record comes last."""
    folder = part_folder(root, task.name)
    remove_tree(folder)
    new_places = plan.new_places(np.arange(task.first, task.last))
    order = np.argsort(new_places)
    bounds = np.searchsorted(new_places[order], plan.slices).tolist()
    del new_places
    columns = plan.columns
    first, last = plan.pieces.documents_of(np.array([task.first, task.last - 1])).tolist()
    documents = np.array([last + 1 - first])
    pieces = Pieces.of(cache.lengths(first, last + 1), plan.split)
    leaves = [
        _Documents.end_to_end(
            [leaf.values(first, last + 1)], documents, leaf.lengths(first, last + 1)
        ).cut(column, pieces)
        for column, leaf in ((column, cache.leaf(column.name)) for column in columns)
    ]
    index = np.zeros((plan.slices.size - 1, 4), np.int64)
    pending: list[np.ndarray] = []
    size = number = 0
    for k, (a, b) in enumerate(itertools.pairwise(bounds)):
        start = size
        crc = 0
        for piece in _packed(columns, leaves, order[a:b]):
            pending.append(piece)
            # pyright: ignore[reportArgumentType]
            size = size + piece.nbytes
            crc = google_crc32c.extend(crc, piece)
        index[k] = number, start, size, crc
        if size >= FILE_BYTES or k == len(bounds) - 2:
            files.write_atomic(_file(folder, number), [piece.data for piece in pending])
            pending = []
            size = 0
            number = number + 1
    files.write_atomic(files.join(folder, INDEX_NAME), index.astype("<i8").tobytes())
    tokens = int(leaves[0].length.sum())
    report(Progress(task.last - task.first, tokens, task.stored_bytes, task.stored_bytes))
    record = PartRecord(task.name, task.last - task.first, tokens, digest="")
    write_part_record(root, record)
    return record


def _packed(
    columns: Sequence[Column], leaves: Sequence[_Documents], order: Int64[np.ndarray, " n"]
) -> Iterator[UInt8[np.ndarray, " b"]]:
    """The file content for some documents: the lengths in all ragged leaves, then the values in all
    leaves.
    """
    for column, leaf in zip(columns, leaves, strict=True):
        if column.ragged:
            yield leaf.length[order].view(np.uint8)
    for leaf in leaves:
        yield leaf.take(order).view(np.uint8)


def write_part(
    plan: ShufflePlan, task: ShuffleTask, root: str, report: Callable[[Progress], None]
) -> PartRecord:
    """Writes the part for some positions of the new order."""
    columns = plan.columns
    first, last = np.searchsorted(plan.slices, [task.first, task.last]).tolist()
    indices = _read_indices(plan, first, last)
    writer = PartWriter(root, task.name, plan.layout, plan.leaves)
    filled = 0  # tokens of the row that is being written
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="headrace-runs") as pool:
        for k in range(first, last):
            numbers = np.arange(plan.slices[k], plan.slices[k + 1])
            run = np.searchsorted(plan.runs, plan.old_places(numbers), side="right") - 1
            runs = plan.runs.size - 1
            documents = np.bincount(run, minlength=runs)[:runs]
            leaves = _read_slice(plan, indices[:, k - first], documents, pool)
            arrived = np.empty(
                numbers.size, np.int64
            )  # runs one after the other, in each the places in order
            arrived[np.argsort(run, kind="stable")] = np.arange(numbers.size)
            if plan.pack is not None:  # paddings come as if from a further run
                padding, filled = _paddings(leaves[0].length, arrived, plan.pack, filled)
                leaves = [
                    leaf.with_zeros(column, padding)
                    for column, leaf in zip(columns, leaves, strict=True)
                ]
            for batch in _batches(leaves, arrived):
                values: dict[str, LeafValues] = {
                    column.name: (leaf.take(batch), leaf.length[batch] if column.ragged else None)
                    for column, leaf in zip(columns, leaves, strict=True)
                }
                tokens, lengths = values.pop(TOKENS)
                assert lengths is not None  # they are ragged
                writer.append(tokens, lengths, values)
                moved = sum(v.nbytes for v, _ in values.values()) + tokens.nbytes
                report(Progress(batch.size, tokens.size, moved, moved))
    counters = (
        plan.counters
        if task.first == 0
        else {name: type(value)() for name, value in plan.counters.items()}
    )
    return writer.close(**counters)


def _paddings(
    tokens: Int64[np.ndarray, " d"], arrived: Int64[np.ndarray, " n"], row: int, filled: int
) -> tuple[Int64[np.ndarray, " p"], int]:
    """The tokens of the paddings in a slice, each of which fills the row of the documents before
    it; and those of the row that is open at its end.

    Args:
        tokens: Tokens of its documents.
        arrived: Which document is where; numbers from the number of documents on are paddings.
        row: Tokens of a row.
        filled: Tokens of the row that is open at its begin.

    Example:
        >>> _paddings(np.array([4, 3, 5, 1]), np.array([0, 4, 2, 5, 1, 3]), row=6, filled=1)
        (array([1, 1]), 4)
    """
    is_padding = arrived >= tokens.size
    of_place = np.append(tokens, 0)[np.minimum(arrived, tokens.size)]
    rows = np.add.reduceat(
        np.append(filled, of_place), np.append(0, np.flatnonzero(is_padding) + 1)
    )
    return row - rows[:-1], int(rows[-1])


def _batches(
    leaves: Sequence[_Documents], order: Int64[np.ndarray, " n"]
) -> Iterator[Int64[np.ndarray, " m"]]:
    """Documents in order, in batches of some megabytes."""
    weight = np.full(order.size, 16 * len(leaves), np.int64)
    for leaf in leaves:
        weight += leaf.length[order] * leaf.arrays[0].itemsize
    ends = np.cumsum(weight)
    first = 0
    while first < order.size:
        reached = int(ends[first]) - int(weight[first]) + _BATCH_BYTES
        last = max(int(np.searchsorted(ends, reached, side="right")), first + 1)
        yield order[first:last]
        first = last


def _read_indices(plan: ShufflePlan, first: int, last: int) -> Int64[np.ndarray, "r k 4"]:
    """Positions of the slices ``first .. last`` in each run."""
    row = 4 * 8  # bytes

    def read(number: int) -> np.ndarray:
        url = files.join(part_folder(plan.runs_root, run_name(number)), INDEX_NAME)
        raw = files.read_range(url, first * row, last * row)
        if len(raw) != (last - first) * row:
            raise _damaged(plan, url)
        return np.frombuffer(raw, "<i8").reshape(-1, 4)

    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="headrace-runs") as pool:
        return np.stack(list(pool.map(read, range(plan.runs.size - 1))))


def _read_slice(
    plan: ShufflePlan,
    index: Int64[np.ndarray, "r 4"],
    documents: Int64[np.ndarray, " r"],
    pool: ThreadPoolExecutor,
) -> list[_Documents]:
    """The leaves of the documents of one slice, those of each run together."""

    def read(number: int) -> bytes:
        file, start, stop, crc = index[number].tolist()
        url = _file(part_folder(plan.runs_root, run_name(number)), file)
        raw = files.read_range(url, start, stop)
        if len(raw) != stop - start or google_crc32c.value(raw) != crc:
            raise _damaged(plan, url)
        return raw

    runs = np.flatnonzero(documents).tolist()
    pieces = list(pool.map(read, runs))
    at = np.zeros(len(pieces), np.int64)
    lengths: list[np.ndarray | None] = []
    for column in plan.columns:
        if not column.ragged:
            lengths.append(None)
            continue
        views = [
            np.frombuffer(p, np.int64, int(documents[r]), int(a))
            for p, r, a in zip(pieces, runs, at, strict=True)
        ]
        lengths.append(np.concatenate(views))
        at += 8 * documents[runs]
    leaves: list[_Documents] = []
    for column, length in zip(plan.columns, lengths, strict=True):
        first = np.cumsum(documents[runs]) - documents[runs]
        length = np.ones(int(documents.sum()), np.int64) if length is None else length
        sizes = np.add.reduceat(length, first)
        views = [
            np.frombuffer(p, column.dtype, int(n), int(a))
            for p, n, a in zip(pieces, sizes, at, strict=True)
        ]
        leaves.append(_Documents.end_to_end(views, documents[runs], length))
        at += sizes * column.dtype.itemsize
    return leaves


def _damaged(plan: ShufflePlan, url: str) -> CacheCorruptError:
    return CacheCorruptError(
        "is not what was written",
        field="file",
        value=url,
        cure=f"Delete {plan.runs_root} and run the same command again.",
    )


def columns_of(cache: TokenCache, layout: CacheLayout) -> list[Column]:
    """The tokens, then the other leaves."""
    others = [
        Column(
            spec.name,
            np.dtype(spec.dtype),
            spec.kind == "ragged",
            cache.values_per_token(spec.name),
        )
        for spec in cache.leaf_specs
    ]
    return [Column(TOKENS, np.dtype(layout.dtype), ragged=True, per_token=1), *others]


def run_name(number: int) -> str:
    """Name of a run."""
    return f"{number:05d}"


def _file(folder: str, number: int) -> str:
    return files.join(folder, f"{number}.bin")


def writer_bytes(
    layout: CacheLayout, leaves: Sequence[LeafSpec], elements: int, documents: int
) -> int:
    """Largest memory of the writer of a part, in bytes: some copies of a shard of each leaf, and
    the lengths.

    Args:
        layout: Layout of the tokens.
        leaves: Other leaves.
        elements: Approximate number of values of the largest leaf in a part.
        documents: Documents of a part.
    """
    layouts = [layout, *(layout.leaf(spec) for spec in leaves)]
    shards = sum(
        min(one.shard_elements, elements) * np.dtype(one.dtype).itemsize for one in layouts
    )
    ragged = 1 + sum(spec.kind == "ragged" for spec in leaves)
    return 3 * shards + 24 * ragged * documents
