"""Rows over parts, with and without blocks, against a list made one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.windows import BlockAligned, Windows, WindowsTable

parts = st.lists(st.integers(0, 60), max_size=6).map(lambda p: np.array(p, np.int64))


def all_rows(windows: Windows) -> list[tuple[int, int]]:
    part, offset = windows.locate(np.arange(windows.num_rows))
    return list(zip(part.tolist(), offset.tolist(), strict=True))


@given(parts, st.integers(1, 20))
def test_rows_follow_each_other_over_each_part(tokens, seq_len):
    wanted = [
        (p, at * seq_len) for p, n in enumerate(tokens.tolist()) for at in range(n // seq_len)
    ]
    windows = Windows(tokens, seq_len)
    assert all_rows(windows) == wanted
    assert windows.rows_of_part.tolist() == (tokens // seq_len).tolist()


@given(parts, st.integers(1, 20), st.integers(0, 25))
def test_rows_lie_in_blocks_then_in_the_ends_of_parts(tokens, seq_len, more):
    block = seq_len + more
    each = range(block // seq_len)
    wanted = [
        (p, b * block + r * seq_len)
        for p, n in enumerate(tokens.tolist())
        for b in range(n // block)
        for r in each
    ]
    full = len(wanted)
    for p, n in enumerate(tokens.tolist()):
        wanted += [(p, n // block * block + r * seq_len) for r in range(n % block // seq_len)]
    windows = Windows(tokens, seq_len, block)
    assert all_rows(windows) == wanted
    assert windows.num_blocks * windows.rows_per_block == full
    by_part = [sum(p == part for p, _ in wanted) for part in range(tokens.size)]
    assert windows.rows_of_part.tolist() == by_part


@given(parts, st.integers(1, 12), st.integers(1, 5))
def test_blocks_of_whole_rows_number_rows_as_block_aligned_does(tokens, seq_len, rows):
    plain = Windows(tokens, seq_len)
    aligned = BlockAligned(plain.rows_of_part, rows)(np.arange(plain.num_rows))
    in_blocks = Windows(tokens, seq_len, seq_len * rows)
    assert all_rows(in_blocks) == [all_rows(plain)[i] for i in aligned.tolist()]


@given(parts, st.integers(1, 12), st.integers(1, 12), st.integers(0, 20))
def test_a_block_covers_the_same_tokens_whatever_the_rows(tokens, short, more, spare):
    block = short + more + spare
    a = Windows(tokens, short, block)
    b = Windows(tokens, short + more, block)
    assert a.num_blocks == b.num_blocks
    number = np.arange(a.num_blocks)
    for x, y in zip(
        a.locate(number * a.rows_per_block), b.locate(number * b.rows_per_block), strict=True
    ):
        assert np.array_equal(x, y)


def test_a_row_longer_than_a_block_is_refused():
    with pytest.raises(ConfigError, match="is shorter than a row of 8 tokens") as caught:
        Windows(np.array([100]), 8, 7)
    assert (caught.value.field, caught.value.value) == ("block_tokens", 7)


@st.composite
def several_windows(draw: st.DrawFn) -> list[Windows]:
    windows: list[Windows] = []
    for _ in range(draw(st.integers(1, 5))):
        seq_len = draw(st.integers(1, 7))
        block = draw(st.none() | st.integers(seq_len, 3 * seq_len + 2))
        parts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
        windows.append(Windows(np.array(parts), seq_len, block))
    return windows


@given(several_windows(), st.data())
def test_a_table_finds_the_rows_of_each_of_its_windows(windows: list[Windows], data: st.DataObject):
    places = [(k, row) for k, one in enumerate(windows) for row in range(one.num_rows)]
    chosen = data.draw(st.lists(st.sampled_from(places), max_size=40)) if places else []
    source, row = np.array(chosen, np.int64).reshape(-1, 2).T
    parts = np.cumsum([0, *(one.rows_of_part.size for one in windows)])
    part, start = WindowsTable(windows).locate(source, row)
    for k, one in enumerate(windows):
        expected_part, expected_start = one.locate(row[source == k])
        np.testing.assert_array_equal(part[source == k], expected_part + parts[k])
        np.testing.assert_array_equal(start[source == k], expected_start)
