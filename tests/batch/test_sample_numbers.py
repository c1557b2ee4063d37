"""Numbers of samples, and counts: what is one passes unchanged, whatever type it has."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch.sample_numbers import (
    check_one_each,
    checked_costs,
    checked_count,
    checked_tokens,
)
from headrace.errors import ConfigError

DTYPES = [np.uint8, np.int32, np.int64, np.float32, np.float64]


@given(st.lists(st.integers(0, 200)), st.sampled_from(DTYPES))
def test_whole_numbers_pass_unchanged(numbers, dtype):
    for form in (numbers, tuple(numbers), np.array(numbers, dtype), list(np.array(numbers, dtype))):
        tokens = checked_tokens(form)
        costs = checked_costs(form, len(numbers))
        assert tokens.dtype == np.int64
        assert tokens.tolist() == costs == numbers
        assert all(
            type(c) in (int, float) for c in costs
        )  # numpy's own overflow when they are added up


@given(st.integers(0, 2**60), st.integers(0, 3))
def test_counts_are_whole_and_large_enough(number, least):
    forms = [number, np.int64(number)] + ([float(number)] if float(number) == number else [])
    for form in forms:
        if number >= least:
            assert checked_count("ranks", form, least) == number
            continue
        with pytest.raises(ConfigError, match=f"at least {least}"):
            checked_count("ranks", form, least)


@pytest.mark.parametrize("wrong", [None, "8", 1.5, float("nan"), float("inf"), -3, [8, 8]])
def test_what_is_no_count(wrong):
    with pytest.raises(ConfigError) as caught:
        checked_count("ranks", wrong)
    assert caught.value.field == "ranks"
    assert caught.value.cure


@pytest.mark.parametrize(
    "wrong", [None, 5, ["a"], [None], [[1], [2, 3]], [[1, 2]], [1j], np.array(["2020"], "M8[Y]")]
)
def test_what_is_no_row_of_numbers(wrong):
    for check in (checked_tokens, checked_costs):
        with pytest.raises(ConfigError) as caught:
            check(wrong, field="numbers")
        assert caught.value.field == "numbers"
        assert caught.value.cure


def test_exact_costs_stay_exact():
    costs = [2**70, Fraction(1, 3)]
    assert checked_costs(costs) == costs
    with pytest.raises(ConfigError, match=r"must be whole.*tokens\[0\]"):
        checked_tokens([2**70])


def test_one_each():
    check_one_each("costs", 3, 3)
    with pytest.raises(ConfigError, match="costs = 2: are fewer than the 3 samples"):
        check_one_each("costs", 2, 3)
    with pytest.raises(ConfigError, match="costs = 4: are more than the 3 samples"):
        checked_costs([1] * 4, 3)
