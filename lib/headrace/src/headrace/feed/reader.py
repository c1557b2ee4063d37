"""Host batches, step after step: plan, read ahead, gather. No devices.

Fetches run ahead of the batches (feed/read_ahead.py), and while some batches are on their way to the devices the next
ones are gathered in a thread. Batches that functions make are in feed/function_batches.py.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headrace.data.batch import PackedBatch
from headrace.data.batch_order import RowOrder
from headrace.data.dataset import PlannedDataset
from headrace.errors import ConfigError
from headrace.feed.block_cache import BlockCache
from headrace.feed.buffers import ALIGNMENT, Buffers
from headrace.feed.diagnosis import WaitLog
from headrace.feed.placement import Placement
from headrace.feed.plan import BlockSpace, WindowPlan, plan_window
from headrace.feed.read_ahead import ReadAhead, Step
from headrace.feed.slots import Gathering
from headrace.feed.workers import Job, Workers
from headrace.index.residency import Residency
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats, Stopwatch

GROUP = 8
"""Steps gathered together: one handover between threads, and code that is still warm for the next batch."""
GATHERING = 4
"""Groups that are gathered, or wait for it, while the ones before are delivered: so many that the thread has work until
the next window is planned.
"""
_THRASHING = 3.0
_UNTRAINED = 0.2
_MANY = 256


class HostRows(NamedTuple):
    """This process's rows of one batch, as they travel to the devices.

    Attributes:
        tokens: ``[local rows, local columns]`` in the stores' dtype; padding rows are zeros.
        source_id: int32 ``[local rows]``; -1 for padding rows.
        batch_size: Rows of the global batch.
        seq_len: Elements of a whole row, of which ``tokens`` has those that this process holds.
        segment_lengths: int32 ``[local rows, M]``, or None if the sources do not know their segments.
        token_mask: uint8 ``[local rows, local columns]``, 0 where a token is not trained on, or None if all are.
    """

    tokens: np.ndarray
    source_id: np.ndarray
    batch_size: int
    seq_len: int
    segment_lengths: np.ndarray | None = None
    token_mask: np.ndarray | None = None

    def batch(self, dataset: PlannedDataset) -> PackedBatch:
        """The same as a batch of ``dataset``, on the host."""
        return PackedBatch(
            self.tokens,
            self.source_id,
            segment_lengths=self.segment_lengths,
            eos_id=dataset.eos_id,
            token_mask=self.token_mask,
            pairs=dataset.pairs,
        )


class BatchReader(ABC):
    """Yields this process's part of each batch, those that are made together as one group."""

    @abstractmethod
    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        """The steps ``first_step .. stop_step`` (without end if None), in order. To be called once."""

    def batches(self, first_step: int, stop_step: int | None) -> Iterator[Any]:
        """The same, one by one."""
        for group in self.groups(first_step, stop_step):
            while group:  # what was taken is not kept
                yield group.pop(0)

    @abstractmethod
    def interrupt(self) -> None:
        """Makes a read that is waited for fail, so that :meth:`groups` ends. For any thread."""

    @abstractmethod
    def close(self) -> None:
        """Abandons reads in flight and gives the memory back."""

    @property
    @abstractmethod
    def resident_bytes(self) -> int:
        """Bytes of stored blocks in memory."""


class _Group(NamedTuple):
    """Steps that are gathered together, one after the other into one buffer for each kind of values."""

    steps: list[Step]
    values: list[np.ndarray]
    job: Job[None]


