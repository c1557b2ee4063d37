"""The parts of a cache: the record of one, the table of all, and ``ledger.bin``, the table as
columns.

A table is a sequence of records that are created on access, so a cache of a million parts opens
without creating objects per part. Code that needs a number for every part uses a column.

Each array lists the crc32c of its chunks in its ``zarr.json`` (:class:`ChunkNames`). To request
only chunks over HTTP, without reading that file, the table has all of them: leaf by leaf, the
values of all parts, then their offsets, part by part. They are stored in **pages** of 65,536, each
followed by a checksum of its number and its content, so that a page can be read by itself: 4 bytes
per chunk, 600 MB for 10 trillion tokens, of which a reader reads only the pages that it needs.

::

    8 bytes    HRLEDGER
    8 bytes    length of the head, little-endian
    32 bytes   SHA-256 of the head
    head       JSON: what a reader needs of ledger.json, its digest, and name, dtype and SHA-256 of
               each column
    columns    each from the next multiple of 64 on: names, documents, tokens, values of each leaf;
               then the checksums of all chunks, in pages;
               then the digests

It repeats the content of ``ledger.json`` and identifies that file: with another one, it is refused.
It can be rewritten at any time (``headrace cache verify CACHE --repair``).

How it is written; the comments below have the same numbers:

1. **Order the columns**: what opening needs first, so that it is one piece of the file; then the
   checksums of chunks; the digests of parts, which only checks need, last.
2. **Describe each** by name, dtype and SHA-256. Numbers have the narrowest dtype that holds them.
3. **Put the head before them**, with its length and its own SHA-256: all that follows is described
   by something that was verified.
4. **Lay each at a multiple of 64**. Places follow from the head, so they are not stored.

How it is read:

5. **The first 64 KiB**, and at most two more reads: the prefix says where the head ends, the head
   where the opened columns end.
6. **Verify the head, then believe it**: digest, version, then counts and dtypes that are possible,
   before room is made for any column.
7. **Verify each opened column** by its digest, then what it says: a name must not lead out of the
   folder of parts, whoever wrote the digest.
8. **The others on demand**, each compared with its digest when it is read.

Price of opening: one read of 64 KiB, and one of 8 to 30 bytes per part if that was not all; 30 ns
of CPU per part.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, overload

import google_crc32c
import msgspec
import numpy as np
from jaxtyping import Int64, UInt32

from headrace.errors import CacheCorruptError, CacheError, command_line, of_another_version
from headrace.store import files
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec
from headrace.store.location import Location

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z"
LARGEST_COUNT = 2**56
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
"""Valid folder names: a ledger may come from anywhere, and must not lead outside its cache."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
TABLE_NAME = "ledger.bin"
TABLE_VERSION = 2
T = TypeVar("T")
_MAGIC = b"HRLEDGER"
_PREFIX = 48
_ALIGNMENT = 64
_FIRST_BYTES = 1 << 16
_LARGEST_HEAD = 1 << 24
_MOST_PARTS = 1 << 28
_MOST_CHUNKS = 1 << 36
_CHUNKS = "chunks"
_MOST_IN_ALL = float(2**62)
_SHA = "sha256:"
_HEX = re.compile("sha256:[0-9a-f]{64}")
# of dtypes
_TEXT = re.compile("S[1-9][0-9]{0,2}")
_NUMBER = re.compile("u[1248]")
_CHECKSUM = re.compile("u4")
_DIGEST = re.compile(f"V32|{_TEXT.pattern}")
_NAME_BYTES = f"{string.ascii_letters}{string.digits}_.-".encode()
_PLAIN = bytes((byte > 0) * (1 if byte in _NAME_BYTES else 2) for byte in range(256))
"""Of each byte: 1 if it may be in a name, 0 if it is what follows a name."""


class LeafRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf of a finished part other than the tokens. ``digest``: ``sha256:`` and the hex digest
    of its stored values followed, if it is ragged, by its offsets.
    """

    elements: Count
    digest: str


class PartRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished part.

    Attributes:
        name: Folder below ``parts/``.
        documents: Number of documents.
        tokens: Number of tokens.
        digest: ``sha256:`` and the hex digest of the part's tokens (as stored) followed by its
            offsets.
        extra: Counters of its writer (skipped lines, source fingerprints, ...), JSON values. Empty
            in a table of columns: they are in ``ledger.json``.
        leaves: Its other leaves, by name.
    """

    name: Name
    documents: Count
    tokens: Count
    digest: str
    extra: dict[str, Any] = {}
    leaves: dict[Name, LeafRecord] = {}


