"""Blocks of rows never lie across two parts: the full blocks of all parts come first, then the
tails.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.windows import BlockAligned
from headrace.testing.caches import check_order


def slow_reference(part_rows, block):
    """Row by row, in the words of the docstring."""
    full = []
    tails = []
    first = 0
    for rows in part_rows:
        whole = rows - rows % block
        full += range(first, first + whole)
        tails += range(first + whole, first + rows)
        first += rows
    return full + tails


@given(part_rows=st.lists(st.integers(0, 40), max_size=8), block=st.integers(1, 12))
def test_full_blocks_first_then_tails(part_rows, block):
    m = BlockAligned(np.array(part_rows, np.int64), block)
    assert m(np.arange(len(m))).tolist() == slow_reference(part_rows, block)
    check_order(m)


@given(part_rows=st.lists(st.integers(0, 40), min_size=1, max_size=8), block=st.integers(1, 12))
def test_no_full_block_lies_across_two_parts(part_rows, block):
    m = BlockAligned(np.array(part_rows), block)
    ends = np.cumsum(part_rows)
    blocks = sum(n // block for n in part_rows)
    rows = m(np.arange(blocks * block)).reshape(blocks, block)
    assert (np.diff(rows, axis=1) == 1).all()
    assert np.array_equal(
        np.searchsorted(ends, rows[:, 0], "right"), np.searchsorted(ends, rows[:, -1], "right")
    )


def test_millions_of_rows_are_not_held_in_a_table():
    m = BlockAligned(np.array([2**40 + 5, 3, 2**41 + 1]), 64)
    i = np.array([0, 2**40 - 1, 2**40, 2**40 + 2**41 - 1, len(m) - 1])
    assert m(i).tolist() == [0, 2**40 - 1, 2**40 + 8, 2**40 + 2**41 + 7, 2**40 + 2**41 + 8]
    check_order(m, sample=1000)


def test_pinned():
    assert BlockAligned(np.array([5, 1, 3]), 2)(np.arange(9)).tolist() == [
        0,
        1,
        2,
        3,
        6,
        7,
        4,
        5,
        8,
    ]
    assert BlockAligned(np.array([5]), 2)(np.arange(5)).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]  # one part: nothing to do


def test_the_description_names_the_block():
    assert BlockAligned(np.array([5, 3]), 2).describe() == {
        "map": "BlockAligned",
        "length": 8,
        "block": 2,
    }


@pytest.mark.parametrize("block", [0, -3])
def test_bad_blocks(block):
    with pytest.raises(ConfigError, match="must be at least 1") as caught:
        BlockAligned(np.array([5]), block)
    assert caught.value.field == "io_block_size"
