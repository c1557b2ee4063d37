"""Saved filters: what a filter leaves out of a cache is computed once, saved with the cache, and
read in pieces.

``<cache>/filters/<fingerprint>/`` has vectors of whole numbers, each with digests of its pieces
(:mod:`headrace.store.vectors`): the documents (``documents.bin``: a bit each, or ranges if these
are fewer), and the gaps in the tokens (``kept-*.bin``, ``gaps-*.bin``: the sums of
:class:`~headrace.order.intervals.Removal`). Written last, ``filter.json`` has what the filter was
made from (its content and the cache's fingerprint), counts and digests; it is a sealed record. All
processes write the same bytes, under temporary names until they are complete.

It only saves time: if the folder is damaged, deleted or not writable, the filter is computed again.
Price: 8 bytes per gap and an eighth of a byte per document on disk. Opening reads the record, 32
bytes for each 64 KiB of these, and every 256th gap: 6 MB for 1e8 gaps. A batch reads the pieces
that its rows need.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from jaxtyping import Integer

from headrace.errors import CacheCorruptError, HeadraceError
from headrace.order.bits import Bits, NumberSet
from headrace.order.intervals import Intervals, Removal, RunningSums
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import FILTERS_FOLDER
from headrace.store.records import RecordKind
from headrace.store.vectors import RUN_BYTES, PiecedVector, VectorWriter, damaged

_LOG = logging.getLogger(__name__)
_RECORD = "filter.json"
_WHAT = "filter"


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    made_from: dict[str, Any]
    vectors: dict[str, dict[str, Any]]
    documents: tuple[int, int | None]  # how many are left out, and of how many, if they are bits
    tokens: list[int] | None  # length of the stream, and size and total of the sums of its gaps
    counts: tuple[int, int, int]  # listed, repeated, not found
    digests: dict[str, str]


_KIND = RecordKind(_WHAT, 1, _Record)

ReadOnce: TypeAlias = Callable[[str, Callable[[str], bytes]], bytes]
"""Returns what a function reads from a cache's folder; one process may read it for all."""


@dataclass(frozen=True, eq=False)
class RemovedDocuments:
    """What is left out of a cache.

    Attributes:
        which: Numbers of the documents, in the order of the cache.
        removal: The gaps in the token stream of the whole cache, all parts end to end; None: no
            gaps.
        num_tokens: Tokens of these documents.
        listed: Numbers in the filter, repeats included.
        repeated: Repeated numbers.
        not_found: Distinct numbers that no document has.
        folder: Where this is saved; empty if it is not.
        requests: Requests with which a host opens it in a store over HTTP or, if it is not saved,
            computes it (about).
    """

    which: NumberSet
    removal: Removal | None
    listed: int = 0
    repeated: int = 0
    not_found: int = 0
    folder: str = ""
    requests: int = 0
    digests: Mapping[str, str] | None = None  # those below, if they are known

    @property
    def num_documents(self) -> int:
        """Number of documents that are left out."""
        return self.which.total

    @property
    def num_tokens(self) -> int:
        """Tokens of these documents."""
        return 0 if self.removal is None else self.removal.length - self.removal.remaining

    @property
    def documents(self) -> Intervals:
        """Numbers of the documents; computed at each access if they are many ranges."""
        return self.which if isinstance(self.which, Intervals) else self.which.intervals()

    @property
    def tokens(self) -> Intervals:
        """Positions of these documents in the token stream of the whole cache."""
        return Intervals.empty() if self.removal is None else self.removal.removed()

    @cached_property
    def documents_digest(self) -> str:
        """Digest of the documents: SHA-256 as 64 hex digits."""
        return self.digests["documents"] if self.digests else self.which.digest()

    @cached_property
    def tokens_digest(self) -> str:
        """Digest of the tokens: SHA-256 as 64 hex digits."""
        return (
            self.digests["tokens"]
            if self.digests
            else ""
            if self.removal is None
            else self.removal.digest()
        )


def removed_once(
    cache: TokenCache,
    made_from: Callable[[], Mapping[str, Any]],
    remove: Callable[[], RemovedDocuments],
    read_once: ReadOnce | None = None,
) -> RemovedDocuments:
    """What is left out of a cache: loaded from its folder, or computed and saved there.

    Args:
        cache: The cache.
        made_from: Returns everything that the result depends on, as JSON values.
        remove: Computes it. Errors are passed on, and nothing is saved.
        read_once: Reads the record; see :data:`ReadOnce`.
    """
    opened: list[RemovedDocuments] = []
    worked_out: list[RemovedDocuments] = []

    def record(root: str) -> bytes:
        request = json.loads(json.dumps({**made_from(), "version": _KIND.version}))
        folder = files.join(root, FILTERS_FOLDER, request_digest(request)[:32])
        with contextlib.suppress(OSError, HeadraceError):
            raw = files.read_bytes(files.join(folder, _RECORD)) or b""
            if (removed := _opened(root, raw, request)) is not None:
                opened.append(removed)
                return raw
        worked_out.append(remove())
        with contextlib.suppress(
            OSError, HeadraceError
        ):  # a run must not fail because it cannot be saved
            return _save(folder, request, worked_out[0]) if cache.takes_files else b""
        return b""

    raw = record(cache.path) if read_once is None else read_once(cache.path, record)
    if opened:
        return opened[0]
    with contextlib.suppress(OSError, HeadraceError):
        if (removed := _opened(cache.path, raw)) is not None:
            return removed
    return worked_out[0] if worked_out else remove()


