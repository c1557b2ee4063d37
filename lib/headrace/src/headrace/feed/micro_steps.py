"""The plan of the micro-batches of a step, and its forecast, from the lengths of rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from headrace.batch.micro_plan import MicroBatchConfig, MicroPlan, MicroShape
from headrace.data.dataset import PlannedDataset
from headrace.data.rows import segments_of
from headrace.errors import ConfigError
from headrace.feed.plan import RunRows
from headrace.mix.schedule import data_end

_LOOKED_STEPS = 8


def plan_step(
    config: MicroBatchConfig, run: RunRows, step: int, ways: int = 1
) -> tuple[MicroShape, MicroPlan, Int32[np.ndarray, "B M"]]:
    """Shape and plan of the micro-batches of a step, and the segments of its rows. Reads nothing.

    Args:
        config: How to cut the batch.
        run: The loaded rows.
        step: The step.
        ways: Number of parts into which a mesh splits rows.
    """
    served, _, _, sizes, valid, rows = run.of_steps(step, 1)
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
    def of(cls, config: MicroBatchConfig, run: RunRows) -> MicroForecast:
        """The forecast for one device, or for the config's ``rows``. Raises like
        :func:`check_micro_batches`.
        """
        check_micro_batches(config, run.dataset, run.dataset.seq_lens)
        end = data_end(run.schedule, run.dataset.length)
        last = _LOOKED_STEPS if end is None else end.num_steps
        steps = [plan_step(config, run, step) for step in range(min(last, _LOOKED_STEPS))]
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
