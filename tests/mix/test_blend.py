"""Blends: per-node normalisation against Energon's values and a loop; all-zero steps found without
scanning.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix.blend import Blend, weights_of_sizes
from headrace.mix.schedule import MAX_STEP, weight_from_config
from headrace.mix.shares import fixed_point

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "energon_weight_compose.json").read_text()
)
at = np.arange(70)
knots = st.dictionaries(
    st.integers(0, 60), st.sampled_from([0, 0, 1, 2.5]), min_size=1, max_size=4
).map(lambda d: dict(sorted(d.items())))
weights = st.sampled_from([0, 1, 3]) | st.builds(
    lambda k, p: {k: p}, st.sampled_from(["step", "linear"]), knots
)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: json.dumps(c["node"]))
def test_node_weights_are_those_of_energon(case):
    blend = Blend({str(n): w for n, w in enumerate(case["node"])})
    assert blend.at(np.array(case["batch_idx"])).tolist() == case["normalized"]


@given(st.lists(weights, min_size=1, max_size=4))
def test_an_all_zero_step_is_refused_exactly_when_there_is_one_and_the_first_is_named(ws):
    raw = np.stack([weight_from_config(w).at(at) for w in ws])
    empty = np.flatnonzero(raw.sum(axis=0) == 0)
    config = {f"w{i}": w for i, w in enumerate(ws)}
    if empty.size:
        with pytest.raises(ConfigError, match=rf"at step {empty[0]}\b"):
            Blend(config)
        if empty[0] > 0:
            Blend(config, num_steps=int(empty[0]))  # never reached
    else:
        np.testing.assert_allclose(Blend(config).at(at), (raw / raw.sum(axis=0)).T, rtol=1e-12)


@given(st.lists(weights, min_size=1, max_size=3), st.integers(0, 69), st.integers(1, 70))
def test_only_the_steps_of_its_use_are_checked(ws, first, size):
    config = {f"w{i}": w for i, w in enumerate(ws)}
    stop = min(first + size, 70)
    raw = np.stack([weight_from_config(w).at(at) for w in ws]).sum(axis=0)
    empty = first + np.flatnonzero(raw[first:stop] == 0)
    if empty.size:
        with pytest.raises(ConfigError, match=rf"at step {empty[0]}\b"):
            Blend(config, first_step=first, num_steps=stop)
    else:
        got = Blend(config, first_step=first, num_steps=stop).at(at[first:stop])
        np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
        outside = Blend(config, first_step=first, num_steps=stop).at(at)
        assert (outside[:first] == got[0]).all()
        assert (outside[stop:] == got[-1]).all()


def test_a_weight_whose_product_vanishes_is_kept_or_refused():
    inner = {"weight": 1e-150, "blend": {"x": 1e100, "y": 1e-150}}
    row = Blend({"a": 1e100, "n": inner, "z": 0}).at(np.array([0]))[0]
    assert (row > 0).tolist() == [True, True, True, False]
    assert (fixed_point(row[None])[0] > 0).tolist() == [True, True, True, False]
    with pytest.raises(ConfigError, match="too small to count"):
        Blend({"n": {"weight": 1e-200, "blend": {"a": 1e-200, "b": 1e-200}}})
    with pytest.raises(ConfigError, match="too small to count"):
        Blend({"n": {"step": {0: 1e-200}, "scale": 1e-200}})


def test_an_all_zero_step_far_out_is_found_without_scanning():
    far = MAX_STEP - 1
    with pytest.raises(ConfigError, match=f"at step {far}"):
        Blend({"a": {"linear": {0: 1, far: 0}}, "b": {"step": {0: 1, 9: 0}}})


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), min_size=1),
    st.dictionaries(st.sampled_from("xyz"), weights, min_size=1),
    st.integers(0, 4),
)
def test_nested_weights_are_the_product_of_nodes_each_normalised(outer, inner, share):
    config = {**outer, "n": {"weight": share, "blend": inner}}
    raw = np.stack([weight_from_config(w).at(at) for w in inner.values()], axis=1)
    if share and (raw.sum(axis=1) == 0).any():
        with pytest.raises(ConfigError, match=r"weights\.n\.blend"):
            Blend(config)
        return
    blend = Blend(config)
    assert blend.names == (*outer, *inner)
    got = blend.at(at)
    top = np.array([*outer.values(), share]) / (sum(outer.values()) + share)
    np.testing.assert_allclose(got[:, : len(outer)], np.tile(top[:-1], (70, 1)))
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
    if share:
        np.testing.assert_allclose(
            got[:, len(outer) :], top[-1] * raw / raw.sum(axis=1, keepdims=True)
        )
    assert Blend(json.loads(json.dumps(blend.to_config()))).at(at).tobytes() == got.tobytes()


def test_a_source_added_inside_does_not_change_the_outside():
    ramp = {"linear": {0: 1, 60: 3}}
    one = Blend({"web": 1, "lib": {"weight": ramp, "blend": {"a": 1}}}).at(at)
    two = Blend({"web": 1, "lib": {"weight": ramp, "blend": {"a": 1, "b": 7}}}).at(at)
    assert one[:, 0].tobytes() == two[:, 0].tobytes()


@pytest.mark.parametrize("between", [1, 2.5])
def test_schedules_twice_on_a_path_are_refused_with_both_paths(between):
    ramp = {"step": {0: 1, 9: 2}}
    inner = {"b": {"weight": between, "blend": {"c": ramp}}}
    Blend({"a": {"weight": 1, "blend": inner}, "z": ramp})
    with pytest.raises(ConfigError) as e:
        Blend({"a": {"weight": ramp, "blend": inner}})
    assert "weights.a " in str(e.value)
    assert "weights.a.blend.b.blend.c" in str(e.value)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, "at least one source"),
        ([1], "at least one source"),
        ({"a": {"weight": 1, "blend": {}}}, "weights.a.blend"),
        ({"a": {"weight": 1, "blends": {"x": 1}}}, "Did you mean 'blend'"),
        ({"a": 1, "n": {"blend": {"a": 1}}}, "two sources"),
        ({"a": 0, "b": 0}, "step 0"),
        ({"a": -1}, "weights.a"),
        ({"n": {"blend": {"x": {"stpe": {0: 1}}}}}, "weights.n.blend.x"),
    ],
)
def test_bad_blends_are_refused(config, word):
    with pytest.raises(ConfigError, match=word):
        Blend(config)


def test_rows_do_not_depend_on_what_is_asked_together():
    blend = Blend({"a": {"linear": {3: 0.1, 40: 0.7}}, "b": {"step": {0: 0.3, 11: 1.7}}, "c": 0.9})
    rows = blend.at(at[::-1].copy())[::-1]
    assert rows.tobytes() == b"".join(blend.at(np.array([s])).tobytes() for s in at)


sizes = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.floats(1, 1e12), min_size=1, max_size=8
)


@given(sizes, st.floats(0.2, 100))
def test_temperature_weights(s, tau):
    w = weights_of_sizes({"temperature": tau}, s)
    assert sum(w.values()) == pytest.approx(1)
    big = max(s, key=lambda k: s[k])
    small = min(s, key=lambda k: s[k])
    assert w[big] / w[small] == pytest.approx((s[big] / s[small]) ** (1 / tau))


@given(sizes, st.floats(0.5, 50), st.floats(0.001, 1))
def test_unimax_weights_are_equal_but_for_sources_at_their_limit(s, epochs, part):
    budget = sum(s.values()) * epochs * part
    w = weights_of_sizes({"unimax": epochs}, s, budget)
    assert sum(w.values()) == pytest.approx(1)
    largest = max(w.values())
    for name, size in s.items():
        assert w[name] * budget <= size * epochs * (1 + 1e-8)
        at_limit = w[name] * budget == pytest.approx(size * epochs)
        assert at_limit or w[name] == pytest.approx(largest)


def test_rules_refuse_what_cannot_be():
    for rule in ({"temperature": 1}, {"unimax": 4}):
        with pytest.raises(ConfigError, match="component 'b' has no row"):
            weights_of_sizes(rule, {"a": 3, "b": 0}, 1)
    with pytest.raises(ConfigError, match="must be a number above 0"):
        weights_of_sizes({"temperature": 0}, {"a": 1})
    with pytest.raises(ConfigError, match="cannot be met"):
        weights_of_sizes({"unimax": 4}, {"a": 10}, 100)
