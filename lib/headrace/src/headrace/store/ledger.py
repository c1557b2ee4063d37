"""The ledger: the content of a cache, and whether it is complete.

A cache is complete when its ledger says so. How it comes to that; the comments below have the same
numbers:

1. **Begin.** ``<root>/ledger.json`` with ``finished: false`` and everything that must be the same
   to resume the build. A builder that finds it goes on with it, or is refused.
2. **Parts.** Each has a record of its own, ``parts/<name>/part.json``, written last: a part with a
   record is complete, one without is built anew.
3. **Table.** ``ledger.bin``, all parts in columns (:mod:`headrace.store.ledger_table`), which names
   the ``ledger.json`` that step 4 will write.
4. **End.** ``ledger.json`` again, with ``finished: true`` and all parts: the very last write. A
   kill before it leaves an unfinished cache, whose ``ledger.bin`` nobody reads.

How a reader opens a cache:

5. **First bytes of ledger.json**: its digest, which is its name, and whether it is finished. Fields
   are sorted, so both come first, and a list of a million parts is not read.
6. **ledger.bin**, which must name that digest: one of another build is refused.
7. **First array**, only where the cache is remote: it names the part that it belongs to. Local
   files are asked array by array, when they are used.
8. **The rest on demand**: digests, sources and counters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    ConfigError,
    command_line,
    of_another_version,
)
from headrace.store import files
from headrace.store.files import ReadForAll
from headrace.store.layout import TOKENS, CacheLayout, LeafSpec, StoredLayout, owner_of
from headrace.store.ledger_table import (
    NAME_PATTERN,
    PAGE_BYTES,
    TABLE_NAME,
    TABLE_VERSION,
    ArrayChunks,
    ByNumber,
    ChunkNames,
    ColumnTable,
    Count,
    PartRecord,
    PartTable,
    chunks_of,
    columns_of,
    command_to_rewrite,
    corrupt_table,
    encode_table,
    from_page,
    read_table,
    unreadable,
)
from headrace.store.location import Location

LEDGER_NAME = "ledger.json"
PART_RECORD_NAME = "part.json"
TOKENIZER_NAME = "tokenizer.json"
"""Name of a tokenizer's file, in its folder and in a cache."""
ATTEMPTS_FOLDER = "attempts"
"""Folder of the parts that are built twice, by a second worker."""
FORMAT_VERSION = 1
_FILES_AT_ONCE = 32
_STATE_BYTES = 1 << 16
_STATE = re.compile(
    rb'\{\s*"code_version": "(?:[^"\\]|\\.)*",'
    rb'\s*"digest": "(sha256:[0-9a-f]{64})",\s*"finished": (true|false),'
)
"""The beginning of a ledger.json, whose fields are in alphabetical order."""
T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=msgspec.Struct)
UNDESCRIBED = "undescribed"
"""Key in the metadata of a cache that is only planned with: readers will request ``zarr.json`` and
the indices of its files, as Levanter's caches need."""
SHUFFLED = "shuffled"
"""Metadata of a cache whose documents were shuffled when it was written: ``seed``, ``unit``,
``part_bytes``, the path of the ``cache`` that was read, and of the one that numbers of documents
belong to (that cache or, if it was shuffled itself, its original) the ``fingerprint``, the
``parts`` with their documents, and the ``sources``. If its documents were cut: the length of the
``split``, the number of the original's ``documents``, and their ``pieces``
(:meth:`~headrace.order.document_shuffle.DocumentPieces.record`). If they were grouped: the number
of stored documents of each of the ``groups``, the options ``by`` which they were made, the digest
of the group of each document, and the records of its ``tables`` (:mod:`headrace.store.grouped`);
``moved``, if it has only documents that are in other groups than in the cache to which it was
appended. If they were packed: the tokens of a row (``pack``, and ``split``), the tokens of its
``padding``, the most documents in a row, and the ``tables``.
"""
GROUPED = ("groups", "by", "groups_digest", "tables", "moved", "format")
"""The last of these, and how the files of another system were read."""


