"""``PackedTokenDataset``: documents of a token cache, packed into rows by a static plan.

A row is a pack: whole documents (or the pieces that the plan cut them into) end to end, and
padding. The plan determines the ends of segments, not end-of-text tokens. Rows can be shuffled,
mixed, held out and resumed like those of :class:`~headrace.data.token_seq.TokenSeqDataset`, and the
number of rows in an epoch is known.

The plan (``headrace.pack``) is made once and saved next to the cache, under a fingerprint of
everything that it depends on (:mod:`headrace.pack.plan_file`). ``windowed``, the default, packs
neighbours: a shuffle of blocks then reads little more than one stored block for each block of rows.

Price: opening reads the plan's record and its digests, 10 bytes per thousand documents. A batch
reads the plan's entries for its rows, and needs one read for each run of adjacent documents.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack
from weakref import WeakSet

import numpy as np
from jaxtyping import Int32, Int64

from headrace.data.columns import Column, ColumnConfig
from headrace.data.documents import DocumentFilter
from headrace.data.rows import Pieces, RowSource
from headrace.data.saved_filters import RemovedDocuments
from headrace.data.token_seq import CHOSEN, CacheDataset, is_of_pairs
from headrace.errors import ConfigError
from headrace.order.intervals import run_numbers, starts
from headrace.pack.items import Items
from headrace.pack.plan import PackPlan, plan_of
from headrace.pack.saved_plans import first_tokens, incomplete_documents, plan_of_cache
from headrace.pack.spec import PackingConfig
from headrace.store.cache import TokenCache

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 16  # rows whose blocks are counted at a time


class Packing(TypedDict, total=False):
    """The fields of :class:`~headrace.pack.spec.PackingConfig`, as arguments."""

    algorithm: str
    long: str | None
    min_fill: float
    unit: int | None
    plans: str | Path | None
    max_documents: int | None
    capacity: int | None


class PackedTokenDataset(CacheDataset["PackedRows"]):
    """Documents of a token cache, packed into rows of ``seq_len`` tokens.

    Args:
        cache: An open cache, or the path of one.
        seq_len: Tokens in a row.
        algorithm: See :class:`~headrace.pack.spec.PackSpec`.
        long: What to do with documents longer than ``capacity``: ``split``, ``truncate``,
            ``truncate_start``, ``drop``, ``keep`` (a row of its own, which holds the document
            whole) or ``error``. None: ``split``; but ``drop`` for caches that mark what is trained
            on (chats), and for units.
        min_fill: Packs filled to less than this share are dropped.
        unit: Number of neighbouring documents that stay together; ``long`` must then be ``drop``,
            ``keep`` or ``error``. None: 2 for the pairs of a cache of preferences, else 1.
        removed: Documents to leave out, with all of their unit.
        name: Name for counters and reports; None: the cache's path.
        loss_mask: Leaf that marks the tokens to train on; ``auto``: the one of chats, if the cache
            has it; ``none``: train on all tokens. See :mod:`headrace.batch.masks`.
        columns: Further leaves for batches, by their names there; see :mod:`headrace.data.columns`.
        pairs: Whether documents are preference pairs, alternately chosen and rejected (see
            :func:`~headrace.data.token_seq.is_of_pairs`), which are packed with ``unit=2``; None:
            yes if the cache marks the chosen ones, as caches built by headrace do. False: rejected
            answers are trained on as chosen ones are.
        plans: Folder or URL for plans; None: ``plans`` in the cache's own folder.
        max_documents: Largest number of documents in a row, with ``algorithm="next_fit"``.
        capacity: Tokens up to which rows are filled; None: ``seq_len``. Less leaves room for what
            ``long="keep"`` keeps.

    Attributes:
        cache: The cache.
        packing: How it is packed.
        removal: What is left out, with the counters of its filter.
        plan: The plan, its documents numbered as in the cache.
        plan_path: Folder or URL where it is saved.
        incomplete_documents: Documents with tokens that are not packed because another one of their
            unit is left out or empty.
        loss_mask: The leaf that marks the tokens to train on; None: all tokens.
        columns: The columns that were requested for batches.

    Raises:
        ConfigError: the dataset is not a cache but an order of one; ``long`` would need longer
            rows, or ``capacity`` does; there is nothing to pack; documents are not pairs.
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
        removed: DocumentFilter | RemovedDocuments | None = None,
        name: str | None = None,
        loss_mask: str = "auto",
        columns: Mapping[str, str | ColumnConfig | Column] | None = None,
        pairs: bool | None = None,
        **packing: Unpack[Packing],
    ) -> None:
        if not isinstance(cache, TokenCache | str | Path):
            raise ConfigError(
                "is a dataset in an order of its own: a static plan needs documents that are the"
                " same in every epoch",
                field="cache",
                value=type(cache).__name__,
                cure="Pack the token cache of each source, then shuffle and mix the packed"
                " datasets.",
            )
        super().__init__(cache, seq_len, removed, loss_mask, columns)
        plans = packing.pop("plans", None)
        self._pairs = is_of_pairs(self.cache, pairs)
        requested_packing = PackingConfig(
            **packing,
            # Taken out of packing above, which pyright does not see
            plans=plans and str(plans),  # pyright: ignore[reportCallIssue]
        )
        self.packing = requested_packing.resolved(
            pairs=self._pairs, conversations=self.cache.mask_leaf("auto") is not None
        )
        self.unit = unit = self.packing.unit or 1
        if self._pairs:
            _check_pairs(self.cache, unit, self.loss_mask)
        self.cache.check_unit(unit)
        spec = self.packing.spec(int(seq_len), self.cache.layout.chunk_elements)
        removed = self.removal
        digest = removed.documents_digest if removed.num_documents else ""
        self.plan, self.plan_path = plan_of_cache(
            self.cache, spec, removed.which, self.packing.plans, unit, digest
        )
        if requested_packing.long is None and self.plan.counts.dropped_tokens:
            _LOG.warning(
                f"packing {self.cache.path} leaves out {self.plan.counts.dropped_tokens:,} tokens"
                " of documents longer"
                f" than {spec.capacity:,}, so that each answer keeps its question: raise seq_len,"
                " or say what to do with them (packing.long)"
            )
        if self.incomplete_tokens:
            self.incomplete_documents = incomplete_documents(self.cache, self.removal.which, unit)
            _LOG.info(
                f"packed {self.cache.path}: {self.incomplete_documents:,} documents with"
                f" {self.incomplete_tokens:,}"
                f" tokens are in no pack, as others of their units of {unit} are removed or empty"
            )
        self._rows = PackedRows(self.cache, self.plan, name or self.cache.path, self._opened)
        self._options = {"pairs": self._pairs, **vars(self.packing)}

    @property
    def pairs(self) -> bool:
        return self._pairs

    @property
    def run_blocks(self) -> int:
        # 16 packs touch about 2.6 chunks, and 512 about 33.6
        return 32 if self.plan.spec.in_order else 1

    def describe(self) -> dict[str, Any]:
        removed = self.removal
        return {
            "packed": self.cache.fingerprint,
            "plan": self.plan.spec.describe(),
            "checksum": self.plan.checksum,
            **({} if self.unit == 1 else {"unit": self.unit}),
            **({} if removed.num_documents == 0 else {"removed_documents": removed.num_documents}),
            **self._describe_reads(),
            **({"pairs": True} if self.pairs else {}),
        }

    @property
    def padding_tokens(self) -> int:
        """Padding of all rows."""
        return self.length * self.seq_len - self.plan.counts.packed_tokens

    @property
    def incomplete_tokens(self) -> int:
        """Tokens of :attr:`incomplete_documents`."""
        return self.cache.num_tokens - self.removed_tokens - self.plan.counts.tokens

    @property
    def dropped_tokens(self) -> int:
        """Tokens that are in no row: of incomplete units, long documents, and packs below
        ``min_fill``.
        """
        return self.cache.num_tokens - self.removed_tokens - self.plan.counts.packed_tokens

    def blocks_per_row(self) -> float:
        """Stored blocks per row, on average: the cost of reading a single row.

        Example:
            >>> import headrace.testing
            >>> PackedTokenDataset(
            ...     headrace.testing.tiny_cache(documents=50), seq_len=64
            ... ).blocks_per_row() >= 1
            True
        """
        return self._rows.blocks_per_row()

    @property
    def pack_plan(self) -> PackPlan:
        return self.plan

    def packs_of(self, plan: PackPlan) -> PackedRows:
        """The rows of another plan for documents of this cache."""
        return PackedRows(self.cache, plan, self._rows.name, self._opened)

    def with_rows(self, seq_len: int, *, block_tokens: int | None = None) -> PackedTokenDataset:
        """The same documents in rows of another length.

        Raises:
            ConfigError: ``block_tokens`` is set: packs of another length do not share blocks with
                these.
        """
        if block_tokens is not None:
            raise ConfigError(
                "differs from the rows that are packed: packs of another length are other blocks",
                field="seq_len",
                value=seq_len,
                cure="Hold out by documents (validation.by: documents), or keep seq_len.",
            )
        return self._with(seq_len, self.removal)


