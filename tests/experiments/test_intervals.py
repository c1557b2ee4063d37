"""The share of a variance between blocks against known components, and intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from experiments.common import intervals
from experiments.common.intervals import between_block_share
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError

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
    values, block = drawn(sizes, 1.0, 1.0, np.random.default_rng(seed))
    if len(sizes) < 4:
        return
    size = np.asarray(sizes)
    values = values - values.mean()
    mean = np.bincount(block, values) / size
    inner = np.bincount(block, (values - mean[block]) ** 2)
    got = intervals._without_each(size, mean, inner)
    for out in range(len(sizes)):
        kept = block != out
        if np.unique(block[kept]).size == kept.sum() or inner.sum() - inner[out] < 1e-9:
            continue
        one = between_block_share(values[kept], block[kept])
        _, _, rows = intervals._mean_squares(
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
