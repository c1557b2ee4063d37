"""Whole numbers with an exponent are those numbers, to the digit; all else is left alone."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.mix.schedule import whole_number


@given(st.integers(-(10**18), 10**18), st.integers(0, 12), st.integers(0, 6), st.sampled_from("eE"))
def test_a_number_moved_by_its_point_is_the_number(number, more, places, e):
    digits = format(Decimal(number).scaleb(-places), "f")
    found = whole_number(f"{digits}{e}{places + more}")
    assert found == number * 10**more
    assert type(found) is int


@given(st.integers(1, 9), st.integers(1, 9))
def test_what_is_not_whole_stays_what_it_was(digit, exponent):
    for text in (f"{digit}e-{exponent}", f"1.{'0' * exponent}{digit}e{exponent}"):
        assert whole_number(text) == text


@pytest.mark.parametrize(
    "value", ["12", "1.5", "e9", "1e", "1e9x", "0x1e9", " 1e9", "1e999", "", 1.5, True, None, [1]]
)
def test_other_values_are_left_alone(value):
    assert whole_number(value) is value


def test_floats_are_whole_or_not():
    assert [type(whole_number(v)) for v in (2e9, float("inf"), float("nan"), 0.1)] == [
        int,
        float,
        float,
        float,
    ]
