"""Reads caches built by Levanter in place: its ledger, its arrays, its two ways of storing shards.

::

    shard_ledger.json                rows, shards, elements of each field
    input_ids/data, .../offsets      consolidated: one pair of arrays for each field
    part-0/input_ids/data, ...       sharded: a folder for each shard, which become the parts of
                                     the cache

Levanter's arrays are never resized (2**54 elements, most of them absent); ``offsets[0]`` is the
number of rows and ``offsets[i]`` the end of row i - 1; any chunk and codec of zarr v3 can be read.
Invariant: tokens, documents and leaves are those of Levanter's own ``TreeCache``, row by row.

Limits: TensorStore omits chunks that are all zero, so a lost shard file of masks reads as zeros.
For offsets, a lost file is always an error; for tokens, if more than 65,536 of them would be zero;
for masks, if nothing would be trained on in 16 million. There are no digests either: the
fingerprint is that of the ledger, which distinguishes counts and names, but not contents. Where
checksums were taken (:mod:`headrace_levanter.checksums`), every chunk is compared with its own, a
lost one too.

Price of opening: the ledger, two ``zarr.json`` for each field, and, if documents end with an
end-of-text token, the last token of the first one; nothing that grows with the number of documents.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Self

import numpy as np

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    CacheUnfinishedError,
    HeadraceError,
    ReadError,
)
from headrace.store import files, retry
from headrace.store.array import ArrayFuture, RepeatedRead, StoredArray
from headrace.store.layout import LEAF_DTYPES, TOKENS, CacheLayout, StoredLayout
from headrace.store.layouts import (
    UNNAMED,
    FormatConfig,
    Layout,
    named_tokenizer,
)
from headrace.store.leaf import LeafPart
from headrace.store.ledger import Ledger
from headrace.store.ledger_table import LeafRecord, PartRecord, PartTable
from headrace.store.missing import LEVANTERS_LEDGER
from headrace_levanter.checksums import (
    ArrayChecksums,
    Recorder,
    WrongChunkError,
    check_chunks,
    checksums_of,
    read_checksums,
    taken_by,
)

CHUNK = 1 << 18
SHARD_CHUNKS = 512
UNBOUNDED = 1 << 54
_MOST_ZEROS = {TOKENS: 1 << 16, "assistant_masks": 1 << 24}
"""A run of up to this many zeros may be intended; a longer one is a lost file."""


@dataclass(frozen=True)
class LevanterCache(Layout):
    """A cache of Levanter's: its folder, its ledger, as headrace writes them, and how the values
    and the offsets of each field lie on disk.
    """

    planned = CacheLayout("int32", CHUNK, SHARD_CHUNKS)

    path: str
    ledger: Ledger
    layouts: Mapping[str, tuple[CacheLayout, CacheLayout]]

    @classmethod
    def is_at(cls, path: str) -> bool:
        return files.exists(files.join(path, LEVANTERS_LEDGER))

    @classmethod
    def open(cls, path: str, settings: FormatConfig) -> Self:
        ledger, layouts = _read(path)
        return cls(path, ledger, layouts)

    def part(self, name: str, number: int) -> LeafPart:
        """The arrays of a field in a shard."""
        record = self.ledger.parts[number]
        elements = record.tokens if name == TOKENS else record.leaves[name].elements
        folder = _field_folder(self.path, record.name, name)
        data, offsets = _arrays(folder, name, elements, record.documents, *self.layouts[name])
        if self.checksums is not None:
            data.compare(self.path, self.checksums)
            offsets.compare(self.path, self.checksums)
        return LeafPart(record.documents, data, offsets)

    def limits(self) -> Sequence[str]:
        if self.checksums is not None:
            return ()
        return (
            f"chunks have no checksums, and parts no digests; to take them: {taken_by(self.path)}",
        )

    def recorder(self) -> Recorder:
        return Recorder(self.path, self._fingerprint)

    @property
    def _fingerprint(self) -> str:
        return PartTable.of(self.ledger.parts).fingerprint

    @cached_property
    def checksums(self) -> dict[str, ArrayChecksums] | None:
        """The checksums of its arrays; None: they were not taken. Read when they are first needed.

        Raises:
            CacheError: they cannot be read, or are damaged.
        """
        return read_checksums(self.path, self._fingerprint)


class LevanterArray(StoredArray):
    """An array of which only the first ``length`` elements exist. A missing shard file means at
    most ``zeros`` zeros; None: any number.
    """

    missing_is_zero = True

    def __init__(
        self, url: str, length: int, layout: CacheLayout, *, zeros: int | None = None
    ) -> None:
        super().__init__(url, length, layout)
        self._zeros = zeros
        self._checksums: np.ndarray | None = None

    def compare(self, path: str, checksums: Mapping[str, ArrayChecksums]) -> None:
        """Compares what is read from now on with the checksums of the cache at ``path``.

        Raises:
            CacheCorruptError: there are none of this array.
        """
        self._checksums = checksums_of(path, checksums, self)

    def read_into(self, out: np.ndarray, start: int) -> ArrayFuture:
        stop = start + out.size
        if self._checksums is None:
            return super().read_into(out, start)
        first, end = self._whole_chunks(start, stop)
        whole = out if (first, end) == (start, stop) else np.empty(end - first, self.dtype)
        read_into = super().read_into

        def copied(values: np.ndarray) -> np.ndarray:
            if whole is not out:
                out[...] = values[start - first : stop - first]
            return out

        return self._checked(lambda: read_into(whole, first), copied)

    def _whole_chunks(self, start: int, stop: int) -> tuple[int, int]:
        """The elements of the chunks in which these lie."""
        size = self.chunk_elements
        return start // size * size, min(-(-stop // size) * size, self.length)

    def _checked(
        self, begin: Callable[[], ArrayFuture], use: Callable[[np.ndarray], np.ndarray]
    ) -> RepeatedRead:
        """A read that is begun again where the bytes may have been damaged on their way."""
        most = self.damaged_attempts or retry.policy().damaged_attempts
        attempts = itertools.count(1)

        def again(error: HeadraceError) -> ArrayFuture:
            is_wrong = isinstance(error, WrongChunkError) and self._over_http
            if not is_wrong or next(attempts) == most:
                raise error
            retry.own_counts().damaged += 1
            self.forget()  # what was kept of the last read may be damaged
            return begin()

        return RepeatedRead(begin(), again, use)

    def must_exist(self, shard: int) -> bool:
        size = self.layout.shard_elements
        return self._zeros is not None and min(self.length - shard * size, size) > self._zeros

    def received(self, values: np.ndarray, start: int) -> None:
        """Raises ReadError if what was read from ``start`` on is all zero because a file is lost,
        or is not what the checksums were taken of.
        """
        size = self.layout.shard_elements
        for shard in range(start // size, -(-(start + values.size) // size)):
            part = values[max(shard * size - start, 0) : (shard + 1) * size - start]
            if not part.size or part[0] or part.any() or not self.must_exist(shard):
                continue
            if not files.exists(self.file_of(shard)):
                cure = "Check that the cache was copied whole; build it again if not."
                raise ReadError(
                    f"shard file c/{shard} is missing", field="array", value=self.url, cure=cure
                )
        if self._checksums is not None:
            check_chunks(self, values, start // self.chunk_elements, self._checksums)

    def _check_found(self, length: int, dtype: str, owner: str) -> None:
        if dtype != self.dtype.name or length < self.length:
            cure = (
                "Shards and ledger are of different builds: copy the cache again, or build it"
                " again."
            )
            problem = f"holds {length} elements of {dtype}, not {self.length} of {self.dtype.name}"
            raise CacheCorruptError(problem, field="array", value=self.url, cure=cure)


class LevanterOffsets(LevanterArray):
    """Offsets whose first value is the number of rows; read as 0, where the first row begins."""

    def __init__(self, url: str, length: int, layout: CacheLayout) -> None:
        super().__init__(url, length, layout, zeros=0)

    def received(self, values: np.ndarray, start: int) -> None:
        if start == 0 and values.size:
            values[0] = 0
        super().received(values, start)


def _read(path: str) -> tuple[Ledger, dict[str, tuple[CacheLayout, CacheLayout]]]:
    """The ledger of the cache that Levanter built at ``path``, as headrace writes them, and how
    each field lies on disk.

    Raises:
        CacheMissingError: it has no ledger there.
        CacheUnfinishedError: it did not finish.
        CacheCorruptError: the ledger contradicts itself.
        CacheError: it cannot be read, or has no tokens.
    """
    url = files.join(path, LEVANTERS_LEDGER)
    raw = files.read_bytes(url)
    if raw is None:
        raise CacheMissingError("is no cache of Levanter's", field="cache", value=path)
    try:
        data: dict[str, Any] = json.loads(raw)
        shards = _shards(path, data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cure = "Copy the cache again, or build it again with Levanter."
        raise CacheCorruptError(
            f"is not a ledger of Levanter ({error})", field="ledger", value=url, cure=cure
        ) from error
    if not data.get("is_finished"):
        cure = "Let Levanter finish it: run the same job again."
        raise CacheUnfinishedError(
            "was not finished building by Levanter", field="cache", value=path, cure=cure
        )
    fields = sorted({name for shard in shards for name in shard.counts})
    if shards and TOKENS not in fields:
        cure = "Use a cache of tokens; one of prompts or scores alone cannot be trained on."
        raise CacheError(
            f"has no {TOKENS}, only {', '.join(fields) or 'nothing'}",
            field="cache",
            value=path,
            cure=cure,
        )
    first = shards[0].name if shards else ""
    layouts = {name: _layouts_of(_field_folder(path, first, name)) for name in fields}
    dtypes = {name: data.dtype for name, (data, _) in layouts.items()}
    tokens = layouts[TOKENS][0] if shards else CacheLayout("int32", CHUNK, SHARD_CHUNKS, "other")
    parts = [shard.record(dtypes) for shard in shards]
    # Null where Marin tokenized.
    recorded = (data.get("metadata") or {}).get("preprocessor_metadata") or {}
    ledger = Ledger(
        finished=True,
        tokenizer=_tokenizer_record(path, recorded, layouts, parts),
        layout=tokens.to_dict(),
        parts=parts,
        metadata={
            "levanter": {
                k: v for k, v in data.items() if k not in ("shard_rows", "field_counts_by_shard")
            }
        },
        leaves=[{"name": n, "dtype": dtypes[n], "kind": "ragged"} for n in fields if n != TOKENS],
        code_version="levanter",
    )
    return ledger, layouts


@dataclass(frozen=True)
class _Shard:
    """A shard with rows: folder (empty: the cache's own), rows, elements of each field."""

    name: str
    rows: int
    counts: dict[str, int]

    def record(self, dtypes: Mapping[str, str]) -> PartRecord:
        summary = json.dumps([self.rows, sorted(self.counts.items()), dtypes[TOKENS]])
        digest = f"levanter:{hashlib.sha256(summary.encode()).hexdigest()}"
        leaves = {
            n: LeafRecord(self.counts.get(n, 0), f"levanter:{dtypes[n]}")
            for n in dtypes
            if n != TOKENS
        }
        return PartRecord(self.name, self.rows, self.counts[TOKENS], digest, leaves=leaves)


def _shards(path: str, data: dict[str, Any]) -> list[_Shard]:
    """The shards that hold rows. ValueError if the ledger contradicts itself."""
    total = int(data["total_num_rows"])
    if data.get("layout", "consolidated") != "sharded":
        if not total:
            return []
        counts = {str(n): int(c) for n, c in (data.get("field_counts") or {}).items()}
        # Older ones have no counts.
        return [_Shard("", total, counts or _count_elements(path, total))]
    names = data["finished_shards"]
    rows = data["shard_rows"]
    by_shard = data["field_counts_by_shard"]
    if len(set(names)) < len(names):
        raise ValueError("a shard is named twice")
    for name in names:
        if "://" in name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"shard {name!r} lies outside the cache")
    if sum(int(rows[n]) for n in names) != total:
        raise ValueError(f"its shards have {sum(int(rows[n]) for n in names)} rows, not {total}")
    return [
        _Shard(n, int(rows[n]), {f: int(c) for f, c in by_shard[n].items()})
        for n in names
        if int(rows[n])
    ]