class ByNumber(Sequence[T]):
    """A sequence whose items are made when they are asked for: subclasses say how many there are,
    and make one by its number.
    """

    @abstractmethod
    def item(self, number: int) -> T:
        """An item by its number, from 0 on."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(len(self))[index]
        return self.item(numbers) if isinstance(numbers, int) else [self.item(k) for k in numbers]


class PartTable(ByNumber[PartRecord]):
    """Parts, in order; here over a list of records.

    Example:
        >>> table = PartTable([PartRecord("a", 2, 10, ""), PartRecord("b", 3, 20, "")])
        >>> table.tokens.tolist(), table[1].name
        ([10, 20], 'b')
    """

    def __init__(self, records: Sequence[PartRecord]) -> None:
        self._records = records

    @classmethod
    def of(cls, parts: Sequence[PartRecord]) -> PartTable:
        """Converts parts to a table."""
        return parts if isinstance(parts, PartTable) else cls(parts)

    def __len__(self) -> int:
        return len(self._records)

    def item(self, number: int) -> PartRecord:
        return self._records[number]

    @cached_property
    def documents(self) -> Int64[np.ndarray, " parts"]:
        """Documents of each part."""
        return np.fromiter((part.documents for part in self), np.int64, len(self))

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " parts"]:
        """Tokens of each part."""
        return np.fromiter((part.tokens for part in self), np.int64, len(self))

    def name(self, number: int) -> str:
        """Folder of a part."""
        return self[number].name

    def digest(self, number: int, leaf: str | None = None) -> str:
        """Digest of the tokens of a part, or of another leaf."""
        record = self[number]
        return record.digest if leaf is None else record.leaves[leaf].digest

    def leaf_elements(self, leaf: str) -> Int64[np.ndarray, " parts"]:
        """Values of a leaf in each part. Raises CacheCorruptError for a part without it."""
        for part in self:
            if leaf not in part.leaves:
                raise CacheCorruptError(
                    f"has no record of leaf {leaf}", field="part", value=part.name
                )
        return np.fromiter((part.leaves[leaf].elements for part in self), np.int64, len(self))

    def digest_lines(self) -> bytes:
        """A line for each part: the digest of its tokens, and name and digest of
        each other leaf.
        """
        return "\n".join(
            part.digest
            + "".join(f" {name}={leaf.digest}" for name, leaf in sorted(part.leaves.items()))
            for part in self
        ).encode()

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the content: tokens, documents, other leaves, and the borders of parts, which
        rows of tokens never cross. Chunks, codecs and counters are not part of it.
        """
        return fingerprint_of_lines(self.digest_lines())


def fingerprint_of_lines(lines: bytes) -> str:
    """The fingerprint of parts, from their :meth:`PartTable.digest_lines`."""
    return "sha256:" + hashlib.sha256(lines).hexdigest()


PAGE_CHUNKS = 1 << 16
PAGE_BYTES = 4 * (PAGE_CHUNKS + 1)


class ArrayChunks(NamedTuple):
    """The chunks of one kind of array: values or offsets of a leaf.

    Attributes:
        leaf: The leaf.
        folder: ``data`` or ``offsets``.
        first: Number of the first chunk of each part in the list of all, and the end of the last.
    """

    leaf: str
    folder: str
    first: Int64[np.ndarray, " parts1"]


class ChunkNames(NamedTuple):
    """The chunks in ``ledger.bin``: their checksums, none unless every array lists its own; and
    whether chunks can be requested without ``zarr.json``.
    """

    checksums: UInt32[np.ndarray, " chunks"] = np.zeros(0, np.uint32)
    described: bool = True


