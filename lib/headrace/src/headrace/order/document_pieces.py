"""The pieces of documents that are cut at multiples of a length: which are of which document.

Pieces are numbered through all documents, in order. Only documents that are cut are listed, so a
number is found by one search among them.

Price: 16 bytes of memory for each document that is cut, and less in a record.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

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
