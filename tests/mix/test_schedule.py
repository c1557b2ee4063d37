"""Weights and batch sizes over steps. Oracles: ``np.interp``, a loop in Python, and Energon's own
values (golden).
"""

import ast
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.mix.drawn import draws_of

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace.mix.schedule import (
    MAX_BATCH,
    MAX_STEP,
    Curves,
    Weight,
    compose_weights,
    weight_from_config,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ENERGON = json.loads((GOLDEN / "energon_weight_schedule.json").read_text())
COMPOSE = json.loads((GOLDEN / "energon_weight_compose.json").read_text())

values = st.just(0.0) | st.floats(1e-150, 1e6)
scales = st.just(0.0) | st.floats(1e-150, 10)
points = st.dictionaries(st.integers(0, 300), values, min_size=1, max_size=6).map(
    lambda d: dict(sorted(d.items()))
)
configs = st.one_of(
    values,
    st.builds(
        lambda k, p, s: {k: p, "scale": s}, st.sampled_from(["step", "linear"]), points, scales
    ),
)
steps = np.arange(310)
PINNED_COSINE = [
    "0x1.3669d875c1c88p-15",
    "0x1.84044e93323aap-12",
    "0x1.2bec333018866p-3",
    "0x1.fe64660713753p-2",
    "0x1.c3a89fb7d554cp-1",
    "0x1.fffad39a5edeep-1",
]


@pytest.mark.parametrize("case", ENERGON["cases"], ids=lambda c: json.dumps(c["config"]))
def test_values_are_those_of_energon(case):
    assert (
        weight_from_config(case["config"]).at(np.array(case["batch_idx"])).tolist()
        == case["weight"]
    )


@pytest.mark.parametrize("case", COMPOSE["compose"], ids=lambda c: json.dumps(c["inner"]))
def test_compositions_are_those_of_energon(case):
    outer = weight_from_config(case["outer"])
    inner = weight_from_config(case["inner"])
    if "error" in case:
        with pytest.raises(ConfigError):
            compose_weights(outer, inner)
    else:
        assert compose_weights(outer, inner).at(np.array(case["at"])).tolist() == case["value"]


@pytest.mark.parametrize("case", COMPOSE["rejected"], ids=lambda c: c["config"])
def test_what_energon_rejects_is_rejected(case):
    config = math.inf if case["config"] == "inf" else ast.literal_eval(case["config"])
    with pytest.raises(ConfigError) as e:
        weight_from_config(config, "weights.docs")
    assert "weights.docs" in str(e.value)


@given(points)
def test_step_is_the_last_point_at_or_before(p):
    first = p[min(p)]
    expected = [
        p[max((k for k in p if k <= s), default=-1)] if min(p) <= s else first
        for s in steps.tolist()
    ]
    assert weight_from_config({"step": p}).at(steps).tolist() == expected


@given(points)
def test_linear_is_interpolation_held_constant_outside(p):
    knots = sorted(p)
    expected = np.interp(steps, knots, [p[k] for k in knots])
    got = weight_from_config({"linear": p}).at(steps)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-9)
    assert got[knots].tolist() == [p[k] for k in knots]  # no rounding at the points
    assert (got >= 0).all()


@given(st.lists(configs, min_size=1, max_size=5), st.lists(st.integers(0, 400), max_size=20))
def test_together_is_one_by_one_bit_for_bit(cs, at):
    weights = [weight_from_config(c) for c in cs]
    together = Curves(weights).at(np.array(at, np.int64))
    assert together.shape == (len(at), len(cs))
    for row, s in zip(together, at, strict=True):
        assert row.tolist() == [w.at(np.array([s]))[0] for w in weights]


@given(configs)
def test_config_round_trips_also_through_text(c):
    w = weight_from_config(c)
    assert weight_from_config(w.to_config()) == w
    assert weight_from_config(json.loads(json.dumps(w.to_config()))) == w
    assert weight_from_config(yaml.safe_load(yaml.safe_dump(w.to_config()))) == w


@given(configs, st.just(0.0) | st.floats(1e-3, 100))
def test_a_constant_scales_a_schedule_from_either_side(c, factor):
    w = weight_from_config(c)
    f = weight_from_config(factor)
    for product in (compose_weights(w, f), compose_weights(f, w)):
        np.testing.assert_allclose(product.at(steps), w.at(steps) * factor, rtol=1e-12, atol=1e-300)


