"""``PlannedDataset``: a dataset that knows where its rows are stored without reading them, so that
a loader can plan reads.

Datasets wrap each other: phases wrap mixtures, a mixture wraps shuffles, a shuffle wraps a slice.
Each answers for itself and for what it wraps, so no other code has to unwrap it: which dataset
serves a step (:meth:`PlannedDataset.at_step`), which pass an example belongs to
(:meth:`~PlannedDataset.passes`), and what its order keeps open
(:meth:`~PlannedDataset.open_window`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int64

from headrace.data.async_dataset import AsyncDataset
from headrace.data.columns import of_batch
from headrace.data.provenance import StepRows
from headrace.data.rows import (
    BlockSpace,
    Explained,
    JoinedRows,
    Rows,
    RowSource,
    add_ends_by_token,
    ends_of,
    read_columns,
    read_rows,
    segments_of,
)
from headrace.errors import ConfigError, IndexOutOfRangeError, check_at_least, check_whole
from headrace.metrics import ReadStats
from headrace.mix.phases import PhaseChange
from headrace.mix.schedule import (
    BatchSchedule,
    DataEnd,
    LastBatch,
    RowOrder,
    check_some_batch,
    data_end,
    held_rows,
    repeated_from,
)
from headrace.order.compose import FixedSet, window_of_part
from headrace.order.intervals import run_numbers
from headrace.order.order import OpenWindow, Order, check_indices
from headrace.order.seeds import ORDER_VERSION
from headrace.order.shuffle_config import PendingBraid
from headrace.store.leaf import ArrayList

if TYPE_CHECKING:
    from headrace.batch.packed_batch import PackedBatch
    from headrace.data.described import Preview
    from headrace.pack.plan import PackPlan
    from headrace.store.cache import TokenCache


class OrderedRun(NamedTuple):
    """Ordinals that one order serves, in endless passes, up to the start of the next run.

    Attributes:
        dataset: The dataset that is ordered.
        order: The order of a pass.
        first: Its first ordinal.
        epoch: Epoch of the first pass.
    """

    dataset: PlannedDataset
    order: Order
    first: int = 0
    epoch: int = 0


class PlannedDataset(AsyncDataset["PackedBatch"]):
    """A dataset of equally long token rows that knows where they are stored."""

    @property
    @abc.abstractmethod
    def sources(self) -> Sequence[RowSource]:
        """The sources that ``Rows.source`` and the batch's ``source_id`` number."""

    @property
    @abc.abstractmethod
    def seq_len(self) -> int:
        """Tokens in a row."""

    @property
    @abc.abstractmethod
    def eos_id(self) -> int | None:
        """Token that ends documents, if rows are divided into documents and such a
        token is known.
        """

    @property
    def splits_documents(self) -> bool:
        """Whether rows that are cut from a stream are divided into documents."""
        return False

    @property
    def pairs(self) -> bool:
        """Whether the segments of each row are alternately chosen and rejected; see
        :attr:`PackedBatch.pairs`.
        """
        return False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is stored, with its columns."""
        tokens = max(run.itemsize for s in self.sources for run in ArrayList.of(s.arrays).runs)
        columns: dict[str, int] = {}
        for source in self.sources:
            for name, column in source.columns.items():
                widest = max((run.itemsize for run in ArrayList.of(column.arrays).runs), default=0)
                columns[name] = max(columns.get(name, 0), column.width * widest)
        return self.seq_len * (tokens + sum(columns.values()))

    @cached_property
    def joined_rows(self) -> JoinedRows:
        """Finds the pieces of rows of the sources."""
        return JoinedRows(self.sources)

    @cached_property
    def block_space(self) -> BlockSpace:
        """Numbers the stored blocks of the sources."""
        return BlockSpace(self.sources)

    @property
    def pack_plan(self) -> PackPlan | None:
        """The plan of its rows, if they are packs of documents."""
        return None

    @property
    def has_further_rows(self) -> bool:
        """Whether its rows are the further rows of another dataset."""
        return False

    @property
    def are_own_rows(self) -> bool:
        """Whether example i is row i of the only source."""
        return False

    @property
    @abc.abstractmethod
    def read_stats(self) -> ReadStats:
        """Counters of :meth:`get_batch` (a loader has its own)."""

    @property
    def planned(self) -> PlannedDataset:
        return self

    @property
    def phases(self) -> Sequence[tuple[int, PlannedDataset]]:
        """First step and dataset of each phase: more than one if the length of rows changes during
        a run.
        """
        return ((0, self),)

    @property
    def changes(self) -> Sequence[PhaseChange]:
        """How each change of phase affected each component."""
        return ()

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens in a row, of each phase."""
        return tuple(dataset.seq_len for _, dataset in self.phases)

    def at_step(self, step: int) -> tuple[PlannedDataset, int | None]:
        """The dataset that serves a step, and the first step that it no longer serves (None: it has
        no end).
        """
        return self, None

    @property
    def in_shuffled_store(self) -> bool:
        """Whether its rows lie in a store whose documents were shuffled when it was written, so
        that the rows of a block have nothing in common but what is of one document.
        """
        return False

    @property
    def mixture(self) -> PlannedDataset | None:
        """This dataset if it is a mixture, else None."""
        return None

    def caches(self) -> list[TokenCache]:
        """The cache of each source."""
        return [source.cache for source in self.sources]

    def opening_requests(self, hosts: int) -> int:
        """Requests with which this many hosts open it in a store over HTTP, in addition to those
        for its caches.
        """
        return 0

    def passes(self, ordinal: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Passes over the data that were complete before each example."""
        return np.zeros_like(ordinal)

    @property
    def rows_of_pass(self) -> int | None:
        """Examples of a pass; None if there is only one pass."""
        return None

    def explain(self, example: Int64[np.ndarray, " n"]) -> Explained:
        """The origin of examples; indices are not checked."""
        return Explained(("",), np.zeros_like(example), example, self.passes(example))

    def shuffle_order(self) -> Order | None:
        """The order that shuffles a pass; None: stored order."""
        return None

    def pass_order(self) -> OrderedRun | None:
        """The order of a pass, if nothing else is between an example and the wrapped dataset."""
        return None

    def ordered_runs(self) -> Sequence[OrderedRun]:
        """The orders that serve the ordinals of an endless dataset, if nothing else is in between;
        else none.
        """
        return ()

    def open_window(self) -> OpenWindow:
        """The window that the order of a pass draws from at a time; in stored order, a chunk."""
        chunk = max(
            (run.chunk for s in self.sources for run in ArrayList.of(s.arrays).runs), default=1
        )
        rows = max(chunk // self.seq_len, 1)
        return OpenWindow(rows=min(rows, self.length or rows))

    def loss_weights_at(
        self, steps: Int64[np.ndarray, " n"], source: Int64[np.ndarray, " n"]
    ) -> Float32[np.ndarray, " n"] | None:
        """Loss weights of rows of these sources at these steps of a run; None: all are equal."""
        return None

    def open_windows(self, step: int | None = None) -> Mapping[str, tuple[OpenWindow, int]]:
        """Open window and row bytes of each component; in a mixture, of those with weight at
        ``step`` (None: all).
        """
        return {"": (self.open_window(), self.row_bytes)}

    @property
    def everywhere(self) -> Bool[np.ndarray, " sources"]:
        """Whether every host draws from all of a source, which is shuffled as a whole."""
        return np.full(len(self.sources), self.open_window().everywhere)

    @abc.abstractmethod
    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        """Where the rows of ``indices`` are stored. Pure, no I/O; indices are not checked.

        Args:
            indices: Example numbers.
            epoch: Pass over the data that each belongs to (it selects the shuffle); None: 0.
        """

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        return await self.read_located(
            self.locate(check_indices(indices, self.length)), self.read_stats
        )

    async def read_located(self, rows: Rows, stats: ReadStats) -> PackedBatch:
        """The batch of rows that :meth:`locate` returned, in their order; ``stats`` counts what is
        read.
        """
        from headrace.batch.packed_batch import pack_rows  # it needs jax, which plans do without

        if rows.row.size == 0:
            tokens = np.zeros((0, self.seq_len), np.int32)
        else:
            tokens = await read_rows(self.sources, rows, stats)
        segments = segments_of(self.sources, rows.source, rows.row)
        ends = ends_of(self.sources, rows.source, rows.row)
        add_ends_by_token(ends, self.sources, rows.source, tokens)
        mask, extras = of_batch(await read_columns(self.sources, rows, stats))
        source = rows.source.astype(np.int32)
        return pack_rows(tokens, source, self.eos_id, segments, mask, self.pairs, extras, ends)

    def rows_of_examples(
        self, example: Int64[np.ndarray, " n"], row_order: RowOrder = "stream"
    ) -> StepRows:
        """The rows of examples, as if they were a batch. Pure, without I/O; numbers are not
        checked.

        Example:
            >>> import headrace.testing
            >>> from headrace import TokenSeqDataset
            >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
            >>> dataset.rows_of_examples(np.array([5, 2])).row.tolist()
            [5, 2]
        """
        rows = self.locate(example)
        if row_order == "locality":
            order = np.argsort(rows.locality, kind="stable")
            example = example[order]
            rows = Rows(*(field[order] for field in rows))
        names, component, ordinal, epoch = self.explain(example)
        return StepRows(
            0,
            example.size,
            self.seq_len,
            self.sources,
            names,
            example,
            component,
            ordinal,
            epoch,
            rows.source,
            rows.row,
        )

    def preview(self, rows: int = 3, first: int = 0) -> Preview:
        """The text of a few examples, and the documents that they come from, to be printed.

        Raises:
            IndexOutOfRangeError: there is no such example.
        """
        from headrace.data.described import preview  # it needs tokenizers, which training does not

        for field, number in (("rows", rows), ("first", first)):
            check_whole(field, number)
        check_at_least("rows", rows)
        stop = (
            first + rows if self.length is None else min(first + rows, max(self.length, first + 1))
        )
        return preview(self.rows_of_examples(check_indices(np.arange(first, stop), self.length)))

    def block_aligned(self, io_block_size: int) -> PlannedDataset:
        return self

    def reordered(self, order: Order) -> PlannedDataset:
        return ReorderedDataset(self, order)


def rows_of_step(
    dataset: PlannedDataset, schedule: BatchSchedule, step: int, row_order: RowOrder = "locality"
) -> StepRows:
    """The rows of a step of a loader with these batch sizes and this row order. Pure, without I/O.

    Raises:
        IndexOutOfRangeError: there is no such step.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8).shuffle(seed=0)
        >>> rows = rows_of_step(dataset, BatchSchedule(4), step=3)
        >>> rows.example.tolist() == [12, 13, 14, 15], len(rows)
        (False, 4)
    """
    end = data_end(schedule, dataset.length)
    if step < 0 or (end is not None and step >= end.num_steps):
        raise IndexOutOfRangeError(
            "is not a step of this run",
            field="step",
            value=step,
            cure=f"Steps run from 0 to {end.num_steps - 1}."
            if end is not None and end.num_steps
            else "Steps count from 0.",
        )
    example, _ = examples_of_steps(dataset, schedule, np.array([step]))
    rows = dataset.at_step(step)[0].rows_of_examples(example, row_order)
    return replace(rows, step=step, batch_size=schedule.rows_at(step)[1])


def examples_of_steps(
    dataset: PlannedDataset, schedule: BatchSchedule, steps: Int64[np.ndarray, " s"]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " s"]]:
    """The examples of some steps, which one phase serves, and how many each step has: those that
    fill a last batch again included.
    """
    phase = max(first for first, _ in dataset.phases if first <= steps[0])
    rows = held_rows(schedule, dataset.length, steps)
    example = run_numbers(schedule.offset_at(steps), rows)
    return repeated_from(example, dataset.length, schedule.rows_at(phase)[0]), rows


class WrappingDataset(PlannedDataset):
    """A dataset whose rows are those of ``base``, or have the same shape."""

    base: PlannedDataset

    @property
    def sources(self) -> Sequence[RowSource]:
        return self.base.sources

    @property
    def seq_len(self) -> int:
        return self.base.seq_len

    @property
    def eos_id(self) -> int | None:
        return self.base.eos_id

    @property
    def splits_documents(self) -> bool:
        return self.base.splits_documents

    @property
    def pairs(self) -> bool:
        return self.base.pairs

    @property
    def read_stats(self) -> ReadStats:
        return self.base.read_stats

    def opening_requests(self, hosts: int) -> int:
        return self.base.opening_requests(hosts)

    @property
    def in_shuffled_store(self) -> bool:
        return self.base.in_shuffled_store


class ReorderedDataset(WrappingDataset):
    """A planned dataset in another order. What selects rows from a shuffled one selects the same in
    every epoch; see :mod:`headrace.order.compose`.
    """

    def __init__(self, base: PlannedDataset, order: Order) -> None:
        if base.length is not None and order.rows > base.length:
            raise ConfigError(
                f"names {order.rows} rows of a dataset of {base.length}",
                field="order",
                value=type(order).__name__,
            )
        self.base = base
        self.order = order
        self.pending_order = cast(PendingBraid, order) if order.is_pending else base.pending_order
        self._selects = base.shuffle_order() is not None and order.selects(base.length)

    @property
    def has_further_rows(self) -> bool:
        return self.base.has_further_rows

    @cached_property
    def _fixed(self) -> FixedSet:
        """What it selects from a shuffle."""
        return FixedSet(self.order, self.base.open_window().rows)

    @property
    def length(self) -> int | None:
        return None if self.order.endless else self.order.length

    def reordered(self, order: Order) -> PlannedDataset:
        pending = self.pending_order
        if pending is None:
            return ReorderedDataset(self, order)
        # What a pending braid is mixed with will determine its sequence, and must not determine a
        # set: two parts, one to train on and one to validate with, are mixed with different things.
        # So a set is taken from the sequence that the seed alone determines, and the braid goes
        # over what was taken. A second braid takes its place.
        in_turn = self.settled(lambda _: pending.blocks_in_turn())
        if order.is_pending:
            return in_turn.reordered(order)
        if not order.selects(self.length):
            return ReorderedDataset(self, order)
        part = in_turn.reordered(order)
        return part.reordered(pending.over(len(part)))

    def settled(self, settle: Callable[[Order], Order]) -> PlannedDataset:
        if self.pending_order is self.order:
            return self.base.reordered(settle(self.order))
        return cast(PlannedDataset, self.base.settled(settle)).reordered(self.order)

    def describe(self) -> dict[str, Any]:
        return {"order": self.order.describe(), "of": self.base.describe()}

    def passes(self, ordinal: np.ndarray) -> np.ndarray:
        first = np.zeros_like(ordinal)
        return (
            self.order.pass_of(ordinal, first)
            if self.order.repeats
            else self.base.passes(self.order.at(ordinal, first))
        )

    @property
    def rows_of_pass(self) -> int | None:
        return self.order.rows if self.order.repeats else None

    def shuffle_order(self) -> Order | None:
        return self.order if self.order.reorders else self.base.shuffle_order()

    def pass_order(self) -> OrderedRun | None:
        return None if self._selects else OrderedRun(self.base, self.order)

    def ordered_runs(self) -> Sequence[OrderedRun]:
        repeats_all = self.order.repeats and self.order.rows == self.base.length
        run = self.base.pass_order() if repeats_all else None
        # The dataset below must be the same in every epoch: only the order is told of the epoch
        return () if run is None or run.dataset.shuffle_order() is not None else (run,)

    def open_window(self) -> OpenWindow:
        if self._selects:
            return window_of_part(self.base.open_window(), len(self._fixed))
        window = self.order.open_window()
        return window if window.rows else self.base.open_window()

    def default_io_block_size(self) -> int:
        return self.base.default_io_block_size()

    def check_stored_order(self) -> None:
        if self.order.reorders or self.order.repeats:
            raise ConfigError(
                "cannot be split: neighbours are not those of the store, and both sides would"
                " share documents",
                field="holdout",
                value=type(self.order).__name__,
                cure="Split first, then shuffle and repeat the train side.",
            )
        self.base.check_stored_order()

    def locate(self, indices: np.ndarray, epoch: np.ndarray | None = None) -> Rows:
        epoch = np.zeros_like(indices) if epoch is None else epoch
        if self._selects:
            return self.base.locate(self._fixed.at(indices, epoch), np.zeros_like(epoch))
        passes = self.order.pass_of(indices, epoch)
        if not self.order.reorders:
            return self.base.locate(self.order.at(indices, epoch), passes)
        rows, locality = self.order.resolve(indices, epoch)
        return self.base.locate(rows, passes)._replace(locality=locality)


class BatchOrder:
    """A dataset cut into batches: everything that a run's lock describes. It needs no device
    and reads nothing.

    All deliveries and queries describe a run with this class, so a checkpoint of one delivery works
    for all.

    Args:
        dataset: What to load. A mixture has its own batch schedule.
        batch_size: Rows of the global batch: an int, ``{step: size}`` or a BatchSchedule. Optional
            for a mixture.
        row_order: Order of the rows within a batch, ``"locality"`` or ``"stream"``; see
            ``DataLoader``.
        last_batch: What becomes of a last batch that the data do not fill: ``"pad"``, ``"drop"`` or
            ``"fill"``; see :mod:`headrace.mix.schedule`. None: as ``batch_size`` or the mixture
            says, or ``"pad"``.

    Raises:
        ConfigError: no batch size, one that differs from the mixture's, no such order or
            ``last_batch``; data that do not fill one batch, if the last is dropped.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> order = BatchOrder(TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), 8)
        >>> order.describe()["batch_size"], order.schedule.size_at(0).tolist()
        (8, 8)
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        row_order: str = "locality",
        last_batch: LastBatch | None = None,
    ) -> None:
        if row_order not in get_args(RowOrder):
            raise ConfigError(
                "is not an order",
                field="row_order",
                value=row_order,
                cure="Use 'locality' or 'stream'.",
            )
        own_schedule = dataset.own_schedule
        schedule = (
            batch_size
            if isinstance(batch_size, BatchSchedule | None)
            else BatchSchedule(batch_size)
        )
        if own_schedule is not None and schedule is not None and schedule != own_schedule:
            cure = "Leave it out here."
            raise ConfigError(
                f"differs from the mixture's {own_schedule}",
                field="batch_size",
                value=batch_size,
                cure=cure,
            )
        if last_batch is None and own_schedule is not None and own_schedule.last_batch != "pad":
            last_batch = own_schedule.last_batch
        schedule = schedule or own_schedule
        if schedule is None:
            raise ConfigError(
                "is missing",
                field="batch_size",
                cure="Give the number of rows of the global batch.",
            )
        schedule = BatchSchedule(schedule, last_batch=last_batch)
        self.schedule = schedule
        pending = dataset.pending_order
        if pending is not None:
            dataset = dataset.settled(lambda order: pending.in_batches(schedule.max_size))
        self.row_order: RowOrder = "locality" if row_order == "locality" else "stream"
        self.dataset = dataset
        self.functions = dataset.functions
        self.planned = cast(PlannedDataset | None, dataset.planned)
        check_some_batch(schedule, self.dataset.length)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON values; not devices, hosts, budgets and
        paths.
        """
        return {
            "order_version": ORDER_VERSION,
            "dataset": self.dataset.describe(),
            "batch_size": self.schedule.to_config(),
            "row_order": self.row_order,
            # pad and drop change no batch, only whether there is one more
            **({"last_batch": "fill"} if self.schedule.last_batch == "fill" else {}),
        }

    @property
    def last_batch(self) -> LastBatch:
        """What becomes of a last batch that the data do not fill; see
        :mod:`headrace.mix.schedule`.
        """
        return self.schedule.last_batch

    @property
    def data_end(self) -> DataEnd | None:
        """How the data end: steps, and rows that are padding, dropped or repeated; None if they are
        endless.
        """
        return data_end(self.schedule, self.dataset.length)

    @property
    def num_steps(self) -> int | None:
        """Steps until the data end, as :attr:`last_batch` says; None if they are endless."""
        end = self.data_end
        return None if end is None else end.num_steps
