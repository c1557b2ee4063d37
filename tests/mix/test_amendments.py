"""Amendments of nested blends: what is named changes where it stands, all else keeps its share of
its group.
"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix import AmendmentConfig, BatchSchedule, StageConfig
from headrace.mix.amendments import amend, sources_of
from headrace.mix.blend import Blend, weights_of_sizes
from headrace.mix.plan import MixtureConfig, resolve_stages
from headrace.mix.stage_config import check_plan

NAMES = ["a", "b", "c", "d", "e"]
NESTED = {"x": {"weight": 2, "blend": {"a": 1, "b": 1}}, "c": 1}
numbers = st.floats(0.1, 10)


def change(mixture: dict[str, Any] = NESTED, **changes: Any) -> dict[str, Any]:
    given_ = {"add": {}, "weights": {}, "drop": [], **changes}
    return amend(mixture, **given_, components=NAMES, path="amendments[0]")


def shares(mixture: dict[str, Any]) -> dict[str, float]:
    blend = Blend(mixture)
    return dict(zip(blend.names, blend.at(np.zeros(1, np.int64))[0].tolist(), strict=True))


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Two sources at least in ``x``, one in ``y`` within it, and ``e`` at the top."""
    inner = {n: draw(numbers) for n in draw(st.permutations(["a", "b"]))}
    if draw(st.booleans()):
        inner |= {"y": {"weight": draw(numbers), "blend": {"c": draw(numbers), "d": draw(numbers)}}}
    return {"x": {"weight": draw(numbers), "blend": inner}, "e": draw(numbers)}


@given(mixtures(), numbers, st.data())
def test_a_source_that_is_weighed_anew_leaves_all_but_its_group_as_they_were(mixture, weight, data):
    name = data.draw(st.sampled_from(sources_of(mixture)))
    before = shares(mixture)
    after = shares(change(mixture, weights={name: weight}))
    assert list(after) == list(before)
    siblings = next(g for g in groups(mixture) if name in g)
    inside = sources_of(siblings)  # beside the group, everything keeps its share of the whole
    for other in set(before) - set(inside):
        assert after[other] == pytest.approx(before[other])
    flat = [s for s in siblings if s in before and s != name]
    for other in flat:  # among its siblings, the new weight counts
        held = siblings[other]
        assert after[name] * held == pytest.approx(after[other] * weight)


