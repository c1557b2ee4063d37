"""``DataLoader``: sharded batches for any mesh, from any step.

``batch_at(step)`` is a pure function of (dataset, schedule, step); ``iter_from_step`` gives the same batches, read
ahead in the background. Resuming is a step number. The order is global: it does not depend on the number of processes
or devices.
"""

from __future__ import annotations

import json
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from headrace.data.batch_order import BatchOrder, RowOrder
from headrace.data.dataset import AsyncDataset, PlannedDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.feed.delivery import Delivery
from headrace.feed.diagnosis import WaitLog
from headrace.feed.function_batches import AsyncReader, MappedReader
from headrace.feed.headspace import replay
from headrace.feed.hosts import check_same, gather
from headrace.feed.placement import Placement, batch_sharding
from headrace.feed.prefetch import Prefetched
from headrace.feed.reader import GATHERING, GROUP, BatchReader, PlannedReader
from headrace.index.residency import checked_budget
from headrace.index.schedule import BatchSchedule
from headrace.metrics import IterationStats, LoaderStats, ReadStats, Stopwatch
from headrace.stalls import StallRule
from headrace.store.forks import check_same_process
from headrace.store.retry import request_counts

DEFAULT_PREFETCH_BYTES = 1 << 30
_MAX_READY = (GATHERING + 2) * GROUP
_READY_REPLAYS = 2

_Counted: TypeAlias = tuple[IterationStats, weakref.ref[Prefetched[Any]], threading.Thread]


