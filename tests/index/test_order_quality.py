"""Metrics of an order, against definitions written the slow way and against values known in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headrace.errors import ConfigError
from headrace.index import order_quality as q

orders = st.integers(0, 200).flatmap(lambda n: st.permutations(range(n))).map(lambda p: np.array(p, np.int64))


@given(orders)
def test_inversions_are_counted_exactly(order: np.ndarray) -> None:
    n = len(order)
    slow = sum(int((order[k] > order[k + 1 :]).sum()) for k in range(n))
    assert q.inversion_fraction(order) == (slow / (n * (n - 1) / 2) if n > 1 else 0.0)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80))
def test_equal_elements_are_not_inverted(values: list[int]) -> None:
    order = np.array(values, np.int64)
    n = len(order)
    slow = sum(int((order[k] > order[k + 1 :]).sum()) for k in range(n))
    assert q.inversion_fraction(order) == slow / (n * (n - 1) / 2)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 100_003])
def test_inversions_of_sorted_and_reversed(n: int) -> None:
    assert q.inversion_fraction(np.arange(n)) == 0.0
    assert q.inversion_fraction(np.arange(n)[::-1]) == 1.0


def _spearman(order: np.ndarray) -> float:
    return float(np.asarray(stats.spearmanr(np.arange(len(order)), order))[0])


@given(orders.filter(lambda order: len(order) > 2))
def test_spearman_agrees_with_scipy(order: np.ndarray) -> None:
    assert q.spearman_rho(order) == pytest.approx(_spearman(order), abs=1e-12)


@given(orders.filter(len), st.integers(1, 30))
def test_same_block_rate_by_hand(order: np.ndarray, block: int) -> None:
    pairs = [a // block == b // block for a, b in zip(order[:-1].tolist(), order[1:].tolist(), strict=True)]
    assert q.same_block_transition_rate(order, block) == pytest.approx(np.mean(pairs) if pairs else 0.0)


def slow_variance_ratio(order: np.ndarray, window: int, unit: int) -> float:
    """The definition: counts of every unit in every window, and the hypergeometric variance of each."""
    n, units = len(order), int(order.max()) // unit + 1
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
    assert q.variance_ratio(order, window, unit) == pytest.approx(slow_variance_ratio(order, window, unit), abs=1e-9)


@pytest.mark.parametrize(("n", "window", "unit"), [(4096, 64, 16), (5000, 333, 77), (4096, 2048, 128)])
def test_a_full_shuffle_has_ratio_one(n: int, window: int, unit: int) -> None:
    rng = np.random.default_rng(0)
    mean = np.mean([q.variance_ratio(rng.permutation(n), window, unit) for _ in range(200)])
    assert mean == pytest.approx(1.0, abs=0.02)


def test_ratio_is_the_variance_of_real_window_means() -> None:
    """Draws the per-unit values that the formula integrates out."""
    rng = np.random.default_rng(1)
    n, window, unit = 8192, 128, 128
    rows = (rng.permutation(n // unit)[:, None] * unit + np.arange(unit)).reshape(-1, 8 * unit)
    order = rng.permuted(rows, axis=1).ravel()  # windows of 8 blocks, mixed
    shuffled = rng.permutation(n)
    ours = full = 0.0
    for _ in range(300):
        g = rng.normal(size=n // unit)
        ours += float(np.var(g[order // unit].reshape(-1, window).mean(1)))
        full += float(np.var(g[shuffled // unit].reshape(-1, window).mean(1)))
    drawn = ours / full * q.variance_ratio(shuffled, window, unit)
    assert q.variance_ratio(order, window, unit) == pytest.approx(drawn, rel=0.08)


def test_values_of_orders_that_are_known() -> None:
    n = 1 << 14
    lanes = np.arange(n).reshape(-1, 128).T.ravel()  # one row of each block in turn
    assert q.variance_ratio(np.arange(n), 128, 128) == pytest.approx(128.0, rel=0.01)
    assert q.variance_ratio(lanes, 128, 128) == 0.0
    assert q.variance_ratio(lanes, 64, 128) == pytest.approx(0.5, abs=0.01)  # 64 of 128 units, without replacement
    assert q.mean_distinct_blocks(lanes, 128, 128) == 128.0
    assert q.mean_distinct_blocks(np.arange(n), 128, 128) == 1.0


def test_expected_of_random_is_what_permutations_give() -> None:
    rng = np.random.default_rng(2)
    n, block = 1000, 64  # a tail
    expected = q.expected_of_random(n, block)
    found = [q.measure_order(rng.permutation(n), block=block) for _ in range(200)]
    assert np.mean([f.mean_abs_displacement_norm for f in found]) == pytest.approx(
        expected.mean_abs_displacement_norm, rel=0.01
    )
    assert np.mean([f.inversion_fraction for f in found]) == pytest.approx(0.5, abs=0.005)
    assert np.mean([f.same_block_transition_rate for f in found]) == pytest.approx(
        expected.same_block_transition_rate, rel=0.05
    )


def test_short_orders() -> None:
    empty = np.zeros(0, np.int64)
    assert q.measure_order(empty, block=4) == q.OrderQuality(0.0, 0.0, 1.0, 0.0, {})
    assert np.isnan(q.variance_ratio(empty, 4, 2))
    assert np.isnan(q.variance_ratio(np.arange(4), 4, 2))  # one window: no variance
    assert np.isnan(q.variance_ratio(np.arange(4), 2, 4))  # one unit
    assert np.isnan(q.mean_distinct_blocks(np.arange(3), 4, 2))


@pytest.mark.parametrize(("window", "unit", "field"), [(0, 4, "window"), (4, 0, "unit"), (-1, 4, "window")])
def test_sizes_below_one_are_refused(window: int, unit: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        q.variance_ratio(np.arange(10), window, unit)