def groups(mixture: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [v["blend"] for v in mixture.values() if isinstance(v, dict)]
    return [mixture, *(g for blend in inner for g in groups(blend))]


@given(mixtures(), st.data())
def test_what_is_dropped_goes_and_the_rest_keeps_its_proportions(mixture, data):
    names = [*sources_of(mixture), "x"]
    drop = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    gone = {s for n in drop for s in (sources_of({"x": mixture["x"]}) if n == "x" else [n])}
    if gone == set(sources_of(mixture)):
        with pytest.raises(ConfigError, match="at least one source"):
            change(mixture, drop=drop)
        return
    before = shares(mixture)
    after = shares(change(mixture, drop=drop))
    assert set(after) == set(before) - gone
    for group in groups(mixture):
        left = [s for s in group if s in after]
        for one in left[1:]:
            assert after[one] * before[left[0]] == pytest.approx(after[left[0]] * before[one])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"weights": {"a": 3}}, {"x": {"weight": 2, "blend": {"a": 3, "b": 1}}, "c": 1}),
        ({"weights": {"x": 3}}, {"x": {"weight": 3, "blend": {"a": 1, "b": 1}}, "c": 1}),
        (
            {"weights": {"x": {"weight": 3}}},
            {"x": {"weight": 3, "blend": {"a": 1, "b": 1}}, "c": 1},
        ),
        (
            {"weights": {"x": {"step": {0: 1}}, "b": 4}},
            {"x": {"weight": {"step": {0: 1}}, "blend": {"a": 1, "b": 4}}, "c": 1},
        ),
        (
            {"weights": {"x": {"blend": {"a": 1, "d": 5}}}},
            {"x": {"weight": 2, "blend": {"a": 1, "d": 5}}, "c": 1},
        ),
        (
            {"weights": {"x": {"weight": 1, "blend": {"b": 1}}}},
            {"x": {"weight": 1, "blend": {"b": 1}}, "c": 1},
        ),
        ({"drop": ["a"]}, {"x": {"weight": 2, "blend": {"b": 1}}, "c": 1}),
        ({"drop": ["a", "b"]}, {"c": 1}),
        ({"drop": ["x"]}, {"c": 1}),
        ({"drop": ["a", "x"]}, {"c": 1}),
        ({"drop": ["x"], "add": {"a": 3}}, {"c": 1, "a": 3}),
        (
            {"drop": ["c"], "add": {"y": {"blend": {"c": 3}}}},
            {"x": NESTED["x"], "y": {"blend": {"c": 3}}},
        ),
        ({"add": {"y": {"blend": {"d": 1, "e": 1}}}}, {**NESTED, "y": {"blend": {"d": 1, "e": 1}}}),
        ({"drop": ["x", "c"], "add": {"d": 1}}, {"d": 1}),
    ],
    ids=str,
)
def test_the_mixture_after(changes, expected):
    assert change(**changes) == expected
    assert NESTED == {"x": {"weight": 2, "blend": {"a": 1, "b": 1}}, "c": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "amendments[0]: changes nothing. Give it add, weights, drop or skip"),
        (
            {"drop": ["a", "a"]},
            "amendments[0].drop = ['a', 'a']: names 'a' twice. Name it once: drop: [a]",
        ),
        (
            {"weights": {"a": 2}, "drop": ["a"]},
            "amendments[0].weights.a = 2: is dropped by the same amendment",
        ),
        (
            {"weights": {"a": 2}, "drop": ["x"]},
            "amendments[0].weights.a = 2: is dropped by the same amendment, with 'x'",
        ),
        (
            {"add": {"c": 2}, "drop": ["c"]},
            "amendments[0].add.c = 2: is dropped by the same amendment",
        ),
        ({"add": {"a": 2}}, "amendments[0].add.a: is in the mixture already. Use weights for it."),
        (
            {"add": {"y": {"blend": {"a": 2}}}},
            "amendments[0].add.y.blend.a: is in the mixture already",
        ),
        (
            {"add": {"y": {"blend": {"dd": 2}}}},
            "amendments[0].add.y.blend.dd: is not a component. Did you mean 'd'?",
        ),
        ({"add": {"dd": 2}}, "amendments[0].add.dd: is not a component. Did you mean 'd'?"),
        (
            {"add": {"x": {"blend": {"d": 1}}}},
            "amendments[0].add.x: has the name of a group of the mixture",
        ),
        (
            {"add": {"c": {"blend": {"d": 1}}}},
            "amendments[0].add.c: has the name of a source of the mixture",
        ),
        ({"weights": {"d": 2}}, "amendments[0].weights.d: is not in the mixture. Use add for it."),
        (
            {"weights": {"aa": 2}},
            "amendments[0].weights.aa: is not in the mixture. Did you mean 'a'?",
        ),
        ({"weights": {"a": -2}}, "amendments[0].weights.a = -2: must be finite and not negative"),
        (
            {"weights": {"x": {"blend": {"a": 1, "c": 1}}}},
            "amendments[0].weights.x.blend: has 'c', which is in the mixture",
        ),
        (
            {"weights": {"x": {"blend": {"a": 1, "z": 1}}}},
            "amendments[0].weights.x.blend.z: is not a component",
        ),
        (
            {"weights": {"x": {"blend": {"a": 1}}, "a": 2}},
            "amendments[0].weights.a = 2: is given twice",
        ),
        (
            {"weights": {"x": {"blend": {"a": 1}}, "b": 2}},
            "amendments[0].weights.b: is not in the mixture",
        ),
        (
            {"weights": {"c": {"blend": {"d": 1}}}},
            "is a source and no group. Give it a number; or drop it, and add",
        ),
        ({"weights": {"x": {"blendd": {"a": 1}}}}, "unknown key 'blendd'"),
        (
            {"drop": ["dd"]},
            "amendments[0].drop = 'dd': is not in the mixture. Known names: 'a', 'b', 'c', 'x'.",
        ),
        ({"drop": ["x", "c"]}, "amendments[0].drop = ['x', 'c']: leaves nothing"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(changes, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        change(**changes)


def test_a_name_that_means_two_entries_is_refused_and_the_group_can_be_written_out():
    mixture = {"a": {"weight": 2, "blend": {"a": 1, "b": 1}}, "c": 1}
    with pytest.raises(ConfigError, match=r"means a and a\.a\. Write the group out"):
        change(mixture, weights={"a": 3})
    after = change(mixture, weights={"a": {"weight": 3, "blend": {"a": 1, "b": 1}}})
    assert after == {"a": {"weight": 3, "blend": {"a": 1, "b": 1}}, "c": 1}


def resolved(weights, amendments, own=None):
    names = dict.fromkeys(NAMES) if own is None else own
    return resolve_stages(
        MixtureConfig(
            names,
            BatchSchedule(8),
            [(0, 16)],
            weights=weights,
            amendments=amendments,
            sizes=lambda: dict.fromkeys(NAMES, 100),
        )
    )


def test_amendments_follow_each_other_in_a_run():
    first = AmendmentConfig(
        60, add={"y": {"weight": 1, "blend": {"d": 1, "e": 1}}}, weights={"a": 3}
    )
    then = AmendmentConfig(90, weights={"d": 7, "x": 5}, drop=["e"])
    stages = [stage.blend.to_config() for stage in resolved(NESTED, [first, then])]
    assert stages == [
        {"x": {"weight": 2.0, "blend": {"a": 1.0, "b": 1.0}}, "c": 1.0},
        {
            "x": {"weight": 2.0, "blend": {"a": 3.0, "b": 1.0}},
            "c": 1.0,
            "y": {"weight": 1.0, "blend": {"d": 1.0, "e": 1.0}},
        },
        {
            "x": {"weight": 5.0, "blend": {"a": 3.0, "b": 1.0}},
            "c": 1.0,
            "y": {"weight": 1.0, "blend": {"d": 7.0}},
        },
    ]


def test_components_of_a_group_that_joins_later_are_not_there_before():
    joining = AmendmentConfig(60, add={"y": {"blend": {"d": 1}}})
    grown = AmendmentConfig(90, weights={"y": {"blend": {"d": 1, "e": 1}}})
    for stages in (
        resolved(None, [joining, grown]),
        resolved({"temperature": 1}, [joining, grown]),
    ):
        assert [stage.blend.names for stage in stages] == [("a", "b", "c"), (*"abcd",), (*"abcde",)]


@pytest.mark.parametrize(
    ("weights", "amendment", "field"),
    [
        ({"x": {"blend": {"temperature": 2}}, "a": 1}, None, "weights.x.blend"),
        (
            {"x": {"blend": {"y": {"blend": {"unimax": 2}}}}, "a": 1},
            None,
            "weights.x.blend.y.blend",
        ),
        (NESTED, {"weights": {"temperature": 2}}, "amendments[0].weights"),
        (NESTED, {"add": {"y": {"blend": {"temperature": 2}}}}, "amendments[0].add.y.blend"),
    ],
)
def test_a_size_rule_stands_at_the_top_only(weights, amendment, field):
    amendments = [] if amendment is None else [AmendmentConfig(5, **amendment)]
    with pytest.raises(ConfigError, match="stands at the top of weights only") as caught:
        resolved(weights, amendments)
    assert caught.value.field == field


def test_an_amendment_that_says_nothing_or_two_things_is_refused_as_it_is_written():
    for amendment in (AmendmentConfig(10), AmendmentConfig(10, weights={"a": 2}, drop=["a"])):
        with pytest.raises(ConfigError, match=r"amendments\[0\]"):
            check_plan([StageConfig({"a": 1})], [amendment])


@pytest.mark.parametrize(
    ("rule", "budget"), [({"unimax": 1}, "num_steps"), ({"unimax": 1}, "stages[1].tokens")]
)
def test_a_unimax_that_cannot_be_names_the_field_of_the_budget_and_a_cure_that_works(rule, budget):
    sizes = {"a": 300, "b": 33}
    with pytest.raises(ConfigError, match="cannot be met") as caught:
        weights_of_sizes(rule, sizes, 1000, budget=budget)
    assert caught.value.field == "weights.unimax"
    enough, lowered = re.findall(
        r"Raise it to (.*) or more, or lower (.*)\.", caught.value.cure or ""
    )[0]
    assert lowered == budget
    assert weights_of_sizes({"unimax": float(enough)}, sizes, 1000)
    with pytest.raises(ConfigError, match=r"or lower weights\.unimax\.tokens\."):
        weights_of_sizes({"unimax": {"max_epochs": 1, "tokens": "1e3"}}, sizes, 10)
