"""Subsets: so many rows, to the row, for every awkward length; the larger holds the smaller."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import SubsetConfig
from headrace.order.subset import Subset
from headrace.testing.caches import check_order


def rows_of(
    n: int, length: int, block: int, seed: int = 0, blocks: int | None = None
) -> np.ndarray:
    return Subset(n, length, block=block, seed=seed, blocks=blocks)(np.arange(length))


@given(
    n=st.integers(0, 300), share=st.floats(0, 1), block=st.integers(1, 40), seed=st.integers(0, 9)
)
def test_so_many_rows_in_whole_blocks(n, share, block, seed):
    length = int(n * share)
    rows = rows_of(n, length, block, seed)
    assert np.unique(rows).size == length
    assert length == 0 or 0 <= rows.min() <= rows.max() < n
    counts = np.bincount(rows // block, minlength=1)
    partly = (counts > 0) & (counts < block)
    assert partly.sum() <= 1 + (
        length > n // block * block
    )  # the last block, and the rows that fill none
    if length == n:
        assert np.array_equal(np.sort(rows), np.arange(n))


@given(n=st.integers(1, 200), block=st.integers(1, 9), data=st.data())
def test_a_larger_part_holds_a_smaller_one(n, block, data):
    small = data.draw(st.integers(0, n))
    large = data.draw(st.integers(small, n))
    assert np.array_equal(rows_of(n, large, block)[:small], rows_of(n, small, block))


@given(n=st.integers(1, 200), block=st.integers(1, 9), data=st.data())
def test_the_map_keeps_its_promises(n, block, data):
    length = data.draw(st.integers(1, n))
    blocks = data.draw(st.integers(0, n // block))
    order = Subset(n, length, block=block, seed=1, blocks=blocks)
    check_order(order)
    rows = order(np.arange(length))
    assert (
        rows[min(length, blocks * block) :] >= blocks * block
    ).all()  # what follows the full blocks comes last
    assert np.array_equal(
        order.at(np.arange(length), np.full(length, 7)), rows
    )  # the same in every epoch


def test_blocks_are_drawn_evenly_and_by_the_seed():
    counts = np.zeros(40)
    for seed in range(400):
        counts[np.unique(rows_of(400, 100, 10, seed) // 10)] += 1
    assert ((counts - 100) ** 2 / 75).sum() < 72.1  # chi-square, 39 degrees of freedom, p = 0.001
    assert not np.array_equal(rows_of(400, 100, 10, 1), rows_of(400, 100, 10, 2))


def test_pinned_order():
    assert rows_of(20, 7, 3).tolist() == [15, 16, 17, 3, 4, 5, 6]
    assert rows_of(31, 14, 4, seed=5).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 20, 21, 22, 23, 12, 13]
    assert Subset(11, 5, block=4, seed=5).describe() == {
        "map": "Subset",
        "length": 5,
        "rows": 11,
        "block": 4,
        "blocks": 2,
        "seed": 5,
    }


def test_a_trillion_rows_need_no_table():
    order = Subset(10**12 + 3, 10**10, block=64, seed=3)
    i = np.random.default_rng(0).integers(0, 10**10, 1000)
    rows = order(i)
    assert np.unique(rows).size == np.unique(i).size
    assert rows.max() < 10**12 + 3


def test_rows_are_counted_as_floats_round():
    for n in range(300):
        for part, whole in ((1, 3), (7, 10), (29, 100)):
            assert SubsetConfig(fraction=part / whole).rows_of(n) == int(n * (part / whole))
    assert SubsetConfig(rows=7).rows_of(3) == 7


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({}, "fraction", "is missing, and so is rows"),
        ({"fraction": 0.1, "rows": 3}, "fraction", "is given beside rows"),
        ({"fraction": 0.0}, "fraction", "must lie above 0"),
        ({"fraction": 1.5}, "fraction", "at most 1"),
        ({"fraction": float("nan")}, "fraction", "must lie above 0"),
        ({"rows": 0}, "rows", "must be at least 1"),
        ({"rows": 3, "by": "end"}, "by", "is not one of those"),
        ({"rows": 3, "seed": "x"}, "seed", "a seed is an integer"),
    ],
)
def test_bad_values_are_named(settings, field, message):
    with pytest.raises(ConfigError, match=message) as caught:
        SubsetConfig(**settings)
    assert caught.value.field == field


def test_more_than_there_is():
    with pytest.raises(ConfigError, match="is not among the 10 rows"):
        Subset(10, 11, block=2, seed=0)
    with pytest.raises(ConfigError, match="do not fit into 10 rows"):
        Subset(10, 5, block=3, seed=0, blocks=4)
    with pytest.raises(ConfigError, match="must be at least 1"):
        Subset(10, 5, block=0, seed=0)
