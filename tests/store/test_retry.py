"""Policies of asking again: bounds, jitter, and what is worth another try."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.store import RetryPolicy, use_policy
from headrace.store.retry import (
    Patience,
    RequestCounts,
    retry_after_s,
    tried,
    waiting_at_most,
    with_retries,
)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 5), st.floats(0, 60))
def test_delays_lie_between_nothing_and_a_bound_that_doubles(failed, uniform, first, most):
    policy = RetryPolicy(first_delay_s=first, max_delay_s=most)
    delay = policy.delay_s(failed, lambda: uniform)
    assert 0 <= delay <= most
    assert delay <= first * 2.0 ** min(failed, 60)
    assert policy.delay_s(failed, lambda: 0.0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"damaged_attempts": 0},
        {"replica_after_s": 0},
        {"timeout_s": 0},
        {"deadline_s": -1},
        {"first_delay_s": -0.1},
        {"concurrency": 0},
        {"hedge_after_s": 0},
        {"hedge_p95": -1},
        {"hedge_share": 2},
    ],
)
def test_values_that_are_none(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**wrong)
    assert caught.value.field == f"retry.{name}"


class Failing:
    def __init__(self, errors):
        self.errors = list(errors)
        self.asked = 0

    def __call__(self):
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.asked


@pytest.fixture
def policy():
    before = use_policy(RetryPolicy(first_delay_s=0.001, max_delay_s=0.002, deadline_s=0.05))
    yield
    use_policy(before)


def passing(error):
    return isinstance(error, OSError)


@pytest.mark.usefixtures("policy")
def test_what_fails_is_asked_again_until_it_comes():
    assert with_retries(Failing([OSError()] * 7), passing, "x") == 8


@pytest.mark.usefixtures("policy")
def test_what_does_not_pass_and_what_was_asked_often_enough_is_not_asked_again():
    for errors, most, asked in (
        ([OSError("0"), KeyError("1")], None, 2),
        ([OSError("0")] * 9, 1, 1),
    ):
        failing = Failing(errors)
        with pytest.raises((OSError, KeyError), match=str(asked - 1)) as caught:
            with_retries(failing, passing, "x", most)
        assert failing.asked == asked
        assert tried(caught.value) == ""


class Forever(Failing):
    def __call__(self):
        self.errors.append(OSError("away"))
        return super().__call__()


@pytest.mark.usefixtures("policy")
@pytest.mark.parametrize("first_delay_s", [0.001, 100.0])
def test_time_decides_and_the_last_request_is_sent_as_it_ends(first_delay_s):
    use_policy(RetryPolicy(first_delay_s=first_delay_s, max_delay_s=first_delay_s, deadline_s=0.05))
    began = time.monotonic()
    with pytest.raises(OSError, match="away") as caught:
        with_retries(Forever([]), passing, "x")
    assert time.monotonic() - began >= 0.05
    assert re.fullmatch(r"given up after \d+ rounds in \d+\.\d s", tried(caught.value))


def test_a_request_that_fails_after_the_time_is_followed_by_one_more():
    """On a busy machine, an answer may take until then, and the store be back."""
    before = use_policy(RetryPolicy(first_delay_s=0.0, deadline_s=0.02))
    patience = Patience("x")
    assert patience.wait_s("away") is not None
    time.sleep(0.03)
    assert patience.wait_s("away") == 0.0
    assert patience.wait_s("away") is None
    use_policy(before)


@pytest.mark.usefixtures("policy")
def test_what_was_given_up_is_not_asked_again_by_an_outer_loop():
    inner = Forever([])
    with pytest.raises(OSError, match="away"):
        with_retries(lambda: with_retries(inner, passing, "x"), passing, "x")
    with pytest.raises(OSError, match="away"), waiting_at_most(0.001):
        with_retries(inner, passing, "x")
    assert inner.asked > 3


def test_retry_after_is_waited_for_within_the_time_that_is_left():
    before = use_policy(RetryPolicy(max_delay_s=0.0, deadline_s=10.0))
    patience = Patience("x")
    assert patience.wait_s("429", 7.0) == 7.0
    wait_s = patience.wait_s("429", 60.0)
    assert wait_s is not None
    assert 9.0 < wait_s <= 10.0
    use_policy(before)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", 0.0), ("-1", 0.0)],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    error = OSError("of a client")
    error.response = {  # pyright: ignore[reportAttributeAccessIssue]
        "ResponseMetadata": {"HTTPHeaders": {"retry-after": value}}
    }
    outer = OSError("of ours")
    outer.__cause__ = error
    assert retry_after_s(outer) == seconds


def test_counts_add_and_subtract():
    a = RequestCounts(1, 2, 3, 4, 5)
    b = RequestCounts(10, 20, 30, 40, 50)
    assert (a + b) - b == a
