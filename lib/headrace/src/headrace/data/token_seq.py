"""``TokenSeqDataset``: a token cache as rows of ``seq_len`` tokens.

Rows are consecutive windows over the token stream of each part; documents continue from row to row.
The last tokens of a part that do not fill a row are left out and counted in
:attr:`TokenSeqDataset.dropped_tokens` (less than ``seq_len`` per part). Price: opening does no work
that grows with the cache; a batch costs one read for each run of neighbouring rows. The restarts of
rows between gaps are saved with the filter.

Documents can be left out without rebuilding the cache (data/documents.py). Rows are then windows
over the remaining tokens and close the gaps. Price: after a gap, blocks of rows no longer start
where stored chunks do, so a shuffle of blocks of one chunk reads two chunks per block. If 256 or
more rows follow without a gap, rows therefore restart at a chunk's border (the tokens before it
that do not fill a row are dropped and counted). Reads of a chunk per epoch: 1 if gaps are that
rare, 2 - f if they are close (f: share of tokens removed), 1 + (1 - f) / k with blocks of k chunks,
``io_block_size: k x chunk / seq_len``. Measured: scripts/bench/bench_removal.py.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Int64

from headrace.data.columns import Column, ColumnConfig, describe_columns, open_columns
from headrace.data.dataset import PlannedDataset, WrappingDataset
from headrace.data.documents import (
    DocumentFilter,
    count_documents,
    digest_of_documents,
    parts_left,
    remove_others,
    removed_by,
)
from headrace.data.erased_rows import ErasedRows, Erasure
from headrace.data.kept_sums import load_or_add_up
from headrace.data.rows import FurtherRows, Pieces, Rows, RowSource
from headrace.data.saved_filters import RemovedDocuments, removed_once
from headrace.errors import ConfigError, check_at_least, check_path, check_whole, command_line
from headrace.metrics import ReadStats
from headrace.order.holdout import held_out
from headrace.order.intervals import Intervals, clean_borders
from headrace.order.windows import BlockAligned, Windows
from headrace.store.cache import TokenCache
from headrace.store.joined import open_cache
from headrace.store.layouts import WHOLE_FILES
from headrace.store.leaf import DocumentEnds
from headrace.store.snapshots import cache_of_member

_STRETCHES_VERSION = 1  # of what is kept of them
CLEAN_ROWS = 256
"""After a gap, rows restart at a chunk's border if this many rows follow without a gap, which drops
less than one row.
"""
CHOSEN = "chosen"
"""Leaf that marks the chosen documents."""


class TokenRows(RowSource):
    """The rows of a cache.

    Rows are windows over *stretches* of the remaining tokens: the parts, further divided at gaps if
    gaps are rare (see :func:`~headrace.order.intervals.clean_borders`).

    Args:
        removed: What is left out; None: nothing. Rows close the gaps: a row across a gap has a
            piece on either side.
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
        removed: RemovedDocuments | None = None,
        block_tokens: int | None = None,
        clean_run: int | None = None,
        columns: Mapping[str, Column] | None = None,
        ends: DocumentEnds | int | None = None,
    ) -> None:
        super().__init__(cache, name, seq_len, columns, ends)
        self.clean_run = CLEAN_ROWS * seq_len if clean_run is None else clean_run
        self._removal = removal = None if removed is None else removed.removal
        self.stretch_tokens = cache.part_tokens
        if removed is not None and removal is not None:
            part_ends = self.first_token

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


def is_of_pairs(cache: TokenCache, said: bool | None) -> bool:
    """Whether the documents of a cache are preference pairs: as ``said``, or None: as the cache
    says, by its leaf ``chosen``.

    Pairs stay together everywhere: they are packed by twos, with weight -1 for the rejected side,
    and refused where rows would part them. ``pairs: false`` is the word with which both answers are
    trained on as ordinary text.

    Example:
        >>> import headrace.testing
        >>> is_of_pairs(headrace.testing.tiny_cache(documents=6), None)
        False
    """
    if not isinstance(said, bool | None):
        raise ConfigError(
            "is neither true nor false", field="pairs", value=said, cure="Give True or False."
        )
    return CHOSEN in cache.leaves if said is None else said


