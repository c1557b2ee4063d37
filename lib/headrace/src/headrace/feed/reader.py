"""Host batches, step after step: plan, read ahead, gather. No threads, no devices.

``PlannedReader`` works from plans: while the steps of one window are gathered, the reads of the next are in flight.
``AsyncReader`` serves datasets that only have ``get_batch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from headrace.data.batch import PackedBatch
from headrace.data.dataset import AsyncDataset, PlannedDataset, run_blocking
from headrace.errors import ConfigError
from headrace.feed.block_cache import BlockCache
from headrace.feed.placement import Placement
from headrace.feed.plan import BlockSpace, RowOrder, WindowPlan, plan_window
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats, Stopwatch

WINDOW_STEPS = 32


class HostRows(NamedTuple):
    """This process's rows of one batch, as they travel to the devices.

    Attributes:
        tokens: ``[local rows, S]`` in the stores' dtype; padding rows are zeros.
        source_id: int32 ``[local rows]``.
        batch_size: Rows of the global batch.
        num_valid: Rows of the global batch that hold data.
    """

    tokens: np.ndarray
    source_id: np.ndarray
    batch_size: int
    num_valid: int


class BatchReader(Protocol):
    """Yields this process's part of each batch."""

    def batches(self, first_step: int, stop_step: int | None) -> Iterator[Any]: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...
    @property
    def resident_bytes(self) -> int: ...


class _Window:
    """A plan on its way: which of its blocks have been asked for, and in which slots they lie."""

    def __init__(self, plan: WindowPlan) -> None:
        self.plan = plan
        self.slots = np.full(plan.blocks.size, -1, np.int64)
        self.admitted = 0
        self.distinct, self.ranges = _distinct_and_ranges(plan)

    def admit(self, cache: BlockCache) -> None:
        self.admitted = cache.admit(self.plan, self.slots, self.admitted)

    @property
    def whole(self) -> bool:
        return self.admitted == self.plan.blocks.size