def chunks_of(
    table: PartTable, layout: CacheLayout, leaves: Sequence[LeafSpec]
) -> list[ArrayChunks]:
    """The chunks of a cache, kind by kind.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(parts=2)
        >>> [
        ...     (kind.folder, kind.first.size)
        ...     for kind in chunks_of(PartTable.of(cache.ledger.parts), cache.layout, ())
        ... ]
        [('data', 3), ('offsets', 3)]
    """
    chunk_counts: list[tuple[str, str, np.ndarray]] = []
    offsets = -(-(table.documents + 1) // layout.offsets().chunk_elements)
    for spec in (None, *leaves):
        name = TOKENS if spec is None else spec.name
        chunk = (layout if spec is None else layout.leaf(spec)).chunk_elements
        elements = table.tokens if spec is None else np.asarray(table.leaf_elements(name), np.int64)
        chunk_counts.append((name, "data", -(-elements // chunk)))
        if spec is None or spec.kind == "ragged":
            chunk_counts.append((name, "offsets", offsets))
    kinds: list[ArrayChunks] = []
    at = 0
    for name, folder, counts in chunk_counts:
        kinds.append(
            ArrayChunks(
                name, folder, at + np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            )
        )
        at = int(kinds[-1].first[-1])
    return kinds


def pages_of(chunks: int) -> int:
    """Number of pages for this many chunks."""
    return -(-chunks // PAGE_CHUNKS)


def to_pages(checksums: UInt32[np.ndarray, " chunks"]) -> np.ndarray:
    """Checksums of chunks in stored form, ``<u4``, page by page.

    Example:
        >>> from_page(0, to_pages(np.arange(3, dtype=np.uint32)).tobytes()).tolist()
        [0, 1, 2]
    """
    pages: list[np.ndarray] = [np.zeros(0, "<u4")]
    for page in range(pages_of(checksums.size)):
        content = checksums[page * PAGE_CHUNKS :][:PAGE_CHUNKS].astype("<u4")
        pages += [content, np.array([_checksum(page, content.tobytes())], "<u4")]
    return np.concatenate(pages)


def from_page(page: int, stored: bytes) -> UInt32[np.ndarray, " chunks"]:
    """The checksums in a stored page. ValueError if it is damaged."""
    if len(stored) < 4 or _checksum(page, stored[:-4]) != int.from_bytes(stored[-4:], "little"):
        raise ValueError(
            "DATA_LOSS: digest mismatch: the crc32c of a page of checksums is another one"
        )
    return np.frombuffer(stored[:-4], "<u4")


def _checksum(page: int, content: bytes) -> int:
    return google_crc32c.value(page.to_bytes(8, "little") + content)


class _Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    digest: str


class TableHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of the file.

    Attributes:
        ledger: The ``ledger.json`` of this table: see :func:`headrace.store.ledger.ledger_state`.
        fingerprint: Fingerprint of the content, as in :func:`PartTable.fingerprint`.
        parts: Number of parts.
        first: Digest of the tokens of the first; empty if there is none.
        columns: Name, dtype and digest of each column; those that :attr:`opened` counts come first.
        opened: Columns that are read when the cache is opened.
        chunks: Number of chunks whose checksums it lists.
        described: Whether no array's ``zarr.json`` has more information about chunks.
        cache: What readers need of ``ledger.json`` in addition to the parts.
        format_version: Version of this file.
    """

    ledger: str
    fingerprint: str
    parts: int
    first: str
    columns: list[_Column]
    opened: int
    chunks: int
    described: bool
    cache: dict[str, Any]
    format_version: int


# Types are worked out in the thread that imports: see ledger.prepare_types.
msgspec.json.Decoder(TableHead)


class _ColumnSpan(NamedTuple):
    """Where a column lies in the file."""

    column: _Column
    start: int
    stop: int


class ColumnTable(PartTable):
    """Parts as columns.

    Args:
        url: The file.
        data: The bytes that it begins with: at least its head and its opened columns. The rest is
            read from the file on demand.

    Attributes:
        reads: Number of reads of the file for opening it here; 0: another host did.
        ledger: As :class:`TableHead` has it, like the next two.
        chunks: Number of chunks whose checksums it lists.
        described: Whether no array's ``zarr.json`` has more information about chunks.

    Raises:
        CacheCorruptError: it is damaged.
    """

    def __init__(self, url: str, data: bytes) -> None:
        self.url = url
        self.data = data
        self.reads = 0
        head = self.head
        self.ledger = head.ledger
        self.chunks = head.chunks
        self.described = head.described
        self._parts = head.parts
        self._columns: dict[str, np.ndarray] = {}
        self._later: dict[str, _ColumnSpan] = {}
        for number, span in enumerate(_column_spans(head, _head_end(url, data))):
            if number < head.opened:
                stored = memoryview(data)[span.start : span.stop]
                self._columns[sys.intern(span.column.name)] = _column(url, span, stored)
            else:
                self._later[span.column.name] = span
        _check_columns(url, self._columns)
        self._leaves = tuple(
            name.removeprefix("elements ") for name in self._columns if name.startswith("elements ")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnTable, (self.url, self.data)

    def __len__(self) -> int:
        return self._parts

    @property
    def head(self) -> TableHead:
        """Its head, parsed each time: it takes four times the memory of its text, and a run may
        have a thousand caches.
        """
        return _parse_head(self.url, self.data)

    def column(self, name: str) -> np.ndarray:
        """A column by name, read at its first use. Raises CacheCorruptError if it is damaged."""
        if name not in self._columns:
            span = self._later[name]

            def read() -> np.ndarray:
                stored = files.read_range(self.url, span.start, span.stop)
                return _column(self.url, span, stored)

            try:
                self._columns[name] = files.read_sound(self.url, read)
            except OSError as error:
                problem = f"cannot be read any more ({error.strerror or error})"
                raise corrupt_table(self.url, problem) from error
        return self._columns[name]

    @property
    def chunk_place(self) -> tuple[int, int]:
        """Begin and end of the pages of checksums in the file."""
        span = self._later[_CHUNKS]
        return span.start, span.stop

    def item(self, number: int) -> PartRecord:
        leaves = {
            n: LeafRecord(int(self.leaf_elements(n)[number]), self.digest(number, n))
            for n in self._leaves
        }
        documents = int(self.documents[number])
        tokens = int(self.tokens[number])
        return PartRecord(self.name(number), documents, tokens, self.digest(number), leaves=leaves)

    def name(self, number: int) -> str:
        return bytes(self.column("name")[number]).decode()

    def digest(self, number: int, leaf: str | None = None) -> str:
        return digest_text(self.column("digest" if leaf is None else f"digest {leaf}"), number)

    @cached_property
    def documents(self) -> Int64[np.ndarray, " parts"]:
        return self.column("documents").astype(np.int64)

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " parts"]:
        return self.column("tokens").astype(np.int64)

    def leaf_elements(self, leaf: str) -> Int64[np.ndarray, " parts"]:
        return self.column(f"elements {leaf}")

    @cached_property
    def fingerprint(self) -> str:
        return self.head.fingerprint

    def digest_lines(self) -> bytes:
        def line(number: int) -> str:
            others = [f" {name}={self.digest(number, name)}" for name in leaves]
            return self.digest(number) + "".join(others)

        leaves = sorted(self._leaves)
        return "\n".join(map(line, range(len(self)))).encode()


def columns_of(parts: Sequence[PartRecord], leaves: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of records. Raises CacheError if one lacks a leaf, or its digest is not ASCII
    text.

    Args:
        parts: Records.
        leaves: Names of the leaves beside the tokens.
    """
    table = PartTable(parts)
    counts = {"documents": table.documents, "tokens": table.tokens}
    counts |= {f"elements {name}": table.leaf_elements(name) for name in leaves}
    digests = {"digest": [p.digest for p in parts]}
    digests |= {f"digest {name}": [p.leaves[name].digest for p in parts] for name in leaves}
    return {
        "name": _texts([p.name for p in parts]),
        **{name: narrow(column) for name, column in counts.items()},
        **{name: _digests(column) for name, column in digests.items()},
    }


def encode_table(
    columns: Mapping[str, np.ndarray],
    cache: dict[str, Any],
    ledger: str,
    fingerprint: str,
    names: ChunkNames = ChunkNames(),  # noqa: B008  # it does not change
) -> bytes:
    """The file.

    Args:
        columns: Columns of all parts, from :func:`columns_of`.
        cache: What readers need of ``ledger.json``.
        ledger: Identifies that ``ledger.json``.
        fingerprint: Fingerprint of the content.
        names: Checksums of chunks.
    """
    # 1. Checksums come between the opened columns and the digests.
    digests = {name: column for name, column in columns.items() if name.startswith("digest")}
    opened = {name: column for name, column in columns.items() if name not in digests}
    chunks = {_CHUNKS: to_pages(names.checksums)} if names.checksums.size else {}
    ordered = opened | chunks | digests
    # 2. "|" and "<" are left out: every column is little-endian.
    described = [
        _Column(name, column.dtype.str.lstrip("|<"), hashlib.sha256(column.tobytes()).hexdigest())
        for name, column in ordered.items()
    ]
    parts = ordered["name"].size
    head = TableHead(
        ledger,
        fingerprint,
        parts,
        digest_text(ordered["digest"], 0) if parts else "",
        described,
        len(opened),
        names.checksums.size,
        names.described,
        cache,
        TABLE_VERSION,
    )
    # 3. The same table gives the same bytes: sorted keys, no spaces.
    raw = json.dumps(msgspec.to_builtins(head), sort_keys=True, separators=(",", ":")).encode()
    prefix = _MAGIC + len(raw).to_bytes(8, "little") + hashlib.sha256(raw).digest() + raw
    # 4. What is between columns stays zero.
    spans = _column_spans(head, len(prefix))
    file = bytearray(spans[-1].stop)
    file[: len(prefix)] = prefix
    for span, column in zip(spans, ordered.values(), strict=True):
        file[span.start : span.stop] = column.tobytes()
    return bytes(file)


def read_table(url: str) -> ColumnTable | None:
    """The table in a file; None if there is no such file.

    Raises:
        CacheCorruptError: it is damaged.
        CacheError: it cannot be read.
    """

    def read() -> ColumnTable:
        # 5. Each look at what was read says how much there must be; a small table needs one read.
        data = files.read_range(url, 0, _FIRST_BYTES)
        reads = 1
        for needed in (_head_end, _opened_end):
            end = needed(url, data)
            if end > len(data):
                data += files.read_range(url, len(data), end)
                reads += 1
        table = ColumnTable(url, data)
        table.reads = reads
        return table

    try:
        return files.read_sound(url, read)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(url, error) from error


def unreadable(url: str, error: OSError) -> CacheError:
    """The error for a file that is there and cannot be read."""
    problem = f"cannot be read ({error.strerror or error})"
    return CacheError(problem, field="file", value=url, cure="Check its permissions.")


def corrupt_table(url: str, problem: str) -> CacheCorruptError:
    """An error about a table, with the command that rewrites it."""
    root = url.removesuffix(TABLE_NAME).rstrip("/") or "/"
    cure = f"Write it anew from ledger.json: {command_to_rewrite(root)}"
    return CacheCorruptError(problem, field="ledger", value=url, cure=cure)


def command_to_rewrite(root: str) -> str:
    """The command that writes the table of a cache anew."""
    there = Location.parse(root)
    return command_line("cache verify", there.writable, repair=True) + there.about_writable


def _head_end(url: str, data: bytes) -> int:
    length = int.from_bytes(data[8:16], "little")
    if data[:8] != _MAGIC or len(data) < _PREFIX or length > _LARGEST_HEAD:
        raise corrupt_table(url, "is not a ledger in columns")
    return _PREFIX + length


def _opened_end(url: str, data: bytes) -> int:
    head = _parse_head(url, data)
    return _column_spans(head, _head_end(url, data))[head.opened - 1].stop


def _parse_head(url: str, data: bytes) -> TableHead:
    # 6. The digest first: of a damaged head, no field says anything, not even its version.
    raw = data[_PREFIX : _head_end(url, data)]
    if hashlib.sha256(raw).digest() != data[16:_PREFIX]:
        raise corrupt_table(
            url, "is not as it was written: the digest of its head is of another text"
        )
    try:
        version = json.loads(raw)["format_version"]
        if version == TABLE_VERSION:
            head = msgspec.json.decode(raw, type=TableHead)
            _check_head(head)
            return head
    except (
        msgspec.DecodeError,
        RecursionError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise corrupt_table(url, f"has a head that cannot be used ({error})") from error
    raise corrupt_table(url, of_another_version(version, TABLE_VERSION))


def _check_head(head: TableHead) -> None:
    """ValueError unless its columns are those of a table of a possible size."""
    # Sizes and places are computed from these numbers, so they are bounded before anything is
    # read or allocated: a head may come from anybody.
    if not 0 <= head.parts <= _MOST_PARTS:
        raise ValueError(f"{head.parts} parts")
    if not 0 <= head.chunks <= _MOST_CHUNKS:
        raise ValueError(f"{head.chunks} chunks")
    leaves = [str(leaf.get("name")) for leaf in head.cache.get("leaves", [])]
    numbers = ["documents", "tokens", *(f"elements {name}" for name in leaves)]
    opened = {"name": _TEXT} | dict.fromkeys(numbers, _NUMBER)
    chunks = {_CHUNKS: _CHECKSUM} if head.chunks else {}
    digests = dict.fromkeys(["digest", *(f"digest {name}" for name in leaves)], _DIGEST)
    forms = opened | chunks | digests
    if [column.name for column in head.columns] != [*forms] or head.opened != len(opened):
        raise ValueError("its columns are not those of its leaves")
    for column in head.columns:
        if not forms[column.name].fullmatch(column.dtype):
            raise ValueError(f"column {column.name} of {column.dtype}")


def _column_spans(head: TableHead, end: int) -> list[_ColumnSpan]:
    """The place of each column; ``end`` is the end of the head."""
    spans: list[_ColumnSpan] = []
    for column in head.columns:
        entries = head.chunks + pages_of(head.chunks) if column.name == _CHUNKS else head.parts
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + entries * np.dtype(column.dtype).itemsize
        spans.append(_ColumnSpan(column, start, end))
    return spans


def _column(url: str, span: _ColumnSpan, stored: bytes | memoryview) -> np.ndarray:
    """A column from the bytes at its place."""
    # 7., 8. Its length before its digest: a file that was cut off is named as such.
    if len(stored) < span.stop - span.start:
        raise corrupt_table(url, "is shorter than it was written")
    if hashlib.sha256(stored).hexdigest() != span.column.digest:
        problem = f"the digest of its {span.column.name} is of other bytes"
        raise corrupt_table(url, f"is not as it was written: {problem}")
    return np.frombuffer(stored, f"<{span.column.dtype}")


def _check_columns(url: str, columns: Mapping[str, np.ndarray]) -> None:
    """Raises CacheCorruptError for names that lead outside or occur twice, and for numbers out of
    range.
    """
    names = columns["name"]
    if not names.size:
        return
    # All names in one pass over their bytes: regular expressions would take seconds for a million.
    # A byte is 1 (of a name), 0 (after its end) or 2 (neither). A name is sound if it has no 2,
    # begins with a letter or a digit or "_", and has no byte after its end.
    letters = names.view(np.uint8).reshape(names.size, -1)
    plain = np.frombuffer(names.tobytes().translate(_PLAIN), np.uint8).reshape(letters.shape)
    sound = plain.max() == 1 and not np.isin(letters[:, 0], list(b"\0.-")).any()
    if not (sound and (plain[:, 1:] <= plain[:, :-1]).all()):
        raise corrupt_table(url, "has a part whose name is no folder's name")
    # Names are usually sorted, which shows at once that they differ; otherwise they are now.
    if not (names[1:] > names[:-1]).all() and np.unique(names).size < names.size:
        raise corrupt_table(url, "names a part twice")
    # The sum in floats cannot overflow, while running sums of int64 later could.
    for name, column in columns.items():
        if name != "name" and (
            int(column.max()) > LARGEST_COUNT or float(column.sum(dtype=np.float64)) > _MOST_IN_ALL
        ):
            raise corrupt_table(url, f"has {name} out of range")


def _texts(values: Sequence[str]) -> np.ndarray:
    try:
        return np.array([value.encode("ascii") for value in values] or [b""], "S")[: len(values)]
    except UnicodeEncodeError as error:
        raise CacheError(
            "has a record that is no plain text", field="part", value=str(error.object)[:80]
        ) from error


def _digests(values: Sequence[str]) -> np.ndarray:
    """Digests as 32 bytes each, or as texts if one is not SHA-256."""
    if all(_HEX.fullmatch(value) for value in values):
        return np.frombuffer(
            bytes.fromhex("".join(value.removeprefix(_SHA) for value in values)), "V32"
        )
    return _texts(values)


def digest_text(column: np.ndarray, number: int) -> str:
    """A digest as records have it."""
    digest = bytes(column[number])
    return f"{_SHA}{digest.hex()}" if column.dtype.kind == "V" else digest.decode()


def narrow(values: np.ndarray) -> np.ndarray:
    """As the narrowest unsigned dtype that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