class ShuffleRecord(msgspec.Struct, frozen=True):
    """The content of :data:`SHUFFLED`."""

    seed: int
    unit: Annotated[int, msgspec.Meta(ge=1, le=2**56)]
    part_bytes: Count
    fingerprint: str
    parts: list[tuple[str, Count]]
    sources: list[dict[str, Any]]
    cache: str | None = None
    split: Count = 0
    pack: Count = 0
    padding: Count = 0
    max_documents: Count = 0
    documents: Count = 0
    pieces: str = ""
    groups: list[Count] = []
    by: list[str] = []
    groups_digest: str = ""
    tables: dict[str, dict[str, Any]] = {}
    moved: bool = False

    def command(self, output: str) -> str:
        """The command that packs the same documents anew."""
        cache = self.cache or "CACHE"
        return command_line("cache reshuffle", cache, output, pack=self.pack, seed=self.seed)


class Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a cache.

    Attributes:
        finished: Whether the build completed.
        tokenizer: JSON record of the tokenizer and its policy, with ``vocab_size`` and
            ``fingerprint``.
        layout: JSON form of :class:`~headrace.store.layout.CacheLayout`.
        sources: JSON records of the source files: name, size, fingerprint.
        parts: Finished parts, in order. Empty until the build is finished.
        metadata: Further information (command, counters, versions).
        leaves: JSON form of the :class:`~headrace.store.layout.LeafSpec` of each leaf other than
            the tokens.
        code_version: Release of headrace that started the build.
        format_version: Version of this file.
        digest: Digest of the file with this field empty: ``sha256:`` and the hex digest. Only for
            reading and writing.
    """

    finished: bool
    tokenizer: dict[str, Any]
    layout: dict[str, Any]
    sources: Sequence[dict[str, Any]] = []
    parts: Sequence[PartRecord] = []
    metadata: dict[str, Any] = {}
    leaves: list[dict[str, Any]] = []
    code_version: str = msgspec.field(default_factory=cache(partial(version, "headrace")))
    format_version: int = FORMAT_VERSION
    digest: str = ""

    def complete(self, parts: Sequence[PartRecord], **metadata: Any) -> Ledger:
        """This ledger, finished, with its table of parts."""
        return replace(self, finished=True, parts=parts, metadata={**self.metadata, **metadata})


def shuffle_record(ledger: Ledger, root: str) -> ShuffleRecord | None:
    """The shuffle of a cache's documents; None if they were not shuffled. Raises CacheCorruptError
    if it is invalid.
    """
    recorded = ledger.metadata.get(SHUFFLED)
    try:
        return None if recorded is None else msgspec.convert(recorded, ShuffleRecord)
    except msgspec.ValidationError as error:
        cure = "Shuffle the original again, or restore the file."
        problem = f"does not say how the cache was shuffled ({error})"
        raise CacheCorruptError(
            problem, field="ledger", value=files.join(root, LEDGER_NAME), cure=cure
        ) from error


class _Head(msgspec.Struct):
    """The field of a ledger that is needed to read the rest."""

    format_version: Any = None


def prepare_types(*forms: Any) -> None:
    """Makes msgspec resolve types now, in the thread that imports their module: otherwise it does
    so at their first use, and the process dies if two threads do it at once (msgspec 0.22).
    """
    for form in forms:
        msgspec.json.Decoder(form)


prepare_types(Ledger, ShuffleRecord, _Head)


def check_scheme(root: str) -> None:
    """Raises CacheMissingError for an address under which no cache can be, before anything is asked
    of it.
    """
    location = Location.parse(root)
    try:
        location.check_scheme()
    except ConfigError as error:
        problem = f"is not a token cache ({error.problem})"
        raise CacheMissingError(problem, field="cache", value=root, cure=error.cure) from error


def read_ledger(root: str) -> Ledger | None:
    """The ledger of a cache, all of ``ledger.json``; None if there is none.

    Raises:
        CacheCorruptError: the file is damaged, or not a ledger of a version that this release
            reads.
        CacheError: the file cannot be read.
    """
    state = whole_state(root)
    return None if state is None else state.ledger


class LedgerState(NamedTuple):
    """The first bytes of a ``ledger.json``: its digest, and whether the build is finished.
    ``ledger``: all of it, if it was read.
    """

    name: str
    finished: bool
    ledger: Ledger | None = None


def ledger_state(root: str) -> LedgerState | None:
    """The state of a cache, from one small read whatever the number of its parts; None if there is
    no ledger. Raises the same errors as :func:`read_ledger`.
    """
    check_scheme(root)
    url = files.join(root, LEDGER_NAME)
    try:
        raw = files.read_range(url, 0, _STATE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(url, error) from error
    # 5. A whole file is parsed, which also checks its digest. Of a longer one the beginning is
    #    taken as it is: step 6 compares the digest that it states. What does not begin like a
    #    ledger of ours (fields in another order, damage) is read whole, with the errors of that.
    if len(raw) < _STATE_BYTES:  # all of it
        with suppress(CacheCorruptError):
            return _parsed(url, raw)
    elif start := _STATE.match(raw):
        return LedgerState(start[1].decode(), start[2] == b"true")
    return whole_state(root)


def is_finished(root: str) -> bool:
    """Whether there is a finished cache. Raises the same errors as :func:`read_ledger`."""
    state = ledger_state(root)
    return state is not None and state.finished


def whole_state(root: str) -> LedgerState | None:
    """The state of a cache with its whole ledger; None if there is none. Raises as
    :func:`read_ledger` does.
    """
    check_scheme(root)
    url = files.join(root, LEDGER_NAME)
    return _read(url, partial(_parsed, url))


def open_ledger(root: str, once: ReadForAll = files.read_here) -> Ledger | None:
    """The ledger of a cache to read from, with its parts as columns; None if there is none. Of an
    unfinished one all of ``ledger.json``.

    Price: two small reads, one more of some bytes a part where there are thousands.

    Raises:
        CacheCorruptError: a file is damaged, or the two do not belong together.
        CacheError: a file cannot be read.
    """
    table_url = files.join(root, TABLE_NAME)

    def read() -> tuple[Ledger | None, bytes | None]:
        ledger = _open_ledger(root)
        table = None if ledger is None else ledger.parts
        return ledger, table.data if isinstance(table, ColumnTable) else None

    def parse(raw: bytes) -> Ledger:
        return ledger_of_table(root, ColumnTable(table_url, raw))

    return once(table_url, parse, read)


def _open_ledger(root: str) -> Ledger | None:
    state = ledger_state(root)
    if state is None:
        return None
    if not state.finished:
        return state.ledger or read_ledger(root)
    # 6. Two files that were copied at different times, or of which only one was restored, do not
    #    belong together, though each is sound.
    table_url = files.join(root, TABLE_NAME)
    table = read_table(table_url)
    if table is None:
        raise corrupt_table(table_url, "is missing")
    if table.ledger != state.name:
        raise corrupt_table(table_url, f"is of another {LEDGER_NAME} than the one beside it")
    # 7. Of a remote cache only chunks are requested later, and these do not say whose they are.
    if not files.is_local(root) and len(table):
        check_first(root, table)
    return ledger_of_table(root, table)


def check_first(root: str, table: ColumnTable) -> None:
    """Raises CacheCorruptError if the first array belongs to another cache."""
    url = f"{part_folder(root, table.name(0))}/{TOKENS}/data"
    expected = owner_of(url, table.head.first)

    def differs(raw: bytes) -> bool:
        # What is no description is told by who reads the array.
        with suppress(ValueError):
            return StoredLayout.read(raw).owner not in ("", expected)
        return False

    if _read(files.join(url, "zarr.json"), differs):
        cure = (
            "Copy both ledgers of the cache again. What does not go together is named by:"
            f" {command_line('cache verify', root)}"
        )
        problem = f"and {TABLE_NAME} are of another cache than {url}"
        raise CacheCorruptError(
            problem, field="ledger", value=files.join(root, LEDGER_NAME), cure=cure
        )


def ledger_of_table(root: str, table: ColumnTable) -> Ledger:
    """The ledger of a cache whose table was read."""
    url = files.join(root, TABLE_NAME)
    try:
        ledger = _ledger_like(json.dumps(table.head.cache))
    except msgspec.ValidationError as error:
        raise corrupt_table(url, f"has a head that cannot be used ({error})") from error
    # 8. A run needs no sources; whoever asks for them waits for all of ledger.json.
    return replace(ledger, parts=table, sources=LaterSources(partial(_sources_of, root)))


@lru_cache(maxsize=64)  # most caches of a run were built alike, and share what is said of them
def _ledger_like(head: str) -> Ledger:
    """A finished ledger without parts, from what a head says of it."""
    return msgspec.convert({**json.loads(head), "finished": True}, Ledger)


def _sources_of(root: str) -> Sequence[dict[str, Any]]:
    return whole_ledger(root).sources


def whole_ledger(root: str) -> Ledger:
    """All of ``ledger.json``: the sources, and the counters of each part. Raises CacheCorruptError
    if it is gone.
    """
    ledger = read_ledger(root)
    if ledger is None:
        url = files.join(root, LEDGER_NAME)
        raise CacheCorruptError(
            "is missing", field="ledger", value=url, cure="Build the cache again, or restore it."
        )
    return ledger


class LaterSources(ByNumber[dict[str, Any]]):
    """Records of source files, read at their first use.

    Example:
        >>> len(LaterSources(lambda: [{"path": "a.txt"}]))
        1
    """

    def __init__(self, read: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._read = read

    @cached_property
    def _records(self) -> Sequence[dict[str, Any]]:
        return self._read()

    def __len__(self) -> int:
        return len(self._records)

    def item(self, number: int) -> dict[str, Any]:
        return self._records[number]


def _parsed(url: str, raw: bytes) -> LedgerState:
    cure = "Build the cache again, or restore the file."
    head = _decoded(raw, _Head, url, "ledger", cure, "ledger")
    if head.format_version != FORMAT_VERSION:
        problem = of_another_version(head.format_version, FORMAT_VERSION)
        raise CacheCorruptError(problem, field="ledger", value=url, cure="Build the cache anew.")
    ledger = _decoded(raw, Ledger, url, "ledger", cure, "ledger")
    # The digest is that of the text in which it is empty: only its own line differs, so it is put
    # back by text. Encoded anew, a file of another release could have other spaces.
    blank = raw.replace(_digest_line(ledger.digest), _digest_line(""), 1)
    if ledger.digest != _digest(blank):
        problem = "is not as it was written: its digest is of another text"
        raise CacheCorruptError(problem, field="ledger", value=url, cure=cure)
    return LedgerState(ledger.digest, ledger.finished, replace(ledger, digest=""))


def write_ledger(root: str, ledger: Ledger) -> None:
    """Writes the ledger atomically, that of a finished cache after its table. The same ledger gives
    the same bytes.
    """
    # 1. or 3. and 4. The digest of ledger.json is known before it is written, so ledger.bin can
    #    name it and come first. The other way round, a kill in between would leave a cache that
    #    says that it is finished and cannot be opened.
    raw, name = encode_ledger(ledger)
    if ledger.finished:
        files.write_atomic(
            files.join(root, TABLE_NAME), table_of(ledger, name, chunk_names(root, ledger))
        )
    files.write_atomic(files.join(root, LEDGER_NAME), raw)


def encode_ledger(ledger: Ledger) -> tuple[bytes, str]:
    """The ``ledger.json``, and its name (:class:`LedgerState`)."""
    lists = {"parts": list(ledger.parts), "sources": list(ledger.sources)}
    raw = _dump(replace(ledger, **lists, format_version=FORMAT_VERSION, digest=""))
    name = _digest(raw)
    return raw.replace(_digest_line(""), _digest_line(name), 1), name


def chunk_names(root: str, ledger: Ledger) -> ChunkNames:
    """Reads the checksums listed in the arrays of a cache. Price: one small read per array, 32 at a
    time.

    Raises:
        CacheError: the store cannot be reached.
    """
    table = PartTable.of(ledger.parts)
    try:
        layout = msgspec.convert(ledger.layout, CacheLayout)
        leaves = msgspec.convert(ledger.leaves, list[LeafSpec])
    except (msgspec.ValidationError, ConfigError):  # whoever opens the cache says what is wrong
        return ChunkNames(described=False)
    kinds = chunks_of(table, layout, leaves)
    arrays = [(kind, part) for kind in kinds for part in range(len(table))]

    def named(place: tuple[ArrayChunks, int]) -> np.ndarray | None:
        kind, part = place
        url = files.join(part_folder(root, table.name(part)), kind.leaf, kind.folder)
        owner = owner_of(url, table.digest(part, None if kind.leaf == TOKENS else kind.leaf))
        return _named(url, owner, int(kind.first[part + 1] - kind.first[part]))

    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="headrace-names") as pool:
        # Quicker than threads are started.
        is_quick = files.is_local(root) and len(arrays) <= _FILES_AT_ONCE
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
        stored = StoredLayout.read(files.read_bytes(files.join(url, "zarr.json")) or b"")
    except (CacheError, ValueError):
        return None  # headrace cache verify says what is wrong with it
    if stored.checksums is None or stored.checksums.size != chunks or stored.owner != owner:
        return None
    return stored.checksums.astype(np.uint32)


def table_of(ledger: Ledger, name: str, names: ChunkNames) -> bytes:
    """The ``ledger.bin`` for a finished ``ledger.json`` with this ``name`` (:class:`LedgerState`)
    and these checksums of chunks.

    Raises:
        CacheError: a part has other leaves than the cache.
    """
    columns = columns_of(ledger.parts, [str(leaf.get("name")) for leaf in ledger.leaves])
    return encode_table(
        columns, readers_need(ledger), name, PartTable.of(ledger.parts).fingerprint, names
    )


def table_problem(root: str, *, mend: bool = False) -> str:
    """The problem of the ``ledger.bin`` of a finished cache, compared byte for byte; empty if there
    is none, or the cache is not finished. ``mend``: rewrites it.

    Raises the same errors as :func:`~headrace.store.ledger.read_ledger`.
    """
    url = files.join(root, TABLE_NAME)
    state = whole_state(root)
    if state is None or state.ledger is None or not state.finished:
        return ""
    raw = files.read_bytes(url)
    names = chunk_names(root, state.ledger)
    # an array may be damaged, which is told where it is looked at
    if raw is not None and not names.checksums.size:
        names = _own_names(url, raw) or names
    table = table_of(state.ledger, state.name, names)
    if raw == table:
        return ""
    if mend:
        files.write_atomic(url, table)
    problem = "is missing" if raw is None else f"is not what {LEDGER_NAME} and the arrays say"
    return f"{problem}; to write it anew: {command_to_rewrite(root)}"


def _own_names(url: str, raw: bytes) -> ChunkNames | None:
    """The checksums that a table lists; None if it does not, or is damaged."""
    try:
        table = ColumnTable(url, raw)
        if not table.chunks:
            return None
        begin, end = table.chunk_place
        pages = enumerate(range(begin, end, PAGE_BYTES))
        pages_read = [from_page(page, raw[at : min(at + PAGE_BYTES, end)]) for page, at in pages]
        return ChunkNames(np.concatenate(pages_read), table.described)
    except (CacheCorruptError, ValueError):
        return None


def readers_need(ledger: Ledger) -> dict[str, Any]:
    """What readers need of a ledger in addition to its parts."""
    metadata = dict(ledger.metadata)
    # The parts of the original may be a million.
    if isinstance(shuffled := metadata.get(SHUFFLED), dict):
        without = {"parts": [], "sources": [], "pieces": ""}
        metadata[SHUFFLED] = shuffled | {key: without[key] for key in without.keys() & shuffled}
    fields = {
        field: getattr(ledger, field) for field in ("tokenizer", "layout", "leaves", "code_version")
    }
    return fields | {"metadata": metadata, "format_version": TABLE_VERSION}


def part_folder(root: str, name: str) -> str:
    """Folder of a part. Raises CacheCorruptError for a name that leads outside the cache."""
    if not re.match(NAME_PATTERN, name):
        cure = "Build the cache again, or restore its ledger."
        raise CacheCorruptError(
            f"has a part named {name!r}, which is no folder's name",
            field="cache",
            value=root,
            cure=cure,
        )
    return files.join(root, "parts", name)


def read_part_record(root: str, name: str) -> PartRecord | None:
    """The record of a part; None unless the part is complete. Raises CacheCorruptError if the file
    is no record.
    """
    url = files.join(part_folder(root, name), PART_RECORD_NAME)
    cure = "Delete it and build again."
    return _read(url, lambda raw: _decoded(raw, PartRecord, url, "part's record", cure))


def write_part_record(root: str, record: PartRecord) -> None:
    """Marks a part as complete, durably. Must be the part's last write."""
    # 2. The arrays of the part reach the disk before the record does: after a power cut, a file
    #    system may keep a later write and lose an earlier one.
    if files.is_local(root):
        files.sync_folders(
            files.local_path(part_folder(root, record.name)), below=files.local_path(root)
        )
    files.write_atomic(files.join(part_folder(root, record.name), PART_RECORD_NAME), _dump(record))


