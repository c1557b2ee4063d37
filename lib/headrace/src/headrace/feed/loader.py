"""``DataLoader``: sharded batches for any mesh, from any step.

``batch_at(step)`` is a pure function of (dataset, schedule, step); ``iter_from_step`` yields the
same batches, read ahead in the background. A run resumes at a step number. The order is global: it
does not depend on the number of processes or devices.

A :class:`Delivery` reads the batches of one run and brings them to the devices. An iteration takes
its batches from one delivery, and, where the run changes meanwhile, from there on from the next
(:class:`_Course`).
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn, TypedDict, Unpack

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
from headrace.feed.exchange import RowExchange, check_exchange
from headrace.feed.horizon import MOST_AHEAD, Horizon, Horizons
from headrace.feed.host_gate import HostBarrier, open_gate
from headrace.feed.hosts import check_same, gather
from headrace.feed.micro_batches import StepSplitter
from headrace.feed.placement import BatchMaker, HostRows, Placement, batch_sharding, fresh_copy
from headrace.feed.pooled_rows import PooledRows, exchange_rows, holders_of
from headrace.feed.prefetch import Prefetched
from headrace.feed.reader import GATHERING, GROUP, BatchReader, Grouping, open_batch_reader
from headrace.metrics import IterationStats, LoaderStats, ReadStats, StallRule, WaitLog
from headrace.mix.schedule import (
    MAX_STEP,
    BatchSchedule,
    ExchangeSetting,
    LastBatch,
    RowOrder,
)
from headrace.order.residency import checked_budget
from headrace.store.array import check_same_process
from headrace.store.retry import request_counts

DEFAULT_PREFETCH_BYTES = 1 << 30
_MAX_READY = (GATHERING + 3) * GROUP
_MOST_PLANNED = _MAX_READY + MOST_AHEAD
"""Steps beyond those that the trainer has that may be planned."""
_SMALL_GROUP = 1 << 20
"""Bytes up to which twice as many batches are gathered together: their work is that of a group."""
_READY_REPLAYS = 2


class _Iteration(NamedTuple):
    """An iteration that was begun, and its batches, as long as somebody has them."""

    course: _Course
    batches: weakref.ref[Prefetched[Any]]
    thread: threading.Thread


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
            :mod:`headrace.mix.schedule`. None (the default): as the dataset's config says, or
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
        order = BatchOrder(dataset, batch_size, row_order, options.get("last_batch"))
        self.placement = Placement(
            sharding if sharding is not None else batch_sharding(mesh, batch_axis)
        )
        self.prefetch_bytes = checked_budget(prefetch_bytes)
        self._options = options
        delivery = Delivery(order, self.placement, self.prefetch_bytes, options)
        self._horizons = Horizons(delivery)
        self._show(order)
        self.row_exchange: ExchangeSetting = delivery.row_exchange
        self._stall_rule = options.get("stall_rule") or StallRule()
        self._check_hosts = options.get("check_hosts", True)
        self._compared = False
        self._host_barrier = options.get("host_barrier", HostBarrier())
        self._lock = threading.Lock()
        self._finished = IterationStats(self._stall_rule)
        # One per iteration, and nothing else updates it.
        self._counted: list[_Iteration] = []
        self._requests_before = request_counts()
        self.on_iterate: Callable[[], None] = lambda: None

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
        delivery = self._horizons.loads
        read = next(iter(delivery.reader(stats, Grouping(0)).batches(step, step + 1)))
        ready: list[Any] = []
        delivery.to_devices([read], step, ready, stats)
        return self._finish(ready[0])

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
        return bool(self._horizons.steps)

    @property
    def step(self) -> int:
        """Steps whose batches the trainer has."""
        return max(self._horizons.steps, default=0)

    @property
    def earliest_step(self) -> int:
        """The first step that no open iteration of any process has planned before the trainer
        takes another batch.
        """
        apart = 0
        if self._host_barrier is not None and len(self.processes) > 1:
            apart = self._host_barrier.every
        return self.step + apart + _MOST_PLANNED

    def delivery_of(self, dataset: AsyncDataset[Any]) -> Delivery:
        """What the loader would deliver if it loaded another dataset.

        Raises:
            ConfigError: its batches do not fit the devices or the options of the loader.
        """
        order = BatchOrder(dataset, None, self.row_order, self._options.get("last_batch"))
        return Delivery(order, self.placement, self.prefetch_bytes, self._options)

    def hold_plans(self, step: int) -> bool:
        """Holds the plans of all open iterations at a step until :meth:`go_on`; False, and no plan
        holds, if one has planned it already.
        """
        return self._horizons.hold_at(step)

    def go_on(self, changed: Delivery | None = None) -> None:
        """Lets iterations go on after :meth:`hold_plans`: from that step on with another delivery,
        whose batches before it are the same, or, if it is None, as before.
        """
        if changed is not None:
            self._show(changed.order)
        self._horizons.decide(changed)

    def _show(self, order: BatchOrder) -> None:
        """Is this order, for whoever asks, from one moment to the next: a loader is a
        :class:`BatchOrder` whose fields change all at once.
        """
        vars(self).update(vars(order))

    def _iterate(self, step: int, replayed: int) -> Prefetched[Any]:
        # 1. The plan that this iteration follows, the same on all hosts.
        stats = IterationStats(self._stall_rule, WaitLog(step), replay=replayed > 0, step=step)
        gate = open_gate(self.processes, step, None if replayed else self._host_barrier, stats)
        delivery = self._horizons.loads
        if replayed:
            horizon = Horizon(step, min(step + replayed, self.num_steps or MAX_STEP))
        else:
            horizon, delivery = self._horizons.begin(step, stats)
            self.on_iterate()
        try:
            if gate is not None:
                gate.begin()  # before the processes meet in a collective
            horizon, delivery = self._agreed(step, stats, horizon, delivery, replayed > 0)
        except BaseException as error:
            horizon.close()
            if gate is not None and isinstance(error, HeadraceError):
                gate.leave(error)
            raise
        # 2. How many batches are ready or being made, and how many of them in a group.
        rows = self.placement.local_rows(self.schedule.max_size).size
        batch_bytes = max(rows * delivery.row_bytes, 1)  # of the largest on this host
        ready = int(np.clip(self.prefetch_bytes // 8 // batch_bytes, 1, _MAX_READY))
        # One group is taken, one ready, one delivered, the others gathered; without room for four,
        # batches come singly
        group = 0 if ready < 4 else int(np.clip(ready // (GATHERING + 3), 1, GROUP))
        if group == GROUP and 2 * GROUP * batch_bytes <= _SMALL_GROUP:
            group = 2 * GROUP
        gathering = min(ready // group - 3, GATHERING) if group else 0
        # 3. The thread that makes them.
        course = _Course(
            self._horizons,
            step,
            stats,
            Grouping(group, gathering),
            horizon,
            delivery,
            exchanges=not replayed,
        )
        make = course.groups
        batches = Prefetched(
            partial(_replayed, make) if replayed else make,
            _READY_REPLAYS if replayed else ready - (gathering + 1) * group,
            stats.queue,
            interrupt=course.interrupt,
            gate=gate,
            finish=self._finish,
        )
        with self._lock:
            self._fold_finished()
            self._counted.append(_Iteration(course, weakref.ref(batches), batches.thread))
        return batches

    def _agreed(
        self, step: int, stats: IterationStats, horizon: Horizon, delivery: Delivery, replayed: bool
    ) -> tuple[Horizon, Delivery]:
        """The plan of an iteration and what it delivers, which are the same on all hosts.

        In the first iteration, hosts check that they load the same; where they exchange rows, in
        each, as rows of another step or run would pass for those of this one.
        """
        exchanges = not replayed and delivery.new_exchange() is not None
        if not (self._check_hosts and (exchanges or not self._compared)):
            return horizon, delivery

        def described() -> dict[str, Any]:
            return {"step": step, **delivery.described}

        def begin_again() -> None:
            """Begins with what is agreed by now: a host may hear of it after the others."""
            nonlocal horizon, delivery
            if not replayed:
                outdated = horizon
                horizon, delivery = self._horizons.begin(step, stats)
                outdated.close()  # last: the loader iterates all the time

        devices = self.placement.sharding.device_set
        check_same(devices, described, lambda: self._named(step), begin_again)
        self._compared = True
        return horizon, delivery

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
            for iteration in self._counted:
                total.absorb(iteration.course.stats)
            resident = sum(iteration.course.resident_bytes for iteration in self._counted)
        sent = request_counts() - self._requests_before
        names = ("requests", "retries", "hedges", "damaged", "refused", "replica_switches")
        over_http = ReadStats(**{name: getattr(sent, name) for name in names})
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

    def _finish(self, delivered: Any) -> Any:
        """The batch as a trainer gets it: rows exchanged and split into micro-batches, if
        configured (collectives).

        A method, so that whoever has the batches has the loader, too: a run steers its loaders,
        also those that nobody else holds, as in ``for batch in run.loader(): ...``.
        """
        if isinstance(delivered, Partial):
            return delivered()
        return exchange_rows(delivered) if isinstance(delivered, PooledRows) else delivered

    def _fold_finished(self) -> None:
        """Sums up iterations that nobody refers to any more, so that memory does not grow with
        their number.
        """
        for iteration in list(self._counted):
            if iteration.batches() is None and not iteration.thread.is_alive():
                self._finished.absorb(iteration.course.stats)
                self._counted.remove(iteration)

    def close(self) -> None:
        """Stops all background work of this loader."""
        for iteration in list(self._counted):
            if (batches := iteration.batches()) is not None:
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


class Delivery:
    """Delivers batches to devices. It does not change: when a run changes while it is iterated, its
    loader gets another delivery (:mod:`headrace.feed.horizon`), and what has begun goes on with the
    one that it began with.

    Args:
        order: The batches.
        placement: Which rows each device holds.
        max_bytes: Budget for stored blocks, for each reader.
        options: Those of the loader.

    Raises:
        ConfigError: the batches do not fit the devices or the options.
    """

    def __init__(
        self, order: BatchOrder, placement: Placement, max_bytes: int, options: LoaderOptions
    ) -> None:
        self.order = order
        self._placement = placement
        self._max_bytes = max_bytes
        self._mapping = options.get("memory_map", True)
        self._seq_lens = order.dataset.seq_lens
        for size in order.schedule.unique_sizes:
            for seq_len in self._seq_lens or (0,):
                placement.check(size, seq_len)
        layout = options.get("sequence_layout", "contiguous")
        order.functions += sequence_layout(layout, placement.sequence_ranks, self._seq_lens)
        micro = options.get("micro_batches")
        self._splitter = None if micro is None else StepSplitter(micro, order, placement, layout)
        self._deliver = None
        if order.planned is not None and not order.functions:
            maker = BatchMaker(order.planned.eos_id, order.planned.pairs)
            self._deliver = partial(maker.of_devices, placement)
        # functions get whole rows, even if each device then holds only some columns
        self._reads = placement if self._deliver is not None else Placement(placement.rows_sharding)
        self.row_exchange: ExchangeSetting = check_exchange(
            options.get("row_exchange", "auto"), order
        )

    @property
    def num_steps(self) -> int | None:
        """Steps until the data end; None if they are endless."""
        return self.order.num_steps

    @cached_property
    def described(self) -> dict[str, Any]:
        """What must be equal on all hosts, as JSON values."""
        lengths = self._seq_lens[0] if len(self._seq_lens) == 1 else self._seq_lens
        return {
            "seq_len": lengths,
            "row_exchange": self.row_exchange,
            **self.order.describe(),
        }

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on this host; of one that a custom dataset reads, a guess."""
        planned = self.order.planned
        if planned is None:
            return 1 << 16
        begin, end = self._reads.local_columns(planned.seq_len)
        return planned.row_bytes * (end - begin) // max(planned.seq_len, 1)

    def new_exchange(self) -> RowExchange | None:
        """Which rows an iteration reads for other processes; None: no rows are exchanged."""
        holders = holders_of(self._placement.rows_sharding)
        one_holder = (holders == holders[0]).all()
        if self.row_exchange == "off" or self.order.planned is None or one_holder:
            return None
        return RowExchange(holders, self.row_exchange)

    def reader(
        self,
        stats: IterationStats,
        grouping: Grouping,
        exchange: RowExchange | None = None,
        horizon: Horizon | None = None,
    ) -> BatchReader:
        """A reader of this process's part of the batches."""
        check_same_process()  # neither the stores' threads nor jax survive a fork
        return open_batch_reader(
            self.order,
            self._reads,
            self._max_bytes,
            stats,
            grouping,
            mapping=self._mapping,
            exchange=exchange,
            horizon=horizon,
        )

    def to_devices(
        self, group: list[Any], first_step: int, ready: list[Any], stats: IterationStats
    ) -> None:
        """Takes batches of consecutive steps that were read from ``group``, and adds them to
        ``ready`` on the devices.
        """
        if self._deliver is not None and self._splitter is None and isinstance(group[0], HostRows):
            with stats.waits.during("transfer"):
                self._deliver(group, ready)
            return
        step = first_step
        while group:
            ready.append(self._delivered_alone(group.pop(0), step, stats))
            step += 1

    def _delivered_alone(self, host: Any, step: int, stats: IterationStats) -> Any:
        """A batch that comes from functions, or is put together only when the trainer takes it."""
        with stats.waits.during("transfer"):
            if isinstance(host, PooledRows):
                origin = self._placement.to_global(host.origin, host.batch_size)
                delivered = host._replace(
                    arrays=self._deliver_arrays(host.arrays, [host.array_size]), origin=origin
                )
            else:
                delivered = self._deliver_arrays(host, self.order.schedule.unique_sizes)
        if self._splitter is None:
            return delivered
        with stats.waits.during("plan"):
            split, layout = self._splitter.planned(step, host)
        stats.reads.micro_batch_places += layout
        return Partial(split, delivered)

    def _deliver_arrays(self, host: Any, sizes: Sequence[int]) -> Any:
        if self._deliver is None:
            return jax.tree.map(partial(self._leaf_to_devices, sizes=sizes), host)
        ready: list[Any] = []
        self._deliver([host], ready)
        return ready[0]

    def _leaf_to_devices(self, leaf: Any, sizes: Sequence[int]) -> jax.Array:
        shape = np.shape(leaf)
        for size in sizes:
            if shape and self._placement.local_rows(size).size == shape[0]:
                of_tokens = len(shape) < 2 or not self._seq_lens or shape[1] in self._seq_lens
                return self._placement.to_global(np.asarray(leaf), size, along_rows=not of_tokens)
        raise ConfigError(
            f"gives an array of shape {shape}, whose first axis does not run over the rows of a"
            " batch",
            field="dataset",
            cure="get_batch, and functions given to map(), must give one entry a row in every"
            " array.",
        )


