"""Weights that repeat, and the plain ones that they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix.blend import check_weight, repeats_somewhere, with_rows, without_repeats

ROWS = {"a": 100, "b": 10, "c": 7}


def resolved(**weights):
    return with_rows(weights, lambda: ROWS, "weights")


@given(st.dictionaries(st.sampled_from("abc"), st.floats(0.001, 1000), min_size=1))
def test_a_source_is_drawn_its_rows_times_its_repeats(repeats):
    plain = resolved(**{name: {"repeat": times} for name, times in repeats.items()})
    assert plain == {name: times * ROWS[name] for name, times in repeats.items()}


def test_rows_are_asked_only_where_a_weight_repeats():
    weights = {"a": {"weight": 2, "blend": {"b": {"linear": {0: 1, 5: 2}}}}, "c": 1}
    assert with_rows(weights, lambda: pytest.fail("asked"), "weights") == weights
    assert not repeats_somewhere(weights)


def test_a_schedule_repeats_too():
    assert resolved(a={"repeat": {"linear": {0: 0, 10: 2}}}, b={"repeat": 1}) == {
        "a": {"linear": {0: 0.0, 10: 2.0}, "scale": 100.0},
        "b": 10.0,
    }


def test_groups_repeat_as_their_sources_do():
    group = {"weight": {"repeat": 3}, "blend": {"a": {"repeat": 1}, "b": {"repeat": 2}}}
    assert resolved(g=group, c={"repeat": 1}) == {
        "g": {"weight": 360.0, "blend": {"a": 100.0, "b": 20.0}},
        "c": 7.0,
    }
    assert resolved(g={**group, "weight": 5}, c=1)["g"] == {
        "weight": 5,
        "blend": {"a": 100.0, "b": 20.0},
    }


@pytest.mark.parametrize(
    ("weights", "field", "problem"),
    [
        ({"a": {"repeat": 1}, "b": 1}, "weights.b", "stands beside weights that repeat"),
        ({"d": {"repeat": 1}}, "weights.d", "is not a component"),
        ({"a": {"repeat": -1}}, "weights.a.repeat", "negative"),
        ({"a": {"repeat": "x"}}, "weights.a.repeat", "number"),
        (
            {"g": {"weight": {"repeat": 1}, "blend": {"a": 1}}},
            "weights.g",
            "repeats, and what is in the group does not",
        ),
        (
            {"g": {"weight": {"repeat": 1}, "blend": {"a": {"repeat": {"step": {0: 1}}}}}},
            "weights.g",
            "repeats, and so do schedules in the group",
        ),
    ],
    ids=str,
)
def test_what_cannot_repeat_is_refused(weights, field, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        resolved(**weights)
    assert caught.value.field == field


def test_weights_of_components_are_checked_without_rows():
    check_weight({"repeat": 2}, "components.a.weight")
    with pytest.raises(ConfigError) as caught:
        check_weight({"repeat": {"lineer": {0: 1}}}, "components.a.weight")
    assert caught.value.field == "components.a.weight.repeat"
    assert without_repeats({"a": {"weight": {"repeat": 2}, "blend": {"b": {"repeat": 1}}}}) == {
        "a": {"weight": 2, "blend": {"b": 1}}
    }
