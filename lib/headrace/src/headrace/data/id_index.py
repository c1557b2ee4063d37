"""Finds documents by their id: an index of a hundred million ids in 1.3 GB.

How it works. Each id is hashed to two numbers of 64 bits.

1. The index holds one number of 64 bits for each document: the upper bits of the first hash, and in
   the lower bits, as many as the number of documents needs, the document itself. Sorting these in
   place sorts documents by hash, without a second array.
2. To look an id up, the upper bits of its hash are searched among the sorted numbers. Documents
   with these bits follow each other.
3. The upper bits alone are shared by chance (37 bits remain with 1e8 documents). So 32 bits of the
   second hash are kept for each document, too, and compared. Of 1e8 documents and 1e8 ids, a wrong
   pair is then found with a probability of 2e-5.

A hash of a text is a polynomial of its bytes with a random odd base, modulo 2**64, whose bits are
mixed at the end. Texts that are made to collide would collide; ids of documents are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from headrace.order.intervals import run_numbers, starts

_BASES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
_MIX = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


def hashes_of_texts(
    data: UInt8[np.ndarray, " b"], lengths: Int64[np.ndarray, " n"]
) -> UInt64[np.ndarray, "2 n"]:
    """Two hashes of each text.

    Args:
        data: The bytes of all texts, end to end.
        lengths: Bytes of each text.

    Example:
        >>> data = np.frombuffer(b"abcabc", np.uint8)
        >>> one, two, other = hashes_of_texts(data, np.array([2, 1, 3])).T.tolist()
        >>> first, _, same = hashes_of_texts(data, np.array([2, 1, 3])).T.tolist()
        >>> one == first, other == same, one == other
        (True, True, False)
    """
    lengths = lengths.astype(np.int64)
    first_byte = starts(lengths)[:-1]
    byte_number = run_numbers(0, lengths)
    hashes = np.zeros((2, lengths.size), np.uint64)
    filled = lengths > 0
    for number, base in enumerate(_BASES):
        powers = _powers(base, int(lengths.max(initial=0)))
        terms = (data.astype(np.uint64) + np.uint64(1)) * powers[byte_number]
        if data.size:
            hashes[number, filled] = np.add.reduceat(terms, first_byte[filled])
    return _mixed(hashes + lengths.astype(np.uint64))


def hashes_of_numbers(numbers: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, "2 n"]:
    """Two hashes of each whole number."""
    values = numbers.astype(np.int64).view(np.uint64)
    return _mixed(np.stack([values * np.uint64(base) for base in _BASES]))


def _powers(base: int, count: int) -> UInt64[np.ndarray, " count"]:
    """The powers of an odd number modulo 2**64, from the first."""
    powers = np.full(count, base, np.uint64)
    return np.multiply.accumulate(powers) if count else powers


def _mixed(hashes: UInt64[np.ndarray, "2 n"]) -> UInt64[np.ndarray, "2 n"]:
    """Spreads every bit over all others: the finish of MurmurHash3."""
    for factor in _MIX:
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(33))


class IdIndex:
    """The documents of a cache by the hashes of their ids; see the module.

    Args:
        blocks: The hashes of all documents, in order, in blocks.
        documents: How many documents there are.

    Example:
        >>> index = IdIndex([hashes_of_numbers(np.array([7, 5, 7]))], 3)
        >>> rows, documents = index.find(hashes_of_numbers(np.array([5, 6, 7])))
        >>> sorted(zip(rows.tolist(), documents.tolist()))
        [(0, 1), (2, 0), (2, 2)]
    """

    def __init__(self, blocks: Iterable[UInt64[np.ndarray, "2 n"]], documents: int) -> None:
        self._document_bits = np.uint64(max(documents - 1, 1).bit_length())
        self._sorted = np.empty(documents, np.uint64)
        self._second = np.empty(documents, np.uint32)
        at = 0
        for first, second in blocks:
            stop = at + first.size
            numbers = np.arange(at, stop, dtype=np.uint64)
            self._sorted[at:stop] = self._prefix(first) | numbers
            self._second[at:stop] = second
            at = stop
        self._sorted.sort()

    def _prefix(self, hashes: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        """The upper bits, with zeros for the document."""
        return hashes >> self._document_bits << self._document_bits

    def find(
        self, hashes: UInt64[np.ndarray, "2 n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """All pairs of an id, by its place among those given, and a document with that id."""
        rows: list[np.ndarray] = [np.zeros(0, np.int64)]
        documents: list[np.ndarray] = [np.zeros(0, np.int64)]
        for row, document in self._candidates(self._prefix(hashes[0])):
            is_same = self._second[document] == hashes[1][row].astype(np.uint32)
            rows.append(row[is_same])
            documents.append(document[is_same])
        return np.concatenate(rows), np.concatenate(documents)

    def _candidates(
        self, prefix: UInt64[np.ndarray, " n"]
    ) -> Iterator[tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]]:
        """Pairs of an id and a document with the same upper bits: the first document of each id,
        then the second of those that have one, and so on.
        """
        row = np.arange(prefix.size)
        slot = np.searchsorted(self._sorted, prefix)
        while row.size:
            is_within = slot < self._sorted.size
            row = row[is_within]
            slot = slot[is_within]
            entries = self._sorted[slot]
            is_same = self._prefix(entries) == prefix[row]
            row = row[is_same]
            slot = slot[is_same]
            document = entries[is_same] & ((np.uint64(1) << self._document_bits) - np.uint64(1))
            yield row, document.astype(np.int64)
            slot = slot + 1
