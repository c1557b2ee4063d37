"""Where the documents of a store lie that were moved when it was written: shuffled
(:class:`DocumentShuffle`), grouped (:class:`DocumentGroups`), cut (:class:`DocumentPieces`).

**Shuffled**: a closed form in both directions. Documents form units (1, or 2 for the pairs of a
cache of preferences). Whole units are permuted by :func:`~headrace.order.permutation.permute` under
a key of the seed; documents that fill no unit stay at the end. The position of a document depends
only on (documents, seed, unit), whatever wrote the store with however much memory, and the inverse
does too. A shuffled store therefore needs no table: numbers of filters and hold-outs, which refer
to the original, are located in it by arithmetic. Price: about 50 ns per document in either
direction, and no memory.

**Grouped**: one group behind the other, each in the order of a shuffle, without the documents of
other groups. Which document lies where cannot be computed, so there are two tables: of the place of
each document, and of the document at each place. Price: 8 bytes a document (16 beyond 2**32
documents), and 17 while the tables are made.

**Cut** at multiples of a length: pieces are numbered through all documents, in order. Only
documents that are cut are listed, so a number is found by one search among them. Price: 16 bytes of
memory for each document that is cut, and less in a record.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64, UInt8

from headrace.errors import check_at_least
from headrace.order.intervals import chunks_of
from headrace.order.permutation import permute, unpermute
from headrace.order.seeds import derive


@dataclass(frozen=True)
class DocumentShuffle:
    """Positions of the documents of a store in its shuffled copy.

    Attributes:
        documents: Number of documents.
        seed: Integer seed.
        unit: Number of neighbouring documents that stay together, in their order.

    Raises:
        ConfigError: ``unit`` below 1, or a seed that is not an integer.

    Example:
        >>> shuffle = DocumentShuffle(documents=7, seed=0, unit=2)
        >>> shuffle.stored_at(np.arange(7)).tolist()
        [2, 3, 4, 5, 0, 1, 6]
        >>> shuffle.originals(np.array([0, 1, 2])).tolist()
        [4, 5, 0]
    """

    documents: int
    seed: int
    unit: int = 1

    def __post_init__(self) -> None:
        derive(self.seed)
        check_at_least("unit", self.unit, cure="1, or 2 for pairs.")

    @property
    def units(self) -> int:
        """Number of whole units, which are permuted."""
        return self.documents // self.unit

    def stored_at(self, originals: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Stored positions of documents of the original; their numbers, below ``documents``, are
        not checked.
        """
        return self._moved(originals, inverse=False)

    def originals(self, stored: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Documents of the original at stored positions; numbers, below ``documents``, are not
        checked.
        """
        return self._moved(stored, inverse=True)

    def _moved(self, numbers: Int64[np.ndarray, " n"], *, inverse: bool) -> Int64[np.ndarray, " n"]:
        numbers = np.asarray(numbers, np.int64)
        if self.units < 2:
            return numbers
        unit, offset = np.divmod(numbers, self.unit)
        full_units = unit < self.units
        unit[full_units] = (unpermute if inverse else permute)(
            unit[full_units], self.units, derive(self.seed, "documents")
        )
        return unit * self.unit + offset


_BLOCK = 1 << 20  # documents that are moved together


class Table(Protocol):
    """Numbers by their index: an array, or a file that is read in pieces."""

    def __getitem__(self, indices: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class DocumentGroups:
    """Positions of the documents of a store in its grouped copy.

    Attributes:
        place_of: The stored position of each document of the original.
        number_at: The document of the original at each stored position.

    Example:
        >>> groups = DocumentGroups.of(DocumentShuffle(7, seed=0), np.array([1, 0, 1, 0, 1, 0, 1]))
        >>> groups.originals(np.arange(7)).tolist()
        [3, 5, 1, 6, 2, 4, 0]
        >>> groups.stored_at(np.array([6, 1])).tolist()
        [3, 2]
    """

    place_of: Table
    number_at: Table

    @classmethod
    def of(
        cls, shuffle: DocumentShuffle, group_of_document: UInt8[np.ndarray, " n"]
    ) -> DocumentGroups:
        """Groups of documents that are shuffled so.

        1. The groups are put in the order of the shuffle: ``group_at[position]``.
        2. A stable sort of these is the order in the store. Within a group it is the shuffle's.
        3. Each position of the shuffle in that order is a document: one table. The other one is its
           inverse.
        """
        documents = shuffle.documents
        dtype = np.dtype("<u4" if documents <= 1 << 32 else "<u8")
        group_at = np.empty(documents, np.uint8)
        for first, stop in chunks_of(documents, _BLOCK):
            numbers = np.arange(first, stop)
            group_at[shuffle.stored_at(numbers)] = group_of_document[numbers]
        order = np.argsort(group_at, kind="stable")
        number_at = np.empty(documents, dtype)
        place_of = np.empty(documents, dtype)
        for first, stop in chunks_of(documents, _BLOCK):
            positions = np.arange(first, stop)
            originals = shuffle.originals(order[positions])
            number_at[positions] = originals
            place_of[originals] = positions
        return cls(place_of, number_at)

    def stored_at(self, originals: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Stored positions of documents of the original."""
        return np.asarray(self.place_of[np.asarray(originals, np.int64)], np.int64)

    def originals(self, stored: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Documents of the original at stored positions."""
        return np.asarray(self.number_at[np.asarray(stored, np.int64)], np.int64)


NEVER_CUT = 1 << 62
"""A length at which no document is cut."""


def cut_lengths(
    lengths: Int64[np.ndarray, " n"], length: int
) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
    """The pieces of documents of these lengths: the document of each, and its first token there. A
    document without tokens is a piece.

    Example:
        >>> [pieces.tolist() for pieces in cut_lengths(np.array([5, 0, 4]), 2)]
        [[0, 0, 0, 1, 2, 2], [0, 2, 4, 0, 0, 2]]
    """
    counts = _counts(lengths, length)
    ends = np.cumsum(counts)
    document = np.repeat(np.arange(lengths.size), counts)
    return document, (np.arange(document.size) - (ends - counts)[document]) * length


@dataclass(frozen=True, eq=False)
class DocumentPieces:
    """How documents are cut.

    Attributes:
        documents: Number of documents.
        cut: Numbers of the documents that are cut.
        more: Further pieces of the documents before each of ``cut``, and of all.

    Example:
        >>> pieces = DocumentPieces.of([np.array([5, 0]), np.array([4])], 2)
        >>> pieces.count, pieces.documents_of(np.arange(6)).tolist()
        (6, [0, 0, 0, 1, 2, 2])
        >>> pieces.of_documents(np.array([2, 0])).tolist()
        [4, 5, 0, 1, 2]
        >>> DocumentPieces.parse(3, pieces.record()).of_documents(np.array([1])).tolist()
        [3]
    """

    documents: int
    cut: Int64[np.ndarray, " c"]
    more: Int64[np.ndarray, " c1"]

    @classmethod
    def of(cls, lengths: Iterable[Int64[np.ndarray, " n"]], length: int) -> DocumentPieces:
        """Cuts documents of these lengths, which may come in several arrays."""
        documents = 0
        cut = [np.zeros(0, np.int64)]
        further = [np.zeros(1, np.int64)]
        for some in lengths:
            counts = _counts(some, length)
            long = np.flatnonzero(counts > 1)
            cut.append(long + documents)
            further.append(counts[long] - 1)
            documents += some.size
        return cls(documents, np.concatenate(cut), np.cumsum(np.concatenate(further)))

    @classmethod
    def uncut(cls, documents: int) -> DocumentPieces:
        """Documents of which none is cut."""
        return cls(documents, np.zeros(0, np.int64), np.zeros(1, np.int64))

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.documents + int(self.more[-1])

    def first(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The first piece of each document; numbers are not checked."""
        return documents + self.more[np.searchsorted(self.cut, documents)]

    def of_documents(self, documents: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
        """All pieces of documents, in order."""
        first = self.first(documents)
        counts = self.first(documents + 1) - first
        first_piece = np.cumsum(counts) - counts
        return np.arange(int(counts.sum())) + np.repeat(first - first_piece, counts)

    def documents_of(self, pieces: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The document of each piece."""
        number = np.searchsorted(self.cut + self.more[:-1], pieces, side="right")
        latest = np.append(0, self.cut)[number]  # the last document that is cut and has begun
        return np.maximum(pieces - self.more[number], latest)

    def record(self) -> str:
        """As text, for :meth:`parse`."""
        table = np.stack([np.diff(self.cut, prepend=0), np.diff(self.more)])
        return base64.b64encode(zlib.compress(table.astype("<i8").tobytes(), 1)).decode()

    @classmethod
    def parse(cls, documents: int, record: str) -> DocumentPieces:
        """The pieces of so many documents. ValueError if the record is damaged."""
        try:
            raw = zlib.decompress(base64.b64decode(record, validate=True))
        except zlib.error as error:
            raise ValueError(str(error)) from error
        gaps, further = np.frombuffer(raw, "<i8").astype(np.int64).reshape(2, -1)
        return cls(documents, np.cumsum(gaps), np.append(0, np.cumsum(further)))


def _counts(lengths: Int64[np.ndarray, " n"], length: int) -> Int64[np.ndarray, " n"]:
    return np.maximum(-(-lengths // length), 1)
