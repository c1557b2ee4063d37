"""Shares of variance against known components, and noise against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.analysis.icc import batch_noise, nested_shares, variance_ratio
from headrace.errors import ConfigError
from headrace.order.block_shuffle import BlockShuffle
from headrace.order.permutation import Feistel


def nested(parts: dict[int, float], own: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Values that are sums of effects of each length of neighbourhood and of each row."""
    values = rng.normal(scale=own**0.5, size=n)
    for unit, variance in parts.items():
        values += rng.normal(scale=variance**0.5, size=-(-n // unit))[np.arange(n) // unit]
    return values


@pytest.mark.parametrize(
    "parts", [{4: 0.5, 16: 0.0, 64: 0.0}, {4: 0.2, 16: 0.3, 64: 0.4}, {4: 0.0, 16: 0.0, 64: 0.6}]
)
def test_nested_shares_are_those_put_in(parts):
    rng = np.random.default_rng(3)
    found = [nested_shares(nested(parts, 0.5, 64 * 300, rng), tuple(parts)) for _ in range(10)]
    total = 0.5 + sum(parts.values())
    for unit, variance in parts.items():
        assert np.mean([f[unit] for f in found]) == pytest.approx(variance / total, abs=0.03)


@given(
    st.lists(st.integers(2, 5), min_size=1, max_size=4),
    st.integers(2, 6),
    st.integers(0, 4),
    st.integers(0, 2**32),
)
def test_nested_shares_are_shares_and_ignore_a_tail(growth, top, tail, seed):
    units = tuple(int(u) for u in np.cumprod(growth))
    values = np.random.default_rng(seed).normal(size=units[-1] * top)
    shares = nested_shares(values, units)
    assert list(shares) == list(units)
    assert all(share >= 0 for share in shares.values())
    assert sum(shares.values()) <= 1 + 1e-9
    behind = np.append(values, np.full(min(tail, units[-1] - 1), 1e3))
    assert nested_shares(behind, units) == shares


@pytest.mark.parametrize("units", [(4, 6), (4, 4), (1,), (64,)])
def test_units_that_do_not_nest_or_are_too_large_are_refused(units):
    with pytest.raises(ConfigError):
        nested_shares(np.arange(100.0), units)


def test_noise_is_the_variance_of_batch_means_that_an_order_gives():
    n = 4096
    window = 16
    parts = {16: 0.3, 64: 0.2}
    rng = np.random.default_rng(4)
    shares = {unit: part / 1.0 for unit, part in parts.items()}
    for order in (
        np.arange(n),
        BlockShuffle(n, io_block_size=16, window_blocks=8, seed=0)(np.arange(n)),
    ):
        measured = []
        for _ in range(200):
            values = nested(parts, 0.5, n, rng)
            means = values[order].reshape(-1, window).mean(axis=1)
            measured.append(means.var(ddof=1) / (values.var(ddof=1) / window * (n - window) / n))
        assert np.mean(measured) == pytest.approx(batch_noise(order, window, shares), rel=0.1)


def test_noise_of_full_shuffles_is_one_and_of_one_level_the_formula():
    n = 4096
    order = Feistel(n, 0)(np.arange(n))
    assert batch_noise(order, 16, {16: 0.9}) == pytest.approx(1, abs=0.2)
    assert batch_noise(np.arange(n), 16, {64: 0.25}) == 1 + 0.25 * (
        variance_ratio(np.arange(n), 16, 64) - 1
    )
    assert batch_noise(np.arange(n), 16, {n: 0.5}) == 1  # one unit is no difference between units
