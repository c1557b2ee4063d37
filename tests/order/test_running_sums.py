"""Running sums in few bytes: those of numpy, whatever the steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import intervals
from headrace.order.intervals import RunningSums, SumsWriter, bisect


def sums_of(steps: np.ndarray, cut: int) -> RunningSums:
    """Added in two goes; there might have been more."""
    writer = SumsWriter(steps.size + cut)
    writer.add(steps[:cut])
    writer.add(steps[cut:])
    return writer.finish()


@given(
    st.integers(0, 700),
    st.sampled_from([0, 1, 3, 1 << 20, 1 << 33, 1 << 52]),
    st.integers(0, 9),
    st.data(),
)
def test_sums_and_searches_are_numpys(size, most, seed, data):
    steps = np.random.default_rng(seed).integers(0, most + 1, size)
    steps[: data.draw(st.integers(0, size))] = 0
    expected = np.concatenate([[0], np.cumsum(steps)])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("_FEW", data.draw(st.sampled_from([0, 64]))),
            ("_STEPS_AT_ONCE", intervals._BLOCK),
        ):
            patch.setattr(intervals, name, value)
        sums = sums_of(steps, data.draw(st.integers(0, size)))
    assert (sums.size, sums.total) == (size + 1, expected[-1])
    assert sums.between(0, size + 1).tolist() == expected.tolist()
    values = np.concatenate([expected, expected - 1, expected + 1, [0, 1 << 62]])
    for side in ("left", "right"):
        assert (
            sums.search(values, side).tolist() == np.searchsorted(expected, values, side).tolist()
        )
    low = np.zeros_like(values)
    high = np.full_like(values, size + 1)
    at = bisect(lambda k: expected[np.minimum(k, size)], values, low, high)
    assert at.tolist() == np.searchsorted(expected, values).tolist()


def test_many_take_four_bytes_each(monkeypatch):
    monkeypatch.setattr(intervals, "_FEW", 1 << 16)
    steps = np.random.default_rng(0).integers(0, 2000, 300_000).astype(np.uint32)
    sums = sums_of(steps, 5)
    assert (
        sum(array.nbytes for array in vars(sums).values() if isinstance(array, np.ndarray))
        < 4.1 * steps.size
    )
    again = RunningSums(sums.size, sums.total, sums.first, sums.more)
    assert again.search(np.array([777]), "left") == sums.search(np.array([777]), "left")
    assert sums[np.array([300_000])] == steps.sum()
