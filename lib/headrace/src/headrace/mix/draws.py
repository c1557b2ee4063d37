"""``Draws``: from a global example index to (component, ordinal within the component), for any
index in any order.

A policy determines the number of examples of each component in a step and the order of its rows;
``Draws`` numbers them. Ordinals of a component are 0, 1, 2, ... without a gap over the whole run,
whatever the weights; the component's own order maps them to rows of its store.

Price: 50 us for a step of 1024 rows and 20 components (0.05 us per index); the step's table is
cached for further calls.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix.blend import Blend, blend_of
from headrace.mix.policy import Anchor, MixingPolicy, StepTable, anchor_integer, refused
from headrace.mix.quota import Quota
from headrace.mix.schedule import MAX_STEP, BatchSchedule, Weight
from headrace.mix.shares import UNLIMITED
from headrace.mix.skips import NO_SKIPS, Skips
from headrace.order.order import check_indices

_TABLES = 32
_WASTE = 4  # rows computed per requested row, up to which whole steps are cheaper


class Draws:
    """Routes global example indices to components.

    Args:
        weights: One :class:`Weight` for each component; or a mapping or :class:`Blend` (components
            in its order of names), drawn by :class:`Quota`. Or a policy, which has its own batch
            schedule and limits.
        batch: Examples per step.
        limits: Largest number of examples of each component in the whole run (see :class:`Quota`).
        skips: Skipped steps: the policy counts those of the plan, all methods here those of the
            run.

    Raises:
        ConfigError: no component; weights that :class:`Blend` refuses; ``batch`` missing, or given
            with a policy.

    Example:
        >>> from headrace.mix.schedule import weight_from_config
        >>> d = Draws([weight_from_config(3), weight_from_config(1)], BatchSchedule(4))
        >>> component, ordinal = d.route(np.array([0, 1, 2, 3, 4, 5, 6, 7]))
        >>> component.tolist(), ordinal.tolist()
        ([0, 0, 1, 0, 0, 0, 1, 0], [0, 1, 0, 2, 3, 4, 1, 5])
        >>> d.counts_at(7), d.starts_at(7), d.index_of(1, ordinal=1)
        (array([3, 1]), array([21,  7]), 6)
    """

    def __init__(
        self,
        weights: Sequence[Weight] | Mapping[str, object] | Blend | MixingPolicy,
        batch: BatchSchedule | None = None,
        limits: Sequence[int | None] | None = None,
        skips: Skips = NO_SKIPS,
    ) -> None:
        if isinstance(weights, MixingPolicy):
            self.policy = weights
            for name, value in (("batch", batch), ("limits", limits)):
                if value is not None:
                    raise ConfigError(
                        "is the policy's own", field=name, value=value, cure="Leave it out."
                    )
        else:
            if batch is None:
                raise ConfigError(
                    "is missing",
                    field="batch",
                    cure="Give a BatchSchedule, e.g. BatchSchedule(128).",
                )
            blend = blend_of(weights)
            self.policy = Quota(
                blend.at, len(blend.names), batch, limits, max(blend.breaks, default=0)
            )
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
            >>> d, again = (
            ...     Draws({"a": {"linear": {0: 1, 10**6: 3}}, "b": 1}, BatchSchedule(4))
            ...     for _ in range(2)
            ... )
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
            i: Indices ``offset_at(step) + row``.

        Returns:
            Components (int32) and ordinals within them (int64), in the order of ``i``.

        Raises:
            IndexOutOfRangeError: an index is negative, not an integer, or past the end of a finite
                mixture.
        """
        i = check_indices(i, None)
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
