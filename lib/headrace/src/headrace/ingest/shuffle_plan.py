"""The plan of a shuffle: its costs, its parts, and the pieces that fit into memory.

Parts are ranges of positions of the new order, which depend on the documents and the size of a
part. Runs (ranges of documents of the cache) and slices (ranges of positions) depend exactly on the
lengths of all documents and the memory: a run or a slice takes at most half of the memory that the
writer of a part leaves, unless it is a single document.

Price: the lengths of all documents are read once, 8 bytes per document and ragged leaf; 0.2 us per
document.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Int64, UInt8

from headrace.errors import CacheError, ConfigError, check_at_least, redact
from headrace.ingest.pack_order import PackOrder
from headrace.ingest.shuffle_parts import Column, Pieces, columns_of, writer_bytes
from headrace.order.document_shuffle import (
    NEVER_CUT,
    DocumentGroups,
    DocumentPieces,
    DocumentShuffle,
)
from headrace.order.seeds import check_seed
from headrace.progress import track
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout

DEFAULT_PART_BYTES = 256 << 20
MAX_PARTS = 4096
BASE_BYTES = 192 << 20
"""Memory of a worker without documents: the interpreter, its libraries and reads in flight."""
_LEAST_DOCUMENTS = 16 << 20
_READ_BYTES = (
    1 << 20
)  # reads between the passes are at least so long where memory is left to headrace
_LEAST_MEMORY = 1 << 30
_DOCUMENT_BYTES = 48  # of memory, beside 16 a ragged leaf: places and orders
_BINS = 1 << 16
_LENGTHS = 1 << 20  # documents
_PAIRS = "chosen"
STAYS = 255
"""In place of a group: documents that are not written."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of documents that are to lie together.

    Attributes:
        of_document: The group of each document, in the order of the cache; :data:`STAYS` if it is
            not written.
        by: The options with which it was made, for the command that finishes the store.
        moved: Whether only documents are written that moved from one group to another.
    """

    of_document: UInt8[np.ndarray, " documents"]
    by: tuple[str, ...] = ()
    moved: bool = False

    @cached_property
    def digest(self) -> str:
        """Digest of the groups of all documents."""
        return hashlib.sha256(self.of_document.tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class ReshuffleConfig:
    """How a store is shuffled.

    Attributes:
        seed: Integer seed of the order.
        unit: Number of neighbouring documents that stay together; None: 2 for a cache of preference
            pairs, else 1.
        memory: Bytes of memory per worker; None: depends on the size, 1 GiB up to some 100 GB. A
            larger document is still held whole. No effect on the result.
        part_bytes: Approximate stored bytes in a part; more for caches that would have more than
            4,096 parts.
        split: Tokens after which documents are cut, and at multiples of it; best the length of
            rows. Pieces are shuffled like documents, and numbers remain those of whole documents.
            None: documents stay whole.
        groups: Groups of documents that are to lie together, one behind the other; each is shuffled
            in itself, and has parts of its own. None: all documents are mixed.
        pack: Tokens of the rows into which documents are packed, whole, but cut at this length;
            see :mod:`headrace.ingest.pack_order`. None: they are not packed.

    Raises:
        ConfigError: a value is out of range.
    """

    seed: int
    unit: int | None = None
    memory: int | None = None
    part_bytes: int = DEFAULT_PART_BYTES
    split: int | None = None
    groups: Grouping | None = None
    pack: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        DocumentShuffle(0, self.seed, 1 if self.unit is None else self.unit)
        check_at_least("memory", self.memory, cure="Count in bytes, e.g. 2147483648.")
        check_at_least("part_bytes", self.part_bytes, cure="Count in bytes.")
        check_at_least("split", self.split, cure="Give the tokens of a row, e.g. 4096.")
        check_at_least("pack", self.pack, 2, cure="Give the tokens of a row, e.g. 4096.")
        if self.pack is not None and (self.split or self.groups):
            raise ConfigError(
                "cuts documents at rows itself" if self.split else "mixes all documents",
                field="pack",
                value=self.pack,
                cure=f"Leave {'--split' if self.split else '--by'} out.",
            )

    @property
    def cut(self) -> int | None:
        """Tokens of a piece of a document; None: documents stay whole."""
        return self.pack or self.split


@dataclass(frozen=True)
class ReshuffleCost:
    """The costs of a shuffle, known in advance; bytes of values and offsets, without compression.

    Attributes:
        documents: Documents of the cache.
        pieces: What they are cut into.
        tokens: Tokens of the cache.
        parts: Parts that will be written.
        bytes_read: Read in both passes together.
        bytes_written: Written in both passes together.
        temporary_bytes: Those of them that are deleted at the end.
        memory: Bytes that each worker may use.
    """

    documents: int
    pieces: int
    tokens: int
    parts: int
    bytes_read: int
    bytes_written: int
    temporary_bytes: int
    memory: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class ShuffleSizes:
    """The parts of a shuffle, from the cache's ledger alone, unless documents are cut."""

    cache: TokenCache
    how: ReshuffleConfig
    layout: CacheLayout
    columns: list[Column]
    pieces: DocumentPieces
    shuffle: DocumentShuffle
    value_bytes: int
    edges: np.ndarray  # int64 [parts + 1]: the first place of each part, and the end
    writer_bytes: int  # of the memory, beside documents
    memory: int
    packs: PackOrder | None = None

    @property
    def cost(self) -> ReshuffleCost:
        """What the shuffle costs.

        Example:
            >>> import headrace.testing
            >>> sizes_of(headrace.testing.tiny_cache(documents=20), ReshuffleConfig(0)).cost.parts
            1
        """
        most = max(self.pieces.count, self.stored_documents)
        whole_bytes = self.value_bytes * most // self.stored_documents
        return ReshuffleCost(
            self.cache.num_originals,
            self.pieces.count,
            self.cache.num_tokens,
            self.edges.size - 1,
            whole_bytes + self.value_bytes,
            2 * self.value_bytes,
            self.value_bytes,
            self.memory,
        )

    @property
    def split(self) -> int:
        """Tokens of a piece."""
        return self.how.cut or NEVER_CUT

    @property
    def stored_documents(self) -> int:
        """Pieces, unless only those are written that moved, and paddings of rows."""
        return int(self.edges[-1])

    @property
    def earlier(self) -> DocumentShuffle | DocumentGroups:
        """The order of the cache itself; if it was not shuffled, one unit that stays as it is."""
        documents = self.cache.num_documents
        return self.cache.shuffle or DocumentShuffle(documents, 0, unit=documents)

    @property
    def order(self) -> DocumentShuffle | DocumentGroups:
        """The order of the pieces in the store."""
        return self.tables or self.shuffle

    @cached_property
    def tables(self) -> DocumentGroups | None:
        """The order of a store in groups or in packs, which cannot be computed."""
        if self.packs is not None:
            return self.packs.order
        groups = self.how.groups
        if groups is None:
            return None
        of_piece = np.empty(self.shuffle.documents, np.uint8)
        earlier = self.earlier
        for first in range(0, of_piece.size, _LENGTHS):
            pieces = np.arange(first, min(first + _LENGTHS, of_piece.size))
            of_piece[earlier.originals(pieces)] = groups.of_document[
                self.pieces.documents_of(pieces)
            ]
        return DocumentGroups.of(self.shuffle, of_piece)


