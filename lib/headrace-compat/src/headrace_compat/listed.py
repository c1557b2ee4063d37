"""Rows as in Megatron-LM and nmoe: windows over stretches of a cache that are concatenated in some
order.

Megatron's stretches are documents in the order of its index (:mod:`headrace_compat.gpt_index`);
consecutive windows share a token, and have their own order. nmoe's stretches are the shards in
stored order; a window that reaches the end of the source continues at its beginning, and the next
window follows it. Rows of :class:`~headrace.data.token_seq.TokenSeqDataset`, by contrast, end with
a part, which keeps a row within a chunk or two.

Invariant: the windows cover all tokens of the stretches except those after the last full window.
Price: 12 bytes of memory per stretch and, for Megatron's, a read for each document in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Int64, Integer

from headrace.data.columns import Column, ColumnConfig
from headrace.data.rows import Pieces, RowSource
from headrace.data.saved_filters import RemovedDocuments
from headrace.data.token_seq import CacheDataset, document_ends, refuse_pairs_in_a_stream
from headrace.errors import ConfigError
from headrace.order.intervals import run_numbers
from headrace.store.cache import TokenCache
from headrace.store.leaf import DocumentEnds


class Listing(NamedTuple):
    """The tokens of rows.

    Attributes:
        start: First token of each stretch, in the stream of all parts of the cache. No stretch
            crosses parts.
        size: Tokens of each stretch.
        stride: Tokens from one window to the next.
        order: Window at each row; None: in stored order.
        windows: Number of windows.
        described: Description of the listing, as JSON values.
    """

    start: Int64[np.ndarray, " d"]
    size: Int64[np.ndarray, " d"]
    stride: int
    order: Integer[np.ndarray, " w"] | None
    windows: int
    described: dict[str, Any]


class ListedDataset(CacheDataset["ListedRows"]):
    """Rows of a listing.

    Args:
        cache: An open cache.
        seq_len: Tokens in a row.
        listing: The tokens of the rows.
        split_documents: Whether a segment ends where a document does.
        name: Name for counters and reports.
        loss_mask: Leaf that marks the tokens to train on; see :mod:`headrace.batch.masks`.
        columns: Columns of the batches.
        pairs: False: train on preference pairs as on text; None: they are refused.

    Raises:
        ConfigError: the cache holds preference pairs; or, with ``split_documents``, neither stores
            documents nor names the token that ends them.
    """

    def __init__(
        self,
        cache: TokenCache,
        seq_len: int,
        listing: Listing,
        *,
        split_documents: bool = False,
        name: str,
        loss_mask: str = "auto",
        columns: Mapping[str, str | ColumnConfig | Column] | None = None,
        pairs: bool | None = None,
    ) -> None:
        super().__init__(cache, seq_len, None, loss_mask, columns)
        refuse_pairs_in_a_stream(cache, pairs)
        self._listing = listing
        ends = document_ends(cache) if split_documents else None
        self._rows = ListedRows(cache, seq_len, listing, name, self._opened, ends)

    @property
    def dropped_tokens(self) -> int:
        """Tokens of the cache that are in no row: those of other splits, and after the last full
        window.
        """
        return self.cache.num_tokens - self._tokens_once

    @property
    def repeated_tokens(self) -> int:
        return self.length * self.seq_len - self._tokens_once

    @property
    def _tokens_once(self) -> int:
        """Tokens that are in any row: all up to the end of the last window."""
        size = self._listing.size
        last = (self.length - 1) * self._listing.stride + self.seq_len
        covered = np.clip(last - (np.cumsum(size) - size), 0, size)
        filled = size > 0
        documents, number = np.unique(self._listing.start[filled], return_inverse=True)
        most = np.zeros(documents.size, np.int64)  # a document comes once an epoch
        np.maximum.at(most, number, covered[filled])
        return int(most.sum())

    def describe(self) -> dict[str, Any]:
        return {
            "listed": self.cache.fingerprint,
            "seq_len": self.seq_len,
            "stride": self._listing.stride,
            **self._listing.described,
            "eos_id": self.eos_id,
            # a cache may store documents and have no token that ends them
            **({"split_documents": True} if self.splits_documents and self.eos_id is None else {}),
            **self._describe_reads(),
        }

    def check_stored_order(self) -> None:
        cure = "Leave validation out: compat has a split of its own, or none."
        raise ConfigError(
            "are in the order of another system, and cannot be split", field="validation", cure=cure
        )

    def _with(self, seq_len: int, removed: RemovedDocuments, **changed: Any) -> Self:
        raise ConfigError(
            "cannot change in the order of another system", field="seq_len", value=seq_len
        )


class ListedRows(RowSource):
    """The windows of a listing."""

    def __init__(
        self,
        cache: TokenCache,
        seq_len: int,
        listing: Listing,
        name: str,
        columns: Mapping[str, Column],
        ends: DocumentEnds | int | None = None,
    ) -> None:
        super().__init__(cache, name, seq_len, columns, ends)
        self._listing = listing
        self._ends = np.cumsum(listing.size)

    @property
    def num_rows(self) -> int:
        return self._listing.windows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        windows = (
            rows if self._listing.order is None else self._listing.order[rows].astype(np.int64)
        )
        begin = windows * self._listing.stride
        first = self._stretch_of(begin)
        last = self._stretch_of(begin + self.row_elements - 1)
        count = last - first + 1
        row = np.repeat(np.arange(rows.size), count)
        stretch = run_numbers(first, count)
        lap, at = np.divmod(stretch, self._ends.size)
        size = self._listing.size[at]
        low = (
            lap * self._ends[-1] + self._ends[at] - size
        )  # where the stretch begins in the endless stream
        low_edge = np.maximum(low, begin[row])
        right = np.minimum(low + size, begin[row] + self.row_elements)
        some = right > low_edge  # a stretch may be empty
        row, low_edge, size = row[some], low_edge[some], (right - low_edge)[some]
        array, start = self.in_arrays(self._listing.start[at[some]] + low_edge - low[some])
        return Pieces(row, low_edge - begin[row], array, start, size)

    def _stretch_of(self, token: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The stretch that holds a token of the endless stream, counted through all laps."""
        lap, offset = np.divmod(token, self._ends[-1])
        return lap * self._ends.size + np.searchsorted(self._ends, offset, side="right")
