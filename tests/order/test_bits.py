"""A bit for each number means the set that ranges mean, whatever is asked of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import bits
from headrace.order.bits import Bits
from headrace.order.intervals import Intervals

LENGTH = 70


@given(
    numbers=st.lists(st.integers(0, LENGTH - 1), max_size=80),
    length=st.sampled_from([LENGTH, LENGTH + 2, 200]),
    limits=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    below=st.integers(0, 90),
)
def test_bits_are_the_set_of_their_numbers(numbers, length, limits, below):
    expected = Intervals.of_numbers(np.array(numbers, np.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "_CHUNK", 16)
        every = [
            Bits.of_numbers(np.array(numbers, dtype), length) for dtype in (np.int64, np.uint8)
        ]
        every.append(Bits.of_masks(expected.mask, length))
        for one in every:
            assert one.intervals() == expected
            assert (one.total, one.digest()) == (expected.total, expected.digest())
            first, stop = sorted(limits)
            assert one.mask(first, stop).tolist() == expected.mask(first, stop).tolist()
            assert one.below(below).intervals() == expected.below(below)
            sets = [s for s in one.ranges() if s.start.size]
            assert all(a.stop[-1] < b.start[0] for a, b in pairwise(sets))