class PlannedReader:
    """Reads a planned dataset through a block cache.

    Args:
        dataset: The dataset.
        schedule: Batch sizes.
        placement: Which rows this process holds.
        row_order: Order of rows within a batch.
        max_bytes: Budget for stored blocks in memory and in flight.
        stats: Counters to add to.
        watch: Gets the phases ``plan``, ``read`` and ``gather``.
        window_steps: Steps that are planned, and read, together.
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
        window_steps: int = WINDOW_STEPS,
    ) -> None:
        self._dataset, self._schedule, self._placement = dataset, schedule, placement
        self._row_order: RowOrder = row_order
        self._stats, self._watch = stats, watch
        self._space = BlockSpace(dataset.sources)
        self._cache = BlockCache(self._space, max_bytes, stats)
        self._window_steps = window_steps

    @property
    def resident_bytes(self) -> int:
        return self._cache.resident_bytes

    def batches(self, first_step: int, stop_step: int | None) -> Iterator[HostRows]:
        """Batches of the steps ``first_step .. stop_step`` (without end if None).

        Raises:
            ConfigError: the budget is less than the blocks of one batch.
            ReadError: a block cannot be read.
        """
        windows = self._windows(first_step, stop_step)
        current = next(windows, None)
        begun = False
        while current is not None:
            current.admit(self._cache)
            assert current.whole  # the window before is done with and holds nothing; one that fits is admitted whole
            following: _Window | None = None
            for step in range(current.plan.steps):
                batch = self._gather(current, step)
                self._cache.finished(current.plan.first_step + step)
                if following is None and begun:  # the very first batch does not wait for a second plan
                    following = next(windows, None)
                if following is not None and not following.whole:
                    following.admit(self._cache)
                yield batch
                begun = True
            current = following if following is not None else next(windows, None)

    def interrupt(self) -> None:
        """Makes a read that is waited for fail, so that :meth:`batches` ends. For any thread."""
        self._cache.interrupt()

    def close(self) -> None:
        """Abandons reads in flight and gives the memory back."""
        self._cache.close()

    def _windows(self, first_step: int, stop_step: int | None) -> Iterator[_Window]:
        steps = self._window_steps
        step = first_step
        while stop_step is None or step < stop_step:
            plan = self._plan(step, steps if stop_step is None else min(steps, stop_step - step))
            while plan.steps > 1 and not self._cache.fits(plan, 0.5):
                steps = plan.steps // 2
                plan = self._plan(step, steps)
            self._cache.check_fits(plan)
            yield _Window(plan)
            step += plan.steps
            if self._cache.fits(plan, 0.25):
                steps = min(2 * steps, self._window_steps)

    def _plan(self, first_step: int, steps: int) -> WindowPlan:
        with self._watch.phase("plan"):
            return plan_window(
                self._dataset, self._space, self._schedule, self._placement, first_step, steps, self._row_order
            )

    def _gather(self, window: _Window, step: int) -> HostRows:
        plan = window.plan
        with self._watch.phase("read"):
            self._cache.wait(plan, step)
        with self._watch.phase("gather"):
            tokens = self._cache.gather(plan, window.slots, step, plan.row_elements)
            rows = slice(int(plan.row_bounds[step]), int(plan.row_bounds[step + 1]))
            self._stats.examples_requested += rows.stop - rows.start
            self._stats.unique_examples += int(window.distinct[step])
            self._stats.coalesced_ranges += int(window.ranges[step])
            batch_size = int(plan.batch_sizes[step])
            padding = self._placement.local_rows(batch_size).size - tokens.shape[0]
            source_id = plan.source[rows].astype(np.int32)
            if padding:
                tokens = np.concatenate([tokens, np.zeros((padding, tokens.shape[1]), tokens.dtype)])
                source_id = np.concatenate([source_id, np.zeros(padding, np.int32)])
        return HostRows(tokens, source_id, batch_size, int(plan.num_valid[step]))


def _distinct_and_ranges(plan: WindowPlan) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows of each step, and their runs of neighbours (rows numbered through, a gap between sources)."""
    step = np.repeat(np.arange(plan.steps), np.diff(plan.row_bounds))
    place = plan.row + (plan.source << 44)
    order = np.lexsort((place, step))
    place, step = place[order], step[order]
    gap = np.diff(place, prepend=-2)
    gap[np.flatnonzero(np.diff(step, prepend=-1))] = 2  # the first row of a step begins a run
    return np.bincount(step[gap != 0], minlength=plan.steps), np.bincount(step[gap > 1], minlength=plan.steps)


class AsyncReader:
    """Reads any dataset with ``get_batch``: one call a batch, for the rows of this process.

    The batch must be a pytree of arrays with the requested rows along the first axis.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        schedule: BatchSchedule,
        placement: Placement,
        stats: ReadStats,
        watch: Stopwatch,
    ) -> None:
        self._dataset, self._schedule, self._placement = dataset, schedule, placement
        self._stats, self._watch = stats, watch

    @property
    def resident_bytes(self) -> int:
        return 0

    def batches(self, first_step: int, stop_step: int | None) -> Iterator[Any]:
        """Batches of the steps ``first_step .. stop_step`` (without end if None).

        Raises:
            ConfigError: the last batch is not full, and the batches are no PackedBatch that could say so.
        """
        step = first_step
        while stop_step is None or step < stop_step:
            yield self._batch(step)
            step += 1

    def _batch(self, step: int) -> Any:
        begin, size = self._schedule.rows_at(step)
        rows = begin + self._placement.local_rows(size)
        length = self._dataset.length
        inside = np.ones(rows.size, bool) if length is None else rows < length
        with self._watch.phase("read"):
            batch = run_blocking(self._dataset.get_batch(np.where(inside, rows, 0)))
        self._stats.examples_requested += int(inside.sum())
        self._stats.unique_examples += int(inside.sum())
        if length is None or begin + size <= length:
            return batch
        if not isinstance(batch, PackedBatch):
            raise ConfigError(
                f"fills its last batch only to {length - begin} of {size} rows, and its batches cannot mark padding",
                field="dataset",
                cure=f"Use .take({begin}), or map to a PackedBatch.",
            )
        return replace(batch, valid=batch.valid & inside)

    def interrupt(self) -> None:
        """``get_batch`` is not ours to interrupt; :meth:`batches` ends after it."""

    def close(self) -> None:
        """Nothing is open between batches."""
