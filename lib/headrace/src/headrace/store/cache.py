"""``TokenCache``: a finished cache, opened for reading.

The parts that workers wrote become one cache by a table (virtual concatenation): document and token numbers run through
all parts, nothing is copied. Opening reads one small file and does no work that grows with the number of documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.errors import CacheError, CacheMissingError, CacheUnfinishedError, ConfigError, did_you_mean
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import TOKENS, CacheLayout, LeafKind, LeafSpec
from headrace.store.leaf import CacheLeaf, LeafPart, check_range, spans, starts
from headrace.store.ledger import Ledger, PartRecord, read_ledger
from headrace.store.levanter_layout import LevanterParts, levanter_splits, read_levanter
from headrace.store.ragged import data_url, offsets_url


@dataclass(frozen=True)
class CachePart:
    """One part of an open cache: its record and its two arrays (opened at their first read)."""

    record: PartRecord
    data: StoredArray
    offsets: StoredArray


class PartArrays(Protocol):
    """Where the arrays of a cache lie: headrace's own folders, or another program's (levanter_layout.py)."""

    def leaf(self, name: str, dtype: str, kind: LeafKind, record: PartRecord) -> LeafPart:
        """A leaf of a part; the tokens are the leaf ``input_ids``."""
        ...


class OwnArrays:
    """Where headrace puts the arrays of a cache.

    Args:
        path: Folder or URL of the cache.
        layout: Layout of its tokens.
    """

    def __init__(self, path: str, layout: CacheLayout) -> None:
        self._path, self._layout = path, layout

    def leaf(self, name: str, dtype: str, kind: LeafKind, record: PartRecord) -> LeafPart:
        tokens = name == TOKENS
        layout = self._layout if tokens else self._layout.leaf(LeafSpec(name, dtype, kind))
        elements = record.tokens if tokens else record.leaves[name].elements
        data = StoredArray(data_url(self._path, record.name, name), elements, layout)
        offsets = offsets_url(self._path, record.name, name)
        ragged = kind == "ragged"
        return LeafPart(
            record.documents, data, StoredArray(offsets, record.documents + 1, layout.offsets()) if ragged else None
        )


class TokenCache:
    """A finished token cache. Use :meth:`open`.

    Args:
        path: Folder or URL.
        ledger: What the cache is made of.
        arrays: Where its arrays lie; headrace's own folders if left out.

    Attributes:
        path: Folder or URL.
        ledger: What the cache is made of.
        parts: Its parts, in order.
    """

    def __init__(self, path: str, ledger: Ledger, arrays: PartArrays | None = None) -> None:
        self.path = path
        self.ledger = ledger
        self.layout = CacheLayout(**ledger.layout)
        self.layout.check_tokens()
        self._arrays: PartArrays = arrays or OwnArrays(path, self.layout)
        self._leaves: dict[str, CacheLeaf] = {}
        self.parts: Sequence[CachePart] = tuple(self._part(record) for record in ledger.parts)
        self._first_document = starts([p.record.documents for p in self.parts])
        self._first_token = starts([p.record.tokens for p in self.parts])

    @classmethod
    def open(cls, path: str | Path) -> TokenCache:
        """Opens the cache at a local path or URL (``gs://``, ``s3://``, ``https://``): headrace's own, or one that
        Levanter built.

        Raises:
            CacheMissingError: there is no cache.
            CacheUnfinishedError: its build was interrupted.
            CacheCorruptError: its ledger is none, or of another version.
            CacheError: its ledger cannot be read.
        """
        path = str(path)
        ledger = read_ledger(path)
        if ledger is None:
            if (found := read_levanter(path)) is not None:
                return cls(path, found.ledger, LevanterParts(found))
            raise CacheMissingError(
                f"is not a token cache ({_what_is_there(path)})",
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
        return content_fingerprint(self.ledger.parts)

    @property
    def leaves(self) -> list[str]:
        """Names of the leaves beside the tokens."""
        return sorted(str(leaf["name"]) for leaf in self.ledger.leaves)

    def leaf(self, name: str) -> CacheLeaf:
        """A leaf by name: one of :attr:`leaves`, or ``input_ids``, the tokens.

        Raises:
            ConfigError: there is no such leaf.
        """
        if name == TOKENS:
            parts = [LeafPart(p.record.documents, p.data, p.offsets) for p in self.parts]
            return CacheLeaf(name, self.dtype, "ragged", parts, self.path)
        if name not in self._leaves:
            known = {str(leaf["name"]): leaf for leaf in self.ledger.leaves}
            if name not in known:
                raise ConfigError(
                    f"is not a leaf of {self.path}",
                    field="leaf",
                    value=name,
                    cure=did_you_mean(name, [*known, TOKENS]),
                )
            dtype, kind = str(known[name]["dtype"]), known[name]["kind"]
            parts = [self._arrays.leaf(name, dtype, kind, record) for record in self.ledger.parts]
            self._leaves[name] = CacheLeaf(name, np.dtype(dtype), kind, parts, self.path)
        return self._leaves[name]

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start .. stop`` of the whole cache, documents end to end.

        Returns:
            One-dimensional array of the cache's dtype.

        Raises:
            IndexOutOfRangeError: the range is not within ``0 .. num_tokens``.
            ReadError: stored bytes are missing or damaged.
        """
        check_range(start, stop, self.num_tokens, "tokens", self.path)
        reads = [self.parts[p].data.read(a, b) for p, a, b in spans(self._first_token, start, stop)]
        return np.concatenate([r.result() for r in reads]) if reads else np.zeros(0, self.dtype)

    def document(self, i: int) -> np.ndarray:
        """Tokens of document ``i``.

        Raises:
            IndexOutOfRangeError: there is no such document.
        """
        check_range(i, i + 1, self.num_documents, "document", self.path)
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
        check_range(start, stop, self.num_documents, "documents", self.path)
        reads = [self.parts[p].offsets.read(a, b + 1) for p, a, b in spans(self._first_document, start, stop)]
        return np.concatenate([np.diff(r.result()) for r in reads]) if reads else np.zeros(0, np.int64)

    def _part(self, record: PartRecord) -> CachePart:
        part = self._arrays.leaf(TOKENS, self.layout.dtype, "ragged", record)
        if part.offsets is None:
            raise CacheError("has no offsets", field="part", value=record.name)
        return CachePart(record, part.data, part.offsets)

    def __repr__(self) -> str:
        return f"TokenCache({self.path!r}, documents={self.num_documents:,}, tokens={self.num_tokens:,})"


def content_fingerprint(parts: Sequence[PartRecord]) -> str:
    """Names the content of parts: their tokens, documents and other leaves, and where one part ends and the next
    begins, since rows of tokens never lie across two. Chunks, codecs and counters are no part of it.
    """
    digests = [p.digest + "".join(f" {n}={leaf.digest}" for n, leaf in sorted(p.leaves.items())) for p in parts]
    return "sha256:" + hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _what_is_there(path: str) -> str:
    """What a folder without a ledger is, as far as it can be told."""
    if not files.exists(path):
        return "there is no such folder"
    splits = levanter_splits(path)
    if splits:
        return f"it holds Levanter's {' and '.join(splits)}: name {files.join(path, splits[0])}"
    return "the folder holds no ledger.json"
