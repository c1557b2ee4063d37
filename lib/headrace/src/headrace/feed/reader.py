"""Host batches, step after step: plan, read ahead, gather. No devices.

Fetches run ahead of the batches (feed/read_ahead.py). While some batches are on their way to the
devices, a thread gathers the next ones. If ``map`` was applied to a planned dataset,
``MappedReader`` reads the planned dataset and passes its batches through the functions.
``AsyncReader`` reads all other datasets.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Shaped

from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset, function_name, run_blocking
from headrace.data.columns import of_batch
from headrace.data.dataset import BatchOrder, PlannedDataset
from headrace.data.rows import add_ends_by_token
from headrace.errors import ConfigError, ReadError
from headrace.feed.exchange import RowExchange
from headrace.feed.gather_kernel import Copies, KernelThread, Submitted
from headrace.feed.gathering import ALIGNMENT, Buffers, StepRange
from headrace.feed.horizon import Horizon
from headrace.feed.placement import BatchMaker, HostRows, Placement, count_untrained
from headrace.feed.plan import RunRows, WindowPlan, plan_window
from headrace.feed.pooled_rows import PooledRows
from headrace.feed.read_ahead import BlockCache, ReadAhead, Window
from headrace.metrics import IterationStats, ReadStats
from headrace.mix.schedule import (
    BatchSchedule,
    DataEnd,
    held_rows,
    repeated_from,
)
from headrace.order.residency import Residency

GROUP = 8
"""Steps that are gathered together: one handover between threads for all, and warm code from the
second batch on.
"""
GATHERING = 5
"""Groups that are being gathered, or queued for it, while earlier ones are delivered: enough to
keep the thread busy until the next window is planned. With 3, a corpus within the budget loses a
tenth of its speed.
"""


class Grouping(NamedTuple):
    """The most steps that are gathered together, in a separate thread, and the number of groups in
    flight.

    0 steps: the caller's thread does everything, step by step.
    """

    steps: int = GROUP
    in_flight: int = GATHERING


DEFAULT_GROUPING = Grouping()
_THRASHING = 3.0
_UNTRAINED = 0.2
_MANY = 256
_SLOW_S = 0.001
"""Seconds that mapped batches may wait for others of their group."""


class _Group(NamedTuple):
    """Consecutive steps that are gathered together, into one buffer for each kind of values."""

    window: Window
    steps: StepRange
    values: list[np.ndarray]
    job: Submitted | Future[None] | None


class BatchReader(ABC):
    """Yields this process's part of each batch; batches that are made together form a group."""

    @abstractmethod
    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        """Yields the batches of steps ``first_step .. stop_step`` (None: no end) in groups, in
        order. Call it once.
        """

    def batches(self, first_step: int, stop_step: int | None) -> Iterator[Any]:
        """Yields the same batches one by one."""
        for group in self.groups(first_step, stop_step):
            while group:  # keeps no reference to a batch that was taken
                yield group.pop(0)

    def interrupt(self) -> None:  # noqa: B027  # optional
        """Makes a pending read fail, so that :meth:`groups` ends. Safe to call from any thread."""

    def close(self) -> None:  # noqa: B027  # optional
        """Abandons reads in flight and frees the memory."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of stored blocks in memory."""
        return 0