def tokenizer_content(content: bytes) -> dict[str, Any]:
    """The content of a ``tokenizer.json`` without truncation and padding, which would silently
    change what is encoded.

    Raises:
        ValueError: it is not a JSON object.
    """
    parsed = json.loads(content)
    if not isinstance(parsed, dict):
        raise ValueError("it is no JSON object")
    return {**parsed, "truncation": None, "padding": None}


def canonical_tokenizer(content: dict[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint_of(canonical: bytes, bos_id: int | None, eos_id: int | None) -> str:
    """The fingerprint of a tokenizer: of a text that identifies it, and of its policy."""
    policy = json.dumps({"bos_id": bos_id, "eos_id": eos_id}).encode()
    return "sha256:" + hashlib.sha256(canonical + b"\n" + policy).hexdigest()


def _dump(record: msgspec.Struct) -> bytes:
    return (
        json.dumps(msgspec.to_builtins(record), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    ).encode()


def _digest(raw: bytes) -> str:
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def _digest_line(digest: str) -> bytes:
    return f'\n "digest": "{digest}"'.encode()


def _read(url: str, parse: Callable[[bytes], T]) -> T | None:
    try:
        return files.read_as(url, parse)
    except OSError as error:
        raise unreadable(url, error) from error


def _decoded(
    raw: bytes, form: type[RecordT], url: str, what: str, cure: str, field: str = "file"
) -> RecordT:
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CacheCorruptError(
            f"is not a {what} ({error})", field=field, value=url, cure=cure
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cure = "Build the cache again, or restore the file."
        raise CacheCorruptError(
            f"is not JSON ({error})", field="file", value=url, cure=cure
        ) from error


def summed(extras: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counters of all parts together: sums of numbers, and the first non-empty text; the rest is
    left out.
    """
    total: dict[str, Any] = {}
    for extra in extras:
        for name, value in extra.items():
            if isinstance(value, dict):
                total[name] = summed([total.get(name, {}), cast("dict[str, Any]", value)])
            elif isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
            elif isinstance(value, str):
                total[name] = total.get(name) or value
    return total
