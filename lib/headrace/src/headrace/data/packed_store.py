"""``PackedStoreDataset``: the rows of a cache that was written in packs (``headrace cache reshuffle
--pack``, :mod:`headrace.ingest.pack_order`).

Row k is the k-th run of so many tokens, and no plan says so. Which documents are in it follows from
where these end; the last one of each row is its padding, maybe of no token. Price: as for rows that
are divided into documents (:class:`headrace.store.leaf.DocumentEnds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64
from msgspec.structs import replace

from headrace.data.columns import Column, ColumnConfig
from headrace.data.dataset import PlannedDataset
from headrace.data.documents import DocumentFilter
from headrace.data.erased_rows import ErasedRows, Erasure
from headrace.data.packed import PackedTokenDataset
from headrace.data.rows import RowSource
from headrace.data.saved_filters import RemovedDocuments
from headrace.data.token_seq import CacheDataset, TokenRows, TokenSeqDataset
from headrace.errors import ConfigError, command_line
from headrace.order.intervals import run_numbers
from headrace.order.windows import BlockAligned
from headrace.store.cache import TokenCache
from headrace.store.leaf import DocumentEnds
from headrace.store.ledger import ShuffleRecord


class PackedStoreDataset(CacheDataset[RowSource]):
    """The rows of a cache that was written in packs.

    Documents that are left out stay in their rows, as what is not trained on.

    Args:
        cache: An open cache, or the path of one.
        seq_len: Tokens in a row: those of its packs.
        removed: Documents to leave out.
        name: Name for counters and reports; None: the cache's path.
        loss_mask: As for :class:`~headrace.data.packed.PackedTokenDataset`.
        columns: Further leaves for batches, by their names there.

    Raises:
        ConfigError: rows of another length; several caches that are read as one.

    Example:
        >>> import tempfile
        >>> import headrace.testing
        >>> from headrace.ingest import ReshuffleConfig, reshuffle
        >>> cache = headrace.testing.tiny_cache(documents=50)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = reshuffle(cache, folder, ReshuffleConfig(0, pack=64), progress=False)
        ...     rows = PackedStoreDataset(folder, seq_len=64)
        ...     rows.read([0]).segment_lengths.sum() <= 64, rows.padding_tokens < 64 * len(rows)
        (np.True_, True)
    """

    reads_packs = True

    def __init__(
        self,
        cache: TokenCache | str | Path,
        seq_len: int,
        *,
        removed: DocumentFilter | RemovedDocuments | None = None,
        name: str | None = None,
        loss_mask: str = "auto",
        columns: Mapping[str, str | ColumnConfig | Column] | None = None,
    ) -> None:
        super().__init__(cache, seq_len, removed, loss_mask, columns)
        record = check_packs(self.cache, int(seq_len))
        packs = StoredPacks(self.cache, record, name or self.cache.path, self._opened)
        self.windows = packs.windows
        left_out = Erasure(self.removal.tokens, self.removal.num_documents, {})
        self._rows = ErasedRows(packs, left_out) if self.removed_tokens else packs

    def describe(self) -> dict[str, Any]:
        removed = {"removed": self.removal.tokens_digest[:32]} if self.removed_tokens else {}
        packs = {"packs": self.cache.fingerprint, "seq_len": self.seq_len}
        return packs | removed | self._describe_reads()

    @property
    def padding_tokens(self) -> int:
        """Padding of all rows."""
        return self.cache.padding_tokens

    @property
    def dropped_tokens(self) -> int:
        """Tokens that are in no row: none."""
        return 0

    def full_blocks(self, io_block_size: int) -> int:
        return int((self.windows.rows_of_part // io_block_size).sum())

    def block_aligned(self, io_block_size: int) -> PlannedDataset:
        return self.reordered(BlockAligned(self.windows.rows_of_part, io_block_size))

    def holdout_documents(self, one_in: int = 100, *, seed: int = 0) -> NoReturn:
        raise ConfigError(
            "parts documents that share rows",
            field="by",
            value="documents",
            cure=f"Hold out rows: {{one_in: {one_in}}}.",
        )

    def with_rows(self, seq_len: int, *, block_tokens: int | None = None) -> PackedStoreDataset:
        """These rows. ConfigError: another length is asked for."""
        check_packs(self.cache, seq_len)
        return self


StoredDataset: TypeAlias = TokenSeqDataset | PackedTokenDataset | PackedStoreDataset
"""Rows of a component as they are stored."""


class StoredPacks(TokenRows):
    """The rows of :class:`PackedStoreDataset`."""

    has_padding = True

    def __init__(
        self, cache: TokenCache, record: ShuffleRecord, name: str, columns: Mapping[str, Column]
    ) -> None:
        super().__init__(cache, record.pack, name, columns=columns)
        self.max_segments = record.max_documents
        self._ends = cache.document_ends

    @property
    def stored_ends(self) -> DocumentEnds:
        return self._ends

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        part, start = self.windows.locate(rows)
        row, last = self._ends.last_tokens(part, start, np.full_like(rows, self.row_elements))
        order = np.argsort(row, kind="stable")  # rows of a part come together
        row = row[order]
        end = last[order] + 1
        count = np.bincount(row, minlength=rows.size)
        nth = run_numbers(0, count)
        size = np.where(nth == 0, end, np.diff(end, prepend=0))
        document = np.flatnonzero(nth < count[row] - 1)  # the last is padding
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        lengths[row[document], nth[document]] = size[document]
        return lengths


def check_packs(cache: TokenCache, seq_len: int) -> ShuffleRecord:
    """The record of a cache in packs of this length.

    Raises:
        ConfigError: its packs have another length, or there are none; other caches are read with
            it.
    """
    if len(cache.members) > 1:
        raise ConfigError(
            "is read with others, and was written in packs",
            field="cache",
            value=next(one.path for one in cache.members if one.pack is not None),
            cure="Give each cache a component of its own.",
        )
    record = cache.pack
    if record is None:
        raise ConfigError(
            "was not written in packs",
            field="cache",
            value=cache.path,
            cure=f"Write one: {command_line('cache reshuffle', cache.path, 'NEW', pack=seq_len)}",
        )
    if record.pack != seq_len:
        again = replace(record, pack=seq_len).command(f"{cache.path}-{seq_len}")
        raise ConfigError(
            f"differs from the packs of {cache.path}, which have {record.pack:,} tokens",
            field="seq_len",
            value=seq_len,
            cure=f"Use seq_len: {record.pack}, or pack the documents anew: {again}",
        )
    return record
