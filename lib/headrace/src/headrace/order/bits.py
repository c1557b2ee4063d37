"""``Bits``: a set of many whole numbers as a bitmap, in memory or in a file that is read in pieces.

Price: an eighth of a byte for each number up to the largest; 5 ms to scan a million numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Integer, UInt8

from headrace.order.intervals import Intervals, chunks_of, ranges_digest

_CHUNK = 1 << 20  # numbers per pass; whole bytes
_ONES = np.array([byte.bit_count() for byte in range(256)], np.uint8)


class Bits:
    """A set of whole numbers below ``length``.

    Args:
        bits: A bit for each number, the first of a byte the highest, zeros after the last; indexed
            like an array.
        length: Largest possible size of the set.
        total: Size of the set; None: computed.

    Example:
        >>> numbers = Bits.of_numbers(np.array([9, 2, 3, 9]), 12)
        >>> numbers.total, numbers.mask(2, 5).tolist(), numbers.intervals()
        (3, [True, True, False], Intervals(2..4, 9..10))
    """

    def __init__(
        self, bits: UInt8[np.ndarray, " n"], length: int, total: int | None = None
    ) -> None:
        self.bits = bits
        self.length = length
        if total is None:
            total = sum(
                int(_ONES[bits[at : at + _CHUNK]].sum()) for at in range(0, bits.size, _CHUNK)
            )
        self.total = total

    @classmethod
    def of_numbers(cls, numbers: Integer[np.ndarray, " n"], length: int) -> Bits:
        """The set of the given numbers, in any order, repeats allowed."""
        bits = np.zeros(-(-length // 8), np.uint8)
        for at in range(0, numbers.size, _CHUNK):
            some = np.sort(numbers[at : at + _CHUNK].astype(np.int64))
            first = np.flatnonzero(np.diff(some >> 3, prepend=-1))
            bits[some[first] >> 3] |= np.bitwise_or.reduceat(
                np.uint8(0x80) >> (some & 7).astype(np.uint8), first
            )
        return cls(bits, length)

    @classmethod
    def of_masks(cls, mask: Callable[[int, int], Bool[np.ndarray, " n"]], length: int) -> Bits:
        """The numbers for which ``mask`` is true; it is called with ranges ``first .. stop``."""
        bits = np.zeros(-(-length // 8), np.uint8)
        for at, stop in chunks_of(length, _CHUNK):
            bits[at // 8 : -(-stop // 8)] = np.packbits(mask(at, stop))
        return cls(bits, length)

    def mask(self, first: int, stop: int) -> Bool[np.ndarray, " n"]:
        """Which of the numbers ``first .. stop`` are in the set."""
        byte = first // 8
        bits = np.unpackbits(
            np.asarray(self.bits[byte : -(-stop // 8)]), count=min(stop, self.length) - byte * 8
        )
        inside = bits[first - byte * 8 :].view(bool)
        return (
            inside if stop <= self.length else np.append(inside, np.zeros(stop - self.length, bool))
        )

    def below(self, length: int) -> Bits:
        """The numbers of the set that are less than ``length``."""
        return self if self.length <= length else Bits.of_masks(self.mask, length)

    def ranges(self) -> Iterator[Intervals]:
        """The whole set as consecutive sets, of which none touch."""
        last = Intervals.empty()
        for at, stop in chunks_of(self.length, _CHUNK):
            ranges = Intervals.of_mask(self.mask(at, stop))
            every = Intervals(
                np.append(last.start, ranges.start + at), np.append(last.stop, ranges.stop + at)
            )
            last = Intervals(every.start[-1:], every.stop[-1:])
            yield Intervals(every.start[:-1], every.stop[:-1])
        yield last

    def intervals(self) -> Intervals:
        """The same set as ranges, all of them in memory."""
        return Intervals.union(self.ranges())

    def digest(self) -> str:
        """Digest of the set, as in :meth:`~headrace.order.intervals.Intervals.digest`."""
        return ranges_digest(self.ranges)


NumberSet: TypeAlias = Intervals | Bits
"""Sets of numbers that are scanned by range: both have ``total``, ``mask``, ``ranges`` and
``digest``.
"""