class _Course:
    """The batches of an iteration: of one reader up to a step from which the run is changed, then
    of the next.
    """

    def __init__(
        self,
        horizons: Horizons[Delivery],
        step: int,
        stats: IterationStats,
        grouping: Grouping,
        horizon: Horizon,
        delivery: Delivery,
        *,
        exchanges: bool,
    ) -> None:
        self.stats = stats
        self._horizons = horizons
        self._step = step
        self._grouping = grouping
        self._horizon = horizon
        self._delivery = delivery
        self._exchanges = exchanges
        self._closed = False
        # None once all batches are made: what it holds is free from then on
        self._reader: BatchReader | None = self._open_reader()

    def _open_reader(self) -> BatchReader:
        exchange = self._delivery.new_exchange() if self._exchanges else None
        return self._delivery.reader(self.stats, self._grouping, exchange, self._horizon)

    @property
    def resident_bytes(self) -> int:
        """Bytes of stored blocks in memory."""
        reader = self._reader
        return 0 if reader is None else reader.resident_bytes

    def interrupt(self) -> None:
        """Makes whatever :meth:`groups` waits for give up. Safe to call from any thread."""
        self._closed = True
        self._horizon.close()
        if (reader := self._reader) is not None:
            reader.interrupt()

    def groups(self) -> Iterator[list[Any]]:
        try:
            while (reader := self._reader) is not None:
                yield from self._delivered(reader)
                horizon = self._horizon
                following = self._horizons.follow(horizon) if horizon.is_changed else None
                if following is None:
                    return
                self._horizon, self._delivery = following
                self._reader = self._open_reader()
                if self._closed:  # meanwhile, and saw the plan before this one
                    self._reader.close()
                    return
        finally:
            self._reader = None
            # Not yet at the end: whoever takes the batches has them before him
            if self._closed:
                self._horizon.close()

    def _delivered(self, reader: BatchReader) -> Iterator[list[Any]]:
        """The groups of one reader, on the devices."""
        ready: list[Any] = []  # emptied by whoever takes it
        try:
            for group in reader.groups(self._step, self._horizon.stop):
                first_step = self._step
                self._step += len(group)
                self._delivery.to_devices(group, first_step, ready, self.stats)
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
