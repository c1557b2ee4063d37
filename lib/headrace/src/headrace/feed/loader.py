"""``DataLoader``: sharded batches for any mesh, from any step.

``batch_at(step)`` is a pure function of (dataset, schedule, step); ``iter_from_step`` gives the same batches, read
ahead in the background. Resuming is a step number. The order is global: it does not depend on the number of processes
or devices.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from headrace.data.dataset import AsyncDataset, MappedDataset, PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed.delivery import Delivery
from headrace.feed.placement import Placement, batch_sharding
from headrace.feed.plan import RowOrder
from headrace.feed.prefetch import Prefetched
from headrace.feed.reader import WINDOW_STEPS, AsyncReader, BatchReader, PlannedReader
from headrace.index.schedule import BatchSchedule
from headrace.index.seeds import ORDER_VERSION
from headrace.metrics import LoaderStats, QueueStats, ReadStats, Stopwatch

DEFAULT_PREFETCH_BYTES = 1 << 30
_MAX_READY = 8


class DataLoader:
    """Delivers batches as sharded ``jax.Array``s.

    Args:
        dataset: What to load. A mixture brings its batch schedule with it.
        batch_size: Rows of the global batch: an int, ``{step: size}`` or a BatchSchedule. May be left out for a
            mixture.
        mesh: Device mesh; None: all devices along one axis ``"data"``.
        batch_axis: Mesh axis, or axes, that rows are split over; None: ``"data"``, or the mesh's first axis.
        sharding: Sharding of ``[B, S]`` arrays, instead of ``mesh`` and ``batch_axis``.
        prefetch_bytes: Budget on this host, of each iteration, for stored blocks in memory and in flight; another
            eighth for ready batches.
        row_order: ``"locality"`` orders the rows within a batch by where they lie in the store, so that each host reads
            its own part; ``"stream"`` leaves them in the order of the mixture. The batch as a set is the same. Datasets
            that do not say where their rows lie (``map``, or of your own) are read in the order of the stream.

    Raises:
        ConfigError: a batch size that does not divide over the mesh, a missing axis, a batch size that differs from the
            mixture's.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8).shuffle(seed=0)
        >>> loader = DataLoader(dataset, batch_size=8)
        >>> loader.batch_at(3).tokens.shape
        (8, 8)
        >>> with loader.iter_from_step(3) as batches:
        ...     bool((next(batches).tokens == loader.batch_at(3).tokens).all())
        True
    """

    def __init__(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None = None,
        *,
        mesh: Mesh | None = None,
        batch_axis: str | Sequence[str] | None = None,
        sharding: NamedSharding | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        row_order: RowOrder = "locality",
    ) -> None:
        if row_order not in ("locality", "stream"):
            raise ConfigError("is not an order", field="row_order", value=row_order, cure="Use 'locality' or 'stream'.")
        if prefetch_bytes < 1:
            raise ConfigError("must be positive", field="prefetch_bytes", value=prefetch_bytes, cure="In bytes.")
        if sharding is not None and (mesh is not None or batch_axis is not None):
            raise ConfigError("goes without mesh and batch_axis", field="sharding", cure="Give one or the other.")
        self.dataset = dataset
        self.schedule = _schedule(dataset, batch_size)
        self.placement = Placement(sharding if sharding is not None else batch_sharding(mesh, batch_axis))
        self.row_order: RowOrder = row_order
        self.prefetch_bytes = prefetch_bytes
        seq_lens = dataset.seq_lens if isinstance(dataset, PlannedDataset) else (0,)
        for size in self.schedule.unique_sizes:
            for seq_len in seq_lens:
                self.placement.check(size, seq_len)
        self._reads, self._watch, self._queue = ReadStats(), Stopwatch(), QueueStats()
        self._readers: weakref.WeakSet[BatchReader] = weakref.WeakSet()
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._deliver = Delivery(self.placement, dataset.eos_id) if isinstance(dataset, PlannedDataset) else None

    @property
    def local_share(self) -> float:
        """Share of a batch's rows that this process holds."""
        size = self.schedule.max_size
        return self.placement.local_rows(size).size / size

    def describe(self) -> dict[str, Any]:
        """All that determines the batches, as JSON values. Devices, hosts, budgets and paths are not among them."""
        return {
            "order_version": ORDER_VERSION,
            "dataset": self.dataset.describe(),
            "batch_size": self.schedule.to_config(),
            "row_order": self.row_order,
        }

    @property
    def num_steps(self) -> int | None:
        """Steps until the dataset ends, the last, padded one included; None if it does not end."""
        n = self.dataset.length
        if n is None:
            return None
        return int(self.schedule.step_of(np.asarray([n - 1]))[0]) + 1 if n else 0

    def batch_at(self, step: int) -> Any:
        """The batch of a step, read now. Needs no other step to be read first.

        Returns:
            A :class:`~headrace.data.batch.PackedBatch` of sharded arrays (for datasets with ``map``: what the function
            makes).

        Raises:
            IndexOutOfRangeError: no such step.
            ReadError: the store cannot be read.
        """
        step = self._checked_step(step)
        reader = self._reader(ReadStats(), Stopwatch(), window_steps=1)
        return self._to_devices(next(iter(reader.batches(step, step + 1))))

    def iter_from_step(self, step: int = 0) -> Prefetched[Any]:
        """Batches from ``step`` on, prepared in the background. A context manager; dropping it stops the background
        work.

        Args:
            step: The first step; the number of steps already done, when resuming.

        Raises:
            IndexOutOfRangeError: no such step.
        """
        if step != self.num_steps:  # resuming a finished run is an empty iteration, not an error
            step = self._checked_step(step)
        reader = self._reader(self._reads, self._watch, window_steps=WINDOW_STEPS)
        self._readers.add(reader)
        batches = Prefetched(
            partial(_batches, reader, step, self.num_steps, self._to_devices),
            self._ready_batches(),
            self._queue,
            interrupt=reader.interrupt,
        )
        self._open.add(batches)
        return batches

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from_step(0)

    def stats(self) -> LoaderStats:
        """Counters so far, over all iterations of this loader; see :mod:`headrace.metrics`."""
        queue, watch = self._queue, self._watch
        return LoaderStats(
            batches=queue.gets,
            reads=ReadStats() + self._reads,
            wait_s=queue.total_wait_s,
            wait_p50_s=queue.percentile(50),
            wait_p95_s=queue.percentile(95),
            wait_p99_s=queue.percentile(99),
            wait_max_s=queue.longest_wait_s,
            waiting_share=queue.waiting_share,
            queue_occupancy=queue.occupancy,
            plan_s=watch.seconds("plan"),
            read_s=watch.seconds("read"),
            gather_s=watch.seconds("gather"),
            transfer_s=watch.seconds("transfer"),
            resident_bytes=sum(reader.resident_bytes for reader in list(self._readers)),
        )

    def close(self) -> None:
        """Stops all background work of this loader."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _reader(self, stats: ReadStats, watch: Stopwatch, *, window_steps: int) -> BatchReader:
        if isinstance(self.dataset, PlannedDataset):
            return PlannedReader(
                self.dataset,
                self.schedule,
                self.placement,
                self.row_order,
                self.prefetch_bytes,
                stats,
                watch,
                window_steps,
            )
        return AsyncReader(self.dataset, self.schedule, self.placement, stats, watch)

    def _to_devices(self, host: Any) -> Any:
        with self._watch.phase("transfer"):
            if self._deliver is not None:
                return self._deliver(host)
            return jax.tree.map(self._leaf_to_devices, host)

    def _leaf_to_devices(self, leaf: Any) -> jax.Array:
        shape = np.shape(leaf)
        for size in self.schedule.unique_sizes:
            if shape and self.placement.local_rows(size).size == shape[0]:
                return self.placement.to_global(np.asarray(leaf), size)
        raise ConfigError(
            f"gives an array of shape {shape}, whose first axis does not run over the rows of a batch",
            field="dataset",
            cure="get_batch, and functions given to map(), must give one entry a row in every array.",
        )

    def _ready_batches(self) -> int:
        row_bytes = 4 * self.dataset.seq_len if isinstance(self.dataset, PlannedDataset) else 1 << 16
        batch_bytes = max(self.placement.local_rows(self.schedule.max_size).size * row_bytes, 1)
        return int(np.clip(self.prefetch_bytes // 8 // batch_bytes, 1, _MAX_READY))

    def _checked_step(self, step: int) -> int:
        step = operator.index(step)  # a number that a checkpoint gave back, whatever its type
        last = self.num_steps
        if step < 0 or (last is not None and step >= last):
            raise IndexOutOfRangeError(
                "is not a step of this loader",
                field="step",
                value=step,
                cure=f"Steps run from 0 to {last - 1}." if last else "Steps count from 0.",
            )
        return step


def _batches(reader: BatchReader, step: int, stop: int | None, to_devices: Any) -> Iterator[Any]:
    try:
        for host in reader.batches(step, stop):
            yield to_devices(host)
    finally:
        reader.close()


def _schedule(dataset: AsyncDataset[Any], batch_size: int | Mapping[int, int] | BatchSchedule | None) -> BatchSchedule:
    while isinstance(dataset, MappedDataset):
        dataset = dataset.base
    own = dataset.batch_schedule if isinstance(dataset, MixtureDataset | PhasedDataset) else None
    given = batch_size if isinstance(batch_size, BatchSchedule | None) else BatchSchedule(batch_size)
    if own is not None and given is not None and given != own:
        raise ConfigError(
            f"differs from the mixture's {own}", field="batch_size", value=batch_size, cure="Leave it out here."
        )
    schedule = given or own
    if schedule is None:
        raise ConfigError("is missing", field="batch_size", cure="Give the number of rows of the global batch.")
    return schedule
