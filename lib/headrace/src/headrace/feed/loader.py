"""``DataLoader``: sharded batches for any mesh, from any step.

``batch_at(step)`` is a pure function of (dataset, schedule, step); ``iter_from_step`` yields the
same batches, read ahead in the background. A run resumes at a step number. The order is global: it
does not depend on the number of processes or devices.
"""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypedDict, Unpack

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import Partial

from headrace.batch.context_parallel import SequenceLayout, sequence_layout
from headrace.batch.micro_plan import MicroBatchConfig
from headrace.data.async_dataset import AsyncDataset, check_dataset
from headrace.data.dataset import BatchOrder
from headrace.data.sources_at import SourcesAt
from headrace.errors import (
    ConfigError,
    HeadraceError,
    IndexOutOfRangeError,
    as_whole,
    check_at_least,
    check_whole,
)
from headrace.feed.async_reader import BatchReader
from headrace.feed.exchange import RowExchange, check_exchange
from headrace.feed.horizon import MOST_AHEAD, Horizon
from headrace.feed.host_gate import HostBarrier, open_gate
from headrace.feed.hosts import check_same, gather
from headrace.feed.micro_batches import StepSplitter
from headrace.feed.placement import BatchMaker, Placement, batch_sharding, fresh_copy
from headrace.feed.pooled_rows import PooledRows, exchange_rows, holders_of
from headrace.feed.prefetch import Prefetched
from headrace.feed.reader import GATHERING, GROUP, Grouping, open_reader
from headrace.metrics import IterationStats, LoaderStats, ReadStats
from headrace.mix.schedule import (
    MAX_STEP,
    BatchSchedule,
    ExchangeSetting,
    LastBatch,
    RowOrder,
)
from headrace.order.residency import checked_budget
from headrace.stalls import StallRule, WaitLog
from headrace.store.array import check_same_process
from headrace.store.retry import request_counts

DEFAULT_PREFETCH_BYTES = 1 << 30
_MAX_READY = (GATHERING + 3) * GROUP
_MOST_PLANNED = _MAX_READY + MOST_AHEAD
"""Steps beyond those that the trainer has that may be planned."""
_READY_REPLAYS = 2
_POLL_S = 0.1

_CountedIteration: TypeAlias = tuple[IterationStats, weakref.ref[Prefetched[Any]], threading.Thread]


class LoaderOptions(TypedDict, total=False):
    """Rarely needed keyword arguments of :class:`DataLoader`.

    Attributes:
        memory_map: Whether to serve chunks of local, uncompressed caches from memory-mapped files
            (the default).
        stall_rule: Which waits ``stats().stalls`` explains; None (the default): those of
            ``StallRule()``.
        check_hosts: Whether the first iteration, and each that exchanges rows, checks that all
            processes of the mesh load the same batches from the same step (the default). All of
            them must then start it; the check takes one small collective.
        host_barrier: How the processes of the mesh wait for each other before each batch of an
            iteration (docs/multi_host.md), by default as ``HostBarrier()`` does; None: they do not
            wait. A single process never waits, nor does :meth:`DataLoader.batch_at`.
        row_exchange: Whether iterations pass rows between processes on the devices, so that only
            one process reads each stored block (docs/multi_host.md). ``"auto"`` (the default): if
            that saves more than a twentieth of the reads; ``"on"``; ``"off"``. The
            batches are the same. With an exchange, ``next`` runs a collective: all processes must
            request the same batches, in the same program order. :meth:`DataLoader.batch_at` and
            :meth:`DataLoader.headspace` never exchange rows.
        sequence_layout: Which positions of a row each device holds along the sharding's second
            axis: ``"contiguous"`` (the default), ``"zigzag"`` or ``"striped"``; see
            :class:`~headrace.batch.context_parallel.ContextBatch`.
        micro_batches: How to split batches into :class:`~headrace.batch.micro_step.MicroBatches`;
            None (the default): they are not split. If they are, ``next`` and
            :meth:`DataLoader.batch_at` run a collective.
        last_batch: What becomes of a last batch that the data do not fill: ``"pad"`` it with empty
            rows, ``"drop"`` its rows, or ``"fill"`` it with the first rows again; see
            :mod:`headrace.mix.limits`. None (the default): as the dataset's config says, or
            ``"pad"``.
    """

    memory_map: bool
    stall_rule: StallRule | None
    check_hosts: bool
    host_barrier: HostBarrier | None
    row_exchange: ExchangeSetting
    sequence_layout: SequenceLayout
    micro_batches: MicroBatchConfig | None
    last_batch: LastBatch | None


