"""Windowed packs: nearly as full as best fit, and read from little more than one block."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack import plan_packs

CAPACITY = 4096
BLOCK = 65_536


def blocks_of_packs(plan, lengths, block):
    """Distinct blocks that each pack's documents lie in, one pack after the other."""
    start = np.cumsum(lengths) - lengths
    touched = []
    for a, b in zip(plan.bounds[:-1].tolist(), plan.bounds[1:].tolist(), strict=True):
        blocks = set()
        for d, at, n in zip(*(x[a:b].tolist() for x in plan.items), strict=True):
            begin = int(start[d]) + at
            blocks.update(range(begin // block, (begin + n - 1) // block + 1))
        touched.append(blocks)
    return touched


@pytest.mark.parametrize("median", [60, 600])
def test_fill_and_locality(median):
    drawn = np.exp(np.random.default_rng(0).standard_normal(20_000)) * median
    lengths = np.clip(np.rint(drawn), 1, CAPACITY).astype(np.int64)
    best = plan_packs(lengths, CAPACITY, "bfd")
    windowed = plan_packs(lengths, CAPACITY, "windowed", block_tokens=BLOCK)
    assert best.fill >= 0.995
    assert windowed.fill >= best.fill - 0.005
    blocks = [len(b) for b in blocks_of_packs(windowed, lengths, BLOCK)]
    assert np.mean(blocks) <= 1.2
    assert np.mean([len(b) for b in blocks_of_packs(best, lengths, BLOCK)]) > 2


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=150),
    st.integers(30, 60),
    st.integers(1, 4),
)
def test_documents_lie_no_further_than_the_next_window(lengths, capacity, packs):
    window = -(-8 * capacity // (packs * capacity)) * packs * capacity
    plan = plan_packs(lengths, capacity, "windowed", block_tokens=packs * capacity)
    begin = np.cumsum(lengths) - lengths
    for pack in plan.raw_plan:
        windows = {int(begin[d]) // window for d in pack}
        assert max(windows) - min(windows) <= 1


def test_documents_of_two_arrays_are_in_windows_of_their_own():
    lengths = [10] * 60
    plan = plan_packs(lengths, 20, "windowed", block_tokens=160, array_documents=[25, 35])
    assert sorted(d for p in plan.raw_plan for d in p) == list(range(60))
    assert plan.fill == 1.0
