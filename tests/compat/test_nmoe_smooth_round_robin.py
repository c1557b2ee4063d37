"""``swrr``: the sequences of nmoe (golden), its period, and far steps that cost no
more than that.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace_compat.nmoe import SmoothRoundRobin, fixed_point_weights

GOLDEN = Path(__file__).parents[1] / "golden"
ONE = BatchSchedule(1)
weights = st.lists(st.integers(0, 20) | st.floats(0.001, 5), min_size=1, max_size=6).filter(any)


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


@pytest.mark.parametrize("case", golden("nmoe_swrr"), ids=lambda c: str(c["weights"]))
def test_swrr_is_that_of_nmoe(case):
    policy = SmoothRoundRobin(case["weights"], ONE)
    n = len(case["sequence"])
    assert list(policy.weights_fp) == case["weight_fp"]
    assert policy.sequence(0, n).tolist() == case["sequence"]
    assert list(policy.state_at(n)) == case["accumulators_after"]


@given(weights)
def test_swrr_has_its_period(ws):
    policy = SmoothRoundRobin(ws, ONE)
    if policy.period < 20_000:
        drawn, after = policy.walk(policy.initial_state(), 0, policy.period)
        assert not any(after)
        gcd = math.gcd(*policy.weights_fp)
        assert np.bincount(drawn, minlength=len(ws)).tolist() == [
            w // gcd for w in policy.weights_fp
        ]


def test_swrr_far_out_costs_one_period():
    policy = SmoothRoundRobin([0.5, 0.3, 0.2], BatchSchedule(10))
    far = 10**15
    assert policy.components_at(far).tolist() == policy.components_at(0).tolist()
    assert policy.starts_at(far).tolist() == [5 * far, 3 * far, 2 * far]
    long = SmoothRoundRobin([0.123457, 0.876543], BatchSchedule(10))
    assert long.period == 1_000_000
    assert (
        long.sequence(3_999_990, 4_000_010).tolist() == long.sequence(999_990, 1_000_010).tolist()
    )


def test_bad_input_is_refused():
    for bad in ([], [0, 0], [-1, 2], [math.nan], [math.inf]):
        with pytest.raises(ConfigError, match="weights"):
            SmoothRoundRobin(bad, ONE)


def test_fixed_point_weights():
    assert fixed_point_weights([1e-9, 1.0]) == (1, 1_000_000)
    assert fixed_point_weights([0, 1]) == (0, 1_000_000)
