"""Sets of ranges against Python's own sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.intervals import Intervals

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def make(pairs: list[tuple[int, int]]) -> tuple[Intervals, set[int]]:
    start = np.array([a for a, _ in pairs], np.int64)
    size = np.array([n for _, n in pairs], np.int64)
    return Intervals(start, start + size), {x for a, n in pairs for x in range(a, a + n)}


def members(s: Intervals) -> list[int]:
    return [x for a, b in zip(s.start.tolist(), s.stop.tolist(), strict=True) for x in range(a, b)]


@given(ranges)
def test_ranges_are_merged_sorted_and_apart(pairs):
    found, wanted = make(pairs)
    assert members(found) == sorted(wanted)
    assert (found.start < found.stop).all()
    assert (found.start[1:] > found.stop[:-1]).all()
    assert found.total == len(wanted)


@given(st.lists(ranges, max_size=4))
def test_union_is_that_of_sets(many):
    made = [make(pairs) for pairs in many]
    assert members(Intervals.union(s for s, _ in made)) == sorted(
        set[int]().union(*(w for _, w in made))
    )


@given(ranges, st.integers(0, 80))
def test_complement_is_what_is_missing(pairs, length):
    found, wanted = make(pairs)
    assert members(found.complement(length)) == [x for x in range(length) if x not in wanted]
    inside = Intervals(np.minimum(found.start, length), np.minimum(found.stop, length))
    assert found.complement(length).complement(length) == inside


@given(ranges)
def test_numbers_are_counted_through(pairs):
    found, wanted = make(pairs)
    rank = np.arange(len(wanted))[::-1].copy()
    assert found.numbers(rank).tolist() == sorted(wanted, reverse=True)


@given(st.lists(st.integers(0, 50), max_size=40))
def test_numbers_make_a_set(numbers):
    assert members(Intervals.of_numbers(np.array(numbers, np.int64))) == sorted(set(numbers))


def test_equal_sets_are_equal_and_shown():
    a = make([(0, 2), (2, 1)])[0]
    b = make([(0, 3)])[0]
    assert a == b
    assert a != make([(0, 4)])[0]
    assert a != "0..3"
    assert repr(a) == "Intervals(0..3)"
    assert repr(make([(3 * i, 1) for i in range(9)])[0]).endswith("15..16, ...)")
    assert Intervals.empty() == Intervals.of_numbers(np.array([], np.int64))
