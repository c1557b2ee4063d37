"""Saved filters: what a filter leaves out of a cache is computed once, saved with the cache, and
read in pieces.

``<cache>/filters/<fingerprint>/`` (:mod:`headrace.store.saved_results`) has the documents
(``documents.bin``: a bit each, or ranges if these are fewer), and the gaps in the tokens
(``kept-*.bin``, ``gaps-*.bin``: the sums of :class:`~headrace.order.intervals.Removal`).
``filter.json`` has what the filter was made from (its content and the cache's fingerprint), counts
and digests.

Price: 8 bytes per gap and an eighth of a byte per document on disk. Opening reads the record, 32
bytes for each 64 KiB of these, and every 256th gap: 6 MB for 1e8 gaps. A batch reads the pieces
that its rows need.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Integer

from headrace.errors import HeadraceError
from headrace.order.bits import Bits, NumberSet
from headrace.order.intervals import Intervals, Removal, RunningSums
from headrace.store import files
from headrace.store.cache import TokenCache
from headrace.store.layout import FILTERS_FOLDER
from headrace.store.records import RecordKind
from headrace.store.saved_results import ResultRecord, SavedResults, fingerprint_of
from headrace.store.vectors import RUN_BYTES, PiecedVector, write_vector

_VERSION = 1
_WHAT = "filter"


class _Record(ResultRecord):
    vectors: dict[str, dict[str, Any]]
    documents: tuple[int, int | None]  # how many are left out, and of how many, if they are bits
    tokens: list[int] | None  # length of the stream, and size and total of the sums of its gaps
    counts: tuple[int, int, int]  # listed, repeated, not found
    digests: dict[str, str]


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
    seen: list[RemovedDocuments] = []

    def record(root: str) -> bytes:
        removed, record = _FILTERS.found_or_made(
            files.join(root, FILTERS_FOLDER),
            {**made_from(), "version": _VERSION},
            remove,
            lambda _: cache.takes_files,
        )
        seen.append(removed)
        return b"" if record is None else _FILTERS.kind.encode(record)

    raw = record(cache.path) if read_once is None else read_once(cache.path, record)
    if seen:
        return seen[0]
    # Another process has read it, or has saved it
    with contextlib.suppress(OSError, HeadraceError):
        record_read = _FILTERS.kind.decode(raw, cache.path)
        fingerprint = fingerprint_of(record_read.made_from)
        return _opened(files.join(cache.path, FILTERS_FOLDER, fingerprint), record_read)
    return remove()


def filter_findings(cache: str) -> list[tuple[str, str]]:
    """Checks the filters saved with a cache by reading them: (file, problem) pairs.

    Example:
        >>> filter_findings("nowhere")
        []
    """
    checked = replace(_FILTERS, read=_verified)
    return checked.findings(files.join(cache, FILTERS_FOLDER))


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


def _save(folder: str, made_from: dict[str, Any], removed: RemovedDocuments) -> _Record:
    vectors = {
        name: write_vector(files.join(folder, f"{name}.bin"), numbers, _WHAT)
        for name, numbers in _vectors_of(removed).items()
    }
    return _Record(
        made_from=made_from,
        vectors=vectors,
        documents=(removed.num_documents, getattr(removed.which, "length", None)),
        tokens=removed.removal
        and [removed.removal.length, *(n for s in removed.removal.sums for n in (s.size, s.total))],
        counts=(removed.listed, removed.repeated, removed.not_found),
        digests={"documents": removed.documents_digest, "tokens": removed.tokens_digest},
    )


def _verified(folder: str, record: _Record) -> RemovedDocuments:
    """The content of a record, of which every number was read."""
    removed = _opened(folder, record)
    for vector in _vectors_of(removed).values():
        np.asarray(vector)
    return removed


def _opened(folder: str, record: _Record) -> RemovedDocuments:
    """The content of a record, as far as a start needs it."""
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
    in_pieces = {name.replace("first", "more") for name in vectors if name.endswith("first")}
    in_pieces |= {"documents"} if length is not None else set()
    loaded = [
        one.size * one.dtype.itemsize for name, one in vectors.items() if name not in in_pieces
    ]
    # the record, and that of stretches
    requests = 2 + len(vectors) + sum(-(-size // RUN_BYTES) for size in loaded)
    return RemovedDocuments(which, removal, *record.counts, folder, requests, record.digests)


_FILTERS = SavedResults(RecordKind(_WHAT, _VERSION, _Record), "filter.json", _save, _opened)


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
