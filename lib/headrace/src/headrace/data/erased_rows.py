"""Rows without the tokens of documents that were removed from their cache (``headrace cache
remove``), which keep their positions.

A row has no piece where a removed document is: none of its tokens reaches a batch. The row has
zeros there, or end-of-text tokens if these end segments, and the batch's ``token_mask`` is 0, so
nothing there is trained on. Nothing attends to it either: in packed rows, and in rows that are
divided into documents, the document remains its own segment; if end-of-text tokens end segments,
each of its tokens is a segment; if a row is one segment, it is split into what precedes the
document, the document, and what follows it. Plans, orders, quotas and splits of a run are not
affected.

Invariants: rows without such a document are bit-identical, and so are all rows of steps before the
removal. Price: a search for each piece of a row; a byte for each token of a batch, as for any mask.
If one document in 200 is removed, a batch of 64 rows of 2,048 tokens takes 1.4 ms of CPU instead of
0.3 to 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64

from headrace.data.columns import MASK, Column
from headrace.data.documents import stored_documents, token_ranges
from headrace.data.rows import Pieces, RowSource
from headrace.order.intervals import Intervals, cut_ranges
from headrace.store.cache import TokenCache

_TRAINED = Column(MASK, np.dtype(np.uint8), 1)  # wherever a piece lies


@dataclass(frozen=True, eq=False)
class Erasure:
    """What is erased from the rows of a component.

    Attributes:
        tokens: Positions of the documents in the token stream of the whole cache, all parts end to
            end.
        documents: Number of documents.
        record: Its entry in plans of runs, as JSON values: ``snapshot``, ``documents`` and
            ``digest``.
        field: The field of the config that selects it.
    """

    tokens: Intervals
    documents: int
    record: Mapping[str, Any]
    field: str = "snapshot"

    @classmethod
    def of(
        cls,
        cache: TokenCache,
        removed: Intervals,
        unit: int,
        snapshots: Sequence[int],
        field: str = "snapshot",
    ) -> Erasure:
        """What is erased where documents of a cache are removed, each with its whole unit.

        Reads where these documents begin and end.

        Args:
            cache: The cache.
            removed: Their numbers.
            unit: How many neighbouring documents are removed together.
            snapshots: The snapshots of the cache that say so.
            field: The field of the config that selects them.
        """
        documents = stored_documents(cache, removed)
        units = Intervals(documents.start // unit * unit, -(-documents.stop // unit) * unit)
        units = Intervals(units.start, np.minimum(units.stop, cache.num_documents))
        record = {
            "snapshot": [*snapshots],
            "documents": units.total,
            "digest": removed.digest()[:32],
        }
        return cls(token_ranges(cache, units), units.total, record, field)


class ErasedRows(RowSource):
    """The rows of a source without the tokens of some documents.

    Rows that know their segments keep them, and so do rows that are divided into documents. Others
    are split where something is erased.

    Args:
        rows: The source.
        erasure: What is erased.
    """

    def __init__(self, rows: RowSource, erasure: Erasure) -> None:
        columns = {MASK: _TRAINED, **rows.columns}
        super().__init__(rows.cache, rows.name, rows.row_elements, columns, rows.ends)
        self._rows = rows
        self.has_gaps = rows.has_gaps
        self.has_padding = rows.has_padding
        self.fill = rows.end_token or 0
        self.max_segments = rows.max_segments
        self._is_split = rows.max_segments == 0 and rows.ends is None
        if self._is_split:
            self.max_segments = _most_segments(rows, erasure)
        self._left = erasure.tokens.complement(rows.cache.num_tokens)

    @property
    def unerased(self) -> RowSource:
        return self._rows

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        """The pieces of rows, without what is erased."""
        row, column, array, start, size = self._rows.pieces(rows)
        begin = self.first_token[array] + start
        of, _, low, high = cut_ranges(begin, begin + size, self._left.start, self._left.stop)
        skipped = low - begin[of]
        return Pieces(row[of], column[of] + skipped, array[of], start[of] + skipped, high - low)

    def last_tokens(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """The last tokens of documents, of those that are erased too: they remain segments of their
        own.
        """
        return self._rows.last_tokens(rows)

    def is_erased(self, token: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        at = np.searchsorted(self._left.stop, token, side="right")
        return np.append(self._left.start, np.iinfo(np.int64).max)[at] > token

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        if not self._is_split:
            return self._rows.segment_lengths(rows)
        pieces = self.pieces(rows)
        length = self.row_elements
        begin = pieces.row * (length + 1) + pieces.column
        edges, count = np.unique(np.concatenate([begin, begin + pieces.size]), return_counts=True)
        first = np.arange(rows.size) * (length + 1)  # adjacent ranges have no edge between them
        edges = np.unique(np.concatenate([edges[count == 1], first, first + length]))
        row, column = np.divmod(edges, length + 1)
        begins = np.flatnonzero(np.diff(row, append=-1) == 0)
        nth = np.arange(begins.size) - np.searchsorted(row[begins], row[begins])
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        lengths[row[begins], nth] = np.diff(column)[begins]
        return lengths


def _most_segments(rows: RowSource, erasure: Erasure) -> int:
    """Upper bound of the segments of a row of one segment that is split where something is
    erased.
    """
    gaps = erasure.documents
    spans = rows.in_stream(erasure.tokens)
    if spans is not None:
        reach = np.searchsorted(spans.start, spans.stop + (rows.row_elements - 1), side="left")
        gaps = int((reach - np.arange(reach.size)).max(initial=0))
    return min(2 * gaps + 1, rows.row_elements)
