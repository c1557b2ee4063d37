"""Further rows of a cache behind those of a dataset: what is left of an epoch that a change of
``seq_len`` cut short.

A run numbers its sources once, so what is left is no source of its own: the rows of a dataset keep
their numbers, and the further rows follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Int32, Int64

from headrace.data.columns import Column, columns_of
from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.rows import Pieces, Rows, RowSource, SegmentedSource, last_tokens
from headrace.store.array import StoredArray
from headrace.store.document_ends import DocumentEnds


class FurtherRows:
    """The rows of a source, and behind them those of another over the same arrays: a
    :class:`~headrace.data.rows.RowSource`.
    """

    has_gaps = True
    """Further rows continue across what was drawn before, where no stored token ends a document."""

    def __init__(self, rows: RowSource, further: RowSource) -> None:
        self.rows = rows
        self.further = further
        self.name = rows.name
        self.row_elements = rows.row_elements
        self.arrays: Sequence[StoredArray] = rows.arrays
        self.columns: dict[str, Column] = dict(columns_of(rows))
        self.ends: DocumentEnds | int | None = getattr(rows, "ends", None)

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows + self.further.num_rows

    def last_tokens(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        return last_tokens(self.ends, self.pieces(rows))

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        is_further = rows >= self.rows.num_rows
        if not is_further.any():
            return self.rows.pieces(rows)
        of_sides: list[Pieces] = []
        for source, chosen, first in (
            (self.rows, ~is_further, 0),
            (self.further, is_further, self.rows.num_rows),
        ):
            at = np.flatnonzero(chosen)
            pieces = source.pieces(rows[at] - first)
            of_sides.append(pieces._replace(row=at[pieces.row]))
        both = Pieces(*(np.concatenate(field) for field in zip(*of_sides, strict=True)))
        order = np.argsort(both.row, kind="stable")
        return Pieces(*(field[order] for field in both))


class FurtherPacks(FurtherRows):
    """The same for packs: a :class:`~headrace.data.rows.SegmentedSource`."""

    @property
    def max_segments(self) -> int:
        return max(source.max_segments for source in self._sides)

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        is_further = rows >= self.rows.num_rows
        packs, further = self._sides
        for source, chosen, first in (
            (packs, ~is_further, 0),
            (further, is_further, self.rows.num_rows),
        ):
            lengths[chosen, : source.max_segments] = source.segment_lengths(rows[chosen] - first)
        return lengths

    @property
    def _sides(self) -> tuple[SegmentedSource, SegmentedSource]:
        return cast(SegmentedSource, self.rows), cast(SegmentedSource, self.further)


def with_further(rows: RowSource, further: RowSource) -> FurtherRows:
    """The rows of two sources of one kind, the second behind the first."""
    kind = FurtherPacks if hasattr(rows, "segment_lengths") else FurtherRows
    return kind(rows, further)


class FurtherDataset(WrappingDataset):
    """The further rows of a dataset whose only source is a :class:`FurtherRows`."""

    def __init__(self, base: PlannedDataset) -> None:
        self.base = base
        source = base.sources[0]
        assert isinstance(source, FurtherRows)
        self._first = source.rows.num_rows
        self._rows = source.further.num_rows

    @property
    def has_further_rows(self) -> bool:
        return True

    @property
    def length(self) -> int:
        return self._rows

    def describe(self) -> dict[str, Any]:
        return {"further": self._rows, "of": self.base.describe()}

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return Rows(np.zeros_like(indices), indices + self._first, indices / max(self._rows, 1))