class DataLoader(BatchOrder):
    """Delivers batches as sharded ``jax.Array``s.

    Args:
        dataset: What to load. A mixture has its own batch schedule.
        batch_size: Rows of the global batch: an int, ``{step: size}`` or a BatchSchedule. Optional
            for a mixture.
        mesh: Device mesh; None: all devices along one axis ``"data"``.
        batch_axis: Mesh axis or axes over which rows are split; None: ``"data"``, or the mesh's
            first axis.
        sharding: Sharding of ``[B, S]`` arrays, instead of ``mesh`` and ``batch_axis``.
        prefetch_bytes: Budget on this host, per iteration, for stored blocks in memory and in
            flight. Another eighth of it, but at least one batch and at most 64, is for batches that
            are ready or being made.
        row_order: ``"locality"`` orders the rows within a batch by their place in the store, so
            that each host reads its own part; ``"stream"`` keeps them in the order of the mixture.
            Both put the same rows into a batch. Custom datasets, which do not know where their rows
            are stored, are read in the order of the stream.
        options: Rarely needed keyword arguments: see :class:`LoaderOptions`.

    Raises:
        ConfigError: the batch size does not divide over the mesh or differs from the mixture's, an
            axis is missing, or ``row_exchange`` is on for rows that do not come from stored blocks.
            On the first iteration: other processes load something else.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
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
        **options: Unpack[LoaderOptions],
    ) -> None:
        check_dataset("dataset", dataset)
        if unknown := options.keys() - LoaderOptions.__annotations__.keys():
            raise TypeError(f"DataLoader got an unexpected keyword argument {min(unknown)!r}")
        if sharding is not None and (mesh is not None or batch_axis is not None):
            raise ConfigError(
                "cannot be combined with mesh or batch_axis",
                field="sharding",
                cure="Give one or the other.",
            )
        self.placement = Placement(
            sharding if sharding is not None else batch_sharding(mesh, batch_axis)
        )
        self.prefetch_bytes = checked_budget(prefetch_bytes)
        self._mapping = options.get("memory_map", True)
        self._stall_rule = options.get("stall_rule") or StallRule()
        self._check_hosts = options.get("check_hosts", True)
        self._compared = False
        self._host_barrier = options.get("host_barrier", HostBarrier())
        self._lock = threading.Lock()
        self._finished = IterationStats(self._stall_rule)
        self._counted: list[
            _CountedIteration
        ] = []  # one per iteration, and nothing else updates it
        self._requests_before = request_counts()
        self._readers: weakref.WeakSet[BatchReader] = weakref.WeakSet()
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._options = options
        self._horizons: dict[Horizon, IterationStats] = {}
        self._hold: int | None = None
        self._decided = threading.Event()
        self._decided.set()
        self.on_iterate: Callable[[], None] = lambda: None
        self._arrange(dataset, batch_size, row_order)

    def _arrange(
        self,
        dataset: AsyncDataset[Any],
        batch_size: int | Mapping[int, int] | BatchSchedule | None,
        row_order: RowOrder,
    ) -> None:
        """Makes these the batches of the loader."""
        options = self._options
        super().__init__(dataset, batch_size, row_order, options.get("last_batch"))
        self._seq_lens = self.dataset.seq_lens
        for size in self.schedule.unique_sizes:
            for seq_len in self._seq_lens or (0,):
                self.placement.check(size, seq_len)
        layout = options.get("sequence_layout", "contiguous")
        self.functions += sequence_layout(layout, self.placement.sequence_ranks, self._seq_lens)
        micro = options.get("micro_batches")
        self._splitter = (
            None if micro is None else StepSplitter(micro, self, self.placement, layout)
        )
        self._deliver = None
        if self.planned is not None and not self.functions:
            maker = BatchMaker(self.planned.eos_id, self.planned.pairs)
            self._deliver = partial(maker.of_devices, placement=self.placement)
        # functions get whole rows, even if each device then holds only some columns
        self._reads = (
            self.placement if self._deliver is not None else Placement(self.placement.rows_sharding)
        )
        self.row_exchange: ExchangeSetting = check_exchange(
            options.get("row_exchange", "auto"), self
        )

    @property
    def local_share(self) -> float:
        """Share of a batch's rows that this process holds."""
        size = self.schedule.max_size
        return self.placement.local_rows(size).size / size

    def batch_at(self, step: int) -> Any:
        """The batch of a step, read now. No other step has to be read first.

        Returns:
            A :class:`~headrace.batch.packed_batch.PackedBatch` of sharded arrays (for datasets with
            ``map``: the function's result).

        Raises:
            IndexOutOfRangeError: no such step.
            ReadError: the store cannot be read.
        """
        step = self._checked_step(step)
        stats = IterationStats(self._stall_rule, WaitLog(step))
        reader = self._reader(stats, Grouping(0))
        return _finished(self._to_devices(next(iter(reader.batches(step, step + 1))), step, stats))

    def iter_from_step(self, step: int = 0) -> Prefetched[Any]:
        """Batches from ``step`` on, prepared in the background.

        The iterator is a context manager. Leaving it, or dropping the iterator, stops the
        background work.

        Args:
            step: The first step; when resuming, the number of steps already done.

        Raises:
            IndexOutOfRangeError: no such step.
        """
        if step != self.num_steps:  # resuming a finished run is an empty iteration, not an error
            step = self._checked_step(step)
        return self._iterate(step, replayed=0)

    def headspace(self, step: int = 0, *, batches: int = 8) -> Prefetched[Any]:
        """Repeats the same few batches: shows the speed that training would reach with a perfect
        loader.

        Loads the batches first, keeps them on the devices, and yields copies made there, which a
        training step may donate. Use it like :meth:`iter_from_step`, except that it does not end,
        and in a loader of its own: :attr:`LoaderStats.replayed_batches` marks the figures of such a
        run.

        Args:
            step: The step of the first of these batches.
            batches: Number of batches; fewer if the dataset ends. They stay in device memory.

        Raises:
            IndexOutOfRangeError: no such step.
            ConfigError: ``batches`` is below 1.

        Example:
            >>> import headrace.testing
            >>> from headrace import TokenSeqDataset
            >>> loader = DataLoader(
            ...     TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8), batch_size=8
            ... )
            >>> with loader.headspace(batches=2) as replayed:
            ...     batches = [next(replayed) for _ in range(5)]
            >>> (
            ...     bool((batches[0].tokens == batches[4].tokens).all()),
            ...     loader.stats().replayed_batches,
            ... )
            (True, 5)
        """
        check_whole("batches", batches)
        check_at_least("batches", batches, cure="E.g. 8.")
        return self._iterate(self._checked_step(step), replayed=batches)

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that load its batches, ascending."""
        devices = self.placement.sharding.device_set
        return tuple(sorted({device.process_index for device in devices}))

    @property
    def is_iterating(self) -> bool:
        """Whether somebody takes batches from an iteration."""
        with self._lock:
            return bool(self._open_horizons())

    @property
    def step_of_change(self) -> int | None:
        """The step at which an open iteration will go on with a changed run; None: it has."""
        with self._lock:
            steps = [one.stop for one in self._open_horizons() if one.is_changed]
        return max((step for step in steps if step is not None), default=None)

    @property
    def earliest_step(self) -> int:
        """The first step that no open iteration of any process has planned before the trainer
        takes another batch.
        """
        apart = 0
        if self._host_barrier is not None and len(self.processes) > 1:
            apart = self._host_barrier.every
        with self._lock:
            steps = [self._horizons[horizon].step for horizon in self._open_horizons()]
            reached = max(steps, default=0)
        return reached + apart + _MOST_PLANNED

    def hold_plans(self, step: int) -> bool:
        """Holds the plans of all open iterations at a step until :meth:`go_on`; False, and no plan
        holds, if one has planned it already.
        """
        with self._lock:
            self._hold = step
            self._decided.clear()
            holds = [horizon.hold_at(step) for horizon in self._open_horizons()]
        if not all(holds):
            self.go_on()
        return all(holds)

    def go_on(self, dataset: AsyncDataset[Any] | None = None) -> None:
        """Lets iterations go on after :meth:`hold_plans`.

        Args:
            dataset: From that step on, what they load; it must be the same before it. None: they
                go on as before.
        """
        if dataset is not None:
            self._arrange(dataset, None, self.row_order)
        with self._lock:
            self._hold = None
            for horizon in self._horizons:
                horizon.decide(change=dataset is not None)
        self._decided.set()

    def _open_reader(
        self, step: int, stats: IterationStats, grouping: Grouping, replayed: int
    ) -> tuple[Horizon, BatchReader]:
        """The reader of an iteration that begins or goes on at a step, and how far it plans."""
        last = self.num_steps
        if replayed:
            last = min(step + replayed, last or MAX_STEP)
        with self._lock:
            horizon = Horizon(step, last, None if replayed else self._hold)
            if not replayed:
                self._horizons = {one: self._horizons[one] for one in self._open_horizons()}
                self._horizons[horizon] = stats
        exchange = None if replayed else self._exchange()
        reader = self._reader(stats, grouping, exchange, horizon)
        self._readers.add(reader)
        return horizon, reader

    def _open_horizons(self) -> list[Horizon]:
        return [horizon for horizon in self._horizons if not horizon.is_closed]

    def _iterate(self, step: int, replayed: int) -> Prefetched[Any]:
        stats = IterationStats(self._stall_rule, WaitLog(step), replay=replayed > 0, step=step)
        gate = open_gate(self.processes, step, None if replayed else self._host_barrier, stats)
        try:
            if gate is not None:
                gate.begin()  # before the processes meet in a collective
            exchanges = not replayed and self._exchange() is not None
            self._compare_hosts(step, exchanges=exchanges)
        except HeadraceError as error:
            if gate is not None:
                gate.leave(error)
            raise
        ready = self._ready_batches()
        # One group is taken, one ready, one delivered, the others gathered; without room for four,
        # batches come singly
        group = 0 if ready < 4 else int(np.clip(ready // (GATHERING + 3), 1, GROUP))
        gathering = min(ready // group - 3, GATHERING) if group else 0
        grouping = Grouping(group, gathering)
        course = _Course(
            step,
            partial(self._open_reader, stats=stats, grouping=grouping, replayed=replayed),
            partial(self._to_devices, stats=stats),
            self._decided,
        )
        make = course.groups
        batches = Prefetched(
            partial(_replayed, make) if replayed else make,
            _READY_REPLAYS if replayed else ready - (gathering + 1) * group,
            stats.queue,
            interrupt=course.interrupt,
            gate=gate,
            finish=_finished,
        )
        self._open.add(batches)
        with self._lock:
            self._fold_finished()
            self._counted.append((stats, weakref.ref(batches), batches.thread))
        if not replayed:
            self.on_iterate()
        return batches

    def _compare_hosts(self, step: int, *, exchanges: bool) -> None:
        """Checks that all hosts load the same: in the first iteration the plan, and where they
        exchange rows the step each time, as rows of another would pass for those of this one.
        """
        wanted = exchanges or not self._compared
        if not (self._check_hosts and wanted) or jax.process_count() == 1:
            return
        described: dict[str, Any] = {"step": step}
        if not self._compared:
            lengths = self._seq_lens[0] if len(self._seq_lens) == 1 else self._seq_lens
            described |= {"seq_len": lengths, "row_exchange": self.row_exchange}
            described |= self.describe()
        check_same(self.placement.sharding.device_set, described, lambda: self._named(step))
        self._compared = True

    def _named(self, step: int) -> dict[str, Any]:
        """What a user knows the run by: the fields of its config on which batches depend, and what
        its caches hold; empty if it has no config.
        """
        config = getattr(self.planned, "config", None)
        if config is None or self.planned is None:
            return {}
        caches = {cache.path: cache.fingerprint for cache in self.planned.caches()}
        return {"step": step, **config.binding_fields(), "content of caches": caches}

    def __iter__(self) -> Iterator[Any]:
        return self.iter_from_step(0)

    def stats(self, *, all_hosts: bool = False) -> LoaderStats:
        """Counters so far, over all iterations of this loader; see :mod:`headrace.metrics`. The
        figures of each source are those of the latest iteration's step, and computed when they are
        read.

        Args:
            all_hosts: Whether to combine the counters of all processes of the loader's mesh, as
                :meth:`LoaderStats.over_hosts` does. All of them must then call it at the same point
                of the program.
        """
        total = IterationStats(self._stall_rule)
        with self._lock:
            self._fold_finished()
            total.absorb(self._finished)
            for of_iteration, *_ in self._counted:
                total.absorb(of_iteration)
        sent = request_counts() - self._requests_before
        names = ("requests", "retries", "hedges", "damaged", "refused", "replica_switches")
        over_http = ReadStats(**{name: getattr(sent, name) for name in names})
        resident = sum(reader.resident_bytes for reader in list(self._readers))
        snapshot = total.snapshot(over_http, resident)
        if not all_hosts:
            return self._with_sources(snapshot)
        records = gather(
            self.placement.sharding.device_set, json.dumps(snapshot.to_record()).encode()
        )
        by_host = {host: LoaderStats.from_record(json.loads(r)) for host, r in records.items()}
        return self._with_sources(LoaderStats.over_hosts(by_host))

    def _with_sources(self, stats: LoaderStats) -> LoaderStats:
        is_over = stats.step == self.num_steps
        return replace(stats, sources=SourcesAt(self.planned, stats.step, is_over=is_over))

    def _fold_finished(self) -> None:
        """Sums up iterations that nobody refers to any more, so that memory does not grow with
        their number.
        """
        for stats, batches, thread in list(self._counted):
            if batches() is None and not thread.is_alive():
                self._finished.absorb(stats)
                self._counted.remove((stats, batches, thread))

    def close(self) -> None:
        """Stops all background work of this loader."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        cure = "Send the config or the dataset, and make a loader there."
        raise ConfigError(
            "cannot be pickled: it holds devices and threads", field="loader", cure=cure
        )

    def _exchange(self) -> RowExchange | None:
        """Which rows an iteration reads for other processes; None: no rows are exchanged."""
        holders = holders_of(self.placement.rows_sharding)
        if self.row_exchange == "off" or self.planned is None or (holders == holders[0]).all():
            return None
        return RowExchange(holders, self.row_exchange)

    def _reader(
        self,
        stats: IterationStats,
        grouping: Grouping,
        exchange: RowExchange | None = None,
        horizon: Horizon | None = None,
    ) -> BatchReader:
        check_same_process()  # neither the stores' threads nor jax survive a fork
        return open_reader(
            self,
            self._reads,
            self.prefetch_bytes,
            stats,
            grouping,
            mapping=self._mapping,
            exchange=exchange,
            horizon=horizon,
        )

    def _to_devices(self, host: Any, step: int, stats: IterationStats) -> Any:
        with stats.watch.phase("transfer"), stats.waits.during("transfer"):
            if isinstance(host, PooledRows):
                origin = self.placement.to_global(host.origin, host.batch_size)
                delivered = host._replace(
                    arrays=self._deliver_arrays(host.arrays, [host.array_size]), origin=origin
                )
            else:
                delivered = self._deliver_arrays(host, self.schedule.unique_sizes)
        if self._splitter is None:
            return delivered
        with stats.watch.phase("plan"), stats.waits.during("plan"):
            split, layout = self._splitter.planned(step, host)
        stats.reads.micro_batch_places += layout
        return Partial(split, delivered)

    def _deliver_arrays(self, host: Any, sizes: Sequence[int]) -> Any:
        if self._deliver is not None:
            return self._deliver(host)
        return jax.tree.map(partial(self._leaf_to_devices, sizes=sizes), host)

    def _leaf_to_devices(self, leaf: Any, sizes: Sequence[int]) -> jax.Array:
        shape = np.shape(leaf)
        for size in sizes:
            if shape and self.placement.local_rows(size).size == shape[0]:
                of_tokens = len(shape) < 2 or not self._seq_lens or shape[1] in self._seq_lens
                return self.placement.to_global(np.asarray(leaf), size, along_rows=not of_tokens)
        raise ConfigError(
            f"gives an array of shape {shape}, whose first axis does not run over the rows of a"
            " batch",
            field="dataset",
            cure="get_batch, and functions given to map(), must give one entry a row in every"
            " array.",
        )

    def _ready_batches(self) -> int:
        row_bytes = 1 << 16
        if self.planned is not None:
            begin, end = self._reads.local_columns(self.planned.seq_len)
            row_bytes = self.planned.row_bytes * (end - begin) // max(self.planned.seq_len, 1)
        batch_bytes = max(self.placement.local_rows(self.schedule.max_size).size * row_bytes, 1)
        return int(np.clip(self.prefetch_bytes // 8 // batch_bytes, 1, _MAX_READY))

    def _checked_step(self, step: int) -> int:
        step = as_whole("step", step)
        last = self.num_steps
        if step < 0 or (last is not None and step >= last):
            raise IndexOutOfRangeError(
                "is not a step of this loader",
                field="step",
                value=step,
                cure=f"Steps run from 0 to {last - 1}." if last else "Steps count from 0.",
            )
        return step


class _Course:
    """The batches of an iteration: of one reader up to a step from which the run is changed, then
    of the next.
    """

    def __init__(
        self,
        step: int,
        open_reader: Callable[[int], tuple[Horizon, BatchReader]],
        to_devices: Callable[[Any, int], Any],
        decided: threading.Event,
    ) -> None:
        self._decided = decided
        self._step = step
        self._open_reader = open_reader
        self._to_devices = to_devices
        self._closed = False
        self._horizon, self._reader = open_reader(step)

    def interrupt(self) -> None:
        """Makes whatever :meth:`groups` waits for give up. Safe to call from any thread."""
        self._closed = True
        self._horizon.close()
        self._reader.interrupt()

    def groups(self) -> Iterator[list[Any]]:
        try:
            while True:
                horizon = self._horizon
                for group in _delivered(self._reader, self._step, horizon.stop, self._to_devices):
                    self._step += len(group)  # whoever takes the group empties it
                    yield group
                if self._closed or not horizon.is_changed:
                    return
                # Not while hosts vote: they have said that this one has not come to the change
                while not self._decided.wait(_POLL_S):
                    if self._closed:
                        return
                self._horizon, self._reader = self._open_reader(self._step)
                horizon.close()  # last: the loader iterates all the time
        finally:
            # Not yet at the end: whoever takes the batches has them before him
            if self._closed:
                self._horizon.close()


def _finished(delivered: Any) -> Any:
    """The batch as a trainer gets it: rows exchanged and split into micro-batches, if configured
    (collectives).
    """
    if isinstance(delivered, Partial):
        return delivered()
    return exchange_rows(delivered) if isinstance(delivered, PooledRows) else delivered


def _delivered(
    reader: BatchReader, step: int, stop: int | None, to_devices: Callable[[Any, int], Any]
) -> Iterator[list[Any]]:
    ready: list[Any] = []  # emptied by whoever takes it
    numbers = itertools.count(step)
    try:
        for group in reader.groups(step, stop):
            while group:
                ready.append(to_devices(group.pop(0), next(numbers)))
            yield ready
            ready = []
    except Exception:
        if ready:  # the batches before the one that failed
            yield ready
        raise
    finally:
        reader.close()


def _replayed(make: Callable[[], Iterator[list[Any]]]) -> Iterator[list[Any]]:
    """Yields fresh copies of all batches of ``make()``, over and over, without end (nothing if
    there are none).
    """
    batches = [batch for group in make() for batch in group]
    while batches:
        yield from ([fresh_copy(batch)] for batch in batches)
