"""``AsyncReader`` serves any dataset: one call of ``get_batch`` per step, for the rows of this process."""

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
from headrace.metrics import IterationStats
from headrace.mix.schedule import BatchSchedule


class BatchReader(ABC):
    """Yields this process's part of each batch; batches that are made together form a group."""

    @abstractmethod
    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        """Yields the batches of steps ``first_step .. stop_step`` (None: no end) in groups, in order. Call it once."""

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

    The batch must be a pytree of arrays with the requested rows along the first axis. A call of ``get_batch`` can be
    interrupted where it awaits something; nothing stays open between batches.
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
        inside = np.ones(rows.size, bool) if length is None else rows < length
        with (
            self._watch.phase("read"),
            self._waits.during("dataset", f"get_batch of {type(self._dataset).__name__}"),
        ):
            batch = run_blocking(self._read(np.where(inside, rows, 0)))
        self._stats.examples_requested += int(inside.sum())
        self._stats.unique_examples += int(inside.sum())
        return pad_batch(batch, inside, length, self._schedule, step)


def pad_batch(
    batch: Any, inside: np.ndarray, length: int | None, schedule: BatchSchedule, step: int
) -> Any:
    """The batch of a step, with rows that are not ``inside`` the dataset marked as padding.

    If padding is needed and batches cannot mark it, every step raises ConfigError, so that a run does not fail only at
    the end of its data.
    """
    if length is None:
        return batch
    last = int(schedule.step_of(np.asarray([length - 1]))[0])
    begin, size = schedule.rows_at(last)
    if begin + size <= length:
        return batch
    if not isinstance(batch, PackedBatch):
        raise ConfigError(
            f"fills its last batch, step {last}, only to {length - begin} of {size} rows, and its batches cannot mark"
            " padding",
            field="dataset",
            cure=f"Use .take({begin}), or map to a PackedBatch.",
        )
    return (
        batch
        if step < last
        else replace(batch, source_id=np.where(inside, batch.source_id, -1).astype(np.int32))
    )