def _count_elements(path: str, rows: int) -> dict[str, int]:
    """Elements of each field of a cache whose ledger lacks them, from the last offset."""
    counts: dict[str, int] = {}
    for name in files.names_in(path):
        folder = files.join(path, name)
        if files.exists(files.join(folder, "offsets", "zarr.json")):
            layout = _layouts_of(folder)[1]
            ends = LevanterOffsets(files.join(folder, "offsets"), rows + 1, layout).read(
                rows, rows + 1
            )
            counts[name] = int(ends.result()[0])
    return counts


def _layouts_of(folder: str) -> tuple[CacheLayout, CacheLayout]:
    """Dtype, chunk and shard of a field's values and of its offsets, from their ``zarr.json``."""
    return _layout_of(files.join(folder, "data", "zarr.json")), _layout_of(
        files.join(folder, "offsets", "zarr.json")
    )


def _layout_of(url: str) -> CacheLayout:
    raw = files.read_bytes(url)
    if raw is None:
        raise CacheError(
            "is missing", field="array", value=url, cure="Check that the cache was copied whole."
        )
    try:
        stored = StoredLayout.read(raw)
        if stored.dtype not in LEAF_DTYPES:
            raise ValueError(f"its dtype is {stored.dtype}")
        return CacheLayout(stored.dtype, stored.chunk, stored.shard // stored.chunk, "other")
    except ValueError as error:
        raise CacheError(
            f"is not the description of an array that can be read ({error})",
            field="array",
            value=url,
        ) from error


def _arrays(
    folder: str, name: str, elements: int, documents: int, data: CacheLayout, offsets: CacheLayout
) -> tuple[LevanterArray, LevanterOffsets]:
    """The values and the offsets of a field."""
    zeros = _MOST_ZEROS.get(name)
    values = LevanterArray(files.join(folder, "data"), elements, data, zeros=zeros)
    return values, LevanterOffsets(files.join(folder, "offsets"), documents + 1, offsets)


def _field_folder(path: str, shard: str, field: str) -> str:
    return files.join(path, *PurePosixPath(shard).parts, *field.split("/"))


def _tokenizer_record(
    path: str,
    said: Mapping[str, Any],
    layouts: Mapping[str, tuple[CacheLayout, CacheLayout]],
    parts: Sequence[PartRecord],
) -> dict[str, Any]:
    """The record of the tokenizer: headrace's, if it wrote one, or what Levanter stores."""
    if isinstance(own_record := said.get("headrace"), dict):
        return {**own_record["tokenizer"], "file": None}
    name = str(said.get("tokenizer", UNNAMED))
    facts = [name, *(said.get(field) for field in ("vocab_size", "append_bos", "append_eos"))]
    size = int(said.get("vocab_size") or 0)
    if not parts:
        return {**named_tokenizer(name, facts, "int64", size, None), "vocab_size": size or 1}
    appends = (bool(said.get("append_bos")), bool(said.get("append_eos")))
    ends = _ends_of_first(path, layouts, parts) if any(appends) else (None, None)
    bos_id, eos_id = (end if has else None for end, has in zip(ends, appends, strict=True))
    return named_tokenizer(name, facts, layouts[TOKENS][0].dtype, size, eos_id, bos_id)


def _ends_of_first(
    path: str, layouts: Mapping[str, tuple[CacheLayout, CacheLayout]], parts: Sequence[PartRecord]
) -> tuple[int | None, int | None]:
    """The first and the last token of the first document: the special ones, where documents have
    them.
    """
    folder = _field_folder(path, parts[0].name, TOKENS)
    first = parts[0]
    data, offsets = _arrays(folder, TOKENS, first.tokens, first.documents, *layouts[TOKENS])
    end = int(offsets.read(1, 2).result()[0])
    if not end:
        return None, None
    if end <= layouts[TOKENS][0].chunk_elements:  # both in one request
        tokens = data.read(0, end).result()
        return int(tokens[0]), int(tokens[-1])
    pending = data.read(0, 1), data.read(end - 1, end)
    return int(pending[0].result()[0]), int(pending[1].result()[0])
