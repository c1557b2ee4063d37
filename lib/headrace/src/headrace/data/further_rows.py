"""Further rows of a cache behind those of a dataset: what is left of an epoch that a change of
``seq_len`` cut short.

A run numbers its sources once, so what is left is no source of its own: the rows of a dataset keep
their numbers, and the further rows follow them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.rows import Pieces, Rows, RowSource


class FurtherRows(RowSource):
    """The rows of a source, and behind them those of another of its kind over the same arrays."""

    has_gaps = True
    """Further rows continue across what was drawn before, where no stored token ends a document."""

    def __init__(self, rows: RowSource, further: RowSource) -> None:
        self.rows = rows
        self.further = further
        self.name = rows.name
        self.row_elements = rows.row_elements
        self.arrays = rows.arrays
        self.columns = rows.columns
        self.ends = rows.ends
        self.max_segments = max(rows.max_segments, further.max_segments)

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows + self.further.num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        if int(rows.max(initial=0)) < self.rows.num_rows:
            return self.rows.pieces(rows)
        of_sides: list[Pieces] = []
        for source, at, rows_of_side in self._sides(rows):
            pieces = source.pieces(rows_of_side)
            of_sides.append(pieces._replace(row=at[pieces.row]))
        both = Pieces(*(np.concatenate(field) for field in zip(*of_sides, strict=True)))
        order = np.argsort(both.row, kind="stable")
        return Pieces(*(field[order] for field in both))

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        for source, at, rows_of_side in self._sides(rows):
            lengths[at, : source.max_segments] = source.segment_lengths(rows_of_side)
        return lengths

    def _sides(
        self, rows: Int64[np.ndarray, " n"]
    ) -> Iterator[tuple[RowSource, Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]]:
        """Each of the two sources, where its rows are in the request, and their numbers there."""
        is_further = rows >= self.rows.num_rows
        at = np.flatnonzero(~is_further)
        yield self.rows, at, rows[at]
        at = np.flatnonzero(is_further)
        yield self.further, at, rows[at] - self.rows.num_rows


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