def refuse_pairs_in_a_stream(cache: TokenCache, said: bool | None) -> None:
    """Raises ConfigError if the documents of a cache are pairs: rows that are cut from a stream
    part them.
    """
    if is_of_pairs(cache, said):
        raise ConfigError(
            f"is missing, and {cache.path} holds preference pairs: rows of a stream would train on"
            " rejected answers as on chosen ones",
            field="packing",
            cure="Pack them, which keeps pairs together (packing: {}; in Python"
            " PackedTokenDataset). Or train on both"
            " answers as on text: pairs: false.",
        )


RowsT = TypeVar("RowsT", bound=RowSource)


class CacheDataset(PlannedDataset, Generic[RowsT]):
    """Rows over the documents of one token cache.

    Documents that the snapshot of the cache has removed (``headrace cache remove``) leave their
    places in the rows (:mod:`headrace.data.erased_rows`); a filter, ``removed``, closes them.

    Attributes:
        cache: The cache.
        removal: What is left out, with the counters of its filter.
        loss_mask: The leaf that marks the tokens to train on; None: all tokens.
        columns: The columns that were requested for batches.
        unit: Number of neighbouring documents that are held out together.
    """

    incomplete_documents = 0
    unit = 1
    reads_packs = False
    """Whether it is for caches that were written in packs."""
    _rows: RowsT
    _options: Mapping[str, Any] = MappingProxyType({})
    """Arguments of its class beside those that all have."""
    _further: RowSource | None = None
    _removed: Intervals | None = None

    def __init__(
        self,
        cache: TokenCache | str | Path,
        seq_len: int,
        removed: DocumentFilter | RemovedDocuments | None,
        loss_mask: str,
        columns: Mapping[str, str | ColumnConfig | Column] | None,
    ) -> None:
        if not isinstance(cache, TokenCache):
            check_path("cache", cache, "Give the folder of a cache, or an open TokenCache.")
            cache = open_cache(cache)
        self.cache = cache
        if not self.reads_packs and any(one.pack for one in cache.members):
            raise ConfigError(
                "was written in packs",
                field="cache",
                value=cache.path,
                cure="Use PackedStoreDataset, or packing: {} in a config.",
            )
        check_whole("seq_len", seq_len)
        check_at_least("seq_len", seq_len, 2, "E.g. 2048 tokens.")
        if not isinstance(removed, DocumentFilter | RemovedDocuments | None):
            cure = "Give DocumentFilter([3, 17]) or DocumentFilter.load(FILE)."
            raise ConfigError(
                "is not a filter of documents", field="removed", value=removed, cure=cure
            )
        if not isinstance(columns, Mapping | None):
            raise ConfigError(
                "is not a mapping", field="columns", value=columns, cure="Give {NAME: LEAF}."
            )
        if removed is None and not self.cache.moved_away.total:
            removed = RemovedDocuments(Intervals.empty(), None)
        elif not isinstance(removed, RemovedDocuments):
            removed = removed_by(removed, self.cache)
        self.removal = removed
        self.loss_mask = self.cache.mask_leaf(loss_mask)
        self.columns = dict(columns or {})
        self._opened: Mapping[str, Column] = {}
        if self.columns or self.loss_mask is not None:
            self._opened = open_columns(self.cache, self.loss_mask, self.columns)
        self._stats = ReadStats()

    @property
    def length(self) -> int:
        return self._rows.num_rows

    @property
    def documents_digest(self) -> str:
        """Digest of the documents of which its rows are made: equal for the same documents of the
        same cache, whatever the rows; 32 hex digits.
        """
        return digest_of_documents(self.cache, self.removal)

    @property
    def parts_left(self) -> Bool[np.ndarray, " parts"]:
        """The parts of its cache in which it has documents."""
        return parts_left(self.cache, self.removal)

    @property
    def sources(self) -> Sequence[RowSource]:
        return (self._source,)

    @functools.cached_property
    def _source(self) -> RowSource:
        rows = self._rows if self._further is None else self._further
        removed = self._erased
        if not removed.total:
            return rows
        snapshots = [snapshot.number for snapshot in self.cache.snapshots]
        erasure = Erasure.of(self.cache, removed, self.unit, snapshots)
        return ErasedRows(rows, erasure)

    @property
    def _erased(self) -> Intervals:
        """The documents whose tokens its rows lack, by number."""
        return self.cache.removed() if self._removed is None else self._removed

    def erasing(self, removed: Intervals) -> Self:
        """The same rows without the tokens of these documents, by number, in place of those that
        were removed from the cache.
        """
        other = self._copy()
        other._removed = removed
        return other

    def with_further(self, further: RowSource) -> Self:
        """This dataset, whose source has further rows behind its own."""
        other = self._copy()
        other._further = FurtherRows(self._rows, further)
        return other

    def _copy(self) -> Self:
        other = copy.copy(self)
        for of_sources in ("_source", "joined_rows", "block_space"):
            vars(other).pop(of_sources, None)
        return other

    def _describe_reads(self) -> dict[str, Any]:
        """What of its rows batches have, in a description."""
        removed = self._erased
        mask = {} if self.loss_mask is None else {"loss_mask": self.loss_mask}
        erased = {"erased": removed.digest()[:32]} if removed.total else {}
        return mask | erased | describe_columns(self._opened)

    @property
    def seq_len(self) -> int:
        return self._rows.row_elements

    @property
    def splits_documents(self) -> bool:
        return self._rows.ends is not None

    @property
    def eos_id(self) -> int | None:
        return self.cache.ledger.tokenizer.get("eos_id") if self.splits_documents else None

    @property
    def read_stats(self) -> ReadStats:
        return self._stats

    def caches(self) -> list[TokenCache]:
        return [self.cache]

    @property
    def run_blocks(self) -> int:
        """How many of its blocks are best read one after the other in a shuffled store: rows may
        lie across their borders.
        """
        return 1

    @property
    def unfilled_tokens(self) -> int:
        """Tokens that fill no row, as rows end where parts do; of packed documents none."""
        return 0

    @property
    def in_shuffled_store(self) -> bool:
        # Several caches that are read as one may differ: their blocks are not alike
        return self.cache.is_mixed

    def opening_requests(self, hosts: int) -> int:
        return hosts * self.removal.requests

    @property
    def removed_documents(self) -> int:
        """Documents of the cache that are left out."""
        return count_documents(self.cache, self.removal.which)

    @property
    def removed_tokens(self) -> int:
        """Tokens of these documents."""
        return self.removal.num_tokens

    @property
    def incomplete_tokens(self) -> int:
        """Tokens of documents that are not packed because another one of their unit is missing."""
        return 0

    @property
    def repeated_tokens(self) -> int:
        """Tokens that rows contain more than once, because rows overlap or belong to several
        passes.
        """
        return 0

    @property
    def are_own_rows(self) -> bool:
        return True

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return Rows(np.zeros_like(indices), indices, indices / max(self.length, 1))

    def default_io_block_size(self) -> int:
        return max(self.cache.layout.chunk_elements // self.seq_len, 1)

    def holdout_documents(self, one_in: int = 100, *, seed: int = 0) -> tuple[Self, Self]:
        """Splits off a validation side of whole documents: one in ``one_in``, by a keyed hash of
        their numbers. For a cache that was shuffled when it was written, these are numbers of the
        original, so the split is the same. Each side is this dataset with the other side's
        documents removed. Rows over a stream of tokens then cost additional reads, as with any
        removal (see :mod:`headrace.data.token_seq`), and packed rows have their own plan.
        :meth:`holdout` splits by blocks at no such cost, but cuts documents at the borders.

        Args:
            one_in: One document (or unit of documents that are packed together) in this many is
                held out; those of a short last group are not.
            seed: Integer seed.

        Returns:
            The train side and the validation side. Documents that are already removed are on
            neither.

        Raises:
            ConfigError: fewer documents than ``one_in``, or a side that does not fill a row.

        Example:
            >>> import headrace.testing
            >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=100), seq_len=8)
            >>> [side.removed_documents for side in dataset.holdout_documents(one_in=10)]
            [10, 90]
        """
        documents = self.cache.num_originals
        stored = self.cache.num_documents
        unit = self.unit

        @functools.cache
        def validation() -> Intervals:
            what = "documents" if unit == 1 else f"units of {unit} documents"
            units = held_out(documents // unit, one_in, seed, what=what)
            units_held = (units[:, None] * unit + np.arange(unit)).reshape(-1)
            return Intervals.of_numbers(self.cache.stored_at(units_held))

        made_from = {"one_in": one_in, "seed": seed, "unit": unit}
        train = self._without(validation, {**made_from, "side": "train"})
        return train, self._without(
            lambda: validation().complement(stored), {**made_from, "side": "validation"}
        )

    def _without(self, documents: Callable[[], Intervals], made_from: Mapping[str, Any]) -> Self:
        removal = self.removal
        cache = self.cache

        def work_out() -> RemovedDocuments:
            others = documents()
            return remove_others(cache, removal, others.mask, others)

        if cache.num_documents < _MANY:
            return self._with(self.seq_len, work_out())

        def all_made_from() -> dict[str, Any]:
            return {**made_from, "cache": cache.fingerprint, "removed": removal.documents_digest}

        return self._with(self.seq_len, removed_once(cache, all_made_from, work_out))

    def _with(self, seq_len: int, removed: RemovedDocuments, **changed: Any) -> Self:
        """The same dataset with rows of another length, with other documents left out, or with
        changed options.
        """
        other = cast(Any, type(self))(
            self.cache,
            seq_len,
            removed=removed,
            name=self._rows.name,
            loss_mask=self.loss_mask or "none",
            columns=self.columns,
            **{**self._options, **changed},
        )
        other._removed = self._removed
        return other


_MANY = 1 << 20  # documents of a cache beside which it is saved which of them are held out


class TokenSeqDataset(CacheDataset[TokenRows]):
    """Rows of ``seq_len`` tokens over a token cache.

    Args:
        cache: An open cache, or the path of one.
        seq_len: Tokens in a row.
        split_documents: If True, a segment ends where a document of the cache does, so that
            attention and labels stay within documents; if False each row is one segment. See
            :func:`document_ends`.
        name: Name of the source in counters and reports; default: the cache's path.
        removed: Documents to leave out. A row may then continue with a document from further on.
        loss_mask: Leaf that marks the tokens to train on; ``auto``: the one of chats, if the cache
            has it; ``none``: train on all tokens. See :mod:`headrace.batch.masks`.
        columns: Further leaves for batches, by their names there; see :mod:`headrace.data.columns`.
        pairs: False: train on the documents of a preference cache as on text, on rejected answers
            too. None: rows of such a cache are refused, because they part pairs.
        block_tokens: Tokens of a block that rows may not cross (see
            :class:`~headrace.order.windows.Windows`); None: rows are consecutive over a whole part.
        clean_run: See :class:`TokenRows`.

    Raises:
        ConfigError: a column that the cache does not have; preference pairs; ``seq_len`` below 2 or
            longer than the data; ``split_documents`` of a cache that neither stores documents nor
            names the token that ends them; a filter of another cache, or one that leaves nothing.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache(documents=10)
        >>> dataset = TokenSeqDataset(cache, seq_len=16)
        >>> dataset.read([0, 1]).tokens.shape
        (2, 16)
    """

    def __init__(
        self,
        cache: TokenCache | str | Path,
        seq_len: int,
        *,
        split_documents: bool = False,
        name: str | None = None,
        removed: DocumentFilter | RemovedDocuments | None = None,
        loss_mask: str = "auto",
        columns: Mapping[str, str | ColumnConfig | Column] | None = None,
        pairs: bool | None = None,
        block_tokens: int | None = None,
        clean_run: int | None = None,
    ) -> None:
        super().__init__(cache, seq_len, removed, loss_mask, columns)
        if not isinstance(split_documents, bool):
            cure = "Give True or False."
            raise ConfigError(
                "is neither true nor false",
                field="split_documents",
                value=split_documents,
                cure=cure,
            )
        refuse_pairs_in_a_stream(self.cache, pairs)
        self._rows = TokenRows(
            self.cache,
            seq_len,
            name or self.cache.path,
            self.removal,
            columns=self._opened,
            ends=document_ends(self.cache) if split_documents else None,
            block_tokens=block_tokens,
            clean_run=clean_run,
        )
        self._options = {
            "split_documents": split_documents,
            "block_tokens": block_tokens,
            "clean_run": self._rows.clean_run,
            "pairs": False,  # else this dataset would not exist
        }
        self._check_not_empty()

    def describe(self) -> dict[str, Any]:
        return {
            "tokens": self.cache.fingerprint,
            "seq_len": self.seq_len,
            "split_documents": self.splits_documents,
            "eos_id": self.eos_id,
            **({} if self.removed_tokens == 0 else {"removed": self._describe_removed()}),
            **({} if self.block_tokens is None else {"block_tokens": self.block_tokens}),
            **self._describe_reads(),
        }

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block that rows may not cross, if there is one."""
        return self.windows.block_tokens

    @property
    def dropped_tokens(self) -> int:
        """Tokens that fill no row: at the ends of parts, after some gaps, and at the ends of
        blocks, if any.
        """
        return self.cache.num_tokens - self.removed_tokens - self.length * self.seq_len

    @property
    def unfilled_tokens(self) -> int:
        return self.dropped_tokens

    def default_io_block_size(self) -> int:
        return max((self.block_tokens or self.cache.layout.chunk_elements) // self.seq_len, 1)

    def full_blocks(self, io_block_size: int) -> int:
        if self.block_tokens is not None:
            return self.windows.num_blocks
        return int((self.windows.rows_of_part // io_block_size).sum())

    @property
    def windows(self) -> Windows:
        """How rows are numbered."""
        return self._rows.windows

    def block_aligned(self, io_block_size: int) -> PlannedDataset:
        if self._rows.stretch_tokens.size == 1 or self.block_tokens is not None:
            return self
        return self.reordered(BlockAligned(self.windows.rows_of_part, io_block_size))

    def _describe_removed(self) -> dict[str, Any]:
        """A description that is equal for filters that leave the same tokens."""
        return {
            "documents": self.removal.num_documents,
            "tokens": self.removed_tokens,
            "digest": self.removal.tokens_digest[:32],
            "clean_run": self._rows.clean_run,
        }

    def _check_not_empty(self) -> None:
        if self.length:
            return
        if self.removed_tokens and self.removed_tokens == self.cache.num_tokens:
            raise ConfigError(
                f"leaves nothing of {self.cache.path}: it removes all {self.cache.num_tokens:,}"
                " tokens",
                field="removed",
                cure="The filter lists documents to leave out; invert a bitmap of those to keep.",
            )
        longest = int(self._rows.stretch_tokens.max(initial=0))
        removed = (
            f" once {self.removed_documents:,} documents are removed" if self.removed_tokens else ""
        )
        cure = "Use a shorter seq_len or a larger corpus."
        if self.cache.num_tokens - self.removed_tokens >= self.seq_len:
            copy = command_line("cache reshuffle", self.cache.path, "COPY")
            cure = f"Use a shorter seq_len, packing, or a copy with larger parts: {copy}"
        if root := cache_of_member(self.cache.path):
            # A run that moves to what was appended cannot change the length of its rows
            command = command_line("build", "SOURCE", output=root, append=True)
            cure = f"Append more, and move the run then: {command}"
        raise ConfigError(
            f"is longer than the data: {self.cache.path} holds {longest:,} tokens in its longest"
            f" part{removed}",
            field="seq_len",
            value=self.seq_len,
            cure=cure,
        )

    def with_rows(self, seq_len: int, *, block_tokens: int | None = None) -> TokenSeqDataset:
        """The same tokens in rows of another length. Equal ``block_tokens`` result in the same
        blocks.
        """
        return self._with(seq_len, self.removal, block_tokens=block_tokens)


def document_ends(cache: TokenCache) -> DocumentEnds | int:
    """Where the documents of a cache end, for rows that are divided into documents.

    Caches store where documents end. Only a cache of Levanter's whose rows are blocks of a stream
    (all equally long) has no documents: there they end after the token that its tokenizer ends
    texts with.

    Returns:
        The stored ends, or the id of that token.

    Raises:
        ConfigError: neither is known.

    Example:
        >>> import headrace.testing
        >>> type(document_ends(headrace.testing.tiny_cache())).__name__
        'DocumentEnds'
    """
    block = cache.block_tokens
    knows_none = cache.ledger.metadata.get(WHOLE_FILES, False)
    if block is None and not knows_none:
        return cache.document_ends
    record = cache.ledger.tokenizer
    if record.get("eos_id") is not None:
        return int(record["eos_id"])
    cure = (
        "Name its tokenizer, which knows that token (tokenizer: {path: FILE}), or set"
        " split_documents: false."
    )
    stored = "files of tokens" if block is None else f"blocks of {block:,} tokens"
    raise ConfigError(
        f"needs to know where documents end: {cache.path} stores {stored}, and no token that ends"
        " documents",
        field="split_documents",
        value=True,
        cure=cure,
    )


def stored_dataset(dataset: PlannedDataset) -> CacheDataset[Any]:
    """The dataset without its orders, which knows what its rows are made of."""
    while isinstance(dataset, WrappingDataset):
        dataset = dataset.base
    return cast(CacheDataset[Any], dataset)
