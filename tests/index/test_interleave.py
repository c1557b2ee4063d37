"""Policies of other systems: their own sequences (golden), random access, and what they get wrong."""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.index.interleave import (
    STRETCH,
    ExhaustiveBlend,
    GreedyBlend,
    SmoothRoundRobin,
    constant_weights,
    fixed_point_weights,
)
from headrace.index.schedule import BatchSchedule, weight_from_config

GOLDEN = Path(__file__).parent.parent / "golden"
ONE = BatchSchedule(1)


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def count_up(components):
    seen, out = {}, []
    for d in components:
        out.append(seen.get(d, 0))
        seen[d] = out[-1] + 1
    return out


@pytest.mark.parametrize("case", golden("nmoe_swrr"), ids=lambda c: str(c["weights"]))
def test_swrr_is_that_of_nmoe(case):
    policy = SmoothRoundRobin(case["weights"], ONE)
    n = len(case["sequence"])
    assert list(policy.weights_fp) == case["weight_fp"]
    assert policy.sequence(0, n).tolist() == case["sequence"]
    assert list(policy.state_at(n)) == case["accumulators_after"]


@pytest.mark.parametrize("case", golden("megatron_blending"), ids=lambda c: str(c["weights"]))
def test_greedy_is_that_of_megatron(case):
    got = GreedyBlend(case["weights"], ONE).sequence(0, case["size"]).tolist()
    assert got == case["dataset_index"]
    assert count_up(got) == case["dataset_sample_index"]


@pytest.mark.parametrize("case", golden("megatron_blending_exhaustive"), ids=lambda c: str(c["sizes"]))
def test_exhaustive_is_that_of_megatron(case):
    got = ExhaustiveBlend(case["sizes"], ONE).sequence(0, 10**6).tolist()
    assert got == case["dataset_index"]
    assert count_up(got) == case["dataset_sample_index"]


def test_swrr_and_greedy_part_at_the_fifth_example():
    same = SmoothRoundRobin([0.5, 0.3, 0.2], ONE).sequence(0, 5) == GreedyBlend([0.5, 0.3, 0.2], ONE).sequence(0, 5)
    assert same.tolist() == [True, True, True, True, False]


weights = st.lists(st.integers(0, 20) | st.floats(0.001, 5), min_size=1, max_size=6).filter(any)
policies = st.one_of(
    st.builds(SmoothRoundRobin, weights, st.just(ONE)),
    st.builds(GreedyBlend, weights, st.just(ONE)),
    st.builds(
        ExhaustiveBlend, st.lists(st.integers(0, 4000), min_size=1, max_size=5).filter(any), st.just(BatchSchedule(7))
    ),
)


@given(policies, st.lists(st.tuples(st.integers(0, 3 * STRETCH), st.integers(0, 300)), min_size=1, max_size=5))
def test_any_stretch_in_any_order_is_cut_from_one_sequence(policy, stretches):
    whole, state = policy.walk(policy.initial_state(), 0, min(4 * STRETCH, policy.length or 4 * STRETCH))
    for first, size in stretches:
        assert policy.sequence(first, first + size).tolist() == whole[first : first + size]
        if first <= len(whole):
            counts = np.bincount(whole[:first], minlength=policy.components)
            assert policy.counts_before(first).tolist() == counts.tolist()
    assert policy.state_at(len(whole)) == state


@given(weights)
@example([0, 1, 1])
def test_weight_zero_is_never_drawn_and_none_starves(ws):
    for policy in (SmoothRoundRobin(ws, ONE), GreedyBlend(ws, ONE)):
        n = 2000
        drawn = np.bincount(policy.sequence(0, n), minlength=len(ws))
        share = np.array(ws) / sum(ws)
        assert not drawn[share == 0].any()
        assert np.abs(drawn - n * share).max() < 1 + math.log(len(ws) + 1) + 0.01 * n / 1000
        assert (policy.supply() > 0).tolist() == (share > 0).tolist()


@given(weights)
def test_swrr_has_its_period(ws):
    policy = SmoothRoundRobin(ws, ONE)
    if policy.period < 20_000:
        drawn, after = policy.walk(policy.initial_state(), 0, policy.period)
        assert not any(after)
        gcd = math.gcd(*policy.weights_fp)
        assert np.bincount(drawn, minlength=len(ws)).tolist() == [w // gcd for w in policy.weights_fp]


def test_swrr_far_out_costs_one_period():
    policy = SmoothRoundRobin([0.5, 0.3, 0.2], BatchSchedule(10))
    far = 10**15
    assert policy.components_at(far).tolist() == policy.components_at(0).tolist()
    assert policy.starts_at(far).tolist() == [5 * far, 3 * far, 2 * far]
    long = SmoothRoundRobin([0.123457, 0.876543], BatchSchedule(10))
    assert long.period == 1_000_000
    assert long.sequence(3_999_990, 4_000_010).tolist() == long.sequence(999_990, 1_000_010).tolist()


def test_an_empty_source_does_not_hang_the_exhaustive_blend():
    assert ExhaustiveBlend([0, 2, 0, 1], ONE).sequence(0, 9).tolist() == [1, 3, 1]
    policy = ExhaustiveBlend([5, 3], BatchSchedule(3))
    assert [len(policy.components_at(s)) for s in range(3)] == [3, 3, 2]
    assert policy.supply().tolist() == policy.starts_at(99).tolist() == [5, 3]
    with pytest.raises(IndexOutOfRangeError, match="ends after 8"):
        policy.components_at(3)


def test_steps_cut_the_sequence_and_do_not_change_it():
    whole = GreedyBlend([3, 2, 1], ONE).sequence(0, 500).tolist()
    policy = GreedyBlend([3, 2, 1], BatchSchedule({0: 3, 10: 17}))
    assert np.concatenate([policy.components_at(s) for s in range(30)]).tolist() == whole[: policy.batch.rows_at(30)[0]]


def test_threads_that_ask_at_once_see_the_same():
    policy, failures = GreedyBlend([5, 3, 2.5], ONE), []
    expected = GreedyBlend([5, 3, 2.5], ONE).sequence(0, 6 * STRETCH)

    def ask(seed):
        firsts = np.random.default_rng(seed).integers(0, 6 * STRETCH - 50, 60).tolist()
        failures.extend(f for f in firsts if not np.array_equal(policy.sequence(f, f + 50), expected[f : f + 50]))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_bad_input_is_refused():
    for bad in ([], [0, 0], [-1, 2], [math.nan], [math.inf]):
        with pytest.raises(ConfigError, match="weights"):
            SmoothRoundRobin(bad, ONE)
    with pytest.raises(ConfigError, match="constant weights only") as e:
        constant_weights([weight_from_config({"step": {0: 1}}, "weights.docs")], "swrr")
    assert "weights.docs" in str(e.value)
    for bad in ([], [0], [-1, 3]):
        with pytest.raises(ConfigError, match="sizes"):
            ExhaustiveBlend(bad, ONE)
    with pytest.raises(IndexOutOfRangeError):
        GreedyBlend([1], ONE).counts_before(-1)


def test_fixed_point_weights():
    assert fixed_point_weights([1e-9, 1.0]) == (1, 1_000_000)
    assert fixed_point_weights([0, 1]) == (0, 1_000_000)
