"""Lines of what differs between JSON values: none where they are equal, one for each leaf that is
not.
"""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from headrace.run.differences import differences

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xy", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values, values)
def test_equal_values_and_only_these_have_none(one, other):
    assert differences(one, copy.deepcopy(one)) == []
    assert bool(differences(one, other)) == (one != other)


def test_long_values_are_cut_short():
    (line,) = differences({"a": "x" * 100}, {"a": 1})
    assert len(line) < 80
    assert line.endswith("... -> 1")
