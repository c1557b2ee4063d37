"""Checks whether a cache is still what was written and, if not, which part is damaged and which
source files rebuild it.

``fast`` checks names and sizes: the ledger, the record of each part, the description of each array,
and that every shard file exists, with the right length and the right end. ``deep`` reads every
chunk, which verifies its checksum and position, and compares the digests of whole leaves with the
ledger's, which finds intact files that are not those that were written.

Invariant: a part without a finding can be read and, after a deep check, is bit-identical to the one
in the ledger. Caches of Levanter have neither checksums in chunks nor digests: there, a deep check
finds what cannot be decoded or contradicts itself; once it has taken checksums of what it reads
(:class:`~headrace.store.layouts.ChecksumRecorder`), it finds whatever has changed. Price: fast, one
small read and one listing per array and a small read per shard file, 16 at a time; deep, the whole
cache once, about as fast as SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from headrace.errors import CacheError, ConfigError, HeadraceError, ReadError, command_line
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.grouped import table_problems
from headrace.store.layout import (
    CHUNKS,
    CRC_BYTES,
    NO_CHUNK,
    TOKENS,
    StoredLayout,
    check_place,
    checksum_bytes,
)
from headrace.store.layouts import FORMAT, ChecksumRecorder, FormatConfig
from headrace.store.leaf import BLOCK_ELEMENTS, LeafPart
from headrace.store.lease import lease, remove_tree
from headrace.store.ledger import (
    LEDGER_NAME,
    PART_RECORD_NAME,
    ShuffleRecord,
    canonical_tokenizer,
    fingerprint_of,
    part_folder,
    read_ledger,
    read_part_record,
    shuffle_record,
    table_problem,
    tokenizer_content,
    write_ledger,
)
from headrace.store.ledger_table import TABLE_NAME, PartRecord
from headrace.store.ragged import shard_sizes

_FILES_AT_ONCE = 16
_DEEP_AT_ONCE = 2
_DAMAGED_ATTEMPTS = 2
"""Requests for bytes that come damaged. A run waits for other ones; here they are the finding. What
fails in a block is read once more by itself, so it came damaged four times.
"""


@dataclass(frozen=True)
class Damage:
    """A damage that was found.

    Attributes:
        part: Empty if it is of the cache as a whole.
        array: Its folder; empty if it is the part as a whole.
        file: Empty if it is none in particular.
        chunks: The damaged ones, as [first, last] runs.
        documents: Of the cache, likewise: what may be lost.
        sources: Files from which the part is rebuilt.
    """

    part: str
    problem: str
    array: str = ""
    file: str = ""
    chunks: list[list[int]] = field(default_factory=list[list[int]])
    documents: list[list[int]] = field(default_factory=list[list[int]])
    sources: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check.

    Attributes:
        path: The cache.
        finished: Whether its build was finished; if not, the complete parts were checked.
        deep: Whether every chunk was read.
        parts: Parts that were checked.
        elements: Tokens and values of other leaves in them.
        damages: The damages, part by part.
        shuffled: Seed, unit, and fingerprint of the original, if its documents were shuffled when
            it was written.
        unchecked: What cannot be checked in this cache.
        recorded: The file into which checksums were written; empty if they were not taken.
    """

    path: str
    finished: bool
    deep: bool
    parts: int
    elements: int
    damages: list[Damage]
    shuffled: dict[str, Any] | None = None
    unchecked: tuple[str, ...] = ()
    recorded: str = ""

    @property
    def damaged_parts(self) -> list[str]:
        """Names of the damaged parts."""
        return sorted({d.part for d in self.damages} - {""})

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "damaged_parts": self.damaged_parts}


