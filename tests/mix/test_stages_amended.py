"""Runs whose stages planned ones and amendments end in the middle of ramps: a step's counts depend
on nothing but it.

A process that opens the run at a far step counts as one that walked there, and an amendment leaves
the steps before it as they were.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import IndexOutOfRangeError
from headrace.mix import AmendmentConfig, BatchSchedule, StageConfig
from headrace.mix.blend import Blend
from headrace.mix.plan import MixtureConfig, resolve_stages
from headrace.mix.quota_walk import CHUNK
from headrace.mix.schedule import Weight
from headrace.mix.stages import Stages

NAMES = ("a", "b", "c", "d")
FAR = 45 * CHUNK
"""Steps that may be jumped."""


class Run(NamedTuple):
    """Stages, amendments and what they are made over."""

    stages: list[StageConfig]
    amendments: list[AmendmentConfig]
    batch: BatchSchedule
    limits: list[int | None]

    def policy(self, *, amended: bool = True) -> Stages:
        amendments = self.amendments if amended else []
        names = dict.fromkeys((*NAMES, "e") if amended else NAMES)
        stages = resolve_stages(
            MixtureConfig(
                names, self.batch, [(0, 16)], stages=self.stages, amendments=[*amendments]
            )
        )
        limits = self.limits + [None] * amended
        return Stages([*names], stages, self.batch, limits, len(self.stages))


def draw_weight(rng: np.random.Generator, longest: int, *, positive: bool = False) -> Any:
    """A number, or a schedule over some steps."""
    kind = rng.choice(["constant", "linear", "step"])
    if kind == "constant":
        return float(rng.uniform(0.1, 5))
    steps = {0, *rng.integers(1, 4 * longest, rng.integers(4)).tolist()}
    values = [3.0 if positive else 0.0, 1.0, float(rng.uniform(0.1, 5))]
    return {str(kind): {step: values[rng.integers(3)] for step in sorted(steps)}}


def draw_run(seed: int, longest: int) -> Run:
    rng = np.random.default_rng(seed)
    begins = [0, *sorted({*rng.integers(1, longest, rng.integers(3)).tolist()})]
    stages: list[StageConfig] = []
    for begin in begins:
        others = {name: draw_weight(rng, longest) for name in NAMES[1:] if rng.random() < 0.6}
        stages.append(
            StageConfig({"a": draw_weight(rng, longest, positive=True), **others}, step=begin)
        )
    stages[0].weights.update(
        {name: 1.0 for name in NAMES if all(name not in stage.weights for stage in stages)}
    )
    first, second = (int(rng.integers(1, longest)) for _ in range(2))
    amendments = [
        AmendmentConfig(begins[-1] + first, add={"e": draw_weight(rng, longest)}),
        AmendmentConfig(
            begins[-1] + first + second, weights={"a": draw_weight(rng, longest, positive=True)}
        ),
    ]
    sizes = {0: int(rng.integers(1, 9)), int(rng.integers(1, longest)): int(rng.integers(1, 40))}
    limits = [int(rng.integers(0, 40 * longest)) if rng.random() < 0.1 else None for _ in NAMES]
    return Run(stages, amendments, BatchSchedule(sizes), limits)


@given(st.integers(0, 2**32))
@settings(max_examples=12)
def test_a_far_step_is_that_of_the_walk_whatever_ends_a_stage(seed: int) -> None:
    run = draw_run(seed, FAR)
    walked = run.policy()
    for step in range(0, run.amendments[1].step + FAR, 8 * CHUNK):
        try:
            expected = walked.starts_at(step).tolist()
        except IndexOutOfRangeError:
            return
        if step % (24 * CHUNK) == 0:
            assert run.policy().starts_at(step).tolist() == expected


@given(st.integers(0, 2**32))
@settings(max_examples=200)
def test_an_amendment_touches_no_step_before_it(seed: int) -> None:
    run = draw_run(seed, 60)
    before = run.policy(amended=False)
    amended = run.policy()
    for step in range(run.amendments[0].step + 1):
        try:
            expected = before.starts_at(step).tolist()
        except IndexOutOfRangeError:
            return
        assert amended.starts_at(step).tolist() == [*expected, 0]


@given(st.integers(0, 2**32), st.integers(0, 300))
def test_no_weight_changes_from_where_it_settles(seed: int, last: int) -> None:
    weight = draw_weight(np.random.default_rng(seed), 60)
    blend = Blend({"a": weight, "group": {"blend": {"b": 1, "c": weight}}, "d": 1})
    settled = blend.settles_at(last)
    assert 0 <= settled <= last
    raw = next(w for _, w, _ in blend._root.entries)
    assert isinstance(raw, Weight)
    assert np.ptp(raw.at(np.arange(settled, last + 1))) == 0
    assert len(np.unique(blend.at(np.arange(settled, last + 1)), axis=0)) == 1
    assert settled == 0 or settled == last or settled in blend.breaks


def test_a_run_that_an_amendment_ends_in_a_ramp_is_pinned() -> None:
    """What the job that began the run counted, step by step: 30,000 times the integral of x / (x +
    2), 0 to 1.
    """
    ramp = {"a": {"linear": {0: 0.0, 40_000: 4.0}}, "b": {"step": {0: 0.0, 30_000: 1.0}}, "c": 2}
    run = Run(
        [StageConfig(ramp, step=0)],
        [AmendmentConfig(10_000, {"e": 1})],
        BatchSchedule(3),
        [None] * 4,
    )
    run.stages[0].weights["d"] = 0.0
    assert run.policy().starts_at(10_000).tolist() == [5671, 0, 24329, 0, 0]
