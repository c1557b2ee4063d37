"""``TokenSeqDataset``: a token cache as rows of ``seq_len`` tokens.

Rows are consecutive windows over the token stream of each part; documents run on from row to row. The last tokens of a
part that do not fill a row are left out and counted in :attr:`TokenSeqDataset.dropped_tokens` (less than ``seq_len`` a
part). Price: opening does no work that grows with the cache; a batch costs one read for each run of neighbouring rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import PlannedDataset
from headrace.data.rows import Pieces, Rows, RowSource
from headrace.errors import ConfigError
from headrace.index.aligned import BlockAligned
from headrace.metrics import ReadStats
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache


class TokenRows:
    """The rows of a cache: a :class:`~headrace.data.rows.RowSource`."""

    def __init__(self, cache: TokenCache, seq_len: int, name: str) -> None:
        self.name = name
        self.row_elements = seq_len
        self.arrays: Sequence[StoredArray] = tuple(p.data for p in cache.parts)
        self.rows_of_part = np.asarray([a.length // seq_len for a in self.arrays], np.int64)
        self._first_row = np.cumsum(self.rows_of_part) - self.rows_of_part

    @property
    def num_rows(self) -> int:
        return int(self.rows_of_part.sum())

    def pieces(self, rows: np.ndarray) -> Pieces:
        part = np.searchsorted(self._first_row, rows, side="right") - 1
        size = np.full_like(rows, self.row_elements)
        start = (rows - self._first_row[part]) * self.row_elements
        return Pieces(np.arange(rows.size), np.zeros_like(rows), part, start, size)


class TokenSeqDataset(PlannedDataset):
    """Rows of ``seq_len`` tokens over a token cache.

    Args:
        cache: An open cache, or the path of one.
        seq_len: Tokens in a row.
        split_documents: If True, a segment ends after each end-of-text token, so that attention and labels stay within
            documents; if False each row is one segment.
        name: Name of the source in counters and reports; the cache's path if left out.

    Raises:
        ConfigError: ``seq_len`` below 2 or longer than the data; ``split_documents`` without an end-of-text token.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=10)
        >>> dataset = TokenSeqDataset(cache, seq_len=16)
        >>> dataset.read([0, 1]).tokens.shape
        (2, 16)
    """

    def __init__(
        self, cache: TokenCache | str, seq_len: int, *, split_documents: bool = False, name: str | None = None
    ) -> None:
        self.cache = TokenCache.open(cache) if isinstance(cache, str) else cache
        if seq_len < 2:
            raise ConfigError("must be at least 2", field="seq_len", value=seq_len, cure="E.g. 2048 tokens.")
        self._rows = TokenRows(self.cache, seq_len, name or self.cache.path)
        if self._rows.num_rows == 0:
            longest = max((a.length for a in self._rows.arrays), default=0)
            raise ConfigError(
                f"is longer than the data: {self.cache.path} holds {longest:,} tokens in its longest part",
                field="seq_len",
                value=seq_len,
                cure="Use a shorter seq_len or a larger corpus.",
            )
        self._eos_id = self._end_of_text() if split_documents else None
        self._stats = ReadStats()

    @property
    def length(self) -> int:
        return self._rows.num_rows

    @property
    def sources(self) -> Sequence[RowSource]:
        return (self._rows,)

    @property
    def seq_len(self) -> int:
        return self._rows.row_elements

    @property
    def eos_id(self) -> int | None:
        return self._eos_id

    @property
    def read_stats(self) -> ReadStats:
        return self._stats

    def describe(self) -> dict[str, Any]:
        return {
            "tokens": self.cache.fingerprint,
            "seq_len": self.seq_len,
            "split_documents": self.eos_id is not None,
            "eos_id": self.eos_id,
        }

    @property
    def dropped_tokens(self) -> int:
        """Tokens at the ends of parts that fill no row."""
        return self.cache.num_tokens - self.length * self.seq_len

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        return Rows(np.zeros_like(indices), indices, indices / max(self.length, 1))

    def default_io_block_size(self) -> int:
        return max(self.cache.layout.chunk_elements // self.seq_len, 1)

    def block_aligned(self, io_block_size: int) -> PlannedDataset:
        if len(self._rows.arrays) == 1:
            return self
        return self.reordered(BlockAligned(self._rows.rows_of_part, io_block_size))

    def _end_of_text(self) -> int:
        eos_id = self.cache.ledger.tokenizer.get("eos_id")
        if eos_id is None:
            raise ConfigError(
                "needs an end-of-text token, and this cache was built without one",
                field="split_documents",
                value=True,
                cure=f"Build {self.cache.path} again with --eos, or set split_documents: false.",
            )
        return int(eos_id)
