"""The rows of a ``TokenSeqDataset``: windows over the token stream of a cache, which closes the
gaps of what is left out.

Price: :mod:`headrace.data.token_seq` has that of opening. The restarts of rows between gaps are
saved with the filter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int64

from headrace.data.columns import Column
from headrace.data.kept_sums import load_or_add_up
from headrace.data.rows import Pieces, RowSource
from headrace.data.saved_filters import RemovedDocuments
from headrace.order.intervals import Intervals, clean_borders
from headrace.order.rising import starts
from headrace.order.windows import Windows
from headrace.store.cache import TokenCache
from headrace.store.document_ends import DocumentEnds
from headrace.store.layout import TOKENS

_STRETCHES_VERSION = 1  # of what is kept of them
CLEAN_ROWS = 256
"""After a gap, rows restart at a chunk's border if this many rows follow without a gap, which drops
less than one row.
"""


class TokenRows(RowSource):
    """The rows of a cache.

    Rows are windows over *stretches* of the remaining tokens: the parts, further divided at gaps if
    gaps are rare (see :func:`~headrace.order.intervals.clean_borders`).

    Args:
        removed: What is left out. Rows close the gaps: a row across a gap has a piece on either
            side.
        block_tokens: See :class:`~headrace.order.windows.Windows`.
        clean_run: Number of tokens without a gap that makes rows restart; None: 256 rows. To cut
            the same blocks into rows of another length, pass the same number.
        columns: Columns of the batches.
        ends: Where documents end, if rows are divided into them.

    Attributes:
        stretch_tokens: int64: tokens of each stretch.
        windows: How rows are numbered.
    """

    def __init__(
        self,
        cache: TokenCache,
        seq_len: int,
        name: str,
        removed: RemovedDocuments,
        block_tokens: int | None = None,
        clean_run: int | None = None,
        columns: Mapping[str, Column] | None = None,
        ends: DocumentEnds | int | None = None,
    ) -> None:
        self.name = name
        self.ends = ends
        self.row_elements = seq_len
        self.arrays = cache.leaf(TOKENS).arrays
        self.columns = columns or {}
        self.clean_run = CLEAN_ROWS * seq_len if clean_run is None else clean_run
        self._removal = removal = removed.removal
        self.stretch_tokens = cache.part_tokens
        if removal is not None:
            part_ends = starts(cache.part_tokens)

            def find() -> Int64[np.ndarray, " n"]:
                borders = clean_borders(
                    removal, part_ends, cache.layout.chunk_elements, self.clean_run
                )
                stretches = np.sort(np.concatenate([part_ends, borders]))
                return np.concatenate([stretches, removal.kept_before(stretches)])

            made_from = {"stretches": self.clean_run, "version": _STRETCHES_VERSION}
            stretches, tokens_left = np.split(
                load_or_add_up(removed.folder or None, made_from, find), 2
            )
            self._array_of = np.searchsorted(part_ends, stretches[:-1], side="right") - 1
            self._first_stored = part_ends[self._array_of]
            self._first_left = tokens_left[:-1]
            self.stretch_tokens = np.diff(tokens_left)
        self.windows = Windows(self.stretch_tokens, seq_len, block_tokens)
        if removal is None:  # the parts of the windows are then the arrays
            self.whole_windows = self.windows

    @property
    def num_rows(self) -> int:
        return self.windows.num_rows

    def in_stream(self, tokens: Intervals) -> Intervals:
        """Positions of tokens of the cache in the stream without gaps from which rows are cut."""
        if self._removal is None:
            return tokens
        return Intervals(
            self._removal.kept_before(tokens.start), self._removal.kept_before(tokens.stop)
        )

    def pieces(self, rows: np.ndarray) -> Pieces:
        stretch, start = self.windows.locate(rows)
        size = np.full_like(rows, self.row_elements)
        if self._removal is None:
            return Pieces(np.arange(rows.size), np.zeros_like(rows), stretch, start, size)
        pieces = self._removal.pieces(self._first_left[stretch] + start, size)
        stretch = stretch[pieces.range]
        begin = pieces.start - self._first_stored[stretch]
        return Pieces(pieces.range, pieces.column, self._array_of[stretch], begin, pieces.size)
