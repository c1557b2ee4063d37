"""Micro-batches of a loader: which rows go where at each step, and the program that puts them
there.

Batches are read and delivered as usual, whichever process reads a row. The plan of a step follows
from the lengths of its rows, which all processes know; the devices then exchange rows, in one
program per step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int32

from headrace.batch.micro_plan import MicroBatchConfig, MicroPlan, MicroShape
from headrace.batch.micro_step import MicroBatches, lay_out
from headrace.batch.packed_batch import PackedBatch
from headrace.data.async_dataset import run_blocking
from headrace.data.dataset import BatchOrder
from headrace.errors import ConfigError
from headrace.feed.micro_steps import check_micro_batches, plan_step
from headrace.feed.placement import Placement
from headrace.feed.plan import RunRows
from headrace.feed.pooled_rows import PooledRows, exchange_rows, row_shards


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
            run = RunRows(order.planned, order.schedule, order.row_order)
            shape, plan, segments = plan_step(self._config, run, step, self._ways)
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
