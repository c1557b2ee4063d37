"""What is left of an epoch of packed rows: documents, or pieces of them, packed anew into rows of
another length.

Pieces of one document that follow each other are joined first, so a document is cut anew, not
twice. The pack plan is made in memory when a run is opened. Price: 1 us per document left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.data.packed import PackedRows, PackedTokenDataset
from headrace.errors import ConfigError
from headrace.order.rising import starts
from headrace.pack.items import Items
from headrace.pack.plan import PackPlan, plan_of


class LeftPieces(NamedTuple):
    """Documents or pieces of them, in stored order.

    Attributes:
        document: Number of the document.
        start: First token of the piece, in the stream of all parts of the cache.
        size: Tokens of the piece.
    """

    document: Int64[np.ndarray, " m"]
    start: Int64[np.ndarray, " m"]
    size: Int64[np.ndarray, " m"]

    @property
    def total(self) -> int:
        """Tokens of all pieces."""
        return int(self.size.sum())

    @classmethod
    def join(cls, parts: Sequence[LeftPieces]) -> LeftPieces:
        """The pieces of all parts, sorted, those that continue each other as one.

        Example:
            >>> numbers = np.array([5, 5, 6])
            >>> LeftPieces.join(
            ...     [LeftPieces(numbers, np.array([14, 10, 18]), np.array([4, 4, 3]))]
            ... ).size.tolist()
            [8, 3]
        """
        nothing = np.zeros(0, np.int64)
        every = [cls(nothing, nothing, nothing), *parts]
        document, start, size = (np.concatenate(values) for values in zip(*every, strict=True))
        order = np.argsort(start, kind="stable")
        document = document[order]
        start = start[order]
        size = size[order]
        begins = np.ones(start.size, bool)
        begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + size[:-1])
        first = np.flatnonzero(begins)
        joined = np.add.reduceat(size, first) if first.size else nothing
        return cls(document[first], start[first], joined)


def pieces_of_packs(packs: PackedRows, rows: Int64[np.ndarray, " n"]) -> LeftPieces:
    """The documents in some rows."""
    return LeftPieces(*packs.items(rows))


def pack_left(dataset: PackedTokenDataset, left: LeftPieces) -> PackedRows | None:
    """The pieces in rows like those of a dataset; None if no row can be made of them."""
    spec = dataset.plan.spec
    unit = dataset.unit
    first_token = starts(dataset.cache.part_tokens)
    lengths = left.size.reshape(-1, unit).sum(axis=1)
    part = np.searchsorted(first_token, left.start[::unit], side="right") - 1
    per_part = np.bincount(part, minlength=first_token.size - 1)
    try:
        plan = plan_of(spec, lengths, per_part.tolist())
    except ConfigError as error:
        if error.field != "lengths":
            raise
        return None  # nothing is left, or nothing that the packing does not drop
    number = (np.asarray(plan.items.document)[:, None] * unit + np.arange(unit)).reshape(-1)
    offset = np.repeat(np.asarray(plan.items.offset), unit)
    size = np.asarray(plan.items.size) if unit == 1 else left.size[number]
    items = Items(left.document[number], offset, size)
    start = left.start[number] + offset
    bounds = np.asarray(plan.bounds) * unit
    return dataset.packs_of(PackPlan(spec, bounds, items, plan.counts, start))
