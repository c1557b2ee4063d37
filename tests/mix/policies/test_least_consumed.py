"""Least consumed over known lengths: balance and random access; its orders are held in test_least_consumed_live.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix.policies.least_consumed import LeastConsumedPlan
from headrace.mix.schedule import BatchSchedule

lengths = st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4).filter(any)


@given(lengths, st.integers(0, 99))
def test_counts_of_active_sources_differ_by_one_sample_at_most(ls, seed):
    plan = LeastConsumedPlan(ls, BatchSchedule(1), seed)
    tokens, rows = np.zeros(len(ls), int), np.zeros(len(ls), int)
    longest = max(max(x, default=0) for x in ls)
    for k in plan.sequence(0, plan.length).tolist():
        tokens[k] += ls[k][rows[k]]
        rows[k] += 1
        active = [d for d, x in enumerate(ls) if rows[d] < len(x)]
        if active:
            assert np.ptp(tokens[active]) <= longest
    assert rows.tolist() == [len(x) for x in ls]


@given(lengths, st.integers(0, 99), st.data())
def test_the_plan_has_random_access(ls, seed, data):
    whole = LeastConsumedPlan(ls, BatchSchedule(1), seed)
    cut = data.draw(st.integers(0, whole.length))
    fresh = LeastConsumedPlan(ls, BatchSchedule(4), seed)
    assert fresh.sequence(cut, cut + 9).tolist() == whole.sequence(0, whole.length)[cut : cut + 9].tolist()
    rest, _ = fresh.walk(whole.state_at(cut), cut, whole.length - cut)
    assert rest == whole.sequence(cut, whole.length).tolist()


def test_bad_input_is_refused():
    for bad in ([], [[]], [[-1]]):
        with pytest.raises(ConfigError, match="lengths"):
            LeastConsumedPlan(bad, BatchSchedule(1))
    with pytest.raises(ConfigError, match="start_counts"):
        LeastConsumedPlan([[1]], BatchSchedule(1), start_counts=[1, 2])
