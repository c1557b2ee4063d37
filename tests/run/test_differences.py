"""Lines of what differs between JSON values: none where they are equal, one for each leaf that is
not.
"""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from headrace.run.differences import config_differences, differences

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


@given(st.permutations(["a", "b", "c"]), st.integers(0, 3))
def test_the_order_of_components_is_a_difference(order, kept):
    old, new = (
        {"components": dict.fromkeys(names, 1)} for names in (["a", "b", "c"][:kept], order)
    )
    lines = config_differences(old, new)
    assert any("in order" in line for line in lines) == (order[:kept] != ["a", "b", "c"][:kept])


def test_long_values_are_cut_short():
    (line,) = differences({"a": "x" * 100}, {"a": 1})
    assert len(line) < 80
    assert line.endswith("... -> 1")
