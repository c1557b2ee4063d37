"""What happens at the end of the data: ``last_batch``, the same for whatever brings the end about.

Data end where a dataset is read once, where limits (``max_epochs``, ``max_tokens``) leave too few
rows for a step, or where a stop strategy ends a mixture. The rows up to there seldom fill the last
batch. With 154 rows and batches of 8, 19 steps are full and 2 rows are left:

=========  =====  ==================================================================================
pad        20     every row once; 6 rows of the last batch are empty: ``valid`` is False, their
                  weights are 0
drop       19     the 2 rows are in no batch
fill       20     every row once, and 6 rows again: those with which the data began, in their order
=========  =====  ==================================================================================

``fill`` and ``drop`` are the alignment of pack plans
(:meth:`~headrace.pack.plan.PackPlan.aligned_plan`) with the batch in the place of the ranks: ``rows
+ rows[:missing]``, around again if there are fewer rows than that; ``rows[:full]``. If the length
of rows changes during the run, ``fill`` repeats rows of the last length.

A run that stops earlier, at ``num_steps``, has no such batch. No other batch depends on
``last_batch``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError, format_count
from headrace.mix.schedule import BatchSchedule


@dataclass(frozen=True)
class DataEnd:
    """How finite data end.

    Attributes:
        rows: Rows of the data.
        num_steps: Steps that deliver them.
        padded_rows: Empty rows of the last batch.
        dropped_rows: Rows at the end that are in no batch.
        filled_rows: Rows of the last batch that were delivered before.
    """

    rows: int
    num_steps: int
    padded_rows: int = 0
    dropped_rows: int = 0
    filled_rows: int = 0

    def __str__(self) -> str:
        """What becomes of the last batch, as a sentence; empty if the data fill it.

        Example:
            >>> str(DataEnd(154, 20, padded_rows=6))
            'The data end after 154 rows: 6 rows of the last batch are empty (last_batch: pad).'
        """
        last = {
            "pad": (self.padded_rows, "of the last batch are empty"),
            "drop": (self.dropped_rows, "at the end are in no batch"),
            "fill": (self.filled_rows, "of the last batch are the first ones again"),
        }
        for name, (rows, what) in last.items():
            if rows:
                row_count = format_count(rows, "row")
                return (
                    f"The data end after {self.rows:,} rows: {row_count} {what} (last_batch:"
                    f" {name})."
                )
        return ""


def data_end(schedule: BatchSchedule, length: int | None) -> DataEnd | None:
    """The end of data of ``length`` rows in these batches; None if they have no end.

    Example:
        >>> data_end(BatchSchedule(8), 154)
        DataEnd(rows=154, num_steps=20, padded_rows=6, dropped_rows=0, filled_rows=0)
        >>> data_end(BatchSchedule(8, last_batch="drop"), 154)
        DataEnd(rows=154, num_steps=19, padded_rows=0, dropped_rows=2, filled_rows=0)
    """
    if length is None:
        return None
    if length == 0:
        return DataEnd(0, 0)
    last = int(schedule.step_of(np.asarray([length - 1]))[0])
    first, size = schedule.rows_at(last)
    later_rows = length - first
    missing = size - later_rows
    if missing == 0 or schedule.last_batch == "pad":
        return DataEnd(length, last + 1, padded_rows=missing)
    if schedule.last_batch == "drop":
        return DataEnd(length, last, dropped_rows=later_rows)
    return DataEnd(length, last + 1, filled_rows=missing)


def check_some_batch(schedule: BatchSchedule, length: int | None) -> None:
    """Raises ConfigError if dropping the last batch leaves none."""
    end = data_end(schedule, length)
    if end is not None and end.dropped_rows == end.rows > 0:
        raise ConfigError(
            f"leaves no batch: the data have {end.rows} rows, and a batch {schedule.rows_at(0)[1]}",
            field="last_batch",
            value="drop",
            cure="Use last_batch: pad or last_batch: fill, or a smaller batch_size.",
        )


def held_rows(
    schedule: BatchSchedule, length: int | None, steps: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """How many rows of each step hold data, repeated ones included; 0 behind the end."""
    sizes = schedule.size_at(steps)
    end = data_end(schedule, length)
    if end is None:
        return sizes
    rows = end.rows + end.filled_rows - end.dropped_rows
    return np.clip(rows - schedule.offset_at(steps), 0, sizes)


def repeated_from(
    indices: Int64[np.ndarray, " n"], length: int | None, begin: int = 0
) -> Int64[np.ndarray, " n"]:
    """Examples by which rows behind the end are filled: those from ``begin`` on, again.

    Example:
        >>> repeated_from(np.arange(8, 14), 10), repeated_from(np.arange(8, 14), 10, begin=8)
        (array([8, 9, 0, 1, 2, 3]), array([8, 9, 8, 9, 8, 9]))
    """
    if length is None or indices.size == 0 or int(indices.max()) < length:
        return indices
    return np.where(indices < length, indices, begin + (indices - length) % (length - begin))
