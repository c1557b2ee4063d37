"""``TokenRows``: rows over the tokens of a cache, or over what is left of them, as pieces of its stored arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.data.masks import mask_arrays
from headrace.data.rows import Pieces
from headrace.index.intervals import Intervals
from headrace.index.removal import Removal, clean_borders
from headrace.index.windows import Windows
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache

CLEAN_ROWS = 256
"""Behind a gap, rows begin anew at a chunk's border if as many rows follow without a gap: it drops less than one."""


class TokenRows:
    """The rows of a cache: a :class:`~headrace.data.rows.RowSource`.

    Rows are windows over *stretches* of what is left: the parts, and where gaps are rare also what lies between them
    (see :func:`~headrace.index.removal.clean_borders`).

    Args:
        cache: An open cache.
        seq_len: Tokens in a row.
        name: Name for counters and reports.
        removed: Tokens that are left out, in the stream of all parts end to end. Rows close up over the gaps: one that
            runs over a gap has a piece on either side.
        block_tokens: See :class:`~headrace.index.windows.Windows`.
        clean_run: Tokens without a gap from which on rows begin anew; None: 256 rows. To cut the same blocks into rows
            of another length, give the same number.
        mask: Leaf that says which tokens are trained on; None: all are.

    Attributes:
        masks: That of each array; None: all tokens are trained on.
        stretch_tokens: int64: tokens of each stretch.
        windows: How rows are numbered.
    """

    def __init__(
        self,
        cache: TokenCache,
        seq_len: int,
        name: str,
        removed: Intervals,
        block_tokens: int | None = None,
        clean_run: int | None = None,
        mask: str | None = None,
    ) -> None:
        self.name = name
        self.row_elements = seq_len
        self.arrays: Sequence[StoredArray] = tuple(p.data for p in cache.parts)
        self.masks = mask_arrays(cache, mask)
        ends = np.cumsum([0, *(a.length for a in self.arrays)])
        self.clean_run = CLEAN_ROWS * seq_len if clean_run is None else clean_run
        self._removal = None
        self._array_of = np.arange(len(self.arrays))  # by stretch
        self.stretch_tokens = np.diff(ends)
        if removed.total:
            self._removal = Removal(int(ends[-1]), removed)
            borders = clean_borders(removed, ends, cache.layout.chunk_elements, self.clean_run)
            stretches = np.sort(np.concatenate([ends, borders]))
            left = self._removal.kept_before(stretches)
            self._array_of = np.searchsorted(ends, stretches[:-1], side="right") - 1
            self._first_stored, self._first_left = ends[self._array_of], left[:-1]
            self.stretch_tokens = np.diff(left)
        self.windows = Windows(self.stretch_tokens, seq_len, block_tokens)

    @property
    def num_rows(self) -> int:
        return self.windows.num_rows

    def pieces(self, rows: np.ndarray) -> Pieces:
        stretch, start = self.windows.locate(rows)
        size = np.full_like(rows, self.row_elements)
        if self._removal is None:
            return Pieces(np.arange(rows.size), np.zeros_like(rows), self._array_of[stretch], start, size)
        found = self._removal.pieces(self._first_left[stretch] + start, size)
        stretch = stretch[found.range]
        begin = found.start - self._first_stored[stretch]
        return Pieces(found.range, found.column, self._array_of[stretch], begin, found.size)
