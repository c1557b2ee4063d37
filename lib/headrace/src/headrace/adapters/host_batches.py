"""Batches as numpy arrays on the host, for programs that move them to the devices themselves.

The batches are those of :class:`headrace.DataLoader`, in the same order and also read ahead. Each
of ``world`` equal processes gets a contiguous share of every batch's rows.

Price: that of the loader without the transfer, plus about 5 ns per token to compute labels,
positions and weights in numpy. ``PackedBatch`` derives them on the device, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from typing import Any, TypedDict, cast

import numpy as np
from jaxtyping import Int64

from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import AsyncDataset
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.feed.loader import DEFAULT_PREFETCH_BYTES
from headrace.feed.placement import BatchMaker, HostRows, Placement
from headrace.feed.reader import open_batch_reader
from headrace.metrics import IterationStats
from headrace.mix.schedule import BatchSchedule, LastBatch, RowOrder
from headrace.order.residency import checked_budget
from headrace.run.lock import RunLock
from headrace.run.state import LoaderState

FIELDS = ("tokens", "labels", "position_ids", "segment_ids", "token_weights")


class HostOptions(TypedDict, total=False):
    """Keywords of :class:`HostBatches` and the adapters built on it: which share of the batches,
    and how to read it.
    """

    rank: int
    world: int
    row_order: RowOrder
    prefetch_bytes: int
    last_batch: LastBatch | None


class HostBatches(BatchOrder):
    """One process's share of the batches of a run, as numpy arrays.

    Args:
        dataset: What to load.
        batch_size: Rows of the global batch; left out for a mixture, which has its own.
        rank: Number of this process.
        world: Processes; must divide every batch size.
        row_order: As for :class:`headrace.DataLoader`.
        prefetch_bytes: Budget for stored blocks in memory and in flight, in addition to up to 48
            batches that are ready or in progress.
        last_batch: As for :class:`headrace.DataLoader`.

    Raises:
        ConfigError: the batch size is missing, differs from the mixture's, or does not divide.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> batches = HostBatches(
        ...     TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), 8, rank=1, world=2
        ... )
        >>> step, batch = next(batches.from_step(3))
        >>> step, batch.tokens.shape
        (3, (4, 8))
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        *,
        rank: int = 0,
        world: int = 1,
        row_order: RowOrder = "locality",
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        last_batch: LastBatch | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, row_order, last_batch)
        if not 0 <= rank < world:
            raise ConfigError(f"is not in 0 .. {world - 1}", field="rank", value=rank)
        for size in self.schedule.unique_sizes:
            if size % world:
                raise ConfigError(
                    f"is not divisible by {world} processes", field="batch_size", value=size
                )
        self._stats = IterationStats()
        self.read_stats = self._stats.reads
        self._share = _Share(rank, world)
        self._prefetch_bytes = checked_budget(prefetch_bytes)

    @cached_property
    def lock(self) -> RunLock:
        """The run's lock; its ``state(step)`` is what a checkpoint needs."""
        return RunLock.of(self)

    def resume(self, state: Mapping[str, Any]) -> int:
        """The next step according to a saved state (``LoaderState.to_dict()``).

        Raises:
            PlanMismatchError: the state belongs to another run.
        """
        loader_state = LoaderState.from_dict(state)
        self.lock.check(loader_state)
        return loader_state.step

    def from_step(self, step: int = 0) -> Generator[tuple[int, PackedBatch], None, None]:
        """Steps and their batches, from ``step`` on, read ahead until the iterator is closed or
        dropped.
        """
        reader = open_batch_reader(
            self, cast(Placement, self._share), self._prefetch_bytes, self._stats
        )
        maker = (
            None if self.planned is None else BatchMaker(self.planned.eos_id, self.planned.pairs)
        )
        try:
            for number, host in enumerate(reader.batches(step, self.num_steps), start=step):
                yield (
                    number,
                    maker.of_host(host)
                    if maker is not None and isinstance(host, HostRows)
                    else host,
                )
        finally:
            reader.close()


class HostPass(Iterator[dict[str, np.ndarray]]):
    """One pass over the batches, as dicts of arrays, with a position of its own.

    Args:
        batches: The batches.
        step: The first one.
    """

    def __init__(self, batches: HostBatches, step: int = 0) -> None:
        self.step = step
        self._batches = batches
        self._rest = batches.from_step(step)

    def __next__(self) -> dict[str, np.ndarray]:
        step, batch = next(self._rest)
        self.step = step + 1
        return arrays_of(batch)

    @property
    def state(self) -> dict[str, Any]:
        """The next step and the run's fingerprint, as JSON values."""
        return LoaderState(self.step, self._batches.lock.fingerprint).to_dict()

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        self.step = self._batches.resume(state)
        self._rest.close()
        self._rest = self._batches.from_step(self.step)


class _Share:
    """The rows of one of several equal processes; the part of a ``Placement`` that needs no
    devices.
    """

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world

    def local_rows(self, batch_size: int) -> Int64[np.ndarray, " n"]:
        each = batch_size // self._world
        return np.arange(self._rank * each, (self._rank + 1) * each)

    def local_columns(self, seq_len: int) -> tuple[int, int]:
        return 0, seq_len


def arrays_of(batch: Any) -> dict[str, np.ndarray]:
    """The arrays that a training step reads, by name: tokens, labels, positions, segments and loss
    weights, ``[B, S]`` each, and further columns. A dict that a function of ``map`` returned is
    passed through.

    Raises:
        ConfigError: the batch is neither.
    """
    if isinstance(batch, Mapping):
        return {
            str(name): np.asarray(values)
            for name, values in cast("Mapping[Any, Any]", batch).items()
        }
    if not isinstance(batch, PackedBatch):
        raise ConfigError(
            "is no batch with names",
            field="map",
            value=type(batch).__name__,
            cure="Give a PackedBatch, or a dict.",
        )
    extras = {name: np.asarray(values) for name, values in (batch.extras or {}).items()}
    return {name: np.asarray(getattr(batch, name)) for name in FIELDS} | extras
