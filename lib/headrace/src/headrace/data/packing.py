"""``PackedTokenDataset``: documents of a token cache, packed into rows by a static plan.

A row is a pack: whole documents (or what the plan cut them into) end to end, and padding. Segments end where the plan
says, not where end-of-text tokens are. Rows are as good as any: they shuffle, mix, are held out and resume like rows of
:class:`~headrace.data.token_seq.TokenSeqDataset`, and the number of rows of an epoch is known.

The plan (``headrace.index.packing``) is made once and kept beside the cache under a fingerprint of all that it depends
on (:mod:`headrace.store.plan_file`). ``windowed``, the default, packs neighbours: a shuffle of blocks then reads little
more than one stored block for each block of rows.

Price: opening reads the offsets of all documents (8 bytes each) and keeps 8 bytes a document in memory; a batch costs
one read for each run of documents that lie side by side.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from headrace.data.dataset import AsyncDataset, PlannedDataset
from headrace.data.document_filter import DocumentFilter
from headrace.data.rows import Pieces, Rows, RowSource
from headrace.errors import ConfigError
from headrace.index.intervals import Intervals
from headrace.index.packing.items import LongPolicy
from headrace.index.packing.plan import PackPlan
from headrace.index.packing.spec import DEFAULT_BLOCK_TOKENS, Algorithm, PackSpec
from headrace.metrics import ReadStats
from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.cache import TokenCache
from headrace.store.plan_file import PlanRequest, open_plan

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 20  # documents whose lengths are read at a time


class PackedTokenDataset(PlannedDataset):
    """Documents of a token cache, packed into rows of ``seq_len`` tokens.

    Args:
        cache: An open cache, or the path of one.
        seq_len: Tokens in a row: the capacity of a pack.
        algorithm: See :class:`~headrace.index.packing.spec.PackSpec`.
        long: What becomes of documents longer than a row: ``split``, ``truncate``, ``drop`` or ``error``.
        min_fill: Packs filled to less than this share are dropped.
        removed: Documents to leave out.
        name: Name for counters and reports; None: the cache's path.
        plans: Folder or URL for plans; None: ``plans`` in the cache's own folder.

    Attributes:
        plan: The plan, its documents numbered as in the cache.

    Raises:
        ConfigError: the dataset is not a cache but an order of one; ``long`` would need longer rows; nothing to pack.
        CacheError: the cache cannot be used, or the plan cannot be written.

    Example:
        >>> import headrace.testing
        >>> dataset = PackedTokenDataset(headrace.testing.tiny_cache(documents=50), seq_len=64)
        >>> batch = dataset.read([0, 1])
        >>> batch.tokens.shape, bool((batch.segment_lengths.sum(axis=1) <= 64).all())
        ((2, 64), True)
    """

    def __init__(
        self,
        cache: TokenCache | str | Path,
        seq_len: int,
        *,
        algorithm: Algorithm = "windowed",
        long: LongPolicy = "split",
        min_fill: float = 0.0,
        removed: DocumentFilter | None = None,
        name: str | None = None,
        plans: str | Path | None = None,
    ) -> None:
        if isinstance(cache, AsyncDataset):
            raise ConfigError(
                "is a dataset in an order of its own: a static plan needs documents that are the same in every epoch",
                field="cache",
                value=type(cache).__name__,
                cure="Pack the token cache of each source, then shuffle and mix the packed datasets.",
            )
        self.cache = cache if isinstance(cache, TokenCache) else TokenCache.open(cache)
        if not isinstance(seq_len, int | np.integer) or seq_len < 2:
            raise ConfigError("must be at least 2", field="seq_len", value=seq_len, cure="E.g. 2048 tokens.")
        if long == "keep":
            raise ConfigError(
                "would need rows of more than seq_len tokens", field="long", value=long, cure="Use split or truncate."
            )
        block = self.cache.layout.chunk_elements if algorithm == "windowed" else DEFAULT_BLOCK_TOKENS
        cuts = algorithm in ("wrap", "bfd_split") and long == "split"
        spec = PackSpec(int(seq_len), algorithm, None if cuts else long, min_fill, block)
        gone = Intervals.empty() if removed is None else removed.among(self.cache.num_documents)
        self.plan = _open_plan(self.cache, spec, gone, None if plans is None else str(plans))
        self._gone = gone
        self._rows = PackedRows(self.cache, self.plan, name or self.cache.path)
        self._stats = ReadStats()

    @property
    def length(self) -> int:
        return len(self.plan)

    @property
    def sources(self) -> Sequence[RowSource]:
        return (self._rows,)

    @property
    def seq_len(self) -> int:
        return self._rows.row_elements

    @property
    def eos_id(self) -> int | None:
        return None

    @property
    def read_stats(self) -> ReadStats:
        return self._stats

    def describe(self) -> dict[str, Any]:
        return {
            "packed": self.cache.fingerprint,
            "plan": self.plan.spec.describe(),
            "checksum": self.plan.checksum,
            **({} if self._gone.total == 0 else {"removed_documents": self._gone.total}),
        }

    @property
    def row_bytes(self) -> int:
        return self.seq_len * self.cache.dtype.itemsize

    @property
    def padding_tokens(self) -> int:
        """Places of all rows that hold no token."""
        return self.length * self.seq_len - self.plan.counts.packed_tokens

    def blocks_per_row(self) -> float:
        """Stored blocks that a row lies in, on average: what a row costs that is read alone.

        Example:
            >>> import headrace.testing
            >>> PackedTokenDataset(headrace.testing.tiny_cache(documents=50), seq_len=64).blocks_per_row() >= 1
            True
        """
        return self._rows.blocks_per_row()

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        return Rows(np.zeros_like(indices), indices, indices / max(self.length, 1))

    def default_io_block_size(self) -> int:
        return max(self.cache.layout.chunk_elements // self.seq_len, 1)


class PackedRows:
    """The rows of a plan: a :class:`~headrace.data.rows.SegmentedSource`.

    Args:
        cache: The cache whose documents are packed.
        plan: The plan; none of its packs exceeds its capacity.
        name: Name for counters and reports.
    """

    def __init__(self, cache: TokenCache, plan: PackPlan, name: str) -> None:
        self.name = name
        self.row_elements = plan.spec.capacity
        self.max_segments = plan.max_items
        self._plan = plan
        self._chunk = cache.layout.chunk_elements
        self.arrays: Sequence[StoredArray] = tuple(p.data for p in cache.parts)
        self._first_token = np.cumsum([0, *(a.length for a in self.arrays)])
        self._start = _starts(cache, plan)  # of each item, in the stream of all parts

    @property
    def num_rows(self) -> int:
        return len(self._plan)

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        items, held = self._plan.of_packs(rows)
        row = np.repeat(np.arange(rows.size), held)
        size = self._plan.items.size[items].astype(np.int64)
        column = np.cumsum(size) - size
        begin = np.cumsum(held) - held
        column -= np.repeat(column[begin] if rows.size else begin, held)
        array = np.searchsorted(self._first_token, self._start[items], side="right") - 1
        start = self._start[items] - self._first_token[array]
        filled = np.bincount(row, size, minlength=rows.size).astype(np.int64)
        short = np.flatnonzero((filled < self.row_elements) & (held == 1) & (filled > 1))
        if short.size == 0:
            return Pieces(row, column, array, start, size)
        # in two pieces: a row of a single piece is taken for a whole row
        last = begin[short]
        size[last] -= 1
        extra = Pieces(short, size[last], array[last], start[last] + size[last], np.ones_like(short))
        found = zip(Pieces(row, column, array, start, size), extra, strict=True)
        return Pieces(*(np.insert(mine, last + 1, theirs) for mine, theirs in found))

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        items, held = self._plan.of_packs(rows)
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        row = np.repeat(np.arange(rows.size), held)
        lengths[row, np.arange(items.size) - np.repeat(np.cumsum(held) - held, held)] = self._plan.items.size[items]
        return lengths

    def blocks_per_row(self) -> float:
        """Distinct stored chunks that a row's documents lie in, on average."""
        array = np.searchsorted(self._first_token, self._start, side="right") - 1
        start = self._start - self._first_token[array]
        first = start // self._chunk + (array << 40)
        last = (start + self._plan.items.size.astype(np.int64) - 1) // self._chunk + (array << 40)
        before = np.empty_like(last)  # the last chunk of the item before; items of a pack ascend
        before[1:] = last[:-1]
        before[self._plan.bounds[:-1]] = -1
        return float((last - np.maximum(first, before + 1) + 1).sum() / len(self._plan))


