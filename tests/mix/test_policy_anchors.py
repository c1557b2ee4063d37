"""Anchors: with one or without, every policy draws the same; with one, nothing before it is walked
to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.plan import plan_of, policy_names
from headrace.mix.policy import MixingPolicy
from headrace.mix.quota import Quota
from headrace.mix.shares import UNLIMITED
from headrace.mix.stages import Stage
from headrace_compat import PlannedStage, StagePlan, StageStream, sequence
from headrace_compat.least_consumed import Equal, LeastConsumedPlan
from headrace_compat.megatron import GreedyBlend
from headrace_compat.sequence import STRETCH, SequencePolicy

NAMES = ("a", "b", "c")
weights = st.lists(st.floats(0.05, 10), min_size=3, max_size=3)


def drawing(
    policy: str,
    names: Sequence[str],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    sizes: Sequence[int | None],
    limits: Sequence[int | None],
) -> MixingPolicy:
    """A policy over components of these sizes and limits."""
    plan = plan_of(stages, policy, names, batch)
    return plan.make(replace(plan, sizes=sizes, limits=limits, seq_len=8))


@st.composite
def policies(draw: st.DrawFn) -> Callable[[], MixingPolicy]:
    """Makes equal policies."""
    name = draw(st.sampled_from([*policy_names(), "staged", "quota", "plain quota"]))
    batch = BatchSchedule(
        {0: draw(st.integers(1, 40)), draw(st.integers(1, 900)): draw(st.integers(1, 40))}
    )
    if name == "whole_batches":  # which has none that change
        batch = BatchSchedule(draw(st.integers(1, 40)))
    ws = draw(weights)
    late = draw(weights)
    if name == "staged":
        plan = StagePlan(
            [
                PlannedStage(k, dict(zip(NAMES, w, strict=True)), 9000)
                for k, w in (("x", ws), ("y", late))
            ],
            1,
        )
        return lambda: StageStream(plan, batch)
    config = dict(zip(NAMES, ws, strict=True))
    stages = [Stage(0, Blend(config))]
    limits: list[int | None] = [None, None, None]
    if "quota" in name:
        ramps = {n: {"linear": {0: a, 900: b}} for n, a, b in zip(NAMES, ws, late, strict=True)}
        stages = [Stage(0, Blend(ramps if draw(st.booleans()) else config))]
        limits = draw(st.lists(st.none() | st.integers(0, 20_000), min_size=3, max_size=3))
        if name == "plain quota":
            blend = stages[0].blend
            return lambda: Quota(blend.at, 3, batch, limits, max(blend.breaks, default=0))
        if draw(st.booleans()):
            stages.append(Stage(draw(st.integers(1, 900)), Blend({"a": late[0], "c": late[2]})))
    if name in ("exhaustive", "least_consumed"):
        stages = [Stage(0, Blend(dict.fromkeys(NAMES, 1)))]
    if name == "least_consumed":
        limits = draw(
            st.lists(st.none() | st.integers(0, 9000), min_size=3, max_size=3).filter(
                lambda x: x != [0] * 3
            )
        )
    sizes: list[int | None] = [9000, 400, 5000]
    return lambda: drawing(name, NAMES, stages, batch, sizes, limits)


def same(one: MixingPolicy, other: MixingPolicy, step: int) -> None:
    try:
        drawn = one.components_at(step)
        starts = one.starts_at(step)
    except IndexOutOfRangeError:
        with pytest.raises(IndexOutOfRangeError):
            other.components_at(step)
        return
    assert other.components_at(step).tolist() == drawn.tolist()
    assert other.starts_at(step).tolist() == starts.tolist()


def empty_from_the_start() -> MixingPolicy:
    """Stages whose first one ends before its first step: the limits leave too few
    examples for it.
    """
    stages = [Stage(0, Blend({"a": 1, "b": 1, "c": 1})), Stage(5, Blend({"a": 1, "c": 1}))]
    return drawing("quota", NAMES, stages, BatchSchedule(4), [9, 9, 9], [0, 1, 0])


@given(policies(), st.integers(0, 1200), st.lists(st.integers(0, 1300), min_size=1, max_size=4))
@example(empty_from_the_start, 0, [0])
@settings(max_examples=60)
def test_with_an_anchor_or_without(
    make: Callable[[], MixingPolicy], at: int, steps: list[int]
) -> None:
    without = Draws(make())
    try:
        anchor = json.loads(json.dumps(without.anchor_at(at)))
    except IndexOutOfRangeError:
        return
    with_anchor = Draws(make())
    if anchor is not None:  # None: it has no state
        with_anchor.use_anchor(anchor)
    assert with_anchor.anchor_at(at) == anchor
    for step in (at, at + 1, *steps):
        same(without.policy, with_anchor.policy, step)
    assert with_anchor.policy.supply().tolist() == without.policy.supply().tolist()


@pytest.mark.parametrize("name", ["swrr", "greedy", "least_consumed", "exhaustive"])
def test_nothing_is_walked_to_but_the_stretch_that_is_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    equal = name in ("exhaustive", "least_consumed")
    stages = [Stage(0, Blend({"a": 1 if equal else 0.712345, "b": 1}))]

    def make() -> SequencePolicy[object]:
        sizes: list[int | None] = [90_000, 70_000]
        made = drawing(name, "ab", stages, BatchSchedule(16), sizes, [None, None])
        assert isinstance(made, SequencePolicy)
        return made

    anchor = make().anchor_at(5000)
    policy = make()
    walked = []
    policy.use_anchor(anchor)
    walk = type(policy).walk
    monkeypatch.setattr(
        type(policy), "walk", lambda self, s, first, n: walked.append(n) or walk(self, s, first, n)
    )
    policy.components_at(5000)
    policy.starts_at(5000)
    assert sum(walked) <= STRETCH


def test_states_are_kept_at_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "STRETCH", 16)
    monkeypatch.setattr(sequence, "_MOST", 10)
    policy = LeastConsumedPlan([Equal(8), Equal(8, 900), Equal(8)], BatchSchedule(4))
    whole, _ = policy.walk(policy.initial_state(), 0, 9000)
    rng = np.random.default_rng(0)
    for first in [*range(0, 9000, 90), *rng.integers(0, 8900, 60).tolist()]:
        assert policy.sequence(first, first + 90).tolist() == whole[first : first + 90]
        assert (
            policy.counts_before(first).tolist() == np.bincount(whole[:first], minlength=3).tolist()
        )
        assert len(policy._saved) <= 10


def test_least_consumed_goes_on_for_ever_or_to_its_limits() -> None:
    stages = [Stage(0, Blend({"a": 1, "b": 1}))]

    def made(limits: list[int | None]) -> MixingPolicy:
        return drawing("least_consumed", "ab", stages, BatchSchedule(4), [6, 9], limits)

    assert np.bincount(Draws(made([None, None])).route(np.arange(4000))[0]).tolist() == [2000, 2000]
    assert np.bincount(Draws(made([6, None])).route(np.arange(4000))[0]).tolist() == [6, 3994]
    once = Draws(made([6, 9]))
    expected = LeastConsumedPlan([np.full(6, 8), np.full(9, 8)], BatchSchedule(4)).sequence(0, 99)
    assert once.route(np.arange(15))[0].tolist() == expected.tolist()
    with pytest.raises(IndexOutOfRangeError, match="ends after 15"):
        once.route(np.array([16]))


def test_what_has_no_state() -> None:
    class Alternate(MixingPolicy):
        name = "alternate"
        components = 2
        batch = BatchSchedule(2)

        def starts_at(self, step: int) -> np.ndarray:
            return np.full(2, step)

        def components_at(self, step: int) -> np.ndarray:
            return np.arange(2, dtype=np.int32)

        def supply(self) -> np.ndarray:
            return np.full(2, UNLIMITED)

    draws = Draws(Alternate())
    assert draws.anchor_at(3) is None
    with pytest.raises(ConfigError, match="is not one of Alternate"):
        draws.use_anchor({})


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "Quota"},
        {"state": None},
        {"step": -1},
        {"state": {"stretch": 1, "drawn": [4000, 96], "state": [1]}},
        {"state": {"stretch": 1, "drawn": [4000, 97], "state": [4000, 97]}},
        {"state": {"stretch": "1", "drawn": [4000, 96], "state": [4000, 96]}},
        {"state": {"stretch": 1, "drawn": [4000, 96], "state": "x"}},
        {"state": {"stretch": 1, "drawn": [4000, 96], "state": [4000, [96]]}},
    ],
)
def test_damaged_anchors_are_refused(change: dict[str, object]) -> None:
    draws = Draws(GreedyBlend([1, 2], BatchSchedule(64)))
    anchor = draws.anchor_at(70)
    assert anchor is not None
    draws.use_anchor(anchor)
    with pytest.raises(ConfigError, match="anchor: "):
        draws.use_anchor({**anchor, **change})


def test_anchors_on_disk_name_policies_by_these_names() -> None:
    stages = [Stage(0, Blend({"a": 1, "b": 1}))]
    none = [None, None]
    names = {
        name: Draws(drawing(name, "ab", stages, BatchSchedule(4), [90, 70], none)).anchor_at(3)
        for name in policy_names()
    }
    names["staged"] = Draws(
        StageStream(StagePlan([PlannedStage("x", {"a": 1}, 90)], 1), BatchSchedule(4))
    ).anchor_at(3)
    names["one blend"] = draws_of({"a": 1, "b": 1}, BatchSchedule(4)).anchor_at(3)
    assert {name: anchor["policy"] for name, anchor in names.items() if anchor is not None} == {
        "quota": "Stages",
        "swrr": "SmoothRoundRobin",
        "greedy": "GreedyBlend",
        "exhaustive": "ExhaustiveBlend",
        "least_consumed": "LeastConsumedPlan",
        "whole_batches": "WholeBatches",
        "staged": "StageStream",
        "one blend": "Quota",
    }


@given(
    st.lists(st.none() | st.integers(0, 60), min_size=3, max_size=3),
    st.lists(st.integers(1, 12), max_size=3),
    st.lists(weights, min_size=4, max_size=4),
)
def test_the_supply_of_stages_is_what_they_give_until_they_end(
    limits: list[int | None], lengths: list[int], ws: list[list[float]]
) -> None:
    begins = np.cumsum([0, *lengths]).tolist()
    stages = [
        Stage(s, Blend(dict(zip(NAMES, w, strict=True)))) for s, w in zip(begins, ws, strict=False)
    ]
    policy = drawing("quota", NAMES, stages, BatchSchedule(4), [None] * 3, limits)
    drawn = np.zeros(3, np.int64)
    for step in range(80):
        try:
            drawn += policy.counts_at(step)
        except IndexOutOfRangeError:
            assert policy.supply().tolist() == drawn.tolist()
            return
    supply = policy.supply()
    assert supply.max() == UNLIMITED
    assert (drawn <= supply).all()
