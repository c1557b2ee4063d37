"""Epochs, budgets, largest shares and stop strategies, against loops over the routed examples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace.mix.draws import STOP_STRATEGIES, Draws
from headrace.mix.plan import plan_of
from headrace.mix.quota import Quota
from headrace.mix.shares import bound_shares
from headrace_compat.megatron import GreedyBlend

SCAN = 3000


def mixture_length(draws, sizes, stop, limits=None):
    return draws.count_examples(sizes, stop, limits or [None] * len(sizes))


def first_scan(component, ordinal, sizes, stop):
    """Length by looking at one example after the other, None if not within the scan."""
    seen = [0] * len(sizes)
    for i, (d, k) in enumerate(zip(component.tolist(), ordinal.tolist(), strict=True)):
        if stop == "first_exhausted" and sizes[d] is not None and k >= sizes[d]:
            return i
        seen[d] = k + 1
        if stop == "all_exhausted" and all(
            n is not None and m >= n for m, n in zip(seen, sizes, strict=True)
        ):
            return i + 1
    return None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 60)), min_size=1, max_size=4),
    st.sampled_from(STOP_STRATEGIES),
    st.integers(1, 20),
    st.booleans(),
)
def test_lengths_under_stop_strategies(parts, stop, size, greedy):
    weights = [w for w, _ in parts]
    sizes = [n for _, n in parts]
    if stop == "all_exhausted" and not any(sizes):
        return  # nothing, or endless: see below
    batch = BatchSchedule(size)
    config = {str(i): w for i, w in enumerate(weights)}
    draws: Draws = Draws(GreedyBlend(weights, batch)) if greedy else draws_of(config, batch)
    component, ordinal = draws.route(np.arange(SCAN))
    expected = first_scan(component, ordinal, sizes, stop)
    assert mixture_length(draws, sizes, stop) == expected


def test_lengths_where_weights_stop():
    weights = {"a": {"step": {0: 1, 20: 0}}, "b": 1}
    draws = draws_of(weights, BatchSchedule(4))  # a is drawn 40 times
    assert mixture_length(draws, [40, None], "first_exhausted") is None
    assert mixture_length(draws, [39, None], "first_exhausted") == draws.index_of(0, 39)
    assert (
        mixture_length(draws, [41, 10], "all_exhausted") == 39 * 2 + 1
    )  # a is not drawn any more: not waited for
    assert mixture_length(draws, [41, None], "all_exhausted") is None
    assert draws.index_of(0, 39) == 39 * 2
    assert mixture_length(draws, [40, 10], "all_exhausted") == 39 * 2 + 1
    assert mixture_length(draws, [0, 0], "all_exhausted") == 0


def test_limits_end_a_mixture_under_any_strategy():
    draws = draws_of({"a": 1, "b": 1}, BatchSchedule(8), limits=[10, 20])
    assert mixture_length(draws, [None, None], "restart") == 30
    assert mixture_length(draws, [5, None], "first_exhausted") == draws.index_of(0, 5)


def test_a_limit_uses_a_source_up():
    draws = draws_of({"a": 1, "b": 1, "c": 0}, BatchSchedule(8), limits=[10, None, None])
    assert (
        mixture_length(draws, [20, 30, 5], "all_exhausted", [10, None, None])
        == draws.index_of(1, 29) + 1
    )
    assert (
        mixture_length(draws, [20, 30, 5], "first_exhausted", [10, None, None])
        == draws.index_of(0, 9) + 1
    )
    more = draws_of(
        {"a": 1, "b": 1}, BatchSchedule(8), limits=[40, None]
    )  # two passes are allowed, one is enough
    assert mixture_length(more, [20, 30], "first_exhausted", [40, None]) == more.index_of(0, 20)


def limits_of(sizes, epochs=None, rows=None):
    """Most rows of components of these sizes."""
    plan = plan_of(dict.fromkeys(sizes, 1), "quota", [*sizes], BatchSchedule(1))
    return replace(plan, max_epochs=epochs, max_rows=rows or {}).limits_of(sizes)


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**9), min_size=1),
    st.floats(0.1, 9),
    st.integers(0, 10**12),
)
def test_limits_are_the_smaller_of_epochs_and_budget(sizes, epochs, budget):
    name = min(sizes)
    if any(size and epochs and int(size * epochs) == 0 for size in sizes.values()):
        with pytest.raises(ConfigError, match="holds no row"):
            limits_of(sizes, epochs)
        return
    got = limits_of(sizes, epochs, {name: budget})
    assert list(got) == list(sizes)
    for key, size in sizes.items():
        bound = int(size * epochs)
        assert got[key] == (min(bound, budget) if key == name else bound)
    assert limits_of(sizes) == dict.fromkeys(sizes)


def test_bad_limits_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'docs'"):
        limits_of({"docs": 3}, {"dosc": 1.0})
    for bad in (-1.0, 0, float("inf"), float("nan"), True, "2"):
        with pytest.raises(ConfigError, match="max_epochs = "):
            limits_of({"docs": 3}, bad)
        with pytest.raises(ConfigError, match=r"max_epochs\.docs"):
            limits_of({"docs": 3}, {"docs": bad})
    with pytest.raises(ConfigError, match=r"max_examples\.docs"):
        limits_of({"docs": 3}, None, {"docs": -1})
    with pytest.raises(ConfigError, match=r"max_epochs\.docs.*without an end"):
        limits_of({"docs": None, "web": 9}, {"docs": 1.0})
    with pytest.raises(ConfigError, match=r"components\.docs\.max_epochs.*Give at least 0\.337"):
        limits_of({"docs": 3}, {"docs": 0.3})
    for share in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="max_share"):
            Quota(lambda s: np.ones((len(s), 1)), 1, BatchSchedule(1), largest=[share])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.none() | st.floats(0.05, 1)), min_size=1, max_size=6)
)
def test_largest_shares_hold_and_the_rest_keep_their_proportions(parts):
    raw = np.array([w for w, _ in parts], float)
    if not raw.any():
        return
    raw /= raw.sum()
    bounds = [b for _, b in parts]
    top = np.array([1.0 if b is None else b for b in bounds])

    def limited(steps):
        return bound_shares(np.tile(raw, (len(steps), 1)), top, steps)

    if top[raw > 0].sum() < 1 - 1e-6:
        with pytest.raises(ConfigError, match="at step 7"):
            limited(np.array([7, 9]))
        return
    if top[raw > 0].sum() < 1 + 1e-6:
        return  # on the edge
    got = limited(np.array([7]))[0]
    assert got.sum() == pytest.approx(1)
    assert (got <= top + 1e-9).all()
    assert (got[raw == 0] == 0).all()
    below = (got < top - 1e-9) & (raw > 0)
    if below.any():
        assert np.ptp(got[below] / raw[below]) < 1e-9
        assert (got[below] >= raw[below] - 1e-9).all()
    quota = Quota(lambda s: np.tile(raw, (len(s), 1)), len(raw), BatchSchedule(9), largest=bounds)
    assert np.abs(quota.starts_at(50) - 450 * got).max() < 1 + 1e-6
