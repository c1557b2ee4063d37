"""``Draws``: from a global example index to (component, ordinal within the component), for any
index in any order.

A policy determines the number of examples of each component in a step and the order of its rows;
``Draws`` numbers them. Ordinals of a component are 0, 1, 2, ... without a gap over the whole run,
whatever the weights; the component's own order maps them to rows of its store.

Price: 50 us for a step of 1024 rows and 20 components (0.05 us per index); the step's table is
cached for further calls.

**Skipped steps** (:class:`Skips`) are batches that a run leaves out, after a spike of its loss for
instance. A run's **plan** has a batch for each of its steps. ``skip: [[1200, 1400]]`` leaves out
those of steps 1200 to 1399: step 1200 of the run has what the plan has for step 1400, and so on.
This is the one place that maps steps of a run to steps of its plan, so everything that follows from
draws knows it.

With pencil and paper: ``[[3, 5], [6, 7]]``.

step of the run   0 1 2 3 4 5 6
step of the plan  0 1 2 5 7 8 9

A later amendment counts the steps that are left. After the one above, ``[[4, 6]]`` leaves out steps
7 and 8 of the plan.

What a plan says of steps belongs to its batches, so a skip brings it forward: schedules of weights,
stages, lengths of rows, sizes of batches. Amendments name steps of the run.

**The end.** A stop strategy says what the end of a source means for the mixture, with the names of
``datasets`` and Levanter:

* ``restart``: nothing, sources start over in a new order; the mixture ends only if limits end it;
* ``first_exhausted``: the mixture ends before the first example that some source does not have;
* ``all_exhausted``: it ends once every source was used up at least once; smaller ones start over
  until then.

A source is used up after one pass, or at its limit if that comes first: limits never make a source
last longer. ``all_exhausted`` does not wait for a source that is no longer drawn because its weight
is 0 from some step on.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix.policy import Anchor, MixingPolicy, StepTable, anchor_integer, refused
from headrace.mix.schedule import MAX_STEP, BatchSchedule
from headrace.mix.shares import UNLIMITED

StopStrategy: TypeAlias = Literal["restart", "first_exhausted", "all_exhausted"]
"""What ends a mixture whose components have an end."""
STOP_STRATEGIES = get_args(StopStrategy)
_TABLES = 32
_WASTE = 4  # rows computed per requested row, up to which whole steps are cheaper


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
        for (first, until), skipped in zip(self._stretches, self._before.tolist(), strict=True):
            step = max(first, planned - skipped)
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
        for (begin, end), skipped in zip(self._stretches, self._before.tolist(), strict=True):
            low = max(first, begin)
            high = min(stop, end)
            if low < high:
                yield low + skipped, high + skipped

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


class Draws:
    """Routes global example indices to components.

    Args:
        policy: What draws; it has its own batch schedule and limits.
        skips: Skipped steps: the policy counts those of the plan, all methods here those of the
            run.

    Example:
        >>> from headrace.mix.blend import Blend
        >>> from headrace.mix.stages import Stage, Stages
        >>> d = Draws(Stages("ab", [Stage(0, Blend({"a": 3, "b": 1}))], BatchSchedule(4)))
        >>> component, ordinal = d.route(np.array([0, 1, 2, 3, 4, 5, 6, 7]))
        >>> component.tolist(), ordinal.tolist()
        ([0, 0, 1, 0, 0, 0, 1, 0], [0, 1, 0, 2, 3, 4, 1, 5])
        >>> d.counts_at(7), d.starts_at(7), d.index_of(1, ordinal=1)
        (array([3, 1]), array([21,  7]), 6)
    """

    def __init__(self, policy: MixingPolicy, skips: Skips = NO_SKIPS) -> None:
        self.policy = policy
        self.skips = skips
        self.batch = skips.left_of(self.policy.batch)
        self.components = self.policy.components
        # Filled without a lock: concurrent threads store equal values.
        self._tables: list[tuple[int, StepTable] | None] = [None] * _TABLES

    def counts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Rows of each component in ``step``.

        Raises:
            IndexOutOfRangeError: the step is negative, or the mixture ends before it; likewise for
                all methods with a step.
        """
        return self.policy.counts_at(self._planned(step))

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """The ordinal of each component that ``step`` begins with: its rows in all earlier steps,
        and in those that were skipped.
        """
        return self.policy.starts_at(self._planned(step))

    def _planned(self, step: int) -> int:
        _check_step(step)
        return self.skips.planned_step(step)

    def anchor_at(self, step: int) -> Anchor | None:
        """The policy's state near ``step``, as JSON values; None for a policy without a state.

        Example:
            >>> from headrace.mix.blend import Blend
            >>> from headrace.mix.stages import Stage, Stages
            >>> stages = [Stage(0, Blend({"a": {"linear": {0: 1, 10**6: 3}}, "b": 1}))]
            >>> d, again = (Draws(Stages("ab", stages, BatchSchedule(4))) for _ in range(2))
            >>> again.use_anchor(d.anchor_at(50_000))
            >>> again.starts_at(50_000).tolist() == d.starts_at(50_000).tolist()
            True
        """
        state = self.policy.anchor_at(self._planned(step))
        return (
            None
            if state is None
            else {"policy": type(self.policy).__name__, "step": step, "state": state}
        )

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """Continues from the result of :meth:`anchor_at` of equal draws: later steps then cost what
        the first ones cost.

        Earlier steps are counted from the beginning. It only saves time.

        Raises:
            ConfigError: it is damaged, or of other draws as far as that can be seen.
        """
        name = type(self.policy).__name__
        state = anchor.get("state")
        if anchor.get("policy") != name or not isinstance(state, Mapping):
            raise refused(f"is not one of {name}")
        anchor_integer(anchor, "step")
        self.policy.use_anchor(cast(Mapping[str, object], state))

    def step_table(self, step: int) -> StepTable:
        """Component and ordinal of each row of ``step``, in stream order. Read-only arrays, shared
        between calls.
        """
        _check_step(step)
        entry = self._tables[step % _TABLES]
        if entry is None or entry[0] != step:
            planned = self.skips.planned_step(step)
            component = self.policy.components_at(planned)
            by_component = np.argsort(component.astype(np.uint16), kind="stable")  # radix sort
            counts = np.bincount(component, minlength=self.components)
            shift = self.policy.starts_at(planned) - (np.cumsum(counts) - counts)
            ordinal = np.empty(len(component), np.int64)
            ordinal[by_component] = np.arange(len(component)) + np.repeat(shift, counts)
            component.flags.writeable = ordinal.flags.writeable = False
            entry = self._tables[step % _TABLES] = (step, (component, ordinal))
        return entry[1]

    def route(
        self, i: Int64[np.ndarray, " n"]
    ) -> tuple[Int32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Component and ordinal of global example indices, in any order, over any steps.

        Args:
            i: Indices ``offset_at(step) + row``. They are not checked.

        Returns:
            Components (int32) and ordinals within them (int64), in the order of ``i``.

        Raises:
            IndexOutOfRangeError: an index is past the end of a finite mixture.
        """
        if i.size == 0:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        low, high = (int(s) for s in self.batch.step_of(np.array([i.min(), i.max()])))
        if low == high:
            return _pick(self.step_table(low), i - self.batch.rows_at(low)[0])
        tables = self._tables_between(low, high, i.size)
        if tables is not None:
            at = i - self.batch.rows_at(low)[0]
            return tables[0][at], tables[1][at]
        steps = self.batch.step_of(i)
        rows = i - self.batch.offset_at(steps)
        component = np.empty(len(i), np.int32)
        ordinal = np.empty(len(i), np.int64)
        by_step = np.argsort(steps, kind="stable")
        distinct, first = np.unique(steps[by_step], return_index=True)
        for step, rows_here in zip(distinct.tolist(), np.split(by_step, first[1:]), strict=True):
            component[rows_here], ordinal[rows_here] = _pick(self.step_table(step), rows[rows_here])
        return component, ordinal

    def _tables_between(self, low: int, high: int, asked: int) -> StepTable | None:
        """The rows of the steps ``low`` to ``high``, if the policy has them in one go and most are
        asked for.
        """
        first = self.batch.rows_at(low)[0]
        (last, size) = self.batch.rows_at(high)
        if last + size - first > _WASTE * asked:
            return None
        sizes = self.batch.size_at(np.arange(low, high + 1))
        planned = [*self.skips.stretches(low, high + 1)]
        together = len(planned) == 1 and (sizes == sizes[0]).all()
        return self.policy.tables_between(*planned[0]) if together else None

    def index_of(self, component: int, ordinal: int) -> int | None:
        """Global index of an example of a component: the inverse of :meth:`route`. None if it is
        never drawn, or skipped.

        Costs the count up to its step, unless a later one was requested before, and about 20 ms.
        """
        supply = self.policy.supply()
        if not 0 <= ordinal < supply[component]:
            return None
        stop = 1
        last = (
            MAX_STEP
            if supply.max() >= UNLIMITED
            else int(self.policy.batch.step_of(supply.sum(keepdims=True) - 1)[0]) + 1
        )
        while stop < last and self.policy.starts_at(stop)[component] <= ordinal:
            stop = min(2 * stop, last)
        steps = range(stop)
        planned = (
            bisect.bisect_right(
                steps, ordinal, key=lambda s: int(self.policy.starts_at(s)[component])
            )
            - 1
        )
        step = self.skips.step_of(planned)
        if self.skips.planned_step(step) != planned:
            return None
        drawn, position = self.step_table(step)
        row = int(np.flatnonzero((drawn == component) & (position == ordinal))[0])
        return self.batch.rows_at(step)[0] + row

    def count_examples(
        self, sizes: Sequence[int | None], stop: str, limits: Sequence[int | None]
    ) -> int | None:
        """Examples of the mixture under one of the ``STOP_STRATEGIES``; None if there is no end.

        Args:
            sizes: Examples of each component, None for an endless one.
            stop: The strategy.
            limits: Most examples of each component, as the policy has them.

        Example:
            >>> from headrace.mix.blend import Blend
            >>> from headrace.mix.stages import Stage, Stages
            >>> stages = [Stage(0, Blend({"a": 3, "b": 1}))]  # a a b a | a a b a | ...
            >>> d = Draws(Stages("ab", stages, BatchSchedule(4)))
            >>> [d.count_examples([10, 4], stop, [None, None]) for stop in STOP_STRATEGIES]
            [None, 13, 15]
        """
        supply = self.policy.supply()
        ends: list[int | None] = [] if supply.max() >= UNLIMITED else [int(supply.sum())]
        if stop == "first_exhausted":
            for d, (size, limit) in enumerate(zip(sizes, limits, strict=True)):
                if limit is not None and (size is None or limit < size):
                    # It is skipped from then on: there are no further examples
                    ends.append(self._end_of(d, limit))
                elif size is not None:
                    ends.append(self.index_of(d, size))
        elif stop == "all_exhausted":
            drawn = [None if rows >= UNLIMITED else int(rows) for rows in supply]
            most = [[n for n in pair if n is not None] for pair in zip(sizes, drawn, strict=True)]
            used_up = [self._end_of(d, min(rows)) if rows else None for d, rows in enumerate(most)]
            if None not in used_up:
                ends.append(max(filter(None, used_up), default=0))
        return min((end for end in ends if end is not None), default=None)

    def _end_of(self, component: int, size: int) -> int | None:
        """Examples of the mixture up to the last of a component's first ``size``; None if it never
        has that many.
        """
        if size == 0:
            return 0
        last = self.index_of(component, size - 1)
        return None if last is None else last + 1


def _check_step(step: int) -> None:
    if not isinstance(step, int | np.integer) or step < 0:
        raise IndexOutOfRangeError(
            "is no step", field="step", value=step, cure="Steps are whole numbers from 0 on."
        )


def _pick(
    table: StepTable, rows: Int64[np.ndarray, " n"]
) -> tuple[Int32[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    if int(rows.max()) >= len(
        table[0]
    ):  # the last step of a finite mixture may hold fewer than its batch
        problem = f"the mixture's last step holds only {len(table[0])} examples"
        raise IndexOutOfRangeError(problem, field="row", value=int(rows.max()))
    return table[0][rows], table[1][rows]
