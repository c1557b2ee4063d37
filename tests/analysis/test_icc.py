"""Shares of variance against known components, intervals that cover, and noise against its
definition.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.analysis.icc import batch_noise, between_block_share, nested_shares, variance_ratio
from headrace.errors import ConfigError
from headrace.order.block_shuffle import BlockShuffle
from headrace.order.permutation import Feistel

SIZES = st.lists(st.integers(1, 9), min_size=3, max_size=20).filter(lambda sizes: max(sizes) > 1)


def drawn(sizes: list[int], between: float, within: float, rng: np.random.Generator):
    """Values with known variance between and within blocks of unequal sizes, and their blocks."""
    block = np.repeat(np.arange(len(sizes)), sizes)
    effects = rng.normal(scale=between**0.5, size=len(sizes))
    return effects[block] + rng.normal(scale=within**0.5, size=block.size), block


@given(SIZES, st.integers(0, 2**32), st.floats(0.1, 100), st.floats(-100, 100))
def test_icc_is_of_blocks_not_of_numbers_units_or_row_order(sizes, seed, scale, shift):
    rng = np.random.default_rng(seed)
    values, block = drawn(sizes, 1.0, 1.0, rng)
    plain = between_block_share(values, block)
    mixed = rng.permutation(block.size)
    names = rng.permutation(1000)[: len(sizes)] - 500
    other = between_block_share(scale * values[mixed] + shift, names[block[mixed]])
    np.testing.assert_allclose(
        [other.icc, other.low, other.high], [plain.icc, plain.low, plain.high], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(other.within, scale**2 * plain.within, rtol=1e-6)
    assert plain.low <= plain.icc + 1e-12
    assert plain.icc <= plain.high + 1e-12
    assert plain.high <= 1


@given(SIZES, st.integers(0, 2**32))
def test_leaving_out_a_block_in_closed_form_is_leaving_it_out(sizes, seed):
    from headrace.analysis import icc

    values, block = drawn(sizes, 1.0, 1.0, np.random.default_rng(seed))
    if len(sizes) < 4:
        return
    size = np.asarray(sizes)
    values = values - values.mean()
    mean = np.bincount(block, values) / size
    inner = np.bincount(block, (values - mean[block]) ** 2)
    got = icc._without_each(size, mean, inner)
    for out in range(len(sizes)):
        kept = block != out
        if np.unique(block[kept]).size == kept.sum() or inner.sum() - inner[out] < 1e-9:
            continue
        one = between_block_share(values[kept], block[kept])
        _, _, rows = icc._mean_squares(
            np.delete(size, out), np.delete(mean, out), np.delete(inner, out)
        )
        f = 1 + rows * one.between / one.within
        np.testing.assert_allclose(np.exp(got[out]), f, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("between", "within"), [(0.0, 1.0), (0.5, 2.0), (3.0, 1.0)])
def test_variances_are_right_on_average_for_unequal_blocks(between, within):
    rng = np.random.default_rng(1)
    sizes = [1, 2, 3, 5, 8, 13] * 5
    found = [between_block_share(*drawn(sizes, between, within, rng)) for _ in range(400)]
    assert (
        abs(np.mean([f.between for f in found]) - between)
        < 4 * np.std([f.between for f in found]) / 20
    )
    assert (
        abs(np.mean([f.within for f in found]) - within)
        < 4 * np.std([f.within for f in found]) / 20
    )


@pytest.mark.parametrize("icc", [0.1, 0.5, 0.9])
def test_the_interval_covers_what_it_says(icc):
    rng = np.random.default_rng(2)
    found = [between_block_share(*drawn([16] * 60, icc, 1 - icc, rng)) for _ in range(400)]
    covered = np.mean([f.low <= icc <= f.high for f in found])
    assert 0.90 <= covered <= 0.99


def test_the_ends_of_the_scale():
    block = np.repeat(np.arange(5), 4)
    alike = between_block_share(block * 1.0, block)
    assert (alike.icc, alike.low, alike.high) == (1.0, 1.0, 1.0)
    nothing = between_block_share(np.full(20, 0.1), block)
    assert abs(nothing.icc) < 1e-6 or nothing.within == 0
    opposite = between_block_share(np.tile([1.0, -1.0], 10), block)
    assert opposite.icc == pytest.approx(-1 / 3)


@pytest.mark.parametrize(
    ("values", "block", "field"),
    [
        ([1.0, 2.0], [0, 0], "blocks"),
        ([1.0, 2.0, 3.0], [0, 1, 2], "blocks"),
        ([1.0, float("nan"), 3.0, 4.0], [0, 1, 2, 2], "values"),
        ([1.0, 2.0, 3.0, 4.0], [0, 1, 2], "block"),
        ([[1.0, 2.0]], [[0, 1]], "values"),
    ],
)
def test_what_cannot_be_told_is_refused(values, block, field):
    with pytest.raises(ConfigError) as refused:
        between_block_share(np.array(values), np.array(block))
    assert refused.value.field == field


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
