"""Best, worst and first fit decreasing against the textbook, which places one item
after the other.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pack.fit_decreasing import first_fit_decreasing, fit_decreasing, stable_order

RULES = {
    "best": lambda space, b: (space, b),
    "worst": lambda space, b: (-space, b),
    "first": lambda space, b: b,
}


def textbook(sizes: list[int], capacity: int, rule: str) -> list[int]:
    bin_of = [0] * len(sizes)
    spaces = list[int]()
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fits = [b for b, space in enumerate(spaces) if space >= sizes[item]]
        if not fits:
            spaces.append(capacity)
            fits = [len(spaces) - 1]
        best = min(fits, key=lambda b: RULES[rule](spaces[b], b))
        spaces[best] -= sizes[item]
        bin_of[item] = best
    return bin_of


def ours(sizes: list[int], capacity: int, rule: str) -> list[int]:
    given_sizes = np.array(sizes, np.int64)
    if rule == "first":
        return first_fit_decreasing(given_sizes, capacity).tolist()
    return fit_decreasing(given_sizes, capacity, worst=rule == "worst").tolist()


@given(
    st.integers(1, 40).flatmap(
        lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c + 3), max_size=80))
    )
)
def test_every_item_lies_where_the_textbook_puts_it(case):
    capacity, sizes = case
    for rule in RULES:
        assert ours(sizes, capacity, rule) == textbook(sizes, capacity, rule), rule


def test_the_textbook_on_more_bins_than_first_fit_looks_at_together():
    sizes = np.random.default_rng(0).integers(
        30, 60, 9000
    )  # one to three in a bin: more than 4096 bins
    found = first_fit_decreasing(sizes, 97)
    assert int(found.max()) > 4096
    space = np.full(found.max() + 1, 97)
    for item in np.argsort(-sizes, kind="stable").tolist():
        first = int(np.argmax(space >= sizes[item]))
        assert found[item] == first
        space[first] -= sizes[item]


def test_pinned_bins():
    sizes = np.random.default_rng(1).integers(1, 50, 20)
    assert fit_decreasing(sizes, 64).tolist() == ours(sizes.tolist(), 64, "best")


@given(st.lists(st.integers(0, 1 << 34), max_size=60))
def test_stable_order_is_a_stable_sort(keys):
    array = np.array(keys, np.int64)
    assert stable_order(array).tolist() == sorted(range(len(keys)), key=keys.__getitem__)
