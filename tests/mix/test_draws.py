"""Draws: routes equal a loop over rows; ordinals have no gap; any policy fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import IndexOutOfRangeError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.policy import MixingPolicy
from headrace.mix.quota import Quota
from headrace.mix.shares import UNLIMITED
from headrace.mix.stages import Stage, Stages
from headrace_compat.least_consumed import LeastConsumedPlan
from headrace_compat.megatron import GreedyBlend
from headrace_compat.nmoe import SmoothRoundRobin

BLEND = {"a": 3, "b": {"linear": {0: 0, 100: 5}}, "c": {"step": {0: 1, 50: 0, 90: 2}}}
batches = st.builds(
    lambda a, s, b: BatchSchedule({0: a, s: b}),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(1, 20),
)


@given(batches, st.integers(0, 320))
def test_ordinals_count_each_component_without_gap(batch, steps):
    draws = draws_of(BLEND, batch)
    end = batch.rows_at(steps)[0]
    component, ordinal = draws.route(np.arange(end))
    assert component.dtype == np.int32
    assert ordinal.dtype == np.int64
    for d in range(3):
        assert ordinal[component == d].tolist() == list(range((component == d).sum()))
    assert np.bincount(component, minlength=3).tolist() == draws.starts_at(steps).tolist()


@given(batches, st.lists(st.integers(0, 3000), max_size=60))
def test_any_indices_in_any_order_equal_one_by_one(batch, indices):
    draws = draws_of(BLEND, batch)
    fresh = draws_of(BLEND, batch)
    component, ordinal = draws.route(np.array(indices, np.int64))
    one_by_one = [fresh.route(np.array([i])) for i in indices]
    assert component.tolist() == [int(c[0]) for c, _ in one_by_one]
    assert ordinal.tolist() == [int(o[0]) for _, o in one_by_one]


@given(batches, st.integers(0, 600), st.integers(1, 700), st.sampled_from([1, 2, 5]))
def test_whole_steps_in_one_go_equal_one_by_one(batch, first, steps, every):
    """Across chunks of the quota, stages, changes of the batch's size; all rows, or
    every so many.
    """
    stages = [
        Stage(0, Blend(BLEND)),
        Stage(130, Blend({"c": 1, "a": 1})),
        Stage(700, Blend({"b": 5, "c": 1})),
    ]
    begin = batch.rows_at(first)[0]
    end = batch.rows_at(first + steps)[0]
    indices = np.arange(begin, end, every)
    for policy in (Stages("abc", stages, batch), Quota(Blend(BLEND).at, 3, batch)):
        draws = Draws(policy)
        tables = [draws.step_table(s) for s in range(first, first + steps)]
        component, ordinal = draws.route(indices)
        assert np.array_equal(component, np.concatenate([t[0] for t in tables])[::every])
        assert np.array_equal(ordinal, np.concatenate([t[1] for t in tables])[::every])
        assert (component.dtype, ordinal.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize("policy", [Quota, Stages])
def test_steps_behind_the_end_are_refused_in_one_go_too(policy):
    batch = BatchSchedule(8)
    blend = Blend({"a": 1, "b": 1})
    draws = Draws(
        Quota(blend.at, 2, batch, [10, 25])
        if policy is Quota
        else Stages("ab", [Stage(0, blend)], batch, [10, 25])
    )
    assert draws.route(np.arange(32))[0].size == 32
    assert draws.route(np.arange(35))[0][32:].tolist() == [1, 1, 1]
    with pytest.raises(IndexOutOfRangeError, match="holds only 3 examples"):
        draws.route(np.arange(36))
    for count in (41, 400):
        with pytest.raises(IndexOutOfRangeError, match="step = 5: the mixture"):
            draws.route(np.arange(count))


def test_counts_are_those_of_the_rows_and_steps_follow_each_other():
    draws = draws_of(BLEND, BatchSchedule({0: 7, 60: 11}))
    for s in (0, 1, 59, 60, 61, 255, 256, 1000):
        first, size = draws.batch.rows_at(s)
        component, ordinal = draws.route(np.arange(first, first + size))
        assert draws.counts_at(s).tolist() == np.bincount(component, minlength=3).tolist()
        assert (draws.starts_at(s + 1) - draws.starts_at(s)).tolist() == draws.counts_at(s).tolist()
        assert ordinal.min() >= draws.starts_at(s).min()


def test_components_are_spread_over_the_rows_of_a_step():
    draws = draws_of((8, 4, 2, 2), BatchSchedule(16))
    assert draws.step_table(0)[0].tolist() == [0, 1, 0, 2, 3, 0, 1, 0, 0, 1, 0, 2, 3, 0, 1, 0]


class Alternate(MixingPolicy):
    """A policy that is not a quota: 0, 1, 0, 1, ... over the whole run."""

    name = "alternate"
    components = 2
    batch = BatchSchedule({0: 3, 5: 4})

    def starts_at(self, step):
        n = self.batch.rows_at(step)[0]
        return np.array([(n + 1) // 2, n // 2])

    def components_at(self, step):
        first, size = self.batch.rows_at(step)
        return (np.arange(first, first + size) % 2).astype(np.int32)

    def supply(self):
        return np.array([UNLIMITED, UNLIMITED])


def test_any_policy_fits():
    i = np.random.default_rng(0).permutation(100)
    component, ordinal = Draws(Alternate()).route(i)
    assert component.tolist() == (i % 2).tolist()
    assert ordinal.tolist() == (i // 2).tolist()


@given(batches, st.integers(0, 2), st.integers(0, 200))
def test_index_of_inverts_route(batch, component, ordinal):
    draws = draws_of({**BLEND, "c": {"step": {0: 1, 50: 0}}}, batch)
    index = draws.index_of(component, ordinal)
    if index is None:
        assert component == 2
        assert draws.starts_at(50)[2] <= ordinal
    else:
        assert [int(x[0]) for x in draws.route(np.array([index]))] == [component, ordinal]


def test_index_of_in_a_mixture_that_ends():
    draws = draws_of({"a": 1, "b": 3}, BatchSchedule(7), limits=[30, 50])
    component, ordinal = draws.route(np.arange(80))
    assert np.bincount(component).tolist() == [30, 50]
    for d, most in enumerate((30, 50)):
        found = [draws.index_of(d, k) for k in range(most + 2)]
        expected = np.flatnonzero(component == d).tolist()
        assert found == expected + [None] * (most + 2 - len(expected))
        assert ordinal[expected].tolist() == list(range(len(expected)))
    assert draws.index_of(0, -1) is None


POLICIES = {
    "swrr": SmoothRoundRobin([0.5, 0.3, 0.2], BatchSchedule({0: 4, 5: 6})),
    "greedy": GreedyBlend([0.5, 0.3, 0.2], BatchSchedule({0: 4, 5: 6})),
}


@pytest.mark.parametrize("name", POLICIES)
def test_sequences_as_policies(name):
    draws = Draws(POLICIES[name])
    component, ordinal = draws.route(np.arange(20_000, 20_500))
    one_by_one = [draws.route(np.array([i])) for i in range(20_000, 20_500, 37)]
    assert component[::37].tolist() == [int(c[0]) for c, _ in one_by_one]
    assert ordinal[::37].tolist() == [int(o[0]) for _, o in one_by_one]
    whole = draws.route(np.arange(5000))
    for d in range(3):
        assert whole[1][whole[0] == d].tolist() == list(range((whole[0] == d).sum()))


def test_a_last_step_that_is_not_full():
    plan = LeastConsumedPlan([np.full(6, 4), np.full(6, 4)], BatchSchedule(5))
    draws = Draws(plan)
    assert draws.route(np.arange(12))[0].tolist() == plan.sequence(0, 12).tolist()
    assert draws.step_table(2)[0].shape == (2,)
    with pytest.raises(IndexOutOfRangeError, match="ends after 12"):
        draws.route(np.array([15]))
    with pytest.raises(IndexOutOfRangeError, match="last step holds only 2"):
        draws.route(np.array([12]))


def test_tables_are_shared_and_cannot_be_spoilt():
    draws = draws_of(BLEND, BatchSchedule(8))
    component, _ = draws.step_table(3)
    with pytest.raises(ValueError, match="read-only"):
        component[0] = 1
    routed, _ = draws.route(np.arange(24, 32))
    routed[:] = -1
    assert draws.step_table(3)[0].min() >= 0


def test_no_indices_have_no_components():
    draws = draws_of(BLEND, BatchSchedule(8))
    assert draws.route(np.zeros(0, np.int64))[0].shape == (0,)
