"""Shifts and counts along rows: numpy and jax say the same, by plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch.along_rows import begins_and_end, count_starts, latest, segment_starts, shifted


@pytest.mark.parametrize("by", [-9, -3, -1, 1, 2, 9])
@pytest.mark.parametrize("trailing", [(), (2,)])
def test_values_move_along_their_row(by, trailing):
    values = np.arange(2 * 5 * 2)[: 10 * (2 if trailing else 1)].reshape(2, 5, *trailing)
    expected = np.full_like(values, -7)
    for column in range(5):
        if 0 <= column - by < 5:
            expected[:, column] = values[:, column - by]
    assert np.array_equal(shifted(values, by, -7), expected)
    if abs(by) <= 5:
        assert np.array_equal(jax.jit(lambda v: shifted(v, by, -7))(jnp.asarray(values)), expected)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3))
def test_counts_and_latest(starts):
    starts = np.array(starts)
    counts = [[sum(row[: k + 1]) for k in range(6)] for row in starts.tolist()]
    assert count_starts(starts).tolist() == counts
    places = np.where(starts, np.arange(6), 0)
    highest = [[max(row[: k + 1]) for k in range(6)] for row in places.tolist()]
    assert latest(places).tolist() == highest
    begins = np.where(starts, np.arange(6), 6)
    assert begins_and_end(begins).tolist() == [[*sorted(row), 6] for row in begins.tolist()]


def test_segments_start_where_the_last_one_ended():
    lengths = np.array([[2, 1, 0], [0, 0, 0], [3, 2, 0]], np.int32)
    expected = [[1, 0, 1, 1, 0], [1, 0, 0, 0, 0], [1, 0, 0, 1, 0]]
    assert segment_starts(np, lengths, 5).astype(int).tolist() == expected
    assert segment_starts(jnp, jnp.asarray(lengths), 5).astype(int).tolist() == expected
