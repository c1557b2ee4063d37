"""Conditions on documents: what Python says of each document alone, and nothing but that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.document_numbers import Where
from headrace.errors import ConfigError

NAMES = ("quality", "dup", "length")
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -1.5]))
TERMS = st.one_of(st.sampled_from(NAMES), NUMBERS.map(str))
COMPARISONS = st.lists(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), min_size=1, max_size=2)
COMPARED = st.builds(
    lambda first, ops, rest: first + "".join(f" {o} {t}" for o, t in zip(ops, rest, strict=False)),
    st.sampled_from(NAMES),
    COMPARISONS,
    st.lists(TERMS, min_size=2, max_size=2),
)
CONDITIONS = st.recursive(
    COMPARED | st.sampled_from(NAMES),
    lambda inner: st.one_of(
        inner.map(lambda a: f"not ({a})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda abc: f"({abc[0]}) {abc[1]} ({abc[2]})"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=100)
@given(CONDITIONS, st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=6))
def test_it_holds_where_python_says_so(text, documents):
    columns = {name: np.array([d[k] for d in documents]) for k, name in enumerate(NAMES)}
    said = [bool(eval(text, dict(zip(NAMES, document, strict=False)))) for document in documents]
    assert Where(text).holds(columns).tolist() == said
    assert Where(text).names <= set(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quality >",
        "__import__('os').system('true')",
        "quality.real > 1",
        "quality[0]",
        "quality + 1 > 2",
        "quality == 'a'",
        "[quality]",
        "lambda: 1",
        "quality is 1",
        "quality in dup",
        "(x := 3)",
        "1 if quality else 0",
        "2",
        "1 < 2",
        "fineweb-edu > 3",
        "dup, quality",
        "1e400j < quality",
        "-dup",
        "f'{quality}'",
        "(" * 300 + "dup" + ")" * 300,
        "dup\x00",
    ],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="quality >= 3 and not dup") as refused:
        Where(text, "components.web.where")
    assert refused.value.field == "components.web.where"


def test_a_condition_may_have_several_lines():
    where = Where("quality > 1  # the good\n  and not dup\n")
    numbers = {"quality": np.array([1, 2, 2]), "dup": np.array([0, 0, 1])}
    assert where.holds(numbers).tolist() == [False, True, False]


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1e999"])
def test_numbers_beyond_all_that_are_stored_are_refused(number):
    with pytest.raises(ConfigError, match="beyond all"):
        Where(f"quality < {number}")
    assert Where("quality < 1e39").holds({"quality": np.ones(1, np.float32)}).all()