class DataLoader(BatchOrder):
    """Delivers batches as sharded ``jax.Array``s.

    Args:
        dataset: What to load. A mixture brings its batch schedule with it.
        batch_size: Rows of the global batch: an int, ``{step: size}`` or a BatchSchedule. May be left out for a
            mixture.
        mesh: Device mesh; None: all devices along one axis ``"data"``.
        batch_axis: Mesh axis, or axes, that rows are split over; None: ``"data"``, or the mesh's first axis.
        sharding: Sharding of ``[B, S]`` arrays, instead of ``mesh`` and ``batch_axis``.
        prefetch_bytes: Budget on this host, of each iteration, for stored blocks in memory and in flight; another
            eighth, but at least one batch and at most 48, for batches that are ready or in the making.
        memory_map: Whether chunks of local, uncompressed caches are copied from memory-mapped files, which is faster
            than reading them through TensorStore (docs/performance.md); False: they are read, for comparison.
        row_order: ``"locality"`` orders the rows within a batch by where they lie in the store, so that each host reads
            its own part; ``"stream"`` leaves them in the order of the mixture. The batch as a set is the same. Datasets
            of your own, which do not say where their rows lie, are read in the order of the stream.
        stall_rule: Which waits ``stats().stalls`` explains.
        check_hosts: Whether the first iteration makes sure that all processes of the mesh load the same batches from
            the same step. All must then begin it; it takes one small collective.

    Raises:
        ConfigError: a batch size that does not divide over the mesh, a missing axis, a batch size that differs from the
            mixture's. From the first iteration: other processes load something else.

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
        memory_map: bool = True,
        stall_rule: StallRule | None = None,
        check_hosts: bool = True,
    ) -> None:
        super().__init__(dataset, batch_size, row_order)
        if sharding is not None and (mesh is not None or batch_axis is not None):
            raise ConfigError("goes without mesh and batch_axis", field="sharding", cure="Give one or the other.")
        self.placement = Placement(sharding if sharding is not None else batch_sharding(mesh, batch_axis))
        self.prefetch_bytes = checked_budget(prefetch_bytes)
        for size in self.schedule.unique_sizes:
            for seq_len in self._seq_lens() or [0]:
                self.placement.check(size, seq_len)
        self._mapping = memory_map
        self._stall_rule = stall_rule or StallRule()
        self._check_hosts = check_hosts
        self._lock = threading.Lock()
        self._finished = IterationStats(self._stall_rule)
        self._counted: list[_Counted] = []  # one an iteration: nobody else adds to it
        self._requests_before = request_counts()
        self._readers: weakref.WeakSet[BatchReader] = weakref.WeakSet()
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._deliver = None
        if isinstance(dataset, PlannedDataset):
            self._deliver = Delivery(self.placement, dataset.eos_id, dataset.pairs)
        # functions get whole rows, of which devices may then hold columns
        self._reads = self.placement if self._deliver is not None else Placement(self.placement.rows_sharding)

    @property
    def local_share(self) -> float:
        """Share of a batch's rows that this process holds."""
        size = self.schedule.max_size
        return self.placement.local_rows(size).size / size

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
        watch, waits = Stopwatch(), WaitLog(step)
        reader = self._reader(ReadStats(), watch, waits, group=0)
        return self._to_devices(next(iter(reader.batches(step, step + 1))), watch, waits)

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
        return self._iterate(step, replayed=0)

    def headspace(self, step: int = 0, *, batches: int = 8) -> Prefetched[Any]:
        """The same few batches over and over: shows the speed that training would reach with a perfect loader.

        Loads them first, keeps them on the devices, and hands out copies made there, which a training step may donate.
        Used as :meth:`iter_from_step`, of which it differs in that it does not end. Run it in a loader of its own:
        :attr:`LoaderStats.replayed_batches` says that the figures are of such a run.

        Args:
            step: The first of these batches.
            batches: How many; fewer if the dataset ends. They stay in device memory.

        Raises:
            IndexOutOfRangeError: no such step.
            ConfigError: ``batches`` is below 1.

        Example:
            >>> import headrace.testing
            >>> from headrace.data.token_seq import TokenSeqDataset
            >>> loader = DataLoader(TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8)
            >>> with loader.headspace(batches=2) as replayed:
            ...     batches = [next(replayed) for _ in range(5)]
            >>> bool((batches[0].tokens == batches[4].tokens).all()), loader.stats().replayed_batches
            (True, 5)
        """
        if batches < 1:
            raise ConfigError("must be at least 1", field="batches", value=batches)
        return self._iterate(self._checked_step(step), replayed=batches)

    def _iterate(self, step: int, replayed: int) -> Prefetched[Any]:
        if self._check_hosts and jax.process_count() > 1:
            seq_lens = self._seq_lens()
            first = {"step": operator.index(step), "seq_len": seq_lens[0] if len(seq_lens) == 1 else seq_lens}
            check_same(self.placement.sharding.device_set, {**first, **self.describe()})
            self._check_hosts = False
        ready = self._ready_batches()
        # One group is delivered, one ready, the rest gathered; what has no room for three is made batch by batch
        group = 0 if ready < 3 else int(np.clip(ready // (GATHERING + 2), 1, GROUP))
        gathering = min(ready // group - 2, GATHERING) if group else 0
        waits = WaitLog(step)
        counted = IterationStats(self._stall_rule, waits.explain, replay=replayed > 0)
        reader = self._reader(counted.reads, counted.watch, waits, group=group, gathering=gathering)
        self._readers.add(reader)
        last = self.num_steps
        if replayed:
            last = step + replayed if last is None else min(step + replayed, last)
        make = partial(_delivered, reader, step, last, partial(self._to_devices, watch=counted.watch, waits=waits))
        batches = Prefetched(
            partial(_replayed, make) if replayed else make,
            _READY_REPLAYS if replayed else ready - (gathering + 1) * group,
            counted.queue,
            interrupt=reader.interrupt,
        )
        self._open.add(batches)
        with self._lock:
            self._counted.append((counted, weakref.ref(batches), batches.thread))
        return batches

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from_step(0)

    def stats(self, *, all_hosts: bool = False) -> LoaderStats:
        """Counters so far, over all iterations of this loader; see :mod:`headrace.metrics`.

        Args:
            all_hosts: Of all processes of the loader's mesh together, as :meth:`LoaderStats.over_hosts` says. Every one
                of them must ask for it, at the same place of its program.
        """
        total = IterationStats(self._stall_rule)
        with self._lock:
            self._fold_finished()
            total.absorb(self._finished)
            for counted, *_ in self._counted:
                total.absorb(counted)
        sent = request_counts() - self._requests_before
        over_http = ReadStats(requests=sent.requests, retries=sent.retries, hedges=sent.hedges)
        resident = sum(reader.resident_bytes for reader in list(self._readers))
        mine = total.snapshot(over_http, resident)
        if not all_hosts:
            return mine
        said = gather(self.placement.sharding.device_set, json.dumps(mine.to_record()).encode())
        return LoaderStats.over_hosts({host: LoaderStats.from_record(json.loads(s)) for host, s in said.items()})

    def _fold_finished(self) -> None:
        """Sums up the iterations that nobody has any more, so that a loader's many iterations take no memory."""
        left: list[_Counted] = []
        for counted, batches, thread in self._counted:
            if batches() is None and not thread.is_alive():
                self._finished.absorb(counted)
            else:
                left.append((counted, batches, thread))
        self._counted = left

    def close(self) -> None:
        """Stops all background work of this loader."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _reader(
        self, stats: ReadStats, watch: Stopwatch, waits: WaitLog, *, group: int, gathering: int = GATHERING
    ) -> BatchReader:
        check_same_process()  # neither the stores' threads nor jax live on in a fork
        if not isinstance(self.base, PlannedDataset):
            return AsyncReader(self.dataset, self.schedule, self._reads, stats, watch, waits)
        reader = PlannedReader(
            self.base,
            self.schedule,
            self._reads,
            self.row_order,
            self.prefetch_bytes,
            stats,
            watch,
            group,
            gathering,
            mapping=self._mapping,
            waits=waits,
        )
        if not self.functions:
            return reader
        return MappedReader(reader, self.base, self.functions, self.schedule, watch, waits)

    def _to_devices(self, host: Any, watch: Stopwatch, waits: WaitLog) -> Any:
        with watch.phase("transfer"), waits.during("transfer"):
            if self._deliver is not None:
                return self._deliver(host)
            return jax.tree.map(self._leaf_to_devices, host)

    def _leaf_to_devices(self, leaf: Any) -> jax.Array:
        shape = np.shape(leaf)
        for size in self.schedule.unique_sizes:
            if shape and self.placement.local_rows(size).size == shape[0]:
                lengths = self._seq_lens()
                other = len(shape) > 1 and bool(lengths) and shape[1] not in lengths  # no columns of tokens
                return self.placement.to_global(np.asarray(leaf), size, along_rows=other)
        raise ConfigError(
            f"gives an array of shape {shape}, whose first axis does not run over the rows of a batch",
            field="dataset",
            cure="get_batch, and functions given to map(), must give one entry a row in every array.",
        )

    def _ready_batches(self) -> int:
        row_bytes = 1 << 16
        if isinstance(self.base, PlannedDataset):
            begin, end = self._reads.local_columns(self.base.seq_len)
            row_bytes = self.base.row_bytes * (end - begin) // max(self.base.seq_len, 1)
        batch_bytes = max(self.placement.local_rows(self.schedule.max_size).size * row_bytes, 1)
        return int(np.clip(self.prefetch_bytes // 8 // batch_bytes, 1, _MAX_READY))

    def _seq_lens(self) -> list[int]:
        return list(self.base.seq_lens) if isinstance(self.base, PlannedDataset) else []

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


def _delivered(
    reader: BatchReader, step: int, stop: int | None, to_devices: Callable[[Any], Any]
) -> Iterator[list[Any]]:
    ready: list[Any] = []  # whoever takes it empties it
    try:
        for group in reader.groups(step, stop):
            while group:
                ready.append(to_devices(group.pop(0)))
            yield ready
            ready = []
    except Exception:
        if ready:  # those before one that fails
            yield ready
        raise
    finally:
        reader.close()


def _replayed(make: Callable[[], Iterator[list[Any]]]) -> Iterator[list[Any]]:
    yield from map(_alone, replay(batch for group in make() for batch in group))


def _alone(batch: Any) -> list[Any]:  # a frame that ends keeps no batch alive
    return [batch]