class PlannedReader(BatchReader):
    """Reads batches of a planned dataset: the rows of ``placement``, with at most ``max_bytes`` of
    stored blocks.

    ``mapping``: whether to serve blocks of local uncompressed arrays from memory-mapped files.
    ``exchange``: which rows this process reads for others, and others for this one; batches then
    come as :class:`PooledRows`. ``horizon``: where it stops, if that may change.
    """

    def __init__(
        self,
        order: BatchOrder,
        placement: Placement,
        max_bytes: int,
        stats: IterationStats | None = None,
        grouping: Grouping = DEFAULT_GROUPING,
        *,
        mapping: bool = True,
        exchange: RowExchange | None = None,
        horizon: Horizon | None = None,
    ) -> None:
        self._horizon = horizon
        dataset = order.planned
        assert dataset is not None
        self._exchange = exchange
        # Functions must get zeros in rows without data, as in a run's last batch.
        self._loose = not order.functions
        stats = stats or IterationStats()
        self._stats = stats.reads
        self._waits = stats.waits
        self._end = order.data_end
        self._placement = placement
        self._rows = RunRows(dataset, order.schedule, order.row_order)
        self._gatherer = ThreadPoolExecutor(1, thread_name_prefix="headrace-gather")
        self._copy_thread = KernelThread()
        self._checker = KernelThread()
        checker = self._checker if grouping.steps else None
        self._cache = BlockCache(
            dataset.block_space, max_bytes, stats.reads, checker, mapping=mapping
        )
        self._residency: Residency | None = None
        self._buffers = [Buffers() for _ in self._cache.kinds]
        self._grouping = grouping
        self._said: set[str] = set()
        # Names of columns, by id of the dataset that serves a step.
        self._names: dict[int, set[str]] = {}

    @property
    def resident_bytes(self) -> int:
        return (
            self._residency.resident * self._cache.slot_bytes if self._residency is not None else 0
        )

    def groups(
        self, first_step: int, stop_step: int | None
    ) -> Iterator[list[HostRows | PooledRows]]:
        try:
            yield from self._groups(first_step, stop_step)
        finally:
            self._close_workers()

    def interrupt(self) -> None:
        self._cache.interrupt()

    def close(self) -> None:
        self._close_workers()
        self._cache.close()
        self._residency = None

    def _close_workers(self) -> None:
        self._gatherer.shutdown(cancel_futures=True)
        self._copy_thread.close()
        self._checker.close()

    def _groups(
        self, first_step: int, stop_step: int | None
    ) -> Iterator[list[HostRows | PooledRows]]:
        horizon = self._horizon or Horizon(first_step, stop_step)
        ahead = ReadAhead(self._plan, self._cache, first_step, horizon, self._waits)
        self._residency = ahead.residency
        under_way: deque[_Group] = deque()
        step = first_step
        while ahead.run(step):
            # A batch never waits for the reads of a later one.
            while under_way and not ahead.may_begin():
                yield self._gathered(under_way.popleft(), ahead)
            window = ahead.next
            with self._waits.during(None, phase="read"):
                first, stop = ahead.begin(self._most_alike(window, step - first_step))
            under_way.append(self._gather(window, first, stop))
            if (
                len(under_way) > self._grouping.in_flight
                or not self._grouping.steps
                or step == first_step
            ):
                yield self._gathered(under_way.popleft(), ahead)
            step += stop - first
        while under_way:
            yield self._gathered(under_way.popleft(), ahead)

    def _plan(self, first_step: int, steps: int) -> WindowPlan:
        plan = plan_window(self._rows, self._placement, first_step, steps, self._exchange)
        self._check_fits(plan)
        return plan

    def _check_fits(self, plan: WindowPlan) -> None:
        """Raises ConfigError unless the blocks of each step fit into memory together."""
        blocks = np.diff(plan.uses.bounds)
        worst = int(np.argmax(blocks))
        if blocks[worst] > self._cache.num_slots:
            needed = int(blocks[worst]) * self._cache.slot_bytes
            raise ConfigError(
                f"is less than the blocks of one batch: step {plan.first_step + worst} needs"
                f" {blocks[worst]} blocks of"
                f" {self._cache.slot_bytes:,} bytes",
                field="prefetch_bytes",
                value=self._cache.max_bytes,
                cure=f"Give at least {needed}; {4 * needed} lets reads run ahead.",
            )

    def _most_alike(self, window: Window, steps_before: int) -> int:
        """The number of next steps of a window that may share a buffer: their shapes are equal, and
        each is aligned. At most as many as were read so far, so that the first batches do not wait
        for others.
        """
        sizes = window.plan.array_sizes[window.begun :][
            : max(1, min(self._grouping.steps, steps_before))
        ]
        elements = self._local_rows(int(sizes[0])) * window.plan.row_elements
        if any(
            elements * kind.width * kind.dtype.itemsize % ALIGNMENT for kind in self._cache.kinds
        ):
            return 1
        return int(np.argmax(sizes != sizes[0])) or sizes.size

    def _local_rows(self, size: int) -> int:
        return self._placement.local_rows(size).size

    def _gather(self, window: Window, first: int, stop: int) -> _Group:
        plan = window.plan
        rows = self._local_rows(int(window.plan.array_sizes[first]))
        values = [
            buffers.take(rows * (stop - first), plan.row_elements * kind.width, kind.dtype)
            for buffers, kind in zip(self._buffers, self._cache.kinds, strict=True)
        ]
        slots = None if window.in_place else np.concatenate(window.slots[first:stop])
        steps = StepRange(plan, first, stop, rows, slots, self._loose and not plan.padded)
        with self._waits.during("gather"):
            return _Group(
                window, steps, values, self._submit(self._cache.gather(window, steps, values))
            )

    def _submit(self, parts: list[Callable[[], None]]) -> Submitted | Future[None] | None:
        """Runs calls in order: in a thread without the interpreter if they are all copies, else in
        one with it; without groups, here, and also when Python shuts down, as its pools then take
        no more work.
        """
        copies = [part for part in parts if isinstance(part, Copies)]
        if not self._grouping.steps:
            return _run_each(parts)
        if len(copies) == len(parts):
            return self._copy_thread.submit(copies)
        try:
            return self._gatherer.submit(_run_each, parts)
        except RuntimeError:
            return _run_each(parts)

    def _gathered(self, group: _Group, ahead: ReadAhead) -> list[HostRows | PooledRows]:
        with self._waits.during("gather"):
            if group.job is not None:
                group.job.result()
            self._cache.check_files(group.window)
        plan, first, stop, rows = group.steps[:4]
        ahead.gathered(plan.first_step + stop - 1)
        self._count(group.steps, sum([values[:1].nbytes for values in group.values]))
        if group.steps.slots is not None:  # blocks that stay in their files are not read again
            self._warn_of_thrashing()
        self._warn_of_untrained()
        together = self._rows_together(group)
        at = [slice(k * rows, (k + 1) * rows) for k in range(stop - first)]
        return [
            self._rows_of_step(plan, first + k, together, rows_of_step)
            for k, rows_of_step in enumerate(at)
        ]

    def _rows_together(self, group: _Group) -> HostRows:
        """The rows of all steps of a group, as if they were one batch."""
        steps = group.steps
        (tokens, *columns) = group.values
        plan = steps.plan
        rows = steps.row_slice
        # It serves all steps of a plan.
        served = self._rows.dataset.at_step(plan.first_step + steps.first)[0]
        source_id = _at_places(steps, plan.source[rows].astype(np.int32), blank=-1)
        mask, extras = self._of_batch(columns, served) if columns else (None, None)
        if mask is not None and mask.shape[1] == plan.seq_len:
            has_data = source_id >= 0
            self._stats.untrained_examples += count_untrained(
                mask if has_data.all() else mask[has_data]
            )
        # May be donated.
        segments = None if plan.segments is None else _at_places(steps, plan.segments[rows].copy())
        weights = served.loss_weights_at(plan.first_step + steps.row_step, plan.source[rows])
        weights = None if weights is None else _at_places(steps, weights)[:, None]
        ends = None if plan.ends is None else _at_places(steps, plan.ends[rows].copy())
        add_ends_by_token(ends, served.sources, source_id, tokens)
        of_rows = source_id, segments, ends, weights
        return HostRows(tokens, *of_rows, mask, extras, plan.seq_len, batch_size=0)

    def _rows_of_step(
        self, plan: WindowPlan, k: int, together: HostRows, at: slice
    ) -> HostRows | PooledRows:
        host = together.part(at, int(plan.array_sizes[k]))
        if plan.origin is None:
            return host
        return PooledRows(host, plan.origin[k], int(plan.batch_sizes[k]), host.batch_size)

    def _of_batch(
        self, columns: Sequence[np.ndarray], served: PlannedDataset
    ) -> tuple[np.ndarray | None, dict[str, np.ndarray] | None]:
        if id(served) not in self._names:
            self._names[id(served)] = {name for source in served.sources for name in source.columns}
        named = {
            slots.kind.name: values
            if slots.width == 1
            else values.reshape(values.shape[0], -1, slots.width)
            for slots, values in zip(self._cache.kinds[1:], columns, strict=True)
            if slots.kind.name
            in self._names[id(served)]  # removing documents may add a mask during a run
        }
        return of_batch(named)

    def _count(self, steps: StepRange, row_bytes: int) -> None:
        """Counts what these steps deliver."""
        stats = self._stats
        plan = steps.plan
        rows = steps.row_slice
        of_steps = slice(steps.first, steps.stop)
        count = rows.stop - rows.start
        stats.examples_requested += count
        numbers = range(plan.first_step + steps.first, plan.first_step + steps.stop)
        count_last_batch(stats, self._rows.schedule, self._end, numbers, self._placement)
        stats.unique_examples += int(plan.distinct[of_steps].sum())
        stats.coalesced_ranges += int(plan.ranges[of_steps].sum())
        stats.bytes_delivered += count * row_bytes
        content = count * plan.seq_len if plan.segments is None else int(plan.segments[rows].sum())
        stats.content_tokens += content
        if not plan.whole:  # tokens that are in no piece were removed
            first, last = self._placement.local_columns(plan.seq_len)
            if last - first < plan.seq_len:  # this host holds only some columns
                of_rows = (
                    np.full(count, plan.seq_len)
                    if plan.segments is None
                    else plan.segments[rows].sum(axis=1)
                )
                content = int((np.clip(of_rows, first, last) - first).sum())
            stats.removed_tokens += content - int(plan.size[steps.pieces].sum())
        if plan.sent is not None:
            sent = int(plan.sent[of_steps].sum())
            stats.exchanged_examples += sent
            stats.exchanged_bytes += sent * row_bytes

    def _warn_of_thrashing(self) -> None:
        """Warns once if the budget is too small for the order, after reading more than a cold start
        does.
        """
        stats = self._stats
        cache = self._cache
        if stats.bytes_read >= 4 * cache.max_bytes and stats.read_amplification >= _THRASHING:
            self._say(
                "thrashing",
                f"prefetch_bytes = {cache.max_bytes}: {stats.read_amplification:.1f} bytes are"
                " read for each that is"
                " delivered, since blocks leave memory before they are used up. It holds"
                f" {cache.num_slots} blocks:"
                " give more, or an order that has fewer in use; `headrace config simulate`"
                " forecasts both.",
            )

    def _warn_of_untrained(self) -> None:
        """Warns once if many rows are not trained on, after enough rows to tell."""
        stats = self._stats
        if (
            stats.untrained_examples >= _MANY
            and stats.untrained_examples >= _UNTRAINED * stats.examples_requested
        ):
            self._say(
                "untrained",
                f"{stats.untrained_examples:,} of {stats.examples_requested:,} rows hold no token"
                " that is trained on,"
                " says the mask of their cache: look at some with `headrace run cat`. A longer"
                " seq_len or packing keeps"
                ' answers in; loss_mask: "none" trains on every token.',
            )

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logging.getLogger(__name__).warning(message)


