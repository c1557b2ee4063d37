"""Inverse permutations: there and back, for all lengths that are awkward."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.permutation import INVERSES, PERMUTATIONS


@pytest.mark.parametrize("family", sorted(PERMUTATIONS))
def test_there_and_back_for_every_short_length(family):
    for n in range(1, 400):
        i = np.arange(n)
        assert np.array_equal(INVERSES[family](PERMUTATIONS[family](i, n, n), n, n), i)


@pytest.mark.parametrize("family", sorted(PERMUTATIONS))
@given(
    length=st.integers(1, 1 << 62),
    key=st.integers(0, 2**64 - 1),
    picks=st.lists(st.integers(0, 1 << 62)),
)
def test_back_and_there_for_any_length_and_key(family, length, key, picks):
    i = np.array([p % length for p in picks], np.int64)
    before = i.copy()
    assert np.array_equal(
        PERMUTATIONS[family](INVERSES[family](i, length, key), length, key), before
    )
    assert np.array_equal(i, before)
