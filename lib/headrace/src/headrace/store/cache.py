"""``TokenCache``: a finished cache, opened for reading.

A table joins the parts that workers wrote to one cache (virtual concatenation): documents and
tokens are numbered across all parts, and nothing is copied. Opening reads two files, whose size
does not grow with the number of documents, and creates no objects per part: records and arrays are
created at their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from jaxtyping import Bool, Int64

from headrace.errors import (
    CacheCorruptError,
    CacheUnfinishedError,
    ConfigError,
    check_choice,
    check_whole,
    command_line,
)
from headrace.order.document_shuffle import DocumentGroups, DocumentPieces, DocumentShuffle
from headrace.order.intervals import Intervals, starts
from headrace.store import files
from headrace.store.files import ReadForAll
from headrace.store.grouped import open_tables
from headrace.store.layout import MASKS, TOKENS, CacheLayout, LeafKind, LeafSpec
from headrace.store.layouts import FORMAT, NAMED_ONLY, FormatConfig, Layout, open_layout
from headrace.store.leaf import (
    ArrayList,
    ArrayRun,
    CacheLeaf,
    ChunkPages,
    DocumentEnds,
    LeafPart,
    MadeList,
    OwnParts,
    check_range,
    data_of,
    spans,
)
from headrace.store.ledger import (
    UNDESCRIBED,
    Ledger,
    ShuffleRecord,
    open_ledger,
    prepare_types,
    shuffle_record,
    whole_ledger,
)
from headrace.store.ledger_table import (
    ColumnTable,
    Name,
    PartTable,
    fingerprint_of_lines,
)
from headrace.store.location import Location
from headrace.store.missing import no_cache
from headrace.store.snapshots import Member, Snapshot

FormT = TypeVar("FormT")


@dataclass(frozen=True)
class OriginalDocument:
    """A document by its number, its part and its number there, and the records of the source files
    of that part; and the tokens of it that come before what is stored, if that is a piece of it.
    """

    number: int
    part: str
    number_in_part: int
    files: list[dict[str, Any]]
    offset: int = 0


OpenPart: TypeAlias = Callable[[str, int], LeafPart]
"""Returns a part of a leaf by its number; the tokens are the leaf ``input_ids``."""


_DOCUMENTS = 1 << 20  # whose numbers are looked up together
_FEWEST_BLOCKS = 16  # documents that are all equally long by chance are fewer
_LOOKED_LENGTHS = 1024
_NOT_SHUFFLED = ShuffleRecord(0, 0, 0, "", [], [])


class _TokenizerRecord(msgspec.Struct):
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    file: Name | None = None  # the cache's copy: a name that cannot lead outside


prepare_types(_TokenizerRecord, CacheLayout, LeafSpec)


class TokenCache:
    """A finished token cache. Use :func:`~headrace.store.joined.open_cache`.

    Args:
        path: Folder or URL.
        ledger: The content of the cache.
        open_part: Finds the arrays that another program wrote; default: headrace's own folders.

    Attributes:
        path: Folder or URL.
        ledger: What the cache is made of.
        snapshots: Of each cache that it joins, the snapshot that was opened.

    Example:
        >>> from headrace.testing import tiny_cache
        >>> from headrace.store import open_cache
        >>> cache = open_cache(tiny_cache().path)
        >>> int(cache.lengths().sum()) == cache.num_tokens
        True
    """

    def __init__(self, path: str, ledger: Ledger, open_part: OpenPart | None = None) -> None:
        self.path = path
        self._root = files.absolute(path)  # what is opened later, in another working folder perhaps
        self.ledger = ledger
        self.snapshots: tuple[Snapshot, ...] = (Snapshot(path),)
        self.settings: FormatConfig | None = None  # how another system's files were read
        self.foreign: Layout | None = None  # these files; None: they are headrace's own
        self.layout = _converted(ledger.layout, CacheLayout, "layout", path)
        self.layout.check_tokens()
        _converted(ledger.tokenizer, _TokenizerRecord, "tokenizer", path)
        self._specs = {
            spec.name: spec for spec in _converted(ledger.leaves, list[LeafSpec], "leaves", path)
        }
        self._layouts = {name: self.layout.leaf(spec) for name, spec in self._specs.items()} | {
            TOKENS: self.layout
        }
        self._open_part = open_part
        self._table = PartTable.of(ledger.parts)
        self._first_document = starts(self._table.documents)
        self._first_token = starts(self._table.tokens)
        self._leaves: dict[str, CacheLeaf] = {}

    @classmethod
    def open_member(
        cls,
        path: str | Path,
        *,
        once: ReadForAll = files.read_here,
        settings: FormatConfig | None = None,
    ) -> TokenCache:
        """Opens one member of a cache by itself: what was built in a folder, whatever was appended
        to it or removed from it; see :func:`~headrace.store.joined.open_cache`. ``once``: how the
        ledger is read: here, or by one host for several.
        """
        path = str(path)
        Location.parse(path).check_folder("cache")
        root = files.absolute(path)
        ledger = open_ledger(root, once) if settings is None or settings.name is None else None
        if ledger is None:
            if (other := open_layout(root, settings)) is not None:
                cache = cls(path, other.ledger, other.part)
                cache.settings = settings
                cache.foreign = other
                return cache
            raise no_cache(path)
        if not ledger.finished:
            raise CacheUnfinishedError(
                "was not finished building",
                field="cache",
                value=path,
                cure="Run the same command again: it goes on from the last finished part. What"
                f" it was, and how far it got: {command_line('cache inspect', path)}",
            )
        return cls(path, ledger)

    @property
    def members(self) -> Sequence[TokenCache]:
        """The caches that this one joins; itself if it is a single one."""
        return (self,)

    @property
    def in_place(self) -> bool:
        """Whether it is files of another system, read where they are: a copy of them is not."""
        return any(
            FORMAT in one.ledger.metadata and one._open_part is not None for one in self.members
        )

    @property
    def takes_files(self) -> bool:
        """Whether plans and filters may be saved in its folder. False on a web server, and beside
        the files of other systems.
        """
        return not (files.is_web(self.path) or self.in_place)

    def check_own_folder(self, cure: str) -> None:
        """Raises ConfigError for files of another system, beside which nothing is written."""
        if self.in_place:
            problem = "are files of another system, beside which nothing is written"
            raise ConfigError(problem, field="cache", value=self.path, cure=cure)

    @property
    def num_documents(self) -> int:
        return int(self._first_document[-1])

    @property
    def num_originals(self) -> int:
        """Documents that numbers refer to: fewer than :attr:`num_documents`, which are stored, if
        long ones were cut (``headrace cache reshuffle --split``); none if its documents
        :attr:`are_moved`.
        """
        if self.are_moved:
            return 0
        return self._shuffle.documents if self.are_cut else self.num_documents

    @property
    def num_tokens(self) -> int:
        return int(self._first_token[-1])

    @property
    def original_tokens(self) -> int:
        """Tokens of the :attr:`num_originals`: fewer than :attr:`num_tokens`, which are stored, if
        packs are filled up or documents moved, whose tokens are stored twice.
        """
        members = [member for member in self.members if not member.are_moved]
        return sum(member.num_tokens - member.padding_tokens for member in members)

    @property
    def pack(self) -> ShuffleRecord | None:
        """The record of a cache that was written in packs (``headrace cache reshuffle --pack``)."""
        return self._shuffle if self._shuffle.pack else None

    @property
    def vocab_size(self) -> int:
        return int(self.ledger.tokenizer["vocab_size"])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.layout.dtype)

    @property
    def parts(self) -> MadeList[LeafPart]:
        """The tokens of its parts, in order; the records of the parts are in the ledger."""
        return self.leaf(TOKENS).parts

    @property
    def block_tokens(self) -> int | None:
        """Tokens of each row of a cache of Levanter's whose rows are blocks of a stream, not
        documents; None: it stores documents. Reads a few lengths at the beginning and the end of
        such a cache.
        """
        rows = self.num_documents
        is_foreign = str(self.ledger.tokenizer.get("fingerprint")).startswith(NAMED_ONLY)
        is_levanters = is_foreign and FORMAT not in self.ledger.metadata
        if not is_levanters or rows < _FEWEST_BLOCKS or self.num_tokens % rows:
            return None
        each = self.num_tokens // rows
        first = self.lengths(0, min(rows, _LOOKED_LENGTHS))
        last = self.lengths(max(rows - _LOOKED_LENGTHS, 0), rows)
        return each if (first == each).all() and (last == each).all() else None

    @cached_property
    def document_ends(self) -> DocumentEnds:
        """Where its documents end; offsets are read as they are needed, and kept."""
        return DocumentEnds(self.parts)

    @property
    def fingerprint(self) -> str:
        """Identifies the content: equal for caches whose parts have the same tokens
        and documents.
        """
        return self._table.fingerprint

    @property
    def original_fingerprint(self) -> str:
        """Fingerprint of the cache to which the numbers of its documents refer: for a shuffled
        cache, its original.
        """
        return self._shuffle.fingerprint or self.fingerprint

    def fingerprint_of(self, parts: Bool[np.ndarray, " parts"]) -> str:
        """The fingerprint of a cache of some of its parts.

        Example:
            >>> import headrace.testing
            >>> cache = headrace.testing.tiny_cache(parts=2)
            >>> cache.fingerprint_of(np.array([True, True])) == cache.fingerprint
            True
        """
        if parts.all():
            return self.fingerprint
        lines = self._table.digest_lines().split(b"\n")
        return fingerprint_of_lines(b"\n".join(compress(lines, parts.tolist())))

    @property
    def as_member(self) -> Member:
        """What lists of snapshots say of it."""
        return Member(self.fingerprint, self.num_originals, self.num_tokens)

    def removed(self, snapshots: Sequence[int] | None = None) -> Intervals:
        """The documents that are removed from its caches, by number.

        Args:
            snapshots: As of these snapshots, one for each of :attr:`snapshots`, if they are later;
                None: as of those that were opened.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache().removed().total
            0
        """
        ranges: list[Intervals] = []
        documents = [member.num_originals for member in self.members]
        first = 0
        for snapshot, later in zip(
            self.snapshots, snapshots or [None] * len(self.snapshots), strict=True
        ):
            removed = snapshot.removed(later)
            ranges.append(Intervals(removed.start + first, removed.stop + first))
            members = len(snapshot.members)
            first += sum(documents[:members])
            documents = documents[members:]
        return Intervals.union(ranges)

    @cached_property
    def whole_ledger(self) -> Ledger:
        """The ledger with what opening leaves out: the counters of each part and, for a shuffled
        copy, the parts and sources of the original. Reads all of ``ledger.json``.
        """
        return whole_ledger(self._root) if isinstance(self._table, ColumnTable) else self.ledger

    def opening_requests(self, hosts: int) -> int:
        """Requests with which all hosts of a job together open it in a store over HTTP: with
        ``ledger.bin``, one host opens it for all. For Levanter's caches, the requests for the
        ledger only.
        """
        if self.is_virtual:  # a small one, as it will be built
            return 3
        return 2 + self._table.reads if isinstance(self._table, ColumnTable) else 2 * hosts

    @property
    def part_documents(self) -> Int64[np.ndarray, " parts"]:
        """Documents of each part."""
        return self._table.documents

    @property
    def part_tokens(self) -> Int64[np.ndarray, " parts"]:
        """Tokens of each part."""
        return self._table.tokens

    @property
    def recorded_shuffle(self) -> ShuffleRecord | None:
        """What the ledger says of the order of the documents, without the lists of the original;
        of a cache of several :attr:`members`, ask each of them.
        """
        return shuffle_record(self.ledger, self.path)

    @property
    def _shuffle(self) -> ShuffleRecord:
        """The same; of documents that were not shuffled, a record that says nothing."""
        return self.recorded_shuffle or _NOT_SHUFFLED

    @property
    def shuffle(self) -> DocumentShuffle | DocumentGroups | None:
        """The order of the documents when the cache was written; None if they
        were not shuffled.
        """
        record = self.recorded_shuffle
        if record is None:
            return None
        if record.groups or record.pack:
            return self._groups
        return DocumentShuffle(self.num_documents, record.seed, record.unit)

    @cached_property
    def _groups(self) -> DocumentGroups:
        return open_tables(self._root, self._shuffle.tables)

    @cached_property
    def _shuffle_record(self) -> ShuffleRecord | None:  # it lists the parts of the original
        if self.recorded_shuffle is None:
            return None
        return shuffle_record(self.whole_ledger, self.path)

    @property
    def is_shuffled(self) -> bool:
        """Whether stored positions of documents differ from their numbers."""
        return self.recorded_shuffle is not None

    @property
    def are_moved(self) -> bool:
        """Whether its documents are those of an earlier member of a snapshot, in other groups, with
        the numbers that they have there (``headrace cache reshuffle --update``).
        """
        return self._shuffle.moved

    @cached_property
    def moved_away(self) -> Intervals:
        """Stored positions that are no longer those of a document: a later member has it."""
        return Intervals.empty()

    @property
    def are_cut(self) -> bool:
        """Whether what is stored are pieces of documents, and maybe padding of rows
        (``headrace cache reshuffle --split``, ``--pack``).
        """
        return self._shuffle.split > 0

    def check_unmoved(self) -> None:
        """Raises ConfigError if documents moved to other groups: a copy would have them twice."""
        if self.moved_away.total:
            problem = "has documents that moved to other groups, and a copy would have them twice"
            original = self.members[0]._shuffle.cache or "its original"
            cure = f"Copy what it was made of: {original}."
            raise ConfigError(problem, field="cache", value=self.path, cure=cure)

    def check_one_numbering(self) -> None:
        """Raises ConfigError if some of its documents were shuffled and others appended later: the
        shuffle of a copy could not say the numbers of both.
        """
        if self.members[1:] and self.is_shuffled:
            problem = (
                "was appended to, and was shuffled already in part: its documents have numbers of"
                " two kinds"
            )
            cure = (
                "Build one cache of all sources: headrace build SOURCES --shuffle SEED; or shuffle"
                " the plain caches."
            )
            raise ConfigError(problem, field="cache", value=self.path, cure=cure)

    @property
    def is_mixed(self) -> bool:
        """Whether all its documents are shuffled among each other: not in groups."""
        record = self.recorded_shuffle
        return record is not None and not record.groups

    def stored_at(self, originals: np.ndarray | Sequence[int]) -> np.ndarray:
        """Stored positions of the documents with these numbers, int64 ``[n]``: in a shuffled cache,
        numbers refer to the original; otherwise positions equal numbers. A document that was cut
        has the positions of all its pieces, in order. Numbers are not checked.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=5).stored_at([3, 1]).tolist()
            [3, 1]
        """
        numbers = np.asarray(originals, np.int64)
        shuffle = self.shuffle
        return numbers if shuffle is None else shuffle.stored_at(self._pieces.of_documents(numbers))

    def originals(self, stored: np.ndarray | Sequence[int]) -> np.ndarray:
        """The numbers, int64 ``[n]``, of the documents, or of the pieces' documents, at these
        positions.
        """
        numbers = np.asarray(stored, np.int64)
        shuffle = self.shuffle
        return numbers if shuffle is None else self._pieces.documents_of(shuffle.originals(numbers))

    @cached_property
    def _pieces(self) -> DocumentPieces:
        if not self.are_cut:
            return DocumentPieces.uncut(self.num_documents)
        listed = self._shuffle_record
        assert listed is not None
        try:
            return DocumentPieces.parse(listed.documents, listed.pieces)
        except ValueError as error:
            raise CacheCorruptError(
                f"does not say how its documents were cut ({error})",
                field="cache",
                value=self.path,
                cure="Restore its ledger.json, or shuffle the original again.",
            ) from error

    @property
    def padding_tokens(self) -> int:
        """Those of :attr:`num_tokens` that fill up packs and are of no document."""
        return sum(member._shuffle.padding for member in self.members)

    def in_stored_order(self, values: np.ndarray) -> np.ndarray:
        """The values, given by number, of the documents at all positions; those of padding are 0.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=3).in_stored_order(np.array([5, 6, 7]))
            array([5, 6, 7])
        """
        ordered = np.zeros(self.num_documents, values.dtype)
        for positions, numbers in self.number_ranges():
            is_document = numbers < values.size
            ordered[positions][is_document] = values[numbers[is_document]]
        return ordered

    def by_number(self, values: np.ndarray) -> np.ndarray:
        """The values of documents by number, given those at all stored positions: the inverse of
        :meth:`in_stored_order`. All pieces of a document have one value; where it moved, that of
        its last place counts.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=3).by_number(np.array([5, 6, 7]))
            array([5, 6, 7])
        """
        ordered = np.zeros(self.num_originals, values.dtype)
        for positions, numbers in self.number_ranges():
            is_document = numbers < ordered.size
            ordered[numbers[is_document]] = values[positions][is_document]
        return ordered

    def number_ranges(self) -> Iterator[tuple[slice, Int64[np.ndarray, " n"]]]:
        """All stored positions, a range at a time, and the numbers of their documents; those of
        padding are beyond all of documents.
        """
        for first in range(0, self.num_documents, _DOCUMENTS):
            positions = np.arange(first, min(first + _DOCUMENTS, self.num_documents))
            yield slice(first, first + positions.size), self.originals(positions)

    def pieces_of(self, stored_number: int) -> list[int]:
        """Stored positions of all pieces of the document that has one at this position."""
        return self.stored_at(self.originals([stored_number])).tolist()

    def whole_document(self, stored_number: int) -> np.ndarray:
        """Tokens of the document at a stored position, with all its pieces.

        Example:
            >>> import headrace.testing
            >>> cache = headrace.testing.tiny_cache(documents=4)
            >>> bool((cache.whole_document(3) == cache.document(3)).all())
            True
        """
        return np.concatenate([self.document(piece) for piece in self.pieces_of(stored_number)])

    def original(self, place: int) -> OriginalDocument:
        """The document at a stored position; for a shuffled cache, with its number, part and
        sources in the original.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=4).original(3)
            OriginalDocument(number=3, part='00000', number_in_part=3, files=[], offset=0)
        """
        record = self._shuffle_record
        number = int(self.originals([place])[0])
        if record is None:
            ends = self._first_document[1:]
            sources = self.ledger.sources
        else:
            ends = np.cumsum([documents for _, documents in record.parts])
            sources = record.sources
        part = int(np.searchsorted(ends, number, side="right"))
        name = self._table.name(part) if record is None else record.parts[part][0]
        number_in_part = number - int(ends[part - 1] if part else 0)
        records = [dict(source) for source in sources if source.get("part") == name]
        pieces = [] if record is None or not record.split else self.stored_at([number]).tolist()
        offset = record.split * pieces.index(place) if pieces and record else 0
        return OriginalDocument(number, name, number_in_part, records, offset)

    def check_unit(self, unit: int) -> None:
        """Raises ConfigError if the shuffle of the cache separated units of this many neighbouring
        documents.
        """
        shuffled_unit = self._shuffle.unit
        if shuffled_unit % unit:
            raise ConfigError(
                f"is not kept by {self.path}, whose documents were shuffled in units of"
                f" {shuffled_unit}",
                field="unit",
                value=unit,
                cure="Shuffle the original anew: "
                + command_line("cache reshuffle", self._shuffle.cache or "CACHE", "NEW", unit=unit),
            )

    @property
    def leaves(self) -> list[str]:
        """Names of the leaves other than the tokens."""
        return sorted(self._specs)

    def values_per_token(self, leaf: str) -> int | None:
        """Values of a leaf for each token; None if the number differs between tokens."""
        stored = self.leaf(leaf)
        if stored.width is not None or stored.kind != "ragged":
            return stored.width
        return (
            1 if np.array_equal(stored.arrays.lengths, self.leaf(TOKENS).arrays.lengths) else None
        )

    @property
    def leaf_specs(self) -> tuple[LeafSpec, ...]:
        """The leaves other than the tokens, in the order in which they were written."""
        return tuple(self._specs.values())

    def mask_leaf(self, loss_mask: str, field: str = "loss_mask") -> str | None:
        """The leaf that masks the tokens to train on; None: all tokens are.

        Args:
            loss_mask: ``auto``: one of ``MASKS``, if there is one; ``none``: all tokens; or the
                name of a leaf.
            field: Its name in errors.

        Raises:
            ConfigError: there is no such leaf.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=5).mask_leaf("auto") is None
            True
        """
        if loss_mask == "none":
            return None
        leaves = self.leaves
        if loss_mask == "auto":
            return next((name for name in MASKS if name in leaves), None)
        check_choice(field, loss_mask, [*leaves, "auto", "none"], f"is not a leaf of {self.path}")
        return loss_mask

    def leaf(self, name: str) -> CacheLeaf:
        """A leaf by name: one of :attr:`leaves`, or ``input_ids``, the tokens.

        Raises:
            ConfigError: there is no such leaf.
        """
        if name not in self._leaves:
            check_choice("leaf", name, [*self._specs, TOKENS], f"is not a leaf of {self.path}")
            spec = self._specs.get(name)  # the tokens have none
            kind: LeafKind = "ragged" if spec is None else spec.kind
            layout = self._layouts[name]
            make = partial(self._open_part, name) if self._open_part is not None else None
            if make is None:
                offsets = self.layout.offsets() if kind == "ragged" else None
                elements = self._elements(name)
                make = OwnParts(
                    self._root, self._table, name, layout, offsets, elements, self._pages
                ).part
            parts = MadeList(len(self._table), make)
            self._leaves[name] = CacheLeaf(
                name,
                np.dtype(layout.dtype),
                kind,
                parts,
                self._arrays(name, parts),
                self._first_document,
                self.path,
                None if spec is None else spec.width,
            )
        return self._leaves[name]

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start .. stop`` of the whole cache, documents end to end.

        Returns:
            One-dimensional array of the cache's dtype.

        Raises:
            IndexOutOfRangeError: the range is not within ``0 .. num_tokens``.
            ReadError: stored bytes are missing or damaged.
        """
        check_whole("start", start)
        check_whole("stop", stop)
        check_range(start, stop, self.num_tokens, "tokens", self.path)
        arrays = self.leaf(TOKENS).arrays
        reads = [arrays[p].read(a, b) for p, a, b in spans(self._first_token, start, stop)]
        return np.concatenate([r.result() for r in reads]) if reads else np.zeros(0, self.dtype)

    def document(self, i: int) -> np.ndarray:
        """Tokens of document ``i``.

        Raises:
            IndexOutOfRangeError: there is no such document.
        """
        check_whole("document", i)
        check_range(i, i + 1, self.num_documents, "document", self.path)
        return self.leaf(TOKENS).document(i)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token counts of documents ``start .. stop``, without reading tokens.

        Returns:
            int64 array ``[stop - start]``.
        """
        return self.leaf(TOKENS).lengths(start, stop)

    def _arrays(self, name: str, parts: MadeList[LeafPart]) -> ArrayList:
        """The arrays of a leaf."""
        layout = self._layouts[name]
        dtype = np.dtype(layout.dtype)
        described = self._pages is not None or (
            self.is_virtual and not self.ledger.metadata.get(UNDESCRIBED)
        )
        # What another program wrote has a layout of its own.
        if self._open_part is not None and parts:
            layout = parts[0].data.layout
            described = parts[0].data.described
        run = ArrayRun(
            self._elements(name),
            layout.chunk_elements,
            dtype,
            partial(data_of, parts),
            shard_chunks=layout.shard_chunks,
            described=described,
            computed=described and layout.compression == "none",
            pages=None if self._pages is None else (self._pages, name),
        )
        return ArrayList([run])

    def _elements(self, name: str) -> Int64[np.ndarray, " parts"]:
        return np.asarray(
            self._table.tokens if name == TOKENS else self._table.leaf_elements(name), np.int64
        )

    @property
    def is_virtual(self) -> bool:
        """Whether it does not exist and is only planned with (``headrace config simulate
        --tokens``).
        """
        return self.ledger.tokenizer.get("fingerprint") == "virtual"

    @cached_property
    def _pages(self) -> ChunkPages | None:
        """What a reader needs to request chunks of an array directly; None: its ``zarr.json`` has
        to be read.
        """
        if not isinstance(self._table, ColumnTable) or not self._table.described:
            return None
        return ChunkPages(self._table, self.layout, self.leaf_specs)

    def __repr__(self) -> str:
        return (
            f"TokenCache({self.path!r}, documents={self.num_documents:,},"
            f" tokens={self.num_tokens:,})"
        )


def _converted(values: object, form: type[FormT], section: str, path: str) -> FormT:
    """Parses a section of a ledger, which may come from anywhere."""
    try:
        return msgspec.convert(values, form)
    except (msgspec.ValidationError, ConfigError) as error:
        cure = "Build the cache again, or restore its ledger.json."
        problem = f"has a ledger whose {section} cannot be used ({error})"
        raise CacheCorruptError(problem, field="cache", value=path, cure=cure) from error


def same_ledger(a: TokenCache, b: TokenCache) -> bool:
    """Whether two caches have the same ``ledger.json``."""
    tables = a.ledger.parts, b.ledger.parts
    if isinstance(tables[0], ColumnTable) and isinstance(tables[1], ColumnTable):
        return tables[0].ledger == tables[1].ledger
    return a.whole_ledger == b.whole_ledger