class PackedRows(RowSource):
    """The rows of a plan. No pack exceeds a row."""

    def __init__(
        self,
        cache: TokenCache,
        plan: PackPlan,
        name: str,
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        super().__init__(cache, name, plan.spec.row, columns)
        self.max_segments = plan.max_items
        self._plan = plan
        self._chunk = cache.layout.chunk_elements
        # of each item, in the stream of all parts
        self._start = _item_starts(cache, plan) if plan.start is None else plan.start

    @property
    def num_rows(self) -> int:
        return len(self._plan)

    @property
    def packed_tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return self._plan.counts.packed_tokens

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        items, item_counts = self._plan.of_packs(rows)
        row = np.repeat(np.arange(rows.size), item_counts)
        size = self._plan.items.size[items].astype(np.int64)
        begin = starts(size)
        column = begin[:-1] - np.repeat(begin[starts(item_counts)[:-1]], item_counts)
        return Pieces(row, column, *self.in_arrays(self._start[items]), size)

    def items(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """Document of each item of rows, its first token in the stream of all parts, and its
        tokens.
        """
        items, _ = self._plan.of_packs(rows)
        document = np.asarray(self._plan.items.document[items], np.int64)
        return document, self._start[items], np.asarray(self._plan.items.size[items], np.int64)

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        items, item_counts = self._plan.of_packs(rows)
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        row = np.repeat(np.arange(rows.size), item_counts)
        lengths[row, run_numbers(0, item_counts)] = self._plan.items.size[items]
        return lengths

    def count_content(
        self, first: int, stop: int
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        bounds = np.asarray(self._plan.bounds[first : stop + 1], np.int64)
        sizes = self._plan.items.size[int(bounds[0]) : int(bounds[-1])]
        return np.add.reduceat(sizes, bounds[:-1] - bounds[0], dtype=np.int64), np.diff(bounds)

    def blocks_per_row(self) -> float:
        """Distinct stored chunks with documents of a row, on average."""
        touched = 0
        for at in range(0, self.num_rows, _CHUNK):
            bounds = self._plan.bounds[at : at + _CHUNK + 1]
            items_here = slice(int(bounds[0]), int(bounds[-1]))
            array, start = self.in_arrays(self._start[items_here])
            size = self._plan.items.size[items_here].astype(np.int64)
            first = start // self._chunk + (array << 40)
            last = (start + size - 1) // self._chunk + (array << 40)
            previous = np.empty_like(
                last
            )  # the last chunk of the item before; items of a pack ascend
            previous[1:] = last[:-1]
            previous[bounds[:-1] - bounds[0]] = -1
            touched += int((last - np.maximum(first, previous + 1) + 1).sum())
        return touched / self.num_rows


def packed_datasets(datasets: Mapping[str, object]) -> dict[str, PackedTokenDataset]:
    """Those of a run's datasets that are packed."""
    return {
        name: dataset
        for name, dataset in datasets.items()
        if isinstance(dataset, PackedTokenDataset)
    }


def _item_starts(cache: TokenCache, plan: PackPlan) -> Int64[np.ndarray, " m"]:
    starts = first_tokens(cache)[np.asarray(plan.items.document)]
    starts += np.asarray(plan.items.offset)
    return starts


class LeftPieces(NamedTuple):
    """Documents or pieces of them that are left of an epoch, in stored order.

    Attributes:
        document: Number of the document.
        start: First token of the piece, in the stream of all parts of the cache.
        size: Tokens of the piece.
    """

    document: Int64[np.ndarray, " m"]
    start: Int64[np.ndarray, " m"]
    size: Int64[np.ndarray, " m"]

    @property
    def total(self) -> int:
        """Tokens of all pieces."""
        return int(self.size.sum())

    @classmethod
    def join(cls, parts: Sequence[LeftPieces]) -> LeftPieces:
        """The pieces of all parts, sorted. Those that continue each other are one, so a document
        is cut anew, not twice.

        Example:
            >>> numbers = np.array([5, 5, 6])
            >>> LeftPieces.join(
            ...     [LeftPieces(numbers, np.array([14, 10, 18]), np.array([4, 4, 3]))]
            ... ).size.tolist()
            [8, 3]
        """
        nothing = np.zeros(0, np.int64)
        every = [cls(nothing, nothing, nothing), *parts]
        document, start, size = (np.concatenate(values) for values in zip(*every, strict=True))
        order = np.argsort(start, kind="stable")
        document = document[order]
        start = start[order]
        size = size[order]
        begins = np.ones(start.size, bool)
        begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + size[:-1])
        first = np.flatnonzero(begins)
        joined = np.add.reduceat(size, first) if first.size else nothing
        return cls(document[first], start[first], joined)


def pack_left(dataset: PackedTokenDataset, left: LeftPieces) -> PackedRows | None:
    """What is left of an epoch of packed rows, packed anew into rows like those of a dataset; None
    if no row can be made of it. The plan is made in memory when a run is opened. Price: 1 us per
    document left.
    """
    spec = dataset.plan.spec
    unit = dataset.unit
    first_token = starts(dataset.cache.part_tokens)
    lengths = left.size.reshape(-1, unit).sum(axis=1)
    part = np.searchsorted(first_token, left.start[::unit], side="right") - 1
    per_part = np.bincount(part, minlength=first_token.size - 1)
    try:
        plan = plan_of(spec, lengths, per_part.tolist())
    except ConfigError as error:
        if error.field != "lengths":
            raise
        return None  # nothing is left, or nothing that the packing does not drop
    number = (np.asarray(plan.items.document)[:, None] * unit + np.arange(unit)).reshape(-1)
    offset = np.repeat(np.asarray(plan.items.offset), unit)
    size = np.asarray(plan.items.size) if unit == 1 else left.size[number]
    items = Items(left.document[number], offset, size)
    start = left.start[number] + offset
    bounds = np.asarray(plan.bounds) * unit
    return dataset.packs_of(PackPlan(spec, bounds, items, plan.counts, start))


_checked: WeakSet[TokenCache] = WeakSet()


def _check_pairs(cache: TokenCache, unit: int, mask: str | None) -> None:
    """Raises ConfigError unless the documents of a cache of pairs are alternately chosen and
    rejected, are packed in units of two, and have a ``mask`` for the tokens of the answers.
    """
    if unit != 2:
        raise ConfigError(
            f"parts the two answers of each pair of {cache.path}",
            field="unit",
            value=unit,
            cure="Leave it out: pairs are packed in units of 2. Or train on both answers as on"
            " text: pairs: false.",
        )
    if mask is None:
        raise ConfigError(
            "says that all tokens are trained on, those of the prompts too",
            field="loss_mask",
            value="none",
            cure="Leave it out (headrace build --kind preference writes the mask of the answers)."
            " Or train on both answers as on text: pairs: false.",
        )
    if cache not in _checked:
        _check_turns(cache)
        _checked.add(cache)


def _check_turns(cache: TokenCache) -> None:
    """Raises ConfigError unless the leaf ``chosen`` of a cache, if there is one, alternates between
    1 and 0.
    """
    if CHOSEN not in cache.leaves:
        return
    at = 0
    for block in cache.leaf(CHOSEN).blocks():
        wrong = np.flatnonzero(block.reshape(-1) != (np.arange(at, at + block.size) + 1) % 2)
        if wrong.size:
            number = at + int(wrong[0])
            raise ConfigError(
                f"is out of turn in {cache.path}: even documents are chosen, odd ones are rejected",
                field=f"chosen[{number}]",
                value=int(block.reshape(-1)[wrong[0]]),
                cure="Build the cache with --kind preference. Or train on its documents as on"
                " text: pairs: false.",
            )
        at += block.size