def _at_places(
    steps: StepRange, values: Shaped[np.ndarray, "n ..."], blank: int = 0
) -> Shaped[np.ndarray, "r ..."]:
    """Values of rows of these steps in the order of their arrays, ``blank`` elsewhere; ``values``
    if nothing moves.
    """
    plan = steps.plan
    rows = (steps.stop - steps.first) * steps.rows
    if plan.row_place is None and len(values) == rows:
        return values
    step = steps.row_step
    if plan.row_place is None:
        row_in_step = np.arange(steps.row_slice.start, steps.row_slice.stop) - plan.row_bounds[step]
    else:
        row_in_step = plan.row_place[steps.row_slice]
    placed = np.full((rows, *values.shape[1:]), blank, values.dtype)
    placed[row_in_step + (step - steps.first) * steps.rows] = values
    return placed


def _run_each(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()


class MappedReader(BatchReader):
    """Passes the batches of a planned dataset through functions, one after the other. If functions
    are slow, batches are delivered one by one.
    """

    def __init__(self, reader: PlannedReader, order: BatchOrder, stats: IterationStats) -> None:
        dataset = order.planned
        assert dataset is not None
        self._reader = reader
        self._order = order
        self._maker = BatchMaker(dataset.eos_id, dataset.pairs)
        # Once: a name may need digests of arrays.
        self._functions = [(f, f"map({function_name(f)})") for f in order.functions]
        self._waits = stats.waits

    @property
    def resident_bytes(self) -> int:
        return self._reader.resident_bytes

    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        steps = itertools.count(first_step)
        for group in self._reader.groups(first_step, stop_step):
            ready: list[Any] = []
            began = time.perf_counter()
            try:
                while group:
                    ready.append(self._map(group.pop(0), next(steps)))
                    if time.perf_counter() - began >= _SLOW_S:
                        yield ready
                        ready = []
                        began = time.perf_counter()
            except Exception:
                if ready:  # the batches before the one that failed
                    yield ready
                raise
            if ready:
                yield ready

    def _map(self, read: HostRows | PooledRows, step: int) -> Any:
        host = read.arrays if isinstance(read, PooledRows) else read
        inside = host.source_id >= 0
        batch: Any = self._maker.of_host(host)
        for function, name in self._functions:
            with self._waits.during("dataset", name, phase="map"):
                batch = function(batch)
            if not isinstance(batch, PackedBatch) and not jax.tree.leaves(batch):
                cure = "Has it lost its `return`?"
                raise ConfigError("gives no arrays", field=name, value=batch, cure=cure)
        batch = pad_batch(batch, inside, self._order, step)
        return read._replace(arrays=batch) if isinstance(read, PooledRows) else batch

    def interrupt(self) -> None:
        self._reader.interrupt()

    def close(self) -> None:
        self._reader.close()


def open_batch_reader(
    order: BatchOrder,
    placement: Placement,
    max_bytes: int,
    stats: IterationStats,
    grouping: Grouping = DEFAULT_GROUPING,
    *,
    mapping: bool = True,
    exchange: RowExchange | None = None,
    horizon: Horizon | None = None,
) -> BatchReader:
    """The reader of this process's part of the batches of ``order``."""
    if order.planned is None:
        return AsyncReader(order, placement, stats)
    reader = PlannedReader(
        order,
        placement,
        max_bytes,
        stats,
        grouping,
        mapping=mapping,
        exchange=exchange,
        horizon=horizon,
    )
    if not order.functions:
        return reader
    return MappedReader(reader, order, stats)


class AsyncReader(BatchReader):
    """Reads any dataset with ``get_batch``: one call per batch, for the rows of this process.

    The batch must be a pytree of arrays with the requested rows along the first axis. A call of
    ``get_batch`` can be interrupted where it awaits something; nothing stays open between batches.
    """

    def __init__(self, order: BatchOrder, placement: Placement, stats: IterationStats) -> None:
        self._order = order
        self._dataset: AsyncDataset[Any] = order.dataset
        self._placement = placement
        self._stats = stats.reads
        self._waits = stats.waits
        self._interrupted = False
        self._under_way: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def interrupt(self) -> None:
        self._interrupted = True
        if (under_way := self._under_way) is not None:
            loop, task = under_way
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

    async def _read(self, rows: np.ndarray) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._under_way = asyncio.get_running_loop(), task
        try:
            if self._interrupted:
                raise asyncio.CancelledError
            return await self._dataset.get_batch(rows)
        except asyncio.CancelledError as error:
            raise ReadError(
                "was interrupted", field="get_batch", value=type(self._dataset).__name__
            ) from error
        finally:
            self._under_way = None

    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        for step in (
            itertools.count(first_step) if stop_step is None else range(first_step, stop_step)
        ):
            yield [self._batch(step)]

    def _batch(self, step: int) -> Any:
        schedule = self._order.schedule
        begin, size = schedule.rows_at(step)
        rows = begin + self._placement.local_rows(size)
        length = self._dataset.length
        stored_rows = int(held_rows(schedule, length, np.asarray([step]))[0])
        inside = rows < begin + stored_rows
        rows = repeated_from(rows, length)
        what = f"get_batch of {type(self._dataset).__name__}"
        with self._waits.during("dataset", what, phase="read"):
            batch = run_blocking(self._read(np.where(inside, rows, 0)))
        self._stats.examples_requested += int(inside.sum())
        self._stats.unique_examples += int(inside.sum())
        end = self._order.data_end
        count_last_batch(self._stats, schedule, end, range(step, step + 1), self._placement)
        return pad_batch(batch, inside, self._order, step)


def count_last_batch(
    stats: ReadStats,
    schedule: BatchSchedule,
    end: DataEnd | None,
    steps: range,
    placement: Placement,
) -> None:
    """Counts this process's rows that are padding, repeated or left out, if the last batch is among
    ``steps``.
    """
    if end is None or end.num_steps - 1 not in steps:
        return
    size = schedule.rows_at(end.num_steps - 1)[1]
    rows = placement.local_rows(size)
    stats.padded_rows += int((rows >= size - end.padded_rows).sum())
    stats.filled_rows += int((rows >= size - end.filled_rows).sum())
    if end.dropped_rows:
        rows = placement.local_rows(schedule.rows_at(end.num_steps)[1])
        stats.dropped_rows += int((rows < end.dropped_rows).sum())


def pad_batch(batch: Any, inside: np.ndarray, order: BatchOrder, step: int) -> Any:
    """The batch of a step, with rows that are not ``inside`` the dataset marked as padding.

    If padding is needed and batches cannot mark it, every step raises ConfigError, so that a run
    does not fail only at the end of its data.
    """
    end = order.data_end
    if end is None or end.padded_rows == 0:
        return batch
    last = end.num_steps - 1
    size = order.schedule.rows_at(last)[1]
    if not isinstance(batch, PackedBatch):
        raise ConfigError(
            f"fills its last batch, step {last}, only to {size - end.padded_rows} of {size} rows,"
            " and its batches cannot mark padding",
            field="dataset",
            cure='Give the loader last_batch="drop" or last_batch="fill", or map to a PackedBatch.',
        )
    return (
        batch
        if step < last
        else replace(batch, source_id=np.where(inside, batch.source_id, -1).astype(np.int32))
    )
