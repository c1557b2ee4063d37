"""The order of documents in a store that was grouped when it was written: one group behind the
other, each shuffled in itself.

The order of a group is that of :class:`~headrace.order.document_shuffle.DocumentShuffle`, without
the documents of other groups. Which document lies where cannot be computed, so there are two
tables: of the place of each document, and of the document at each place.

Price: 8 bytes a document (16 beyond 2**32 documents), and 17 while the tables are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64, UInt8

from headrace.order.document_shuffle import DocumentShuffle

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
        for numbers in _blocks(documents):
            group_at[shuffle.stored_at(numbers)] = group_of_document[numbers]
        order = np.argsort(group_at, kind="stable")
        number_at = np.empty(documents, dtype)
        place_of = np.empty(documents, dtype)
        for positions in _blocks(documents):
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


def _blocks(documents: int) -> Iterator[Int64[np.ndarray, " n"]]:
    for first in range(0, documents, _BLOCK):
        yield np.arange(first, min(first + _BLOCK, documents))
