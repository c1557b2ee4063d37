"""Skipped steps: batches that a run leaves out, after a spike of its loss for instance.

A run's **plan** has a batch for each of its steps. ``skip: [[1200, 1400]]`` leaves out those of
steps 1200 to 1399: step 1200 of the run has what the plan has for step 1400, and so on. This is the
one place that maps steps of a run to steps of its plan. Draws ask it (:mod:`headrace.mix.draws`),
so everything that follows from draws knows it.

With pencil and paper: ``[[3, 5], [6, 7]]``.

step of the run   0 1 2 3 4 5 6
step of the plan  0 1 2 5 7 8 9

A later amendment counts the steps that are left. After the one above, ``[[4, 6]]`` leaves out steps
7 and 8 of the plan.

What a plan says of steps belongs to its batches, so a skip brings it forward: schedules of weights,
stages, lengths of rows, sizes of batches. Amendments name steps of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.mix.schedule import MAX_STEP, BatchSchedule


class Skips:
    """The skipped steps of a run.

    Args:
        ranges: First skipped step of the plan, and the one after the last; disjoint, in order.

    Example:
        >>> skips = Skips([(3, 5), (6, 7)])
        >>> skips.planned(np.arange(7)).tolist(), [skips.step_of(step) for step in (2, 3, 5, 8)]
        ([0, 1, 2, 5, 7, 8, 9], [2, 3, 3, 5])
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges = tuple((first, stop) for first, stop in ranges)
        sizes = [stop - first for first, stop in self.ranges]
        self._before = np.cumsum([0, *sizes], dtype=np.int64)
        self._first = np.array([first for first, _ in self.ranges], np.int64) - self._before[:-1]

    def then(self, skip: Iterable[Sequence[int]]) -> Skips:
        """These, and some steps of the run that is left.

        Example:
            >>> Skips([(3, 5), (6, 7)]).then([[4, 6]]).ranges
            ((3, 5), (6, 9))
        """
        further = [cut for first, stop in skip for cut in self.stretches(first, stop)]
        joined: list[tuple[int, int]] = []
        for first, stop in sorted([*self.ranges, *further]):
            if joined and joined[-1][1] == first:
                first = joined.pop()[0]
            joined.append((first, stop))
        return Skips(joined)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def total(self) -> int:
        """Number of skipped steps."""
        return int(self._before[-1])

    def planned(self, steps: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The steps of the plan whose batches these steps of the run have."""
        return steps + self._before[np.searchsorted(self._first, steps, side="right")]

    def planned_step(self, step: int) -> int:
        """The same for one step."""
        return int(self.planned(np.asarray([step]))[0])

    def step_of(self, planned: int) -> int:
        """The first step of the run that comes from this step of the plan or a later one."""
        for (first, until), before in zip(self._stretches, self._before.tolist(), strict=True):
            step = max(first, planned - before)
            if step < until:
                return step
        raise AssertionError("the last stretch has no end")

    @cached_property
    def _stretches(self) -> list[tuple[int, int]]:
        """First step of each stretch of the run without a skip inside, and the one after it."""
        return [*pairwise([0, *self._first.tolist(), 2 * MAX_STEP])]

    def stretches(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """The steps of the run from ``first`` to ``stop``, cut where something is skipped: pairs of
        steps of the plan.

        Example:
            >>> list(Skips([(3, 5), (6, 7)]).stretches(2, 7))
            [(2, 3), (5, 6), (7, 10)]
        """
        for (begin, end), before in zip(self._stretches, self._before.tolist(), strict=True):
            low = max(first, begin)
            high = min(stop, end)
            if low < high:
                yield low + before, high + before

    def left_of(self, batch: BatchSchedule) -> BatchSchedule:
        """The batch sizes of the run, from those of its plan."""
        if not self:
            return batch
        sizes = {self.step_of(step): size for step, size in batch.points}
        return BatchSchedule(sizes, last_batch=batch.last_batch)

    def rows_left(self, length: int | None, batch: BatchSchedule) -> int | None:
        """Rows of the run, from the rows and the batch sizes of its plan; None: endless.

        Raises:
            ConfigError: the rows end before a skipped step.

        Example:
            >>> Skips([(3, 5)]).rows_left(44, BatchSchedule(8))
            28
        """
        if length is None:
            return None
        rows_remaining = length
        for first, stop in self.ranges:
            begin = batch.rows_at(first)[0]
            if begin >= length:
                raise ConfigError(
                    "skips a step after the last one of the run",
                    field="skip",
                    value=[first, stop],
                    cure="Skip steps that the data have, or allow more epochs.",
                )
            rows_remaining -= min(batch.rows_at(stop)[0], length) - begin
        return rows_remaining


NO_SKIPS = Skips()


def check_skip(skip: Sequence[Sequence[int]], step: int, path: str) -> None:
    """Checks the skipped steps of an amendment that begins at ``step``.

    Raises:
        ConfigError: not pairs of whole numbers; reversed, overlapping, or before ``step``; the
            error names the field ``path``.
    """
    reached = step
    for number, pair in enumerate(skip):
        field = f"{path}[{number}]"
        if len(pair) != 2:
            cure = "Write the first skipped step and the one after the last: [[1200, 1400]]."
            raise ConfigError("is not a pair of steps", field=field, value=[*pair], cure=cure)
        first, stop = pair
        if stop <= first:
            cure = f"Write [{stop}, {first}]." if stop < first else f"Write [{first}, {first + 1}]."
            raise ConfigError("skips no step", field=field, value=[*pair], cure=cure)
        if stop > MAX_STEP:
            raise ConfigError(
                "is beyond step 2**40", field=field, value=[*pair], cure="Count in steps."
            )
        if first < reached:
            problem = f"begins before step {reached}, where the one before it ends"
            cure = "Sort them, and join those that overlap."
            if not number:
                problem = f"begins before step {step}, from which the amendment holds"
                cure = f"Begin it at {step} or later, or set the amendment's step to {first}."
            raise ConfigError(problem, field=field, value=[*pair], cure=cure)
        reached = stop