def test_two_schedules_on_one_path_are_refused_with_both_paths():
    ramp = {"linear": {0: 1}}
    with pytest.raises(ConfigError) as e:
        compose_weights(
            weight_from_config(ramp, "weights.lib"),
            weight_from_config(ramp, "weights.lib.blend.docs"),
        )
    assert "weights.lib " in str(e.value)
    assert "weights.lib.blend.docs" in str(e.value)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (-1, "negative"),
        (math.inf, "finite"),
        (math.nan, "finite"),
        (1e101, "1e100"),
        (1e-310, "too small to count"),
        ({"step": {0: 1, 5: 1e-200}, "scale": 1e-200}, "too small to count"),
        (True, "not a weight"),
        (None, "not a weight"),
        ("much", "not a weight"),
        ([1], "not a weight"),
        ({}, "neither"),
        ({"scale": 2}, "neither"),
        ({"step": {}}, "at least one point"),
        ({"linear": []}, "at least one point"),
        ({"step": 3}, "map steps"),
        ({"step": {0: 1}, "linear": {0: 1}}, "both"),
        ({"step": {-1: 1}}, "not a step"),
        ({"step": {0.5: 1}}, "not a step"),
        ({"step": {True: 1}}, "not a step"),
        ({"step": {"soon": 1}}, "not a step"),
        ({"step": {MAX_STEP + 1: 1}}, "not a step"),
        ({"step": {0: -1}}, "negative"),
        ({"step": {0: True}}, "not a weight"),
        ({"step": {0: math.nan}}, "finite"),
        ({"step": [[5, 1], [0, 1]]}, "step 0 after step 5"),
        ({"step": [[5, 1], [5, 2]]}, "step 5 after step 5"),
        ({"step": {5: 1, "5": 2}}, "step 5 after step 5"),
        ({"step": [5, 1]}, "pair"),
        ({"linear": {0: 1}, "scale": -1}, "negative"),
        ({"linear": {0: 1}, "scale": "big"}, "not a weight"),
        ({"linaer": {0: 1}}, "Did you mean 'linear'"),
    ],
)
def test_bad_weights_are_refused_with_field_and_reason(config, word):
    with pytest.raises(ConfigError) as e:
        weight_from_config(config, "weights.docs")
    assert str(e.value).startswith("weights.docs")
    assert word in str(e.value)


def test_points_may_come_as_text_or_as_pairs():
    w = Weight("step", ((0, 1.0), (1000, 0.5)))
    assert weight_from_config({"step": {"0": 1, "1_000": 0.5}}) == w
    assert weight_from_config({"step": [(0, 1), (1000, 0.5)]}) == w
    assert weight_from_config("1e-3").at(np.array([0])).tolist() == [
        1e-3
    ]  # YAML reads 1e-3 as text
    assert weight_from_config(w) is w


@pytest.mark.parametrize(
    "points_", [{1000: 0.5, 0: 1}, [(1000, 0.5), (0, 1)], {"10": 1, "9": 2}, {5: 1, "5": 2}]
)
def test_unsorted_points_are_refused_with_field_value_and_cure(points_):
    for kind in ("step", "linear"):
        with pytest.raises(ConfigError, match="after step") as caught:
            weight_from_config({kind: points_}, "weights.web")
        assert (caught.value.field, caught.value.value) == (f"weights.web.{kind}", points_)
        assert "Sort the points by step" in (caught.value.cure or "")
    with pytest.raises(ConfigError) as caught:
        BatchSchedule(points_)
    assert (caught.value.field, caught.value.value) == ("batch_size", points_)
    with pytest.raises(ConfigError, match="is not a step") as caught:
        BatchSchedule({-4: 8})
    assert (caught.value.field, caught.value.value) == ("batch_size", -4)


