"""Stages: exact within each, the past untouched by what comes later, ordinals without a gap."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.index.blend import Blend
from headrace.index.draws import Draws
from headrace.index.quota import Quota
from headrace.index.schedule import BatchSchedule
from headrace.index.shares import UNLIMITED
from headrace.index.stages import Stage, Stages

NAMES = ("a", "b", "c", "d", "e")


def counts(policy: Stages | Quota, step: int, components: int = len(NAMES)) -> list[int]:
    return np.bincount(policy.components_at(step), minlength=components).tolist()


@st.composite
def blends(draw: st.DrawFn) -> Blend:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    numbers = st.floats(0.01, 10)
    ramps = st.builds(lambda a, b: {"linear": {0: a, 40: b}}, numbers, numbers)
    return Blend({name: draw(st.one_of(numbers, ramps)) for name in names})


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Stage], BatchSchedule]:
    first = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    stages = [Stage(step, draw(blends())) for step in [0, *first]]
    sizes = draw(st.dictionaries(st.integers(1, 60), st.integers(1, 40), max_size=2))
    return stages, BatchSchedule({0: draw(st.integers(1, 40)), **sizes})


@given(runs())
def test_batches_are_full_and_each_stage_is_exact(run: tuple[list[Stage], BatchSchedule]) -> None:
    stages, batch = run
    policy = Stages(NAMES, stages, batch)
    bounds = [s.first_step for s in stages] + [80]
    for stage, (first, stop) in zip(stages, pairwise(bounds), strict=True):
        columns = [NAMES.index(name) for name in stage.blend.names]
        wanted = np.zeros(len(columns))
        got = np.zeros(len(NAMES))
        for step in range(first, stop):
            size = batch.rows_at(step)[1]
            drawn = np.asarray(counts(policy, step))
            assert drawn.sum() == size
            wanted += size * stage.blend.at(np.array([step]))[0]
            got += drawn
            assert np.abs(got[columns] - wanted).max() < 1 + 1e-6
            assert got.sum() == got[columns].sum()  # nothing of a component that the stage does not use


@given(runs())
def test_starts_add_up(run: tuple[list[Stage], BatchSchedule]) -> None:
    policy = Stages(NAMES, *run)
    total = np.zeros(len(NAMES), np.int64)
    for step in range(80):
        assert policy.starts_at(step).tolist() == total.tolist()
        total += counts(policy, step)


@given(runs(), blends(), st.integers(1, 30))
def test_a_later_stage_does_not_touch_the_past(
    run: tuple[list[Stage], BatchSchedule], blend: Blend, after: int
) -> None:
    stages, batch = run
    step = stages[-1].first_step + after
    before = Stages(NAMES, stages, batch)
    amended = Stages((*NAMES, "new"), [*stages, Stage(step, Blend({**blend.to_config(), "new": 1}))], batch)
    for s in range(step):
        assert counts(amended, s, len(NAMES) + 1)[:-1] == counts(before, s)
    assert amended.starts_at(step)[:-1].tolist() == before.starts_at(step).tolist()


def test_one_stage_is_a_plain_quota() -> None:
    blend, batch = Blend({"a": 5, "b": 3, "c": {"linear": {0: 0, 50: 4}}}), BatchSchedule({0: 7, 20: 12})
    staged, plain = Stages("abc", [Stage(0, blend)], batch), Quota(blend.at, 3, batch)
    assert [counts(staged, s, 3) for s in range(100)] == [counts(plain, s, 3) for s in range(100)]


def test_a_paused_component_goes_on_where_it_stopped() -> None:
    stages = [Stage(0, Blend({"a": 1, "b": 1})), Stage(3, Blend({"b": 1})), Stage(5, Blend({"a": 1}))]
    draws = Draws(Stages("ab", stages, BatchSchedule(4)))
    component, ordinal = draws.route(np.arange(24))
    assert ordinal[component == 0].tolist() == list(range(6 + 4))
    assert ordinal[component == 1].tolist() == list(range(6 + 8))


def test_limits_run_through_all_stages() -> None:
    stages = [Stage(0, Blend({"a": 1, "b": 1})), Stage(2, Blend({"a": 3, "b": 1}))]
    policy = Stages("ab", stages, BatchSchedule(8), [10, None])
    assert [counts(policy, s, 2) for s in range(4)] == [[4, 4], [4, 4], [2, 6], [0, 8]]
    assert policy.supply().tolist() == [10, UNLIMITED]


def test_a_mixture_that_runs_dry_says_in_which_stage() -> None:
    policy = Stages("ab", [Stage(0, Blend({"a": 1})), Stage(2, Blend({"b": 1}))], BatchSchedule(4), [None, 6])
    with pytest.raises(IndexOutOfRangeError, match="begins at step 2"):
        policy.components_at(4)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "step 0"),
        ([Stage(1, Blend({"a": 1}))], "step 0"),
        ([Stage(0, Blend({"a": 1})), Stage(0, Blend({"a": 1}))], "does not begin after"),
        ([Stage(0, Blend({"aa": 1}))], "Did you mean 'a'"),
    ],
)
def test_bad_stages_are_refused(stages: list[Stage], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Stages("ab", stages, BatchSchedule(4))
