"""Pieces that follow each other become one range; nothing else does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.rows import adjacent_runs


def slow_reference(pieces):
    """Piece by piece: a run goes on while the next piece begins where the last one ended, in the
    same array.
    """
    runs = []
    for k, (array, start, size) in enumerate(pieces):
        if k and pieces[k - 1][0] == array and pieces[k - 1][1] + pieces[k - 1][2] == start:
            runs[-1][1] += size
        else:
            runs.append([k, size])
    return runs


piece = st.tuples(st.integers(0, 2), st.sampled_from([0, 4, 8, 12, 13]), st.sampled_from([1, 4]))


@given(st.lists(piece, max_size=20))
def test_runs_are_maximal_and_nothing_is_lost(pieces):
    array, start, size = (np.array([p[k] for p in pieces], np.int64) for k in range(3))
    first, elements = adjacent_runs(array, start, size)
    assert [list(r) for r in zip(first.tolist(), elements.tolist(), strict=True)] == slow_reference(
        pieces
    )
    assert elements.sum() == size.sum()
    assert first.dtype == elements.dtype == np.int64


def test_a_whole_block_is_one_run():
    start = np.arange(0, 1 << 20, 2048)
    first, elements = adjacent_runs(np.zeros_like(start), start, np.full_like(start, 2048))
    assert (first.tolist(), elements.tolist()) == ([0], [1 << 20])
