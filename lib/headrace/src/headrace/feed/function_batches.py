"""Host batches that are what functions make: those given to ``map``, or a ``get_batch`` of the user's own.

Where a dataset is planned below its functions, ``MappedReader`` has it read as planned and passes the batches through
them. ``AsyncReader`` serves any dataset: one call of ``get_batch`` a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from headrace.data.batch import PackedBatch
from headrace.data.dataset import AsyncDataset, PlannedDataset, run_blocking
from headrace.data.function_names import function_name
from headrace.errors import ConfigError
from headrace.feed.diagnosis import WaitLog
from headrace.feed.placement import Placement
from headrace.feed.reader import BatchReader, PlannedReader
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats, Stopwatch


class MappedReader(BatchReader):
    """Passes the batches of a planned dataset through functions, one after the other.

    Args:
        reader: Reads the dataset: whole rows of each batch.
        dataset: The dataset.
        functions: What its batches pass through, first to last.
        schedule: Batch sizes.
        watch: Gets the phase ``map``.
        waits: Gets the long waits.
    """

    def __init__(
        self,
        reader: PlannedReader,
        dataset: PlannedDataset,
        functions: Sequence[Callable[[Any], Any]],
        schedule: BatchSchedule,
        watch: Stopwatch,
        waits: WaitLog | None = None,
    ) -> None:
        self._reader, self._dataset = reader, dataset
        self._functions = [(f, f"map({function_name(f)})") for f in functions]  # a name may hold digests of arrays
        self._schedule, self._watch, self._waits = schedule, watch, waits or WaitLog()

    @property
    def resident_bytes(self) -> int:
        return self._reader.resident_bytes

    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        """The steps ``first_step .. stop_step`` (without end if None), each a group of its own.

        Raises:
            ConfigError: the dataset's last batch is not full, and the functions make no PackedBatch that could say so;
                a function gives nothing.
        """
        for step, host in enumerate(self._reader.batches(first_step, stop_step), start=first_step):
            inside = host.source_id >= 0
            batch: Any = host.batch(self._dataset)
            for function, name in self._functions:
                with self._watch.phase("map"), self._waits.during("dataset", name):
                    batch = _checked(function(batch), name)
            yield [_padded(batch, inside, self._dataset.length, self._schedule, step)]

    def interrupt(self) -> None:
        self._reader.interrupt()

    def close(self) -> None:
        self._reader.close()


class AsyncReader(BatchReader):
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
        waits: WaitLog | None = None,
    ) -> None:
        self._waits = waits or WaitLog()
        self._dataset, self._schedule, self._placement = dataset, schedule, placement
        self._stats, self._watch = stats, watch

    @property
    def resident_bytes(self) -> int:
        return 0

    def groups(self, first_step: int, stop_step: int | None) -> Iterator[list[Any]]:
        """The steps ``first_step .. stop_step`` (without end if None), each a group of its own.

        Raises:
            ConfigError: the dataset's last batch is not full, and the batches are no PackedBatch that could say so.
        """
        step = first_step
        while stop_step is None or step < stop_step:
            yield [self._batch(step)]
            step += 1

    def _batch(self, step: int) -> Any:
        begin, size = self._schedule.rows_at(step)
        rows = begin + self._placement.local_rows(size)
        length = self._dataset.length
        inside = np.ones(rows.size, bool) if length is None else rows < length
        with self._watch.phase("read"), self._waits.during("dataset", f"get_batch of {type(self._dataset).__name__}"):
            batch = run_blocking(self._dataset.get_batch(np.where(inside, rows, 0)))
        self._stats.examples_requested += int(inside.sum())
        self._stats.unique_examples += int(inside.sum())
        return _padded(batch, inside, length, self._schedule, step)

    def interrupt(self) -> None:
        """``get_batch`` is not ours to interrupt; :meth:`groups` ends after it."""

    def close(self) -> None:
        """Nothing is open between batches."""


def _padded(batch: Any, inside: np.ndarray, length: int | None, schedule: BatchSchedule, step: int) -> Any:
    """The batch of a step, with rows that are not ``inside`` the dataset marked as padding.

    Raises:
        ConfigError: the last batch of the dataset has padding, and batches cannot mark it. Said at any step: a run is
            not to fail at the end of its data.
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
    return batch if step < last else replace(batch, source_id=np.where(inside, batch.source_id, -1).astype(np.int32))


def _checked(made: Any, name: str) -> Any:
    """What a function made of a batch.

    Raises:
        ConfigError: nothing that could be handed to the devices.
    """
    if not jax.tree.leaves(made):
        raise ConfigError("gives no arrays", field=name, value=made, cure="Has it lost its `return`?")
    return made