def sizes_of(cache: TokenCache, how: ReshuffleConfig) -> ShuffleSizes:
    """Parts and memory of a shuffle. Reads only the ledger of the cache, unless documents are cut.

    Raises:
        ConfigError: the memory is too little, or ``unit`` separates documents that must stay
            together.
        CacheError: the cache has no documents.
    """
    documents = cache.num_documents
    if not documents:
        raise CacheError(
            "holds no documents", field="cache", value=cache.path, cure="Shuffle another cache."
        )
    pieces = _pieces_of(cache, how)
    unit = _unit_of(cache, how)
    shuffle = DocumentShuffle(pieces.count, how.seed, unit)
    layout = cache.layout if cache.layout.compression != "other" else CacheLayout(cache.dtype.name)
    packs = None
    rows_per_chunk = 1
    stored = pieces.count
    if how.pack is not None:
        packs = _packs(cache, how.pack, how.seed)
        stored += packs.row_ends.size
        rows_per_chunk = max(layout.chunk_elements // how.pack, 1)
        layout = replace(layout, chunk_elements=rows_per_chunk * how.pack)
    columns = columns_of(cache, layout)
    elements = {
        c.name: cache.leaf(c.name).num_elements + (packs.padding * c.per_token if packs else 0)
        if c.per_token
        else cache.leaf(c.name).num_elements * stored // documents
        for c in columns
    }
    value_bytes = sum(elements[c.name] * c.dtype.itemsize + 8 * c.ragged * stored for c in columns)
    if packs is None:
        group_sizes = _group_sizes(cache, how, pieces, unit)
        value_bytes = value_bytes * int(group_sizes.sum()) // stored
        edges = _edges(group_sizes, unit, value_bytes, how.part_bytes)
    else:  # parts begin with chunks
        chunk_ends = np.append(packs.row_ends[rows_per_chunk - 1 : -1 : rows_per_chunk], stored)
        parts = min(-(-value_bytes // how.part_bytes), MAX_PARTS, chunk_ends.size)
        edges = np.append(0, chunk_ends[np.arange(1, parts + 1) * chunk_ends.size // parts - 1])
    most_elements = 2 * max(elements.values()) // (edges.size - 1)
    most_documents = int(np.diff(edges).max())
    fixed = BASE_BYTES + writer_bytes(layout, cache.leaf_specs, most_elements, most_documents)
    least = fixed + 2 * _LEAST_DOCUMENTS
    suits = max(_LEAST_MEMORY, least, fixed + 2 * math.isqrt(value_bytes * _READ_BYTES))
    memory = suits if how.memory is None else how.memory
    if memory < least:
        mebibytes = -(-least // (1 << 20))
        raise ConfigError(
            f"is too little for the shards of {redact(cache.path)}",
            field="memory",
            value=memory,
            cure=f"Give at least {mebibytes << 20} ({mebibytes} MiB), or leave it out.",
        )
    return ShuffleSizes(
        cache, how, layout, columns, pieces, shuffle, value_bytes, edges, fixed, memory, packs
    )


def _unit_of(cache: TokenCache, how: ReshuffleConfig) -> int:
    """How many neighbouring documents stay together."""
    documents = cache.num_documents
    pairs = 2 if _PAIRS in cache.leaves else 1
    unit = pairs if how.unit is None else how.unit
    if unit % pairs:
        raise ConfigError(
            "parts the chosen and the rejected answers of pairs",
            field="unit",
            value=unit,
            cure="Leave unit out, or give a multiple of 2.",
        )
    if how.cut is not None and unit > 1:
        cure = "Leave it out, or shuffle documents one by one: --unit 1."
        raise ConfigError(
            f"cuts documents that stay together, {unit} at a time",
            field="pack" if how.pack else "split",
            value=how.cut,
            cure="Leave it out." if pairs > 1 else cure,
        )
    if unit > max(documents // 2, pairs):
        raise ConfigError(
            f"leaves nothing to shuffle: the cache holds {documents:,} documents",
            field="unit",
            value=unit,
            cure=f"Leave unit out: {pairs} stay together then.",
        )
    return unit


def _group_sizes(
    cache: TokenCache, how: ReshuffleConfig, pieces: DocumentPieces, unit: int
) -> Int64[np.ndarray, " groups"]:
    """Pieces of each group that has any, in the order of the store."""
    if how.groups is None:
        return np.array([pieces.count])
    group = how.groups.of_document
    if group.shape != (cache.num_documents,):
        raise ConfigError(
            f"has {group.size:,} documents, and {cache.path} has {cache.num_documents:,}",
            field="groups",
            cure="Say the group of each stored document.",
        )
    in_units = group[: group.size // unit * unit].reshape(-1, unit)
    if (in_units != in_units[:, :1]).any():
        is_unit_free = _PAIRS not in cache.leaves and not how.groups.moved
        one_by_one = ", or shuffle the documents one by one: --unit 1." if is_unit_free else "."
        raise ConfigError(
            f"parts documents that stay together, {unit} at a time",
            field="by",
            value=" ".join(how.groups.by),
            cure="Group by a number that they have in common" + one_by_one,
        )
    sizes = np.bincount(group)
    sizes += np.bincount(group[pieces.cut], np.diff(pieces.more), sizes.size).astype(np.int64)
    sizes = sizes[:STAYS]
    return sizes[sizes > 0]


def _edges(
    sizes: Int64[np.ndarray, " groups"], unit: int, value_bytes: int, part_bytes: int
) -> Int64[np.ndarray, " parts1"]:
    """The first place of each part, and the end: a group has parts of its own."""
    parts = min(-(-value_bytes // part_bytes), MAX_PARTS)
    count = int(sizes.sum())
    edges = [np.zeros(1, np.int64)]
    for size in sizes.tolist():
        units = size // unit
        own_parts = max(min(-(-parts * size // count), units), 1)
        of_group = np.arange(1, own_parts + 1) * units // own_parts * unit
        of_group[-1] = size
        edges.append(edges[-1][-1] + of_group)
    return np.concatenate(edges)


def _pieces_of(cache: TokenCache, how: ReshuffleConfig) -> DocumentPieces:
    """The pieces of the documents as they are stored."""
    if cache.pack is not None:
        raise ConfigError(
            "was written in packs: padding is among its documents",
            field="cache",
            value=cache.path,
            cure="Shuffle its original so.",
        )
    if how.cut is None:
        return DocumentPieces.uncut(cache.num_documents)
    if cache.is_shuffled:
        raise ConfigError(
            f"cuts documents of {cache.path}, which were shuffled already",
            field="pack" if how.pack else "split",
            value=how.cut,
            cure="Shuffle its original so.",
        )
    return DocumentPieces.of(_lengths(cache), how.cut)


def _packs(cache: TokenCache, row: int, seed: int) -> PackOrder:
    """The pieces of documents in packs. Reads the lengths of all."""
    if cache.mask_leaf("auto") is not None:
        raise ConfigError(
            "would cut conversations that are longer than a row",
            field="pack",
            value=row,
            cure="Leave it out, and pack them in the config: packing: {}.",
        )
    lengths = np.concatenate([Pieces.of(some, row).length for some in _lengths(cache)])
    return PackOrder.of(DocumentShuffle(lengths.size, seed), lengths, row)


def _lengths(cache: TokenCache) -> Iterator[Int64[np.ndarray, " n"]]:
    documents = cache.num_documents
    begins = track(range(0, documents, _LENGTHS), "reading lengths", -(-documents // _LENGTHS))
    return (cache.lengths(at, min(at + _LENGTHS, documents)) for at in begins)


def cut_runs_and_slices(sizes: ShuffleSizes, memory: int) -> tuple[list[int], list[int]]:
    """Borders of runs and slices: each fits into its share of the memory, or is a single unit.

    Reads the lengths of all documents.
    """
    most_bytes = (memory - sizes.writer_bytes) // 2
    cache = sizes.cache
    columns = sizes.columns
    documents = cache.num_documents
    ragged = [c for c in columns if c.ragged]
    fixed = (
        _DOCUMENT_BYTES + 16 * len(ragged) + sum(c.dtype.itemsize for c in columns if not c.ragged)
    )
    parts = sizes.edges.size - 1
    bins = _distinct(
        np.concatenate(
            [_spaced(a, b, max(_BINS // parts, 1)) for a, b in itertools.pairwise(sizes.edges)]
        )
    )
    weights = np.zeros(bins.size - 1)
    runs = _Runs(most_bytes)
    earlier = sizes.earlier
    for first in range(0, documents, _LENGTHS):
        last = min(first + _LENGTHS, documents)
        pieces = Pieces.of(cache.lengths(first, last), sizes.split)
        weight = np.full(pieces.document.size, fixed, np.int64)
        for column in ragged:
            lengths = cache.leaf(column.name).lengths(first, last)
            weight += column.of_pieces(lengths, pieces)[1] * column.dtype.itemsize
        begin = int(sizes.pieces.first(np.array([first]))[0])
        numbers = np.arange(begin, begin + weight.size)
        stored = sizes.order.stored_at(earlier.originals(numbers))
        bin_of_piece = np.searchsorted(bins, stored, side="right") - 1  # the last: stays
        weights += np.bincount(bin_of_piece, weight, bins.size)[:-1]
        runs.add(np.bincount(pieces.document, weight, last - first).astype(np.int64))
    slices: list[int] = []
    edges = set(sizes.edges.tolist())
    filled = 0.0
    for start, weighs in zip(bins[:-1].tolist(), weights.tolist(), strict=True):
        if start in edges or filled + weighs > most_bytes:
            slices.append(start)
            filled = 0.0
        filled += weighs
    return sizes.pieces.first(np.array(runs.bounds())).tolist(), [*slices, sizes.stored_documents]


def _distinct(rising: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    return rising[np.append(True, np.diff(rising) > 0)]


def _spaced(first: int, last: int, pieces: int) -> Int64[np.ndarray, " n"]:
    return np.linspace(first, last, pieces + 1).astype(np.int64)


class _Runs:
    """Cuts documents that come in order into runs of at most ``limit`` bytes, or of one document.

    Example:
        >>> runs = _Runs(10)
        >>> for weights in ([4, 4, 4], [4, 30], [1, 9]):
        ...     runs.add(np.array(weights))
        >>> runs.bounds()
        [0, 2, 4, 5, 7]
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = [0]
        self._documents = 0
        self._filled = 0

    def add(self, weight: Int64[np.ndarray, " n"]) -> None:
        """Goes on with the documents of these bytes."""
        ends = np.cumsum(weight) + self._filled  # bytes of the run up to each document
        while (fit := int(np.searchsorted(ends, self._limit, side="right"))) < weight.size:
            if self._documents + fit == self._first[-1]:  # a run of its own, however large
                fit += 1
            ends -= int(ends[fit - 1]) if fit else self._filled
            self._first.append(self._documents + fit)
            if fit == weight.size:
                break
        self._filled = int(ends[-1])
        self._documents += weight.size

    def bounds(self) -> list[int]:
        """The first document of each run, and the end."""
        return [first for first in self._first if first < self._documents] + [self._documents]
