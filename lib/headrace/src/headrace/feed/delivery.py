"""``Delivery``: how the batches of a loader come to its devices.

It does not change. When a run changes while it is iterated, its loader gets another delivery
(:mod:`headrace.feed.horizon`), and what has begun goes on with the one that it began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, TypedDict

import jax
import numpy as np
from jax.tree_util import Partial

from headrace.batch.context_parallel import SequenceLayout, sequence_layout
from headrace.batch.micro_plan import MicroBatchConfig
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.feed.exchange import RowExchange, check_exchange
from headrace.feed.horizon import Horizon
from headrace.feed.host_gate import HostBarrier
from headrace.feed.micro_batches import StepSplitter
from headrace.feed.placement import BatchMaker, HostRows, Placement
from headrace.feed.pooled_rows import PooledRows, holders_of
from headrace.feed.reader import BatchReader, Grouping, open_reader
from headrace.metrics import IterationStats
from headrace.mix.schedule import ExchangeSetting, LastBatch
from headrace.stalls import StallRule
from headrace.store.array import check_same_process


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


class Delivery:
    """Delivers batches to devices.

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

    def exchange(self) -> RowExchange | None:
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
        return open_reader(
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
            with stats.watch.phase("transfer"), stats.waits.during("transfer"):
                self._deliver(group, ready)
            return
        step = first_step
        while group:
            ready.append(self._delivered_alone(group.pop(0), step, stats))
            step += 1

    def _delivered_alone(self, host: Any, step: int, stats: IterationStats) -> Any:
        """A batch that comes from functions, or is put together only when the trainer takes it."""
        with stats.watch.phase("transfer"), stats.waits.during("transfer"):
            if isinstance(host, PooledRows):
                origin = self._placement.to_global(host.origin, host.batch_size)
                delivered = host._replace(
                    arrays=self._deliver_arrays(host.arrays, [host.array_size]), origin=origin
                )
            else:
                delivered = self._deliver_arrays(host, self.order.schedule.unique_sizes)
        if self._splitter is None:
            return delivered
        with stats.watch.phase("plan"), stats.waits.during("plan"):
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
