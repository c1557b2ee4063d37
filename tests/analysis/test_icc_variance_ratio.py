"""The variance ratio of an order, against its definition written the slow way and values known in
closed form.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.analysis.icc import variance_ratio
from headrace.errors import ConfigError

orders = (
    st.integers(0, 200)
    .flatmap(lambda n: st.permutations(range(n)))
    .map(lambda p: np.array(p, np.int64))
)


def slow_variance_ratio(order: np.ndarray, window: int, unit: int) -> float:
    """The definition: counts of every unit in every window, and the hypergeometric variance of
    each.
    """
    n = len(order)
    units = int(order.max()) // unit + 1
    of_unit = order // unit
    total = np.bincount(of_unit, minlength=units)
    measured = expected = 0.0
    for k in range(n // window):
        counts = np.bincount(of_unit[k * window : (k + 1) * window], minlength=units)
        measured += float(((counts - window * total / n) ** 2).sum())
        p = total / n
        expected += float((window * p * (1 - p)).sum() * (n - window) / (n - 1))
    return measured / expected


@given(orders.filter(lambda o: len(o) > 3), st.data())
def test_variance_ratio_is_its_definition(order: np.ndarray, data: st.DataObject) -> None:
    window = data.draw(st.integers(1, len(order) - 1))
    unit = data.draw(st.integers(1, len(order) - 1))
    assert variance_ratio(order, window, unit) == pytest.approx(
        slow_variance_ratio(order, window, unit), abs=1e-9
    )


@pytest.mark.parametrize(
    ("n", "window", "unit"), [(4096, 64, 16), (5000, 333, 77), (4096, 2048, 128)]
)
def test_a_full_shuffle_has_ratio_one(n: int, window: int, unit: int) -> None:
    rng = np.random.default_rng(0)
    mean = np.mean([variance_ratio(rng.permutation(n), window, unit) for _ in range(200)])
    assert mean == pytest.approx(1.0, abs=0.02)


def test_ratio_is_the_variance_of_real_window_means() -> None:
    """Draws the per-unit values that the formula integrates out."""
    rng = np.random.default_rng(1)
    n = 8192
    window = 128
    unit = 128
    rows = (rng.permutation(n // unit)[:, None] * unit + np.arange(unit)).reshape(-1, 8 * unit)
    order = rng.permuted(rows, axis=1).ravel()  # windows of 8 blocks, mixed
    shuffled = rng.permutation(n)
    ours = full = 0.0
    for _ in range(300):
        g = rng.normal(size=n // unit)
        ours += float(np.var(g[order // unit].reshape(-1, window).mean(1)))
        full += float(np.var(g[shuffled // unit].reshape(-1, window).mean(1)))
    drawn = ours / full * variance_ratio(shuffled, window, unit)
    assert variance_ratio(order, window, unit) == pytest.approx(drawn, rel=0.08)


def test_values_of_orders_that_are_known() -> None:
    n = 1 << 14
    lanes = np.arange(n).reshape(-1, 128).T.ravel()  # one row of each block in turn
    assert variance_ratio(np.arange(n), 128, 128) == pytest.approx(128.0, rel=0.01)
    assert variance_ratio(lanes, 128, 128) == 0.0
    assert variance_ratio(lanes, 64, 128) == pytest.approx(
        0.5, abs=0.01
    )  # 64 of 128 units, without replacement


def test_short_orders() -> None:
    empty = np.zeros(0, np.int64)
    assert np.isnan(variance_ratio(empty, 4, 2))
    assert np.isnan(variance_ratio(np.arange(4), 4, 2))  # one window: no variance
    assert np.isnan(variance_ratio(np.arange(4), 2, 4))  # one unit


@pytest.mark.parametrize(
    ("window", "unit", "field"), [(0, 4, "window"), (4, 0, "unit"), (-1, 4, "window")]
)
def test_sizes_below_one_are_refused(window: int, unit: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        variance_ratio(np.arange(10), window, unit)