def verify(
    path: str | Path,
    *,
    deep: bool = False,
    record: bool = False,
    settings: FormatConfig | None = None,
    expect: Callable[[int], None] | None = None,
    advance: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Checks a cache.

    Args:
        path: Folder or URL.
        deep: Read every chunk.
        record: Take the checksums of a cache of Levanter's, for later reads and checks, unless
            something is damaged; this reads every chunk.
        settings: How another system's files are read.
        expect: Called once with the number of elements that a deep check will read.
        advance: Called with the number of elements read since its last call, from several threads.

    Raises:
        CacheError: there is no cache, or its ledger cannot be used, so there is nothing to compare
            with; or checksums cannot be written.
        ConfigError: headrace built the cache, which has checksums.

    Example:
        >>> import headrace.testing
        >>> verify(headrace.testing.tiny_cache().path, deep=True).damages
        []
    """
    path = str(path)
    cache, finished = _opened(path, settings)
    foreign = cache.foreign
    if record and foreign is None:
        cure = f"Leave --record out: {command_line('cache verify', path, deep=True)}"
        raise ConfigError("has checksums in its chunks", field="cache", value=path, cure=cure)
    recorder = foreign.recorder() if record and foreign is not None else None
    deep = deep or record
    leaves = {name: cache.leaf(name).parts for name in (TOKENS, *cache.leaves)}
    numbers = range(len(cache.parts))
    arrays = [array for k in numbers for parts in leaves.values() for array in parts[k].arrays]
    elements = sum(array.length for array in arrays)
    if expect is not None:
        expect(elements)
    check = _PartCheck(cache, leaves, finished and foreign is None, deep, recorder, advance)
    at_once = _DEEP_AT_ONCE if deep else _FILES_AT_ONCE
    with ThreadPoolExecutor(at_once, thread_name_prefix="headrace-verify") as pool:
        checked = list(pool.map(check.damages, numbers))
    sources: dict[str, list[str]] = {}
    for source in cache.ledger.sources if foreign is None else ():
        sources.setdefault(str(source.get("part")), []).append(str(source["path"]))
    ends = np.cumsum(cache.part_documents)
    damages = [
        replace(
            d,
            sources=list(dict.fromkeys(sources.get(d.part, []))),
            documents=_documents(part, int(end), d),
        )
        for part, end, (of_part, _) in zip(cache.parts, ends, checked, strict=True)
        for d in of_part
    ]
    shuffled = shuffle_record(cache.ledger, path) if finished else None
    beside = _look_beside_parts(cache, shuffled, check.has_records)
    if beside and not files.is_local(path):  # an answer may be bad
        beside = _look_beside_parts(cache, shuffled, check.has_records)
    damages += beside
    if shuffled is not None:
        documents = sum(count for _, count in shuffled.parts)
        if documents != cache.num_originals and not shuffled.moved:
            problem = (
                f"has {cache.num_originals} documents, and the cache that it was made of"
                f" {documents}"
            )
            damages.append(Damage("", problem, file=files.join(path, LEDGER_NAME)))
    facts = shuffled and {key: getattr(shuffled, key) for key in ("seed", "unit", "fingerprint")}
    recorded = ""
    if recorder is not None and not damages:
        recorded = recorder.write(arrays)
    unnamed = sum(unnamed for _, unnamed in checked)
    unchecked = () if recorded else _unchecked(cache, unnamed)
    return VerifyReport(
        path, finished, deep, len(numbers), elements, damages, facts, unchecked, recorded
    )


def invalidate(path: str, names: Sequence[str]) -> None:
    """Makes damaged parts incomplete, so that resuming the build rebuilds them, and only them.

    If it is killed, it leaves parts without a record, which a build rebuilds and :func:`verify`
    reports.

    Args:
        path: A cache that headrace built.
        names: Names of parts.

    Raises:
        ConfigError: the cache has no such part.
        CacheError: there is no ledger, or it cannot be written.
    """
    ledger = read_ledger(path)
    if ledger is None:
        raise CacheError(
            "has no ledger", field="cache", value=path, cure="Build it: nothing can be repaired."
        )
    planned = {str(s["part"]) for s in ledger.sources}
    unknown = [name for name in names if name not in planned]
    if unknown:
        cure = "Only parts that a build planned can be built again."
        raise ConfigError(
            f"{path} was not built from sources as part of that name",
            field="part",
            value=unknown[0],
            cure=cure,
        )
    if not names:
        return
    with lease(path, field="cache"):
        for name in names:
            remove_tree(files.join(part_folder(path, name), PART_RECORD_NAME))
        if ledger.finished:
            write_ledger(path, structs.replace(ledger, finished=False, parts=[]))


def _opened(path: str, settings: FormatConfig | None) -> tuple[TokenCache, bool]:
    """The cache (the complete parts of an unfinished one), and whether it is finished."""
    ledger = read_ledger(path)
    if ledger is None:
        return TokenCache.open_member(path, settings=settings), True
    if ledger.finished:
        return TokenCache(path, ledger), True
    names = dict.fromkeys(str(s["part"]) for s in ledger.sources)
    records = [record for name in names if (record := read_part_record(path, name)) is not None]
    return TokenCache(path, structs.replace(ledger, parts=records)), False


def _unchecked(cache: TokenCache, unnamed: int) -> tuple[str, ...]:
    """What other systems do not record, and whether there are ``unnamed`` arrays of ours, too
    large to list their chunks.
    """
    if cache.foreign is not None:
        return tuple(cache.foreign.limits())
    how = (
        f"{unnamed:,} arrays do not name their chunks: only --deep finds sound files in another's"
        " place"
    )
    return (how,) if unnamed else ()


def _file_problems(array: StoredArray) -> tuple[list[tuple[str, str]], bool]:
    """Problems of the files of an array, as (file, problem) pairs, and whether ``zarr.json`` names
    its chunks. By names, lengths and the last bytes of each shard file: these are its index and,
    before that, the checksum of its last chunk, which ``zarr.json`` names. So one small read tells
    an intact file in the wrong position (:mod:`headrace.store.array`).

    Raises:
        CacheError: the store cannot be reached.
    """
    problems = array.file_problems()
    if problems is not None:
        return problems, True
    url = files.join(array.url, "zarr.json")
    raw = files.read_bytes(url)
    if raw is None:
        return [(url, "is missing")], True
    sparse = array.missing_is_zero
    try:
        stored = StoredLayout.read(raw)
        longer = stored.length > array.length and not sparse
        if array.owner and not stored.owner and b"headrace_" in raw:
            raise ValueError("it is not as it was written")
        if array.owner and stored.owner not in ("", array.owner):
            return [(url, "is of another part, or of another cache")], True
        if stored.dtype != array.dtype.name or stored.length < array.length or longer:
            expected = f"{array.length} of {array.dtype.name}"
            raise ValueError(
                f"it holds {stored.length} of {stored.dtype}, and the ledger has {expected}"
            )
    except ValueError as error:
        return [(url, f"is not the description of the array ({error})")], True
    shards = -(-array.length // stored.shard)
    sizes = shard_sizes(array.url, shards)
    problems = []
    for number in range(shards):
        file = files.join(array.url, "c", str(number))
        if number not in sizes:
            if array.must_exist(number):
                problems.append((file, "is missing"))
        elif problem := _wrong_file(file, number, sizes[number], stored, array.length, sparse):
            problems.append((file, problem))
    return problems, CHUNKS.encode() in raw or not array.owner


def _wrong_file(
    file: str, number: int, size: int, stored: StoredLayout, length: int, sparse: bool
) -> str | None:
    """The problem of a shard file of an array with this many elements; None if there is none."""
    index_bytes = stored.index_bytes
    if not index_bytes or not stored.index_last:
        return None
    itemsize = np.dtype(stored.dtype).itemsize
    elements = min(stored.shard, length - number * stored.shard)
    chunks = -(-elements // stored.chunk)
    checksum = checksum_bytes(stored.codecs, itemsize)
    if checksum is not None and not sparse:
        expected = chunks * (stored.chunk * itemsize + checksum) + index_bytes
        if size != expected:
            return f"has {size:,} bytes instead of {expected:,}"
        if stored.checksums is None:
            return None
    if size < index_bytes + CRC_BYTES:
        return f"has {size:,} bytes, less than its index"
    raw = files.read_range(file, size - index_bytes - CRC_BYTES, size)
    return _wrong_end(raw, size, stored, number, None if sparse else chunks)


def _wrong_end(
    raw: bytes, size: int, stored: StoredLayout, number: int, chunks: int | None
) -> str | None:
    """The problem of the last bytes of a shard file that should have this many chunks (None: any
    number).
    """
    shard_chunks = stored.shard // stored.chunk
    entries = np.frombuffer(raw, "<u8", shard_chunks * 2, CRC_BYTES).reshape(-1, 2)
    there = np.flatnonzero(entries[:, 0] != NO_CHUNK)
    ends = entries[there].astype(np.float64).sum(1)
    if ends.size and ends.max() != size - stored.index_bytes:
        return (
            f"has {size:,} bytes, which is not what its index says: it was cut off or overwritten"
        )
    if chunks is not None and there.size != chunks:
        return f"has {there.size} chunks instead of {chunks}"
    if stored.checksums is not None and ends.size:
        last = number * shard_chunks + int(there[np.argmax(ends)])
        try:
            check_place(raw[:CRC_BYTES], int(stored.checksums[last]))
        except ValueError:
            return (
                "is not the file that was written here: its last chunk is of another place or cache"
            )
    return None


def _look_beside_parts(
    cache: TokenCache, shuffled: ShuffleRecord | None, has_records: bool
) -> list[Damage]:
    """The damages of the tokenizer, of the table of a finished cache, and of those of groups."""
    damages = _look_at_tokenizer(cache)
    if has_records and (problem := table_problem(cache.path)):
        damages.append(Damage("", problem, file=files.join(cache.path, TABLE_NAME)))
    if shuffled is not None and (shuffled.groups or shuffled.pack):
        problems = table_problems(cache.path, shuffled.tables, cache.num_documents)
        damages += [Damage("", problem, file=file) for file, problem in problems]
    return damages


def _look_at_tokenizer(cache: TokenCache) -> list[Damage]:
    """Checks that the cache's copy of the tokenizer is the one in its ledger."""
    record = cache.ledger.tokenizer
    if not record.get("file"):
        return []
    url = files.join(cache.path, str(record["file"]))
    raw = files.read_bytes(url)
    if raw is None:
        return [Damage("", "is missing", file=url)]
    try:
        text = canonical_tokenizer(tokenizer_content(raw))
        fingerprint = fingerprint_of(text, record.get("bos_id"), record.get("eos_id"))
    except (ValueError, RecursionError):
        fingerprint = ""
    if fingerprint == record.get("fingerprint"):
        return []
    return [Damage("", "is not the tokenizer that the cache was built with", file=url)]


def _documents(part: LeafPart, end: int, damage: Damage) -> list[list[int]]:
    """The documents that a damage affects: those of the chunks, if known, or of the whole part."""
    count = part.documents
    first = end - count
    if damage.chunks and damage.array == part.data.url:
        with suppress(HeadraceError):
            ends = part.borders.read(1, count + 1).result()
            size = part.data.chunk_elements
            spans = np.array(damage.chunks) * size + [0, size - 1]
            touched = (
                np.searchsorted(ends, np.minimum(spans, part.data.length - 1), side="right") + first
            )
            return [[int(a), int(b)] for a, b in touched]
    return [[first, first + count - 1]] if count else []


@dataclass(frozen=True)
class _PartCheck:
    """Checks parts of a cache.

    Attributes:
        cache: The cache.
        leaves: The parts of each of its leaves.
        has_records: Whether each part has a record beside it: headrace has finished it.
        deep: Whether everything is read.
        recorder: Takes checksums of what is read.
        advance: Called with the number of elements read.
    """

    cache: TokenCache
    leaves: Mapping[str, Sequence[LeafPart]]
    has_records: bool
    deep: bool
    recorder: ChecksumRecorder | None
    advance: Callable[[int], None] | None

    def damages(self, number: int) -> tuple[list[Damage], int]:
        """The damages of a part, and how many of its arrays do not list their chunks."""
        record = self.cache.ledger.parts[number]
        damages = self._wrong_record(record) if self.has_records else []
        unnamed = 0
        for parts in self.leaves.values():
            for array in parts[number].arrays:
                problems, names_chunks = _file_problems(array)
                if problems and not files.is_local(array.url):  # an answer may be bad
                    problems, names_chunks = _file_problems(array)
                damages += [
                    Damage(record.name, problem, array.url, file) for file, problem in problems
                ]
                unnamed += not names_chunks
        if self.deep:
            damages += self._read(number, record, {damage.file for damage in damages})
        return damages, unnamed

    def _wrong_record(self, record: PartRecord) -> list[Damage]:
        url = files.join(part_folder(self.cache.path, record.name), PART_RECORD_NAME)
        try:
            stored = read_part_record(self.cache.path, record.name)
            problem = "is missing" if stored is None else "is not that of the ledger"
        except HeadraceError as error:
            stored = None
            problem = error.problem
        return [] if stored == record else [Damage(record.name, problem, file=url)]

    def _read(self, number: int, record: PartRecord, damaged_files: set[str]) -> list[Damage]:
        """The damages that are found by reading everything, but not those of files that are known
        to be damaged.
        """
        damages: list[Damage] = []
        for name, parts in self.leaves.items():
            leaf = parts[number]
            digest = hashlib.sha256()
            sound = True
            for array in leaf.arrays:
                if files.join(array.url, "zarr.json") in damaged_files:
                    sound = False
                    continue
                is_offsets = array is leaf.offsets
                # Ids that another system's file has are checked; a build has checked its own.
                is_unchecked = FORMAT in self.cache.ledger.metadata and name == TOKENS
                vocab_size = self.cache.vocab_size if is_unchecked and not is_offsets else None
                for damage in self._read_array(
                    record, array, digest, ordered=is_offsets, vocab_size=vocab_size
                ):
                    sound = False
                    if not damage.file or damage.file not in damaged_files:
                        damages.append(damage)
            expected = record.digest if name == TOKENS else record.leaves[name].digest
            has_digest = self.cache.foreign is None
            if has_digest and sound and f"sha256:{digest.hexdigest()}" != expected:
                problem = f"leaf {name} is sound, but not what was written (digests differ)"
                damages.append(Damage(record.name, problem, leaf.data.url))
        return damages

    def _read_array(
        self,
        record: PartRecord,
        array: StoredArray,
        digest: Any,
        *,
        ordered: bool,
        vocab_size: int | None,
    ) -> Iterator[Damage]:
        array.damaged_attempts = _DAMAGED_ATTEMPTS
        step = max(BLOCK_ELEMENTS // array.chunk_elements, 1) * array.chunk_elements
        last = 0
        bad: list[tuple[int, str]] = []
        for at in range(0, array.length, step):
            stop = min(at + step, array.length)
            try:
                values = array.read(at, stop).result()
            except CacheError as error:
                yield Damage(record.name, error.problem, array.url)
                return
            except ReadError:
                bad += _bad_chunks(array, at, stop)
            else:
                digest.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
                if self.recorder is not None:
                    self.recorder.add(array, values)
                if vocab_size is not None and (values.min() < 0 or values.max() >= vocab_size):
                    problem = f"has ids from {values.min()} to {values.max()}, of {vocab_size:,}"
                    yield Damage(record.name, problem, array.url)
                if ordered:
                    if (
                        (at == 0 and int(values[0]) != 0)
                        or int(values[0]) < last
                        or (np.diff(values) < 0).any()
                    ):
                        yield Damage(record.name, "offsets do not rise from 0", array.url)
                    last = int(values[-1])
            if self.advance is not None:
                self.advance(stop - at)
        shard = array.layout.shard_chunks
        for number, chunks in groupby(bad, key=lambda b: b[0] // shard):
            numbers, problems = zip(*chunks, strict=True)
            file = array.file_of(number)
            yield Damage(record.name, problems[0], array.url, file, _runs(numbers))


def _bad_chunks(array: StoredArray, start: int, stop: int) -> Iterator[tuple[int, str]]:
    size = array.chunk_elements
    for chunk in range(start // size, -(-stop // size)):
        try:
            array.read(chunk * size, min((chunk + 1) * size, array.length)).result()
        except ReadError as error:
            yield chunk, error.problem


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Rising numbers as runs.

    Example:
        >>> _runs([1, 2, 3, 7])
        [[1, 3], [7, 7]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs
