"""``TokenCache``: a finished cache, opened for reading.

The parts that workers wrote become one cache by a table (virtual concatenation): document and token numbers run through
all parts, nothing is copied. Opening reads one small file and does no work that grows with the number of documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    CacheUnfinishedError,
    ConfigError,
    check_choice,
)
from headrace.order.document_shuffle import DocumentShuffle
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import TOKENS, CacheLayout, LeafKind, LeafSpec
from headrace.store.leaf import CacheLeaf, LeafPart, check_range, spans, starts
from headrace.store.ledger import Ledger, Name, PartRecord, ShuffleRecord, prepare_types, read_ledger, shuffle_record
from headrace.store.levanter.layout import levanter_splits, read_levanter
from headrace.store.ragged import data_url, offsets_url


@dataclass(frozen=True)
class CachePart:
    """One part of an open cache: its record and its two arrays (opened at their first read)."""

    record: PartRecord
    data: StoredArray
    offsets: StoredArray


FormT = TypeVar("FormT")


@dataclass(frozen=True)
class OriginalDocument:
    """A document by its number, its part, and the records of the source files of that part."""

    number: int
    part: str
    files: list[dict[str, Any]]


OpenPart: TypeAlias = Callable[[str, str, LeafKind, PartRecord], LeafPart]
"""Gives a part of a leaf by name, dtype, kind and the part's record; the tokens are the leaf ``input_ids``."""


class _TokenizerRecord(msgspec.Struct):
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    file: Name | None = None  # the cache's copy: a name that leads nowhere outside


prepare_types(_TokenizerRecord, CacheLayout, LeafSpec)


class TokenCache:
    """A finished token cache. Use :meth:`open`.

    Args:
        path: Folder or URL.
        ledger: What the cache is made of.
        open_part: Finds the arrays that another program wrote; headrace's own folders if left out.

    Attributes:
        path: Folder or URL.
        ledger: What the cache is made of.
        parts: Its parts, in order.

    Example:
        >>> from headrace.testing import tiny_cache
        >>> cache = TokenCache.open(tiny_cache().path)
        >>> int(cache.lengths().sum()) == cache.num_tokens
        True
    """

    def __init__(self, path: str, ledger: Ledger, open_part: OpenPart | None = None) -> None:
        self.path = path
        self.ledger = ledger
        self.layout = _converted(ledger.layout, CacheLayout, "layout", path)
        self.layout.check_tokens()
        _converted(ledger.tokenizer, _TokenizerRecord, "tokenizer", path)
        self._specs = {spec.name: spec for spec in _converted(ledger.leaves, list[LeafSpec], "leaves", path)}
        self._layouts = {name: self.layout.leaf(spec) for name, spec in self._specs.items()} | {TOKENS: self.layout}
        self._offsets_layout = self.layout.offsets()
        self._open_part: OpenPart = open_part or self._own_part
        self._leaves: dict[str, CacheLeaf] = {}
        self.parts: Sequence[CachePart] = tuple(self._part(record) for record in ledger.parts)
        documents = [LeafPart(p.record.documents, p.data, p.offsets) for p in self.parts]
        self._tokens = CacheLeaf(TOKENS, self.dtype, "ragged", documents, path)
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
                return cls(path, found.ledger, found.part)
            cure = f"Build one: {build_command(path)}"
            raise CacheMissingError(
                f"is not a token cache ({_what_is_there(path)})", field="cache", value=path, cure=cure
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
    def members(self) -> Sequence[TokenCache]:
        """The caches that this one is joined of; itself, if it is one."""
        return (self,)

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
    def shuffle(self) -> DocumentShuffle | None:
        """How the documents were shuffled when the cache was written; None if they were not."""
        record = self._shuffle_record
        return None if record is None else DocumentShuffle(self.num_documents, record.seed, record.unit)

    @cached_property
    def _shuffle_record(self) -> ShuffleRecord | None:  # it lists the parts of the original
        return shuffle_record(self.ledger, self.path)

    @property
    def is_shuffled(self) -> bool:
        """Whether documents lie elsewhere than at their numbers."""
        return self.shuffle is not None

    def stored_at(self, originals: np.ndarray | Sequence[int]) -> np.ndarray:
        """Where the documents of these numbers lie, int64 ``[n]``: of a shuffled cache, numbers are those of the cache
        that it was made of; else each lies at its number. Numbers are not checked.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=5).stored_at([3, 1]).tolist()
            [3, 1]
        """
        numbers, shuffle = np.asarray(originals, np.int64), self.shuffle
        return numbers if shuffle is None else shuffle.stored_at(numbers)

    def originals(self, stored: np.ndarray | Sequence[int]) -> np.ndarray:
        """The inverse of :meth:`stored_at`: the numbers, int64 ``[n]``, of the documents that lie at these places."""
        places, shuffle = np.asarray(stored, np.int64), self.shuffle
        return places if shuffle is None else shuffle.originals(places)

    def original(self, place: int) -> OriginalDocument:
        """The document that lies at a place: of a shuffled cache, as the one that it was made of has it.

        Example:
            >>> import headrace.testing
            >>> headrace.testing.tiny_cache(documents=4).original(3)
            OriginalDocument(number=3, part='00000', files=[])
        """
        record, number = self._shuffle_record, int(self.originals([place])[0])
        if record is None:
            parts, sources = [(p.record.name, p.record.documents) for p in self.parts], self.ledger.sources
        else:
            parts, sources = record.parts, record.sources
        ends = np.cumsum([documents for _, documents in parts])
        name = parts[int(np.searchsorted(ends, number, side="right"))][0]
        return OriginalDocument(number, name, [dict(source) for source in sources if source.get("part") == name])

    def check_unit(self, unit: int) -> None:
        """Raises ConfigError if units of so many neighbouring documents were parted when the cache was shuffled."""
        if self.shuffle is not None and self.shuffle.unit % unit:
            raise ConfigError(
                f"is not kept by {self.path}, whose documents were shuffled in units of {self.shuffle.unit}",
                field="unit",
                value=unit,
                cure=f"Shuffle the original with headrace reshuffle --unit {unit}.",
            )

    @property
    def leaves(self) -> list[str]:
        """Names of the leaves beside the tokens."""
        return sorted(self._specs)

    @property
    def leaf_specs(self) -> tuple[LeafSpec, ...]:
        """The leaves beside the tokens, in the order in which they were written."""
        return tuple(self._specs.values())

    def leaf(self, name: str) -> CacheLeaf:
        """A leaf by name: one of :attr:`leaves`, or ``input_ids``, the tokens.

        Raises:
            ConfigError: there is no such leaf.
        """
        if name == TOKENS:
            return self._tokens
        if name not in self._leaves:
            check_choice("leaf", name, [*self._specs, TOKENS], f"is not a leaf of {self.path}")
            spec = self._specs[name]
            parts = [self._open_part(name, spec.dtype, spec.kind, record) for record in self.ledger.parts]
            self._leaves[name] = CacheLeaf(name, np.dtype(spec.dtype), spec.kind, parts, self.path, spec.width)
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
        return self._tokens.lengths(start, stop)

    def _own_part(self, name: str, dtype: str, kind: LeafKind, record: PartRecord) -> LeafPart:
        elements, digest = record.tokens, record.digest
        if name != TOKENS:
            elements, digest = record.leaves[name].elements, record.leaves[name].digest
        data = StoredArray(data_url(self.path, record.name, name), elements, self._layouts[name], digest)
        offsets = None
        if kind == "ragged":
            url = offsets_url(self.path, record.name, name)
            offsets = StoredArray(url, record.documents + 1, self._offsets_layout, digest)
        return LeafPart(record.documents, data, offsets)

    def _part(self, record: PartRecord) -> CachePart:
        part = self._open_part(TOKENS, self.layout.dtype, "ragged", record)
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


def _converted(values: object, form: type[FormT], section: str, path: str) -> FormT:
    """A section of a ledger, which may come from anywhere, as what it has to be."""
    try:
        return msgspec.convert(values, form)
    except (msgspec.ValidationError, ConfigError) as error:
        cure = "Build the cache again, or restore its ledger.json."
        problem = f"has a ledger whose {section} cannot be used ({error})"
        raise CacheCorruptError(problem, field="cache", value=path, cure=cure) from error


def build_command(path: str) -> str:
    """What makes the cache that is not at ``path``; a folder that is there is taken for its text."""
    text, output = (path, f"{path.rstrip('/')}-cache") if files.exists(path) else ("SOURCE", path)
    return f"headrace build {text} --tokenizer FILE --output {output}"


def _what_is_there(path: str) -> str:
    """What a folder without a ledger is, as far as it can be told."""
    if not files.exists(path):
        return "there is no such folder"
    if splits := levanter_splits(path):
        return f"it holds Levanter's {' and '.join(splits)}: name {files.join(path, splits[0])}"
    return "the folder holds no ledger.json"
