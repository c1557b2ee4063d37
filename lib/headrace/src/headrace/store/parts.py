"""The parts of a cache: the record of one; the table of all, with a column for each field; and the
checksums of their chunks.

A table is a sequence of records that are created on access, so a cache of a million parts opens
without creating objects per part. Code that needs a number for every part uses a column.

Each array lists the crc32c of its chunks in its ``zarr.json`` (:class:`ChunkNames`). To request
only chunks over HTTP, without reading that file, ``ledger.bin`` has all of them: leaf by leaf, the
values of all parts, then their offsets, part by part. They are stored in **pages** of 65,536, each
followed by a checksum of its number and its content, so that a page can be read by itself: 4 bytes
per chunk, 600 MB for 10 trillion tokens, of which a reader reads only the pages that it needs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias, overload

import google_crc32c
import msgspec
import numpy as np
from jaxtyping import Int64, UInt32

from headrace.errors import CacheCorruptError, CacheError, ConfigError
from headrace.store import files
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec, StoredLayout, owner_of

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z"
LARGEST_COUNT = 2**56
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
"""Valid folder names: a ledger may come from anywhere, and must not lead outside its cache."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]


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


class PartTable(Sequence[PartRecord]):
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

    @overload
    def __getitem__(self, index: int) -> PartRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[PartRecord]: ...
    def __getitem__(self, index: int | slice) -> PartRecord | list[PartRecord]:
        numbers = range(len(self))[index]
        return (
            self.record(numbers) if isinstance(numbers, int) else [self.record(k) for k in numbers]
        )

    def record(self, number: int) -> PartRecord:
        """A part by its number."""
        return self._records[number]

    @cached_property
    def documents(self) -> Int64[np.ndarray, " parts"]:
        """Documents of each part."""
        return np.fromiter((part.documents for part in self._records), np.int64, len(self))

    @cached_property
    def tokens(self) -> Int64[np.ndarray, " parts"]:
        """Tokens of each part."""
        return np.fromiter((part.tokens for part in self._records), np.int64, len(self))

    def name(self, number: int) -> str:
        """Folder of a part."""
        return self._records[number].name

    def digest(self, number: int, leaf: str | None = None) -> str:
        """Digest of the tokens of a part, or of another leaf."""
        record = self._records[number]
        return record.digest if leaf is None else record.leaves[leaf].digest

    def leaf_elements(self, leaf: str) -> Int64[np.ndarray, " parts"]:
        """Values of a leaf in each part. Raises CacheCorruptError for a part without it."""
        for part in self._records:
            if leaf not in part.leaves:
                raise CacheCorruptError(
                    f"has no record of leaf {leaf}", field="part", value=part.name
                )
        return np.fromiter(
            (part.leaves[leaf].elements for part in self._records), np.int64, len(self)
        )

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
_FILES_AT_ONCE = 32


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


def read_names(
    root: str, parts: Sequence[Any], layout: Mapping[str, Any], leaves: Sequence[Mapping[str, Any]]
) -> ChunkNames:
    """Reads the checksums listed in the arrays of a cache. Price: one small read per array, 32 at a
    time.

    Args:
        root: Folder or URL of the cache.
        parts: Its parts.
        layout: Layout of its tokens, as in the ledger.
        leaves: Its other leaves, as in the ledger.

    Raises:
        CacheError: the store cannot be reached.
    """
    table = PartTable.of(parts)
    try:
        layouts = (
            msgspec.convert(dict(layout), CacheLayout),
            msgspec.convert(list(leaves), list[LeafSpec]),
        )
    except (
        msgspec.ValidationError,
        ConfigError,
    ):  # whoever opens the cache says what is wrong with it
        return ChunkNames(described=False)
    kinds = chunks_of(table, *layouts)
    arrays = [(kind, part) for kind in kinds for part in range(len(table))]

    def named(place: tuple[ArrayChunks, int]) -> np.ndarray | None:
        kind, part = place
        url = files.join(root, "parts", table.name(part), kind.leaf, kind.folder)
        owner = owner_of(url, table.digest(part, None if kind.leaf == TOKENS else kind.leaf))
        return _named(url, owner, int(kind.first[part + 1] - kind.first[part]))

    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="headrace-names") as pool:
        is_quick = (
            files.is_local(root) and len(arrays) <= _FILES_AT_ONCE
        )  # quicker than threads are started
        all_names = list((map if is_quick else pool.map)(named, arrays))
    listed = [names for names in all_names if names is not None]
    if len(listed) < len(all_names):
        return ChunkNames(described=not listed)
    return ChunkNames(np.concatenate([np.zeros(0, np.uint32), *listed]))


def _named(url: str, owner: str, chunks: int) -> np.ndarray | None:
    """The checksums that an array lists for this many chunks; None if it does not, or if they are
    invalid.
    """
    try:
        stored = StoredLayout.parse(
            json.loads(files.read_bytes(files.join(url, "zarr.json")) or b"")
        )
    except (
        CacheError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
    ):
        return None  # headrace cache verify says what is wrong with it
    if stored.checksums is None or stored.checksums.size != chunks or stored.owner != owner:
        return None
    return stored.checksums.astype(np.uint32)


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
