"""What remains of a stream: numpy's own deletion is the oracle."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import IndexOutOfRangeError
from headrace.order.intervals import Intervals, Removal, clean_borders


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, Intervals, np.ndarray]:
    length = draw(st.integers(0, 80))
    gone = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), bool)
    removed = Intervals.of_numbers(np.flatnonzero(gone))
    return length, removed, np.flatnonzero(~gone)


@given(streams())
def test_positions_are_those_that_are_left(stream):
    length, removed, left = stream
    removal = Removal(length, removed)
    assert (removal.length, removal.remaining) == (length, left.size)
    assert removal.stored(np.arange(left.size)).tolist() == left.tolist()
    assert removal.kept_before(np.arange(length + 1)).tolist() == [
        int((left < x).sum()) for x in range(length + 1)
    ]


@given(streams(), st.data())
def test_pieces_of_ranges_are_what_is_left_in_order(stream, data):
    length, removed, left = stream
    start = []
    size = []
    for _ in range(data.draw(st.integers(0, 8)) if left.size else 0):
        start.append(data.draw(st.integers(0, left.size - 1)))
        size.append(data.draw(st.integers(1, left.size - start[-1])))
    found = Removal(length, removed).pieces(np.array(start, np.int64), np.array(size, np.int64))
    assert (found.size > 0).all()
    assert (np.diff(found.range) >= 0).all()
    for number, (a, n) in enumerate(zip(start, size, strict=True)):
        mine = np.flatnonzero(found.range == number)
        read = [
            np.arange(s, s + m) for s, m in zip(found.start[mine], found.size[mine], strict=True)
        ]
        assert np.concatenate(read).tolist() == left[a : a + n].tolist()
        assert found.column[mine].tolist() == [0, *np.cumsum(found.size[mine])[:-1].tolist()]
        assert mine.size == 1 + int(
            (np.diff(left[a : a + n]) > 1).sum()
        )  # one more for each gap inside, no more


def test_a_range_outside_the_stream_is_refused():
    with pytest.raises(IndexOutOfRangeError, match="reach outside the 5 positions") as caught:
        Removal(5, Intervals(np.array([3]), np.array([6])))
    assert caught.value.field == "removed"


def test_a_trillion_positions_with_a_million_gaps():
    start = np.arange(10**6) * 10**6
    removal = Removal(10**12, Intervals(start + 7, start + 10))
    assert removal.remaining == 10**12 - 3 * 10**6
    at = np.array([0, 6, 7, removal.remaining - 1])
    assert removal.stored(at).tolist() == [0, 6, 10, 10**12 - 1]
    found = removal.pieces(np.array([removal.remaining - 2 * 999_997]), np.array([999_998]))
    assert found.size.sum() == 999_998
    assert found.size.size == 2


@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 20),
    st.data(),
)
def test_borders_are_those_behind_a_gap_with_a_long_run_ahead(parts, chunk, run, data):
    ends = np.cumsum([0, *parts])
    gone = (
        np.array(
            data.draw(st.lists(st.integers(0, 6), min_size=int(ends[-1]), max_size=int(ends[-1])))
        )
        == 0
    )
    wanted = [
        border
        for begin, end in itertools.pairwise(ends.tolist())
        for border in range(begin + chunk, end - run + 1, chunk)
        if gone[border - chunk : border].any() and not gone[border : border + run].any()
    ]
    removed = Intervals.of_numbers(np.flatnonzero(gone))
    assert clean_borders(Removal(int(ends[-1]), removed), ends, chunk, run).tolist() == wanted
