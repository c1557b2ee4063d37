"""The order of documents in a shuffled store: a bijection, its inverse, units whole, and pinned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order.document_shuffle import DocumentShuffle


@given(documents=st.integers(0, 300), seed=st.integers(-(2**63), 2**64), unit=st.integers(1, 5))
def test_a_bijection_that_keeps_units(documents: int, seed: int, unit: int):
    shuffle = DocumentShuffle(documents, seed, unit)
    numbers = np.arange(documents)
    places = shuffle.stored_at(numbers)
    assert sorted(places.tolist()) == numbers.tolist()
    assert shuffle.originals(places).tolist() == numbers.tolist()
    whole = documents // unit * unit
    assert places[whole:].tolist() == numbers[whole:].tolist()
    assert (places[:whole] % unit == numbers[:whole] % unit).all()
    assert (places[:whole] // unit == np.repeat(places[:whole:unit] // unit, unit)).all()


def test_batched_equals_one_by_one_and_changes_nothing():
    shuffle = DocumentShuffle(1001, seed=3, unit=2)
    numbers = np.arange(1001)
    places = shuffle.stored_at(numbers)
    assert numbers.tolist() == list(range(1001))
    assert places[::97].tolist() == [
        int(shuffle.stored_at(np.array([n]))[0]) for n in range(0, 1001, 97)
    ]


def test_pinned():
    """Somebody's filters depend on it: a store tells its seed, not its order."""
    assert DocumentShuffle(12, seed=7).stored_at(np.arange(12)).tolist() == PINNED
    assert (
        DocumentShuffle(10**12, seed=7, unit=2).stored_at(np.array([0, 1, 999_999])).tolist()
        == PINNED_FAR
    )


PINNED = [0, 4, 6, 9, 7, 1, 2, 11, 10, 8, 3, 5]
PINNED_FAR = [206797135694, 206797135695, 166350520283]


def test_neighbours_have_nothing_to_do_with_each_other():
    places = DocumentShuffle(20_000, seed=1).stored_at(np.arange(20_000))
    apart = np.abs(np.diff(places))
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.03
    assert abs(apart.mean() / 20_000 - 1 / 3) < 0.01  # of two uniform places


@pytest.mark.parametrize(("field", "values"), [("unit", (4, 0, 0)), ("seed", (4, 1.5, 1))])
def test_bad_values_are_named(field: str, values: tuple[int, int, int]):
    with pytest.raises(ConfigError, match=field):
        DocumentShuffle(*values)
