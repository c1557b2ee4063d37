"""Policies of asking again: bounds, jitter, and what is worth another try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.store import RetryPolicy, retry, use_policy
from headrace.store.retry import RequestCounts, with_retries


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 5), st.floats(0, 60))
def test_delays_lie_between_nothing_and_a_bound_that_doubles(failed, uniform, first, most):
    policy = RetryPolicy(first_delay_s=first, max_delay_s=most)
    delay = policy.delay_s(failed, lambda: uniform)
    assert 0 <= delay <= most
    assert delay <= first * 2.0 ** min(failed, 60)
    assert policy.delay_s(failed, lambda: 0.0) == 0


@pytest.mark.parametrize(("attempts", "rounds"), [(1, 1), (2, 1), (3, 2), (20, 10)])
def test_tensorstore_makes_every_second_request_itself(attempts, rounds):
    policy = RetryPolicy(attempts=attempts)
    assert policy.rounds == rounds
    assert policy.tensorstore_context()["s3_request_retries"]["max_retries"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
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
    before = use_policy(RetryPolicy(attempts=8, first_delay_s=0.001))
    yield
    use_policy(before)


@pytest.mark.usefixtures("policy")
def test_asking_again_ends():
    def passing(error):
        return isinstance(error, OSError)

    assert with_retries(Failing([OSError(), OSError(), OSError()]), passing) == 4
    for errors, asked in (
        ([OSError(str(k)) for k in range(9)], 4),
        ([OSError("0"), KeyError("1")], 2),
    ):
        failing = Failing(errors)
        with pytest.raises((OSError, KeyError), match=str(asked - 1)):  # the last one
            with_retries(failing, passing)
        assert failing.asked == asked


@pytest.mark.usefixtures("policy")
def test_asking_again_ends_at_the_deadline():
    use_policy(RetryPolicy(attempts=8, first_delay_s=100, max_delay_s=100, deadline_s=0.001))
    failing = Failing([OSError("a"), OSError("b")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry.random, "random", lambda: 0.5)
        with pytest.raises(OSError, match="a"):
            with_retries(failing, lambda _: True)
    assert failing.asked == 1


def test_counts_add_and_subtract():
    a = RequestCounts(1, 2, 3, 4, 5)
    b = RequestCounts(10, 20, 30, 40, 50)
    assert (a + b) - b == a