def filter_findings(cache: str) -> list[tuple[str, str]]:
    """Checks the filters saved with a cache by reading them: (file, problem) pairs.

    Example:
        >>> filter_findings("nowhere")
        []
    """
    findings: list[tuple[str, str]] = []
    folder = files.join(cache, FILTERS_FOLDER)
    for name in files.names_in(folder):
        url = files.join(folder, name, _RECORD)
        if (raw := files.read_bytes(url)) is None:
            continue  # one to come
        try:
            removed = _opened(cache, raw)
            if removed is None or not removed.folder.endswith(name):
                raise damaged(url, "is not as it was written, or of another filter", _WHAT)
            for vector in _vectors_of(removed).values():
                np.asarray(vector)
        except CacheCorruptError as error:
            findings.append((str(error.value), error.problem))
    return findings


def _vectors_of(removed: RemovedDocuments) -> dict[str, Integer[np.ndarray, " n"]]:
    which = removed.which
    removal = removed.removal
    if isinstance(which, Bits):
        vectors = {"documents": which.bits}
    else:
        vectors = {"documents": np.stack([which.start, which.stop], axis=1).reshape(-1)}
    for name, sums in zip(("kept", "gaps"), () if removal is None else removal.sums, strict=False):
        vectors |= {f"{name}-first": sums.first, f"{name}-more": sums.more}
    return {name: numbers for name, numbers in vectors.items() if numbers.size}


def _save(folder: str, request: Mapping[str, Any], removed: RemovedDocuments) -> bytes:
    """Saves what is left out, and returns its record."""
    vectors: dict[str, Any] = {}
    for name, numbers in _vectors_of(removed).items():
        writer = VectorWriter(
            files.join(folder, f"{name}.bin"), numbers.dtype.newbyteorder("<").str, _WHAT
        )
        try:
            writer.append(numbers)
            vectors[name] = writer.finish()
        except BaseException:
            writer.abort()
            raise
    record = _Record(
        made_from=dict(request),
        vectors=vectors,
        documents=(removed.num_documents, getattr(removed.which, "length", None)),
        tokens=removed.removal
        and [removed.removal.length, *(n for s in removed.removal.sums for n in (s.size, s.total))],
        counts=(removed.listed, removed.repeated, removed.not_found),
        digests={"documents": removed.documents_digest, "tokens": removed.tokens_digest},
    )
    raw = _KIND.encode(record)
    files.write_atomic(files.join(folder, _RECORD), raw, shared=True)
    return raw


def _opened(
    cache: str, raw: bytes, request: Mapping[str, Any] | None = None
) -> RemovedDocuments | None:
    """The content of a record, as far as a start needs it; None if it is missing, damaged, or of
    another request.
    """
    try:
        record = _KIND.decode(raw, cache)
    except CacheCorruptError:
        return None
    if request not in (None, record.made_from):
        return None
    folder = files.join(cache, FILTERS_FOLDER, request_digest(record.made_from)[:32])
    vectors = {
        n: PiecedVector(files.join(folder, f"{n}.bin"), v, _WHAT) for n, v in record.vectors.items()
    }
    total, length = record.documents
    stored = vectors["documents"]
    which: NumberSet
    if length is None:
        ranges = stored.loaded()
        which = Intervals(ranges[0::2], ranges[1::2])
    else:
        which = Bits(cast(np.ndarray, stored), length, total)
    removal = None if record.tokens is None else _removal(vectors, *record.tokens)
    listed, repeated, not_found = record.counts
    in_pieces = {name.replace("first", "more") for name in vectors if name.endswith("first")}
    in_pieces |= {"documents"} if length is not None else set()
    loaded = [
        one.size * one.dtype.itemsize for name, one in vectors.items() if name not in in_pieces
    ]
    requests = (
        2 + len(vectors) + sum(-(-size // RUN_BYTES) for size in loaded)
    )  # the record, and that of stretches
    return RemovedDocuments(
        which, removal, listed, repeated, not_found, folder, requests, record.digests
    )


def _removal(vectors: Mapping[str, PiecedVector], length: int, *sizes: int) -> Removal:
    sums: list[RunningSums] = []
    for name, size, total in zip(("kept", "gaps"), sizes[0::2], sizes[1::2], strict=True):
        first = vectors.get(f"{name}-first")
        more = vectors[f"{name}-more"]
        if first is None:  # so few that they are searched as they are
            sums.append(RunningSums(size, total, np.zeros(0, np.int64), more.loaded()))
        else:
            sums.append(RunningSums(size, total, first.loaded(), cast(np.ndarray, more)))
    return Removal.of_sums(length, *sums)


def request_digest(values: object) -> str:
    """Digest of what a saved result was made from, as JSON values: 64 hex digits."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
