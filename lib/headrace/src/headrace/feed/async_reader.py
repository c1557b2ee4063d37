"""``AsyncReader`` serves any dataset: one call of ``get_batch`` per step, for the rows of this
process.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset, run_blocking
from headrace.errors import ConfigError, ReadError
from headrace.feed.placement import Placement
from headrace.metrics import IterationStats, ReadStats
from headrace.mix.schedule import BatchSchedule, DataEnd, data_end, held_rows, repeated_from


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


class AsyncReader(BatchReader):
    """Reads any dataset with ``get_batch``: one call per batch, for the rows of this process.

    The batch must be a pytree of arrays with the requested rows along the first axis. A call of
    ``get_batch`` can be interrupted where it awaits something; nothing stays open between batches.
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        schedule: BatchSchedule,
        placement: Placement,
        stats: IterationStats,
    ) -> None:
        self._dataset = dataset
        self._schedule = schedule
        self._placement = placement
        self._stats = stats.reads
        self._watch = stats.watch
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
        begin, size = self._schedule.rows_at(step)
        rows = begin + self._placement.local_rows(size)
        length = self._dataset.length
        stored_rows = int(held_rows(self._schedule, length, np.asarray([step]))[0])
        inside = rows < begin + stored_rows
        rows = repeated_from(rows, length)
        with (
            self._watch.phase("read"),
            self._waits.during("dataset", f"get_batch of {type(self._dataset).__name__}"),
        ):
            batch = run_blocking(self._read(np.where(inside, rows, 0)))
        self._stats.examples_requested += int(inside.sum())
        self._stats.unique_examples += int(inside.sum())
        end = data_end(self._schedule, length)
        count_last_batch(self._stats, self._schedule, end, range(step, step + 1), self._placement)
        return pad_batch(batch, inside, end, self._schedule, step)


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


def pad_batch(
    batch: Any, inside: np.ndarray, end: DataEnd | None, schedule: BatchSchedule, step: int
) -> Any:
    """The batch of a step, with rows that are not ``inside`` the dataset marked as padding.

    If padding is needed and batches cannot mark it, every step raises ConfigError, so that a run
    does not fail only at the end of its data.
    """
    if end is None or end.padded_rows == 0:
        return batch
    last = end.num_steps - 1
    size = schedule.rows_at(last)[1]
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
