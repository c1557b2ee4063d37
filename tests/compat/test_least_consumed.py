"""Least consumed over known lengths: balance and random access; its orders are held in
test_least_consumed_live.py.
"""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace_compat.least_consumed import Equal, LeastConsumedPlan

lengths = st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4).filter(any)


@given(lengths, st.integers(0, 99))
def test_counts_of_active_sources_differ_by_one_sample_at_most(ls, seed):
    plan = LeastConsumedPlan(ls, BatchSchedule(1), seed)
    tokens = np.zeros(len(ls), int)
    rows = np.zeros(len(ls), int)
    longest = max(max(x, default=0) for x in ls)
    for k in plan.sequence(0, plan.ends_after).tolist():
        tokens[k] += ls[k][rows[k]]
        rows[k] += 1
        active = [d for d, x in enumerate(ls) if rows[d] < len(x)]
        if active:
            assert np.ptp(tokens[active]) <= longest
    assert rows.tolist() == [len(x) for x in ls]


@given(lengths, st.integers(0, 99), st.data())
def test_the_plan_has_random_access(ls, seed, data):
    whole = LeastConsumedPlan(ls, BatchSchedule(1), seed)
    cut = data.draw(st.integers(0, whole.ends_after))
    fresh = LeastConsumedPlan(ls, BatchSchedule(4), seed)
    assert (
        fresh.sequence(cut, cut + 9).tolist()
        == whole.sequence(0, whole.ends_after)[cut : cut + 9].tolist()
    )
    rest, _ = fresh.walk(whole.state_at(cut), cut, whole.ends_after - cut)
    assert rest == whole.sequence(cut, whole.ends_after).tolist()


def slow_order(
    samples: list[list[int]], stages: list[tuple[int, list[int]]], seed: int
) -> list[int]:
    """The sources of all samples in order: what the module says, sample by sample, until a stage
    has none left.
    """
    rng = random.Random(seed)
    counts = [0] * len(samples)
    rows = [0] * len(samples)
    used = stages[0][1]
    drawn = []
    left = list(used)
    k = 0
    while True:
        for first, members in stages[1:]:
            if first == len(drawn):
                stay = [d for d in members if d in left]
                least = min((counts[d] for d in (stay or left)), default=0)
                for d in set(members) - set(stay):
                    counts[d] = max(counts[d], least)
                left = list(members)
        while left:
            fewest = [d for d in left if counts[d] == min(counts[e] for e in left)]
            k = fewest[0] if len(fewest) == 1 else rng.choice(fewest)
            if rows[k] < len(samples[k]):
                break
            left.remove(k)
        if not left:
            return drawn
        counts[k] += samples[k][rows[k]]
        rows[k] += 1
        drawn.append(k)


@given(lengths, st.integers(0, 99), st.data())
def test_sources_come_and_go_with_stages(ls, seed, data):
    everyone = st.lists(st.sampled_from(range(len(ls))), min_size=1, unique=True)
    borders = data.draw(st.lists(st.integers(1, 40), max_size=3, unique=True).map(sorted))
    stages = [(first, data.draw(everyone)) for first in (0, *borders)]
    wanted = slow_order(ls, stages, seed)
    plan = LeastConsumedPlan(ls, BatchSchedule(1), seed, stages=stages)
    assert plan.ends_after == len(wanted)
    assert plan.sequence(0, len(wanted) + 5).tolist() == wanted
    assert plan.supply().tolist() == np.bincount(wanted, minlength=len(ls)).tolist()
    cut = data.draw(st.integers(0, len(wanted)))
    rest, _ = plan.walk(plan.state_at(cut), cut, len(wanted) - cut)
    assert rest == wanted[cut:]


def test_an_anchor_from_before_an_amendment_is_of_use():
    early = LeastConsumedPlan([Equal(3), Equal(5)], BatchSchedule(16))
    joined = [(0, [0, 1]), (6000 * 16, [0, 1, 2])]
    plain, anchored = (
        LeastConsumedPlan([Equal(3), Equal(5), Equal(4)], BatchSchedule(16), stages=joined)
        for _ in "ab"
    )
    anchored.use_anchor(early.anchor_at(5900))
    for step in (5900, 5999, 6000, 6400):
        assert anchored.starts_at(step).tolist() == plain.starts_at(step).tolist()
        assert anchored.components_at(step).tolist() == plain.components_at(step).tolist()
    assert plain.starts_at(6000)[2] == 0
    gained = (plain.starts_at(7000) - plain.starts_at(6000)) * [3, 5, 4]
    assert np.ptp(gained) <= 10


def test_bad_input_is_refused():
    for bad in ([], [[]], [[-1]]):
        with pytest.raises(ConfigError, match="lengths"):
            LeastConsumedPlan(bad, BatchSchedule(1))
    with pytest.raises(ConfigError, match="start_counts"):
        LeastConsumedPlan([[1]], BatchSchedule(1), start_counts=[1, 2])
