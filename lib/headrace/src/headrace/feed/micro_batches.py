"""Micro-batches of a loader: which rows go where at each step, and the program that puts them
there.

Batches are read and delivered as usual, whichever process reads a row. The plan of a step follows
from the lengths of its rows, which all processes know; the devices then exchange rows, in one
program per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from headrace.batch.micro_plan import MicroBatchConfig, MicroPlan, MicroShape
from headrace.batch.micro_step import MicroBatches, lay_out
from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import run_blocking
from headrace.data.dataset import BatchOrder, PlannedDataset
from headrace.data.rows import segments_of
from headrace.errors import ConfigError
from headrace.feed.exchange import PooledRows, exchange_rows, row_shards
from headrace.feed.placement import Placement
from headrace.feed.plan import global_rows
from headrace.mix.data_end import data_end
from headrace.mix.schedule import BatchSchedule, RowOrder

_LOOKED_STEPS = 8


def plan_step(
    config: MicroBatchConfig,
    dataset: PlannedDataset,
    schedule: BatchSchedule,
    step: int,
    row_order: RowOrder = "locality",
    ways: int = 1,
) -> tuple[MicroShape, MicroPlan, Int32[np.ndarray, "B M"]]:
    """Shape and plan of the micro-batches of a step, and the segments of its rows. Reads nothing.

    Args:
        config: How to cut the batch.
        dataset: The loaded dataset.
        schedule: Its batch sizes.
        step: The step.
        row_order: Order of the rows within the batch.
        ways: Number of parts into which a mesh splits rows.
    """
    served, _, sizes, valid, rows = global_rows(dataset, schedule, step, 1, row_order)
    segments = segments_of(served.sources, rows.source, rows.row)
    if segments is None:
        segments = np.full((rows.row.size, 1), served.seq_len, np.int32)
    size = int(sizes[0])
    shape = config.shape(size, served.seq_len, segments.shape[1], ways)
    padded = np.zeros((size, segments.shape[1]), np.int32)
    padded[: int(valid[0])] = segments
    return shape, config.plan(padded, shape), padded


class MicroForecast(NamedTuple):
    """Counts of the micro-batches in the first steps of a run.

    Attributes:
        mean: Average number of micro-batches per step.
        room: Largest number of micro-batches that the shape has room for.
        rows: Rows per micro-batch.
        places: Places per row.
        fill: Share of places with tokens, among the micro-batches that hold rows.
    """

    mean: float
    room: int
    rows: int
    places: int
    fill: float

    @classmethod
    def of(
        cls,
        config: MicroBatchConfig,
        dataset: PlannedDataset,
        schedule: BatchSchedule,
        row_order: RowOrder,
    ) -> MicroForecast:
        """The forecast for one device, or for the config's ``rows``. Raises like
        :func:`check_micro_batches`.
        """
        check_micro_batches(config, dataset, dataset.seq_lens)
        end = data_end(schedule, dataset.length)
        last = _LOOKED_STEPS if end is None else end.num_steps
        steps = [
            plan_step(config, dataset, schedule, k, row_order)
            for k in range(min(last, _LOOKED_STEPS))
        ]
        shape = max(shape for shape, _, _ in steps)
        counts = sum(plan.filled for _, plan, _ in steps)
        fill = sum(int(segments.sum()) for _, _, segments in steps) / (
            counts * shape.rows * shape.places
        )
        return cls(counts / len(steps), shape.number, shape.rows, shape.places, fill)

    def __str__(self) -> str:
        shape = f"{self.rows:,} x {self.places:,} tokens"
        return (
            f"Micro-batches of {shape}: {self.mean:.1f} a step, at most {self.room:,};"
            f" {self.fill:.1%} full."
        )


class StepSplitter:
    """Cuts the batches of a loader into micro-batches.

    Args:
        config: How to cut batches.
        order: The batches to load.
        placement: Which rows each device holds.
        sequence_layout: The loader's.

    Raises:
        ConfigError: the dataset has no rows of tokens; rows that are longer than a micro-batch's;
            rows of micro-batches that do not divide over the mesh; another layout than
            ``"contiguous"``.
    """

    def __init__(
        self,
        config: MicroBatchConfig,
        order: BatchOrder,
        placement: Placement,
        sequence_layout: str,
    ) -> None:
        self._config = config
        self._order = order
        self._placement = placement
        self._ways = row_shards(placement.rows_sharding)
        if sequence_layout != "contiguous":
            cure = "Leave it out, or leave micro_batches out."
            problem = "cannot be combined with micro_batches, whose rows are laid out later"
            raise ConfigError(problem, field="sequence_layout", value=sequence_layout, cure=cure)
        check_micro_batches(config, order.planned, order.dataset.seq_lens)
        for name, size, ways in (
            ("rows", config.rows or self._ways, self._ways),
            ("max_tokens", config.max_tokens, placement.sequence_ranks),
        ):
            if size % ways:
                cure = f"Use {-(-size // ways) * ways}, or another mesh."
                problem = f"is not divisible by the {ways} ways that the mesh splits it"
                raise ConfigError(problem, field=f"micro_batches.{name}", value=size, cure=cure)

    def planned(self, step: int, host: Any) -> tuple[Any, int]:
        """The function that cuts a step's delivered batch into micro-batches, on the devices; and
        the number of places in those of this process, including padding.

        Raises:
            ConfigError: rows of this process, in ``host``, hold other documents than planned: a
                function changed them.
        """
        order = self._order
        if order.planned is None:
            segments = self._segments_as_read(step, host)
            shape = self._config.shape(
                len(segments), order.dataset.seq_lens[0], segments.shape[1], self._ways
            )
            plan = self._config.plan(segments, shape)
        else:
            shape, plan, segments = plan_step(
                self._config, order.planned, order.schedule, step, order.row_order, self._ways
            )
        if isinstance(host, PackedBatch):
            local_segments = segments[self._placement.local_rows(len(segments))]
            lengths = host.segment_lengths
            if lengths is None:  # all rows are one whole document
                lengths = np.where(host.valid, local_segments.max(initial=0), 0)[:, None]
            if len(lengths) == len(local_segments) and not np.array_equal(lengths, local_segments):
                cure = "Change tokens, masks or weights alone, or leave micro_batches out."
                problem = (
                    "goes by the documents that are in the cache, and a function of batches"
                    " changed their lengths"
                )
                raise ConfigError(
                    problem, field="micro_batches", value=self._config.max_tokens, cure=cure
                )
        local = self._placement.local_rows(shape.rows).size
        return partial(_split, plan, shape, self._placement), plan.filled * local * shape.places

    def _segments_as_read(self, step: int, host: Any) -> Int32[np.ndarray, "B M"]:
        """Segment lengths of all rows of a step, for a dataset that knows them only once it is
        read, such as rollouts, of which each process has whole steps.
        """
        first, size = self._order.schedule.rows_at(step)
        if self._placement.local_rows(size).size < size:
            host = run_blocking(self._order.dataset.get_batch(np.arange(first, first + size)))
        batch = _checked_kind(host)
        if batch.segment_lengths is None:
            return np.where(batch.valid, batch.seq_len, 0)[:, None].astype(np.int32)
        return np.asarray(batch.segment_lengths)


def check_micro_batches(
    config: MicroBatchConfig, dataset: PlannedDataset | None, seq_lens: Sequence[int]
) -> None:
    """Raises ConfigError if the rows of a dataset, planned or not, cannot be cut into
    micro-batches.
    """
    if not seq_lens:
        cure = "Load token caches or rollouts, or leave micro_batches out."
        raise ConfigError(
            "needs rows of tokens", field="micro_batches", value=config.max_tokens, cure=cure
        )
    if dataset is not None and dataset.splits_documents:
        cure = "Pack the components (packing: {}), or leave split_documents or micro_batches out."
        problem = (
            "lays out rows by their segments, and rows that split_documents divides may have any"
            " number of them"
        )
        raise ConfigError(problem, field="micro_batches", value=config.max_tokens, cure=cure)
    for seq_len in seq_lens:
        config.check(seq_len)


def _split(plan: MicroPlan, shape: MicroShape, placement: Placement, batch: Any) -> MicroBatches:
    if isinstance(batch, PooledRows):
        batch = exchange_rows(batch)
    return lay_out(_checked_kind(batch), *plan, shape=shape, sharding=placement.sharding)


def _checked_kind(batch: Any) -> PackedBatch:
    if not isinstance(batch, PackedBatch):
        cure = "Leave micro_batches out, or make map() and fn return a PackedBatch."
        kind = type(batch).__name__
        raise ConfigError(
            "needs batches that are PackedBatch", field="micro_batches", value=kind, cure=cure
        )
    return batch
