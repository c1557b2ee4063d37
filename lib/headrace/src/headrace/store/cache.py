"""``TokenCache``: a finished cache, opened for reading.

The parts that workers wrote become one cache by a table (virtual concatenation): document and token numbers run through
all parts, nothing is copied. Opening reads one small file and does no work that grows with the number of documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import CacheMissingError, CacheUnfinishedError, IndexOutOfRangeError
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import CacheLayout
from headrace.store.ledger import Ledger, PartRecord, read_ledger
from headrace.store.ragged import data_url, offsets_url


@dataclass(frozen=True)
class CachePart:
    """One part of an open cache: its record and its two arrays (opened at their first read)."""

    record: PartRecord
    data: StoredArray
    offsets: StoredArray


class TokenCache:
    """A finished token cache. Use :meth:`open`.

    Attributes:
        path: Folder or URL.
        ledger: What the cache is made of.
        parts: Its parts, in order.
    """

    def __init__(self, path: str, ledger: Ledger) -> None:
        self.path = path
        self.ledger = ledger
        self.layout = CacheLayout(**ledger.layout)
        self.parts: Sequence[CachePart] = tuple(
            CachePart(
                record,
                StoredArray(data_url(path, record.name), record.tokens, self.layout),
                StoredArray(offsets_url(path, record.name), record.documents + 1, self.layout.offsets()),
            )
            for record in ledger.parts
        )
        self._first_document = _starts([p.record.documents for p in self.parts])
        self._first_token = _starts([p.record.tokens for p in self.parts])

    @classmethod
    def open(cls, path: str | Path) -> TokenCache:
        """Opens the cache at a local path or URL (``gs://``, ``s3://``, ``https://``).

        Raises:
            CacheMissingError: there is no cache.
            CacheUnfinishedError: its build was interrupted.
            CacheCorruptError: its ledger is none, or of another version.
            CacheError: its ledger cannot be read.
        """
        path = str(path)
        ledger = read_ledger(path)
        if ledger is None:
            there = "the folder holds no ledger.json" if files.exists(path) else "there is no such folder"
            raise CacheMissingError(
                f"is not a token cache ({there})",
                field="cache",
                value=path,
                cure=f"Build one: headrace build SOURCE --tokenizer FILE --output {path}",
            )
        if not ledger.finished:
            raise CacheUnfinishedError(
                "was not finished building",
                field="cache",
                value=path,
                cure="Run the same `headrace build` command again: it goes on from the last finished part"
                f" (`headrace inspect {path}` shows how far it got).",
            )
        return cls(path, ledger)

    @property
    def num_documents(self) -> int:
        return int(self._first_document[-1])

    @property
    def num_tokens(self) -> int:
        return int(self._first_token[-1])

    @property
    def vocab_size(self) -> int:
        return int(self.ledger.tokenizer["vocab_size"])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.layout.dtype)

    @property
    def fingerprint(self) -> str:
        """Names the content: equal for caches whose parts hold the same tokens and documents."""
        return "sha256:" + hashlib.sha256("\n".join(p.digest for p in self.ledger.parts).encode()).hexdigest()

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start .. stop`` of the whole cache, documents end to end.

        Returns:
            One-dimensional array of the cache's dtype.

        Raises:
            IndexOutOfRangeError: the range is not within ``0 .. num_tokens``.
            ReadError: stored bytes are missing or damaged.
        """
        self._check_range(start, stop, self.num_tokens, "tokens")
        reads = [self.parts[p].data.read(a, b) for p, a, b in _spans(self._first_token, start, stop)]
        return np.concatenate([r.result() for r in reads]) if reads else np.zeros(0, self.dtype)

    def document(self, i: int) -> np.ndarray:
        """Tokens of document ``i``.

        Raises:
            IndexOutOfRangeError: there is no such document.
        """
        self._check_range(i, i + 1, self.num_documents, "document")
        part = int(np.searchsorted(self._first_document, i, side="right")) - 1
        at = i - int(self._first_document[part])
        start, stop = self.parts[part].offsets.read(at, at + 2).result()
        return self.parts[part].data.read(int(start), int(stop)).result()

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token counts of documents ``start .. stop``, without reading tokens.

        Returns:
            int64 array ``[stop - start]``.
        """
        stop = self.num_documents if stop is None else stop
        self._check_range(start, stop, self.num_documents, "documents")
        reads = [self.parts[p].offsets.read(a, b + 1) for p, a, b in _spans(self._first_document, start, stop)]
        return np.concatenate([np.diff(r.result()) for r in reads]) if reads else np.zeros(0, np.int64)

    def _check_range(self, start: int, stop: int, length: int, what: str) -> None:
        if not 0 <= start <= stop <= length:
            raise IndexOutOfRangeError(
                f"is not within 0 .. {length}", field=what, value=(start, stop), cure=f"{self.path} has {length}."
            )

    def __repr__(self) -> str:
        return f"TokenCache({self.path!r}, documents={self.num_documents:,}, tokens={self.num_tokens:,})"


def _starts(counts: list[int]) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))])


def _spans(starts: np.ndarray, start: int, stop: int) -> list[tuple[int, int, int]]:
    """The range ``start .. stop`` as (part, first, last) pieces in each part's own numbers."""
    if start == stop:
        return []
    first = int(np.searchsorted(starts, start, side="right")) - 1
    last = int(np.searchsorted(starts, stop, side="left"))
    return [
        (p, max(start - int(starts[p]), 0), min(stop, int(starts[p + 1])) - int(starts[p]))
        for p in range(first, last)
        if starts[p + 1] > starts[p]
    ]
