"""Stages: mixtures that follow each other, over one set of components whose ordinals run on without a gap.

A stage begins at a step and has a blend of its own, over any of the components; it hands out exact quotas from its
first step on (index/quota.py), whatever the stages before it did. Two things are stages: a **plan** that is known from
the start (pretraining, then mid-training, then long context) and an **amendment**, which a resumed run declares:
sources are added, dropped or weighted anew from a step on.

Invariant: a step depends on its own stage and on the steps before it, never on a later stage. So an amendment cannot
touch the past, and a component keeps its place in its order when its weight changes, when it pauses, and when others
come and go.

Price: that of ``Quota``; entering stage k walks through the stages before it, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError, did_you_mean
from headrace.index.blend import Blend, WeightsAt
from headrace.index.quota import Quota
from headrace.index.schedule import MAX_STEP, BatchSchedule
from headrace.index.shares import UNLIMITED


@dataclass(frozen=True)
class Stage:
    """One mixture of a run.

    Attributes:
        first_step: Global step at which it begins.
        blend: Weights, as functions of the **global** step, of the components that it uses.
        name: For reports and errors.
        max_share: Largest share of a batch that components may have at any step, by name; the others take the rest.
    """

    first_step: int
    blend: Blend
    name: str = ""
    max_share: Mapping[str, float] = field(default_factory=dict[str, float])


class Stages:
    """Exact quotas, stage after stage; a policy for :class:`~headrace.index.draws.Draws`.

    Args:
        names: All components, in the order in which they are numbered.
        stages: In order; the first begins at step 0.
        batch: Examples per step.
        limits: Most examples of each component in the whole run, None for no limit.

    Raises:
        ConfigError: no stage, stages that do not begin one after the other, a stage with an unknown component.

    Example:
        >>> early, late = Blend({"web": 3, "code": 1}), Blend({"code": 1, "math": 1})
        >>> run = Stages(["web", "code", "math"], [Stage(0, early), Stage(2, late)], BatchSchedule(4))
        >>> [np.bincount(run.components_at(s), minlength=3).tolist() for s in (1, 2)], run.starts_at(3).tolist()
        ([[3, 1, 0], [0, 2, 2]], [6, 4, 2])
    """

    def __init__(
        self,
        names: Sequence[str],
        stages: Sequence[Stage],
        batch: BatchSchedule,
        limits: Sequence[int | None] | None = None,
    ) -> None:
        if not stages or stages[0].first_step != 0:
            first = stages[0].first_step if stages else None
            raise ConfigError("must begin at step 0", field="stages[0].step", value=first, cure="Add a first stage.")
        for before, after in pairwise(stages):
            if not before.first_step < after.first_step <= MAX_STEP:
                raise ConfigError(
                    f"does not begin after the stage before it, at step {before.first_step}",
                    field=f"stages[{after.name or stages.index(after)}].step",
                    value=after.first_step,
                    cure="Sort the stages; each needs a step of its own.",
                )
        self.names, self.stages, self.batch = tuple(names), tuple(stages), batch
        self.components = len(self.names)
        self._limits = [None] * self.components if limits is None else list(limits)
        if len(self._limits) != self.components:
            raise ConfigError(f"needs one entry for each of {self.components} components", field="limits", value=limits)
        self._columns = [np.asarray([self._number(name, stage) for name in stage.blend.names]) for stage in stages]
        for stage in stages:
            for name in stage.max_share:
                if name not in stage.blend.names:
                    cure = did_you_mean(name, stage.blend.names)
                    raise ConfigError("is not a component of this stage", field=f"max_share.{name}", cure=cure)
        self._first_steps = [stage.first_step for stage in stages]
        # Filled without a lock: threads that meet store equal values.
        self._entered: list[Int64[np.ndarray, " d"] | None] = [None] * len(stages)
        self._quotas: list[Quota | None] = [None] * len(stages)

    def stage_at(self, step: int) -> int:
        """Number of the stage that holds a step."""
        return bisect_right(self._first_steps, step) - 1

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        return self._before(self.stage_at(step), step)

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order."""
        number = self.stage_at(step)
        try:
            drawn = self._quota(number).components_at(step - self._first_steps[number])
        except IndexOutOfRangeError as error:
            raise self._ended(number, step) from error
        return self._columns[number][drawn].astype(np.int32)

    def supply(self) -> Int64[np.ndarray, " d"]:
        """Examples of each component in the whole run, ``UNLIMITED`` for those drawn for ever."""
        last = len(self.stages) - 1
        total = self._start_of(last).copy()
        held = self._quota(last).supply()
        columns = self._columns[last]
        total[columns] = np.where(held == UNLIMITED, UNLIMITED, total[columns] + held)
        return total

    def prepare(self, steps: int) -> None:
        """Walks ahead, so that any step up to ``steps`` takes bounded time."""
        for number in range(self.stage_at(max(steps - 1, 0)) + 1):
            bounds = [*self._first_steps[1:], steps]
            self._quota(number).prepare(min(bounds[number], steps) - self._first_steps[number])

    @property
    def late_steps(self) -> int:
        """Steps, of those prepared so far, at which a component was a full example off its share (see ``Quota``)."""
        return sum(q.late_steps for q in self._quotas if q is not None)

    def _number(self, name: str, stage: Stage) -> int:
        if name not in self.names:
            where = f"stages[{stage.name or stage.first_step}].weights.{name}"
            raise ConfigError("is not a component", field=where, cure=did_you_mean(name, self.names))
        return self.names.index(name)

    def _before(self, number: int, step: int) -> Int64[np.ndarray, " d"]:
        """Examples drawn before a step of this stage, or before the first step after it."""
        total = self._start_of(number).copy()
        try:
            total[self._columns[number]] += self._quota(number).starts_at(step - self._first_steps[number])
        except IndexOutOfRangeError as error:
            raise self._ended(number, step) from error
        return total

    def _start_of(self, number: int) -> Int64[np.ndarray, " d"]:
        entered = self._entered[number]
        if entered is None:
            first = self._first_steps[number]
            entered = self._before(number - 1, first) if number else np.zeros(self.components, np.int64)
            self._entered[number] = entered
        return entered

    def _quota(self, number: int) -> Quota:
        quota = self._quotas[number]
        if quota is None:
            stage, drawn = self.stages[number], self._start_of(number)
            limits = [(self._limits[c], int(drawn[c])) for c in self._columns[number].tolist()]
            left = [None if most is None else max(most - had, 0) for most, had in limits]
            settled = max((b - stage.first_step for b in stage.blend.breaks), default=0)
            batch = _from_step(self.batch, stage.first_step)
            largest = [stage.max_share.get(name) for name in stage.blend.names]
            quota = Quota(_weights_of(stage), len(left), batch, left, max(settled, 0), largest)
            self._quotas[number] = quota
        return quota

    def _ended(self, number: int, step: int) -> IndexOutOfRangeError:
        return IndexOutOfRangeError(
            f"the mixture of the stage that begins at step {self._first_steps[number]} ends before it: no component"
            " that has weight then has enough examples left",
            field="step",
            value=step,
            cure="Allow more epochs, a larger budget or other sources, or train for fewer steps.",
        )


def _weights_of(stage: Stage) -> WeightsAt:
    """A stage's weights as a function of the steps since it began."""
    return lambda steps: stage.blend.at(np.minimum(steps + stage.first_step, MAX_STEP))


def _from_step(batch: BatchSchedule, step: int) -> BatchSchedule:
    """The batch schedule as seen from a later step."""
    sizes = {max(first - step, 0): size for first, size in batch.points if first > step}
    return BatchSchedule({0: batch.rows_at(step)[1], **sizes})