def test_weights_reach_the_last_step():
    w = weight_from_config({"linear": {0: 0, MAX_STEP: 1}})
    assert w.at(np.array([MAX_STEP // 2, MAX_STEP - 1, MAX_STEP])).tolist() == [
        0.5,
        1 - 2.0**-40,
        1.0,
    ]


schedules = st.dictionaries(st.integers(1, 60), st.integers(1, 9), max_size=4).flatmap(
    lambda d: st.builds(lambda b: {0: b, **dict(sorted(d.items()))}, st.integers(1, 9))
)


@given(schedules)
def test_batch_schedule_is_a_closed_form_of_the_running_sum(config):
    b = BatchSchedule(config)
    sizes = [config[max(k for k in config if k <= s)] for s in range(80)]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    at = np.arange(80)
    assert b.size_at(at).tolist() == sizes
    assert b.offset_at(at).tolist() == offsets[:-1].tolist()
    assert b.step_of(np.arange(offsets[-1])).tolist() == np.repeat(at, sizes).tolist()
    assert b.rows_at(70) == (offsets[70], sizes[70])
    assert b.max_size == max(config.values())
    assert b.unique_sizes == tuple(sorted(set(config.values())))
    assert BatchSchedule(b.to_config()) == b
    assert BatchSchedule(json.loads(json.dumps(b.to_config()))) == b


@given(schedules, st.lists(st.integers(0, MAX_STEP), min_size=1, max_size=20))
def test_batch_schedule_inverts_up_to_the_last_step(config, at):
    b = BatchSchedule({s * 10**9: size * 2**14 for s, size in config.items()})
    s = np.array(at)
    assert b.step_of(b.offset_at(s)).tolist() == at
    assert b.step_of(b.offset_at(s) + b.size_at(s) - 1).tolist() == at


@pytest.mark.parametrize(
    "config",
    [
        0,
        -3,
        True,
        2.5,
        "32",
        None,
        {},
        {1: 32},
        {0: 0},
        {0: 1.5},
        [(0, 1), (0, 2)],
        {0: 4, -1: 5},
        MAX_BATCH + 1,
    ],
)
def test_bad_batch_sizes_are_refused(config):
    with pytest.raises(ConfigError) as e:
        BatchSchedule(config)
    assert "batch_size" in str(e.value)


@given(points, scales)
def test_a_cosine_follows_half_a_cosine_between_its_points(drawn, scale):
    """Oracle: the library's cosine, at every step; less than 0.02 % of the difference away where an
    interval has steps enough, and never outside the two weights.
    """
    got = weight_from_config({"cosine": drawn, "scale": scale}).at(steps)
    knots = list(drawn.items())
    assert got[steps <= knots[0][0]] == pytest.approx(knots[0][1] * scale)
    assert got[steps >= knots[-1][0]] == pytest.approx(knots[-1][1] * scale)
    for (first, low), (last, high) in itertools.pairwise(knots):
        inside = steps[(steps >= first) & (steps <= last)]
        curve = low + (high - low) * (1 - np.cos(math.pi * (inside - first) / (last - first))) / 2
        room = (2e-4 * abs(high - low) + 1e-9 * max(low, high)) * scale
        # A line of a 64th may begin a step early: then it is the chord of a slightly longer one.
        longest = math.ceil((last - first) / 64) / (last - first)
        room += abs(high - low) * scale * (math.pi * longest) ** 2 / 16
        assert np.abs(got[inside] - curve * scale).max() <= room
        assert got[inside].min() >= min(low, high) * scale * (1 - 1e-12)
        assert got[inside].max() <= max(low, high) * scale * (1 + 1e-12)


def test_pinned_a_cosine_has_the_same_bits_everywhere():
    got = weight_from_config({"cosine": {0: 0, 1000: 1}}).at(np.array([1, 10, 250, 499, 777, 999]))
    assert [value.hex() for value in got.tolist()] == PINNED_COSINE


def test_the_rows_of_a_cosine_are_exact():
    """Quotas follow the weights to within a row, before and after any step."""
    weights = {"a": 1, "b": {"cosine": {100: 0, 900: 3}}}
    draws = draws_of(weights, BatchSchedule(16))
    at = np.arange(1000)
    b = weight_from_config(weights["b"]).at(at)
    due = np.concatenate([[0], np.cumsum(16 * b / (1 + b))])
    for step in (0, 100, 101, 500, 899, 900, 1000):
        assert abs(draws.starts_at(step)[1] - due[step]) < 1


def test_two_kinds_of_schedule_are_refused():
    with pytest.raises(ConfigError) as caught:
        weight_from_config({"cosine": {0: 1}, "linear": {0: 1}}, "weights.a")
    assert caught.value.field == "weights.a"
    with pytest.raises(ConfigError, match="cosine"):
        weight_from_config({"cosin": {0: 1}})