class PlannedReader(BatchReader):
    """Reads a planned dataset through a block cache.

    Args:
        dataset: The dataset.
        schedule: Batch sizes.
        placement: Which rows this process holds.
        row_order: Order of rows within a batch.
        max_bytes: Budget for stored blocks in memory and in flight.
        stats: Counters to add to.
        watch: Gets the phases ``plan``, ``read`` and ``gather``.
        group: Most steps that are gathered together, in a thread of their own while those before are handed on; 0: all
            is done by whoever asks for a batch, step by step.
        gathering: Groups that are gathered, or wait for it, while the ones before are delivered.
        mapping: Whether blocks of local uncompressed arrays are copied from memory-mapped files.
        waits: Gets the long waits.
    """

    def __init__(
        self,
        dataset: PlannedDataset,
        schedule: BatchSchedule,
        placement: Placement,
        row_order: RowOrder,
        max_bytes: int,
        stats: ReadStats,
        watch: Stopwatch,
        group: int = GROUP,
        gathering: int = GATHERING,
        *,
        mapping: bool = True,
        waits: WaitLog | None = None,
    ) -> None:
        self._waits = waits or WaitLog()
        self._dataset, self._schedule, self._placement = dataset, schedule, placement
        self._row_order: RowOrder = row_order
        self._stats, self._watch = stats, watch
        self._space = BlockSpace(dataset.sources)
        self._copiers, self._gatherer = Workers(min(group, 1)), Workers(min(group, 1))
        self._cache = BlockCache(self._space, max_bytes, stats, self._copiers, mapping=mapping)
        self._residency: Residency | None = None
        self._buffers = [Buffers() for _ in self._cache.kinds]
        self._group, self._gathering = group, gathering
        self._said: set[str] = set()

    @property
    def resident_bytes(self) -> int:
        return self._residency.resident * self._cache.slot_bytes if self._residency is not None else 0

    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[HostRows]]:
        """The steps ``first_step .. stop_step`` (without end if None), in order. To be called once.

        Raises:
            ConfigError: the budget is less than the blocks of one batch.
            ReadError: a block cannot be read.
        """
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
        self._copiers.close()
        self._gatherer.close()

    def _groups(self, first_step: int, stop_step: int | None) -> Iterator[list[HostRows]]:
        ahead = ReadAhead(self._plan, self._cache, first_step, stop_step, self._waits)
        self._residency = ahead.residency
        under_way: deque[_Group] = deque()
        step = first_step
        while stop_step is None or step < stop_step:
            ahead.run(step)
            while under_way and not ahead.may_begin():  # a batch that is there never waits for the reads of another
                yield self._gathered(under_way.popleft(), ahead)
            with self._watch.phase("read"):
                begun = [ahead.begin()]
            step += 1
            while len(begun) < min(self._group, step - first_step) and (stop_step is None or step < stop_step):
                ahead.run(step)
                if not (ahead.may_begin() and self._alike(begun[0], ahead.next)):
                    break
                begun.append(ahead.begin())
                step += 1
            under_way.append(self._gather(begun))
            if len(under_way) > self._gathering or not self._group or begun[0].step == first_step:
                yield self._gathered(under_way.popleft(), ahead)
        while under_way:
            yield self._gathered(under_way.popleft(), ahead)

    def _plan(self, first_step: int, steps: int) -> WindowPlan:
        with self._watch.phase("plan"):
            plan = plan_window(
                self._dataset, self._space, self._schedule, self._placement, first_step, steps, self._row_order
            )
        self._check_fits(plan)
        return plan

    def _check_fits(self, plan: WindowPlan) -> None:
        """Raises ConfigError unless the blocks of each step fit at once."""
        blocks = np.diff(plan.uses.bounds)
        worst = int(np.argmax(blocks))
        if blocks[worst] > self._cache.num_slots:
            needed = int(blocks[worst]) * self._cache.slot_bytes
            raise ConfigError(
                f"is less than the blocks of one batch: step {plan.first_step + worst} needs {blocks[worst]} blocks of"
                f" {self._cache.slot_bytes:,} bytes",
                field="prefetch_bytes",
                value=self._cache.max_bytes,
                cure=f"Give at least {needed}; {4 * needed} lets reads run ahead.",
            )

    def _local_rows(self, step: Step) -> int:
        return self._placement.local_rows(int(step.plan.batch_sizes[step.number])).size

    def _alike(self, one: Step, other: Step) -> bool:
        """Whether two steps may share a buffer: equal shapes, the second as well aligned as the first."""
        rows, length = self._local_rows(one), one.plan.row_elements
        aligned = all(rows * length * kind.dtype.itemsize % ALIGNMENT == 0 for kind in self._cache.kinds)
        return aligned and (rows, length) == (self._local_rows(other), other.plan.row_elements)

    def _gather(self, steps: list[Step]) -> _Group:
        rows = self._local_rows(steps[0])
        length = steps[0].plan.row_elements
        values = [
            buffers.take(rows * len(steps), length, kind.dtype)
            for buffers, kind in zip(self._buffers, self._cache.kinds, strict=True)
        ]
        located = [Gathering(s.plan, s.number, s.slots, rows) for s in steps]
        with self._watch.phase("gather"), self._waits.during("gather"):
            return _Group(steps, values, self._gatherer.submit(self._cache.gather(located, values)))

    def _gathered(self, group: _Group, ahead: ReadAhead) -> list[HostRows]:
        with self._watch.phase("gather"), self._waits.during("gather"):
            group.job.result()
        ahead.gathered(group.steps[-1].step)
        rows = group.values[0].shape[0] // len(group.steps)
        return [
            self._host_rows(step, *(of_kind[number * rows : (number + 1) * rows] for of_kind in group.values))
            for number, step in enumerate(group.steps)
        ]

    def _host_rows(self, step: Step, tokens: np.ndarray, mask: np.ndarray | None = None) -> HostRows:
        plan, k = step.plan, step.number
        rows = slice(int(plan.row_bounds[k]), int(plan.row_bounds[k + 1]))
        source_id = np.full(tokens.shape[0], -1, np.int32)
        source_id[: rows.stop - rows.start] = plan.source[rows]
        stats = self._stats
        stats.examples_requested += rows.stop - rows.start
        stats.unique_examples += int(plan.distinct[k])
        stats.coalesced_ranges += int(plan.ranges[k])
        row_bytes = tokens[:1].nbytes + (0 if mask is None else mask[:1].nbytes)
        stats.bytes_delivered += (rows.stop - rows.start) * row_bytes
        segments = None
        if plan.segments is not None:
            segments = np.zeros((tokens.shape[0], plan.segments.shape[1]), np.int32)
            segments[: rows.stop - rows.start] = plan.segments[rows]
        if mask is not None and mask.dtype != np.uint8:  # as Levanter's caches have it
            mask = (mask != 0).view(np.uint8)
        if mask is not None and mask.shape[1] == plan.seq_len:
            stats.untrained_examples += int((~mask[: rows.stop - rows.start].any(axis=1)).sum())
        self._warn()
        return HostRows(tokens, source_id, int(plan.batch_sizes[k]), plan.seq_len, segments, mask)

    def _warn(self) -> None:
        """Says, once each, that the budget is too small for the order, when more than a cold start has been read, and
        that rows are not trained on, when there were enough of them to tell.
        """
        stats, cache = self._stats, self._cache
        if stats.bytes_read >= 4 * cache.max_bytes and stats.read_amplification >= _THRASHING:
            self._say(
                "thrashing",
                f"prefetch_bytes = {cache.max_bytes}: {stats.read_amplification:.1f} bytes are read for each that is"
                f" delivered, since blocks leave memory before they are used up. It holds {cache.num_slots} blocks:"
                " give more, or an order that has fewer in use; `headrace simulate` forecasts both.",
            )
        if stats.untrained_examples >= _MANY and stats.untrained_examples >= _UNTRAINED * stats.examples_requested:
            self._say(
                "untrained",
                f"{stats.untrained_examples:,} of {stats.examples_requested:,} rows hold no token that is trained on,"
                " says the mask of their cache: look at some with `headrace cat`. A longer seq_len or packing keeps"
                ' answers in; loss_mask: "none" trains on every token.',
            )

    def _say(self, what: str, message: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logging.getLogger(__name__).warning(message)
