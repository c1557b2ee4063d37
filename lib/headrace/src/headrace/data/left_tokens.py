"""What is left of an epoch as a set of tokens: from rows of one length, and into rows of another.

Tokens are numbered through all parts of the cache. Rows cut from a set continue across its gaps and
across the ends of parts, so that fewer tokens are left out than a row holds. Price: 24 bytes and
0.4 us per row.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import PlannedDataset
from headrace.data.rows import Pieces, RowSource
from headrace.data.token_seq import TokenSeqDataset
from headrace.order.intervals import Intervals
from headrace.order.rising import starts


def tokens_of_rows(dataset: PlannedDataset, rows: Int64[np.ndarray, " n"]) -> Intervals:
    """The tokens of rows of a dataset over one cache.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> tokens_of_rows(dataset, np.array([5, 0, 1]))
        Intervals(0..16, 40..48)
    """
    (cache,) = dataset.caches()
    located = dataset.locate(rows)
    pieces = dataset.sources[0].pieces(located.row)
    begin = starts(cache.part_tokens)[pieces.array] + pieces.start
    return Intervals(begin, begin + pieces.size)


class LeftRows(RowSource):
    """The tokens of a set in rows like those of a dataset, in stored order.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> rows = LeftRows(dataset, Intervals(np.array([3, 20]), np.array([6, 30])))
        >>> (
        ...     rows.num_rows,
        ...     rows.pieces(np.array([0])).start.tolist(),
        ...     rows.pieces(np.array([0])).size.tolist(),
        ... )
        (1, [3, 20], [3, 5])
    """

    def __init__(self, dataset: TokenSeqDataset, tokens: Intervals) -> None:
        source = dataset.sources[0]
        self.name = source.name
        self.row_elements = source.row_elements
        self.arrays = source.arrays
        self.columns = source.columns
        self._num_rows = tokens.total // self.row_elements
        self._first_token = starts(dataset.cache.part_tokens)
        # No range crosses two parts
        self._start, stop = tokens.split_at(self._first_token)
        self._place = starts(
            stop - self._start
        )  # where each range begins among the tokens of the set

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        begin = rows * self.row_elements
        end = begin + self.row_elements
        first = np.searchsorted(self._place, begin, side="right") - 1
        count = np.searchsorted(self._place, end, side="left") - first
        row = np.repeat(np.arange(rows.size), count)
        nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
        number = first[row] + nth
        piece_begin = np.maximum(self._place[number], begin[row])
        piece_end = np.minimum(self._place[number + 1], end[row])
        start = self._start[number] + (piece_begin - self._place[number])
        array = np.searchsorted(self._first_token, start, side="right") - 1
        return Pieces(
            row,
            piece_begin - begin[row],
            array,
            start - self._first_token[array],
            piece_end - piece_begin,
        )
