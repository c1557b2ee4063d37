"""What is left of an epoch that a change of ``seq_len`` cut short: a set of tokens, in rows of the
new length.

Tokens are numbered through all parts of the cache. Rows cut from a set (:class:`LeftRows`) continue
across its gaps and across the ends of parts, so that fewer tokens are left out than a row holds.
Price: 24 bytes and 0.4 us per row. What is left of packs is packed anew
(:func:`~headrace.data.packed.pack_left`).

A run numbers its sources once, so what is left is no source of its own: the rows of a dataset keep
their numbers, and the further rows follow them (:class:`FurtherRows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.rows import Pieces, Rows, RowSource
from headrace.order.intervals import Intervals, cut_ranges, starts


class FurtherRows(RowSource):
    """The rows of a source, and behind them those of another of its kind over the same arrays."""

    has_gaps = True
    """Further rows continue across what was drawn before, where no stored token ends a document."""

    def __init__(self, rows: RowSource, further: RowSource) -> None:
        super().__init__(rows.cache, rows.name, rows.row_elements, rows.columns, rows.ends)
        self.rows = rows
        self.further = further
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
        return Pieces.joined(of_sides)

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


def tokens_of_rows(dataset: PlannedDataset, rows: Int64[np.ndarray, " n"]) -> Intervals:
    """The tokens of rows of a dataset over one cache.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> tokens_of_rows(dataset, np.array([5, 0, 1]))
        Intervals(0..16, 40..48)
    """
    (source,) = dataset.sources
    pieces = source.pieces(dataset.locate(rows).row)
    begin = source.first_token[pieces.array] + pieces.start
    return Intervals(begin, begin + pieces.size)


class LeftRows(RowSource):
    """The tokens of a set in rows like those of a source over a cache, in stored order.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> tokens = Intervals(np.array([3, 20]), np.array([6, 30]))
        >>> rows = LeftRows(dataset.sources[0], tokens)
        >>> (
        ...     rows.num_rows,
        ...     rows.pieces(np.array([0])).start.tolist(),
        ...     rows.pieces(np.array([0])).size.tolist(),
        ... )
        (1, [3, 20], [3, 5])
    """

    def __init__(self, source: RowSource, tokens: Intervals) -> None:
        super().__init__(source.cache, source.name, source.row_elements, source.columns)
        self._num_rows = tokens.total // self.row_elements
        # No range crosses two parts
        self._start, stop = tokens.split_at(self.first_token)
        self._place = starts(
            stop - self._start
        )  # where each range begins among the tokens of the set

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        begin = rows * self.row_elements
        end = begin + self.row_elements
        row, number, low, high = cut_ranges(begin, end, self._place[:-1], self._place[1:])
        array, start = self.in_arrays(self._start[number] + (low - self._place[number]))
        return Pieces(row, low - begin[row], array, start, high - low)