def _open_plan(cache: TokenCache, spec: PackSpec, gone: Intervals, plans: str | None) -> PackPlan:
    if plans is None and cache.path.startswith(("http://", "https://")):
        raise ConfigError(
            "cannot be written beside a cache that is read over HTTP", field="plans", cure="Give a folder: plans=..."
        )
    flags: dict[str, Any] = {}
    if gone.total:
        flags["removed"] = hashlib.sha256(np.stack([gone.start, gone.stop]).astype("<i8").tobytes()).hexdigest()
    request = PlanRequest(cache.fingerprint, cache.num_documents, spec, flags)
    per_array = [p.record.documents for p in cache.parts]
    plan = open_plan(plans or files.join(cache.path, "plans"), request, lambda: _lengths(cache, gone), per_array)
    _LOG.info("packed %s: %s", cache.path, plan.record())
    return plan


def _lengths(cache: TokenCache, gone: Intervals) -> Iterator[Int64[np.ndarray, " n"]]:
    """Lengths of all documents, chunk after chunk; those that are left out are empty, so that numbers stay."""
    for at in range(0, cache.num_documents, _CHUNK):
        stop = min(at + _CHUNK, cache.num_documents)
        lengths = cache.lengths(at, stop)
        if gone.total:
            number = np.arange(at, stop)
            behind = np.searchsorted(gone.start, number, side="right")
            lengths[(behind > 0) & (number < gone.stop[behind - 1])] = 0
        yield lengths


def _starts(cache: TokenCache, plan: PackPlan) -> Int64[np.ndarray, " m"]:
    """First token of each item, in the stream of all parts."""
    first = np.empty(cache.num_documents + 1, np.int64)
    first[0] = 0
    for at in range(0, cache.num_documents, _CHUNK):
        stop = min(at + _CHUNK, cache.num_documents)
        np.cumsum(cache.lengths(at, stop), out=first[at + 1 : stop + 1])
        first[at + 1 : stop + 1] += first[at]
    start = first[plan.items.document]
    start += plan.items.offset
    return start
