"""Lists of arrays of which each is made at its first use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store import CacheLayout
from headrace.store.array import StoredArray
from headrace.store.leaf import ArrayList, ArrayRun, MadeList


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=5), st.data())
def test_runs_joined_are_their_arrays_end_to_end(lengths, data):
    made = []

    def run(number, of_run):
        layout = CacheLayout(("uint8", "uint16")[number % 2], 4 + number)

        def get(index):
            made.append((number, index))
            return StoredArray(f"/{number}/{index}", of_run[index], layout)

        return ArrayRun(np.array(of_run, np.int64), 4 + number, layout_dtype(layout), get)

    joined = ArrayList.join(
        [ArrayList([run(number, of_run)]) for number, of_run in enumerate(lengths)]
    )
    places = [
        (number, index) for number, of_run in enumerate(lengths) for index in range(len(of_run))
    ]
    assert len(joined) == len(places)
    assert joined.lengths.tolist() == [length for of_run in lengths for length in of_run]
    assert joined.spread([one.chunk for one in joined.runs]).tolist() == [
        4 + number for number, _ in places
    ]
    assert not made
    if places:
        at = data.draw(st.integers(-len(places), len(places) - 1))
        number, index = places[at]
        assert joined[at].url == f"/{number}/{index}"
        assert joined[at].length == lengths[number][index]
        assert set(made) == {(number, index)}
    with pytest.raises(IndexError):
        joined[len(places)]


def layout_dtype(layout):
    return np.dtype(layout.dtype)


def test_places_of_what_is_not_stored():
    missing = ArrayList.missing(3)
    assert (len(missing), missing.get(2)) == (3, None)
    with pytest.raises(IndexError, match="is not stored"):
        missing[1]
    assert missing.spread([run.itemsize for run in missing.runs]).tolist() == [0, 0, 0]


def test_each_is_made_once():
    made = []
    items = MadeList(5, lambda number: made.append(number) or object())
    assert items[2] is items[2] is items[-3]
    assert made == [2]
    assert len(items[1:4]) == 3
    assert sorted(made) == [1, 2, 3]
    with pytest.raises(IndexError):
        items[5]
