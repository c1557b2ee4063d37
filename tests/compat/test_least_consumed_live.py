"""Least consumed: nanoschnack's orders and states (golden), balance as a property, and resuming
exactly.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace_compat import LeastConsumed, build_interleaved_dataset, cap_resume_rows
from headrace_compat.least_consumed import LeastConsumedPlan

GOLDEN = Path(__file__).parents[1] / "golden"
ORDERS = json.loads((GOLDEN / "least_consumed_order.json").read_text())["cases"]
RESUMES = json.loads((GOLDEN / "least_consumed_resume.json").read_text())["cases"]

lengths = st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=4).filter(any)


def stream(sources, mix):
    """Names drawn, each sample being its own length."""
    return [name for name, _ in build_interleaved_dataset(sources, int, mix)]


def named(ls):
    return {str(i): x for i, x in enumerate(ls)}


@pytest.mark.parametrize(
    "case", ORDERS, ids=lambda c: f"{c['seed']}-{len(c['order'])}-{c['start_counts']}"
)
def test_orders_are_those_of_nanoschnack(case):
    plan = LeastConsumedPlan(
        case["sample_lengths"], BatchSchedule(1), case["seed"], case["start_counts"]
    )
    assert plan.sequence(0, plan.ends_after).tolist() == case["order"]
    sources = named(case["sample_lengths"])
    counts = dict(zip(sources, case["start_counts"], strict=True))
    streamed = build_interleaved_dataset(sources, int, token_counts=counts, seed=case["seed"])
    assert [int(name) for name, _ in streamed] == case["order"]


@pytest.mark.parametrize("case", RESUMES, ids=lambda c: c["name"])
def test_states_are_those_of_nanoschnack(case):
    mix = LeastConsumed(case["specs"], state=case["state"], baseline="saved")
    assert mix.rows == case["rows"]
    assert mix.tokens == case["adjusted_tokens"]
    assert mix.seeded == case["seeded"]
    saved = mix.resume_state()
    del saved["tie_rng"]
    assert saved == case["saved"]
    assert cap_resume_rows(case["rows"], {"a": 4, "b": 5, "new": 9}) == case["capped_rows"]


@given(lengths, st.integers(0, 99))
def test_plan_and_stream_agree(ls, seed):
    plan = LeastConsumedPlan(ls, BatchSchedule(3), seed)
    expected = [str(k) for k in plan.sequence(0, plan.ends_after)]
    assert stream(named(ls), LeastConsumed(list(named(ls)), seed)) == expected


@given(lengths, st.integers(0, 99), st.data())
def test_a_resumed_stream_goes_on_as_if_it_had_not_stopped(ls, seed, data):
    sources = named(ls)
    whole = stream(sources, LeastConsumed(list(sources), seed))
    cut = data.draw(st.integers(0, len(whole)))
    mix = LeastConsumed(list(sources), seed)
    samples = build_interleaved_dataset(sources, int, mix)
    head = [next(samples)[0] for _ in range(cut)]
    state = json.loads(json.dumps(mix.resume_state()))
    resumed = LeastConsumed(
        list(sources), seed=12345, state=state
    )  # the draw goes on, its seed does not matter
    rest = {s: x[resumed.rows[s] :] for s, x in sources.items()}
    assert head + stream(rest, resumed) == whole


def test_the_state_has_the_shape_of_seed_001():
    mix = LeastConsumed(["a", "b"])
    mix.consume("a", 456)
    state = mix.resume_state()
    assert state["datasets"] == [
        {"spec": "a", "row_offset": 1, "token_offset": 456},
        {"spec": "b", "row_offset": 0, "token_offset": 0},
    ]
    json.dumps(state)


def test_old_states_without_tokens_start_at_zero():
    state = {"datasets": [{"spec": "a", "row_offset": 9}, {"spec": "old", "row_offset": 4}]}
    mix = LeastConsumed(["a", "b"], state=state)
    assert mix.tokens == {"a": 0, "b": 0, "old": 0}
    assert mix.rows == {"a": 9, "b": 0, "old": 4}
    assert mix.seeded == []


def test_a_new_source_starts_at_the_smallest_live_count():
    entries = [("a", 9_000), ("b", 8_000), ("gone", 10)]
    state = {"datasets": [{"spec": s, "row_offset": 1, "token_offset": t} for s, t in entries]}
    mix = LeastConsumed(["a", "b", "new"], state=state)
    assert mix.tokens == {
        "a": 9_000,
        "b": 8_000,
        "gone": 10,
        "new": 8_000,
    }  # not 10: it would be served alone
    back = LeastConsumed(["a", "gone"], state=mix.resume_state())
    assert back.tokens["gone"] == 8_000
    assert back.rows["gone"] == 1  # rows seen are kept
    assert mix.resume_state()["seeded_specs"] == ["gone", "new"]


def test_a_used_up_source_holds_no_new_one_back():
    entries = [("long", 9_000), ("short", 10)]
    state = {"datasets": [{"spec": s, "row_offset": 1, "token_offset": t} for s, t in entries]}
    mix = LeastConsumed(["long", "new"], state={**state, "exhausted_specs": ["short"]})
    assert mix.tokens["new"] == 9_000
    mix = LeastConsumed(["long", "short", "new"], state={**state, "exhausted_specs": ["short"]})
    assert mix.tokens["new"] == 9_000
    mix = LeastConsumed(
        ["long", "short"],
        state={"datasets": [*state["datasets"], {"spec": "old", "token_offset": 1}]},
    )
    mix.exhaust("short")
    assert {e["spec"]: e["token_offset"] for e in mix.resume_state()["datasets"]}["old"] == 9_000


def test_counts_are_summed_over_ranks():
    state = {"datasets": [{"spec": s, "row_offset": 5, "token_offset": 100} for s in ("a", "b")]}
    ranks = [LeastConsumed(["a", "b"], state=state) for _ in range(3)]
    for r, rank in enumerate(ranks):
        for _ in range(r + 1):
            rank.consume("a", 10)
        rank.consume("b", 1)
    for _ in range(2):  # a second time nothing is counted twice
        everyone = [rank.consumed() for rank in ranks]
        for rank in ranks:
            rank.sum_over_ranks(everyone)
        assert all(rank.tokens == {"a": 160, "b": 103} for rank in ranks)
        assert all(rank.rows == {"a": 11, "b": 8} for rank in ranks)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 100), min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 20)),
)
def test_capped_rows_lie_in_the_present_pass(rows, totals):
    got = cap_resume_rows(rows, totals)
    for s, n in rows.items():
        assert got[s] <= totals.get(s, n)
        if s not in totals:
            assert got[s] == n
    if rows.keys() <= totals.keys():
        assert any(got[s] < totals[s] for s in rows)  # somebody has rows left


def test_when_all_are_exhausted_a_new_pass_begins():
    sources = {"a": [1, 1], "b": [2]}
    mix = LeastConsumed(["a", "b"])
    stream(sources, mix)
    state = mix.resume_state()
    assert state["exhausted_specs"] == ["a", "b"]
    assert mix.pick() is None
    assert len(stream(sources, LeastConsumed(["a", "b"], state=state))) == 3


def test_bad_input_is_refused():
    for bad in ([], ["a", "a"]):
        with pytest.raises(ConfigError, match="specs"):
            LeastConsumed(bad)
    for state in (
        {"datasets": [{"row_offset": 1}]},
        {"datasets": [3]},
        {"datasets": [{"spec": "a", "row_offset": "x"}]},
        {"datasets": [{"spec": "a", "row_offset": -1}]},
        {"datasets": [{"spec": "a", "token_offset": 5}, {"spec": "a", "token_offset": 6}]},
    ):
        with pytest.raises(ConfigError, match="resume_state"):
            LeastConsumed(["a"], state=state)
    for ties in (3, [3, [1], None], [9, [1] * 625, None]):
        with pytest.raises(ConfigError, match="tie_rng"):
            LeastConsumed(["a"], state={"datasets": [], "tie_rng": ties})
    with pytest.raises(ConfigError, match="baseline"):
        LeastConsumed(["a"], baseline="mean")
    mix = LeastConsumed(["a"])
    with pytest.raises(ConfigError, match="token_counts"):
        build_interleaved_dataset({"a": [1]}, int, mix, token_counts={"a": 1})
    with pytest.raises(ConfigError, match="sources"):
        build_interleaved_dataset({"b": [1]}, int, mix)
    with pytest.raises(ConfigError, match=r"token_counts\['b'\]"):
        build_interleaved_dataset({"a": [1]}, int, token_counts={"b": 1})
    with pytest.raises(ConfigError, match=r"token_counts\['a'\]"):
        build_interleaved_dataset({"a": [1]}, int, token_counts={"a": -1})
    for unknown in (lambda: mix.consume("b", 1), lambda: mix.exhaust("b")):
        with pytest.raises(ConfigError, match="spec"):
            unknown()
    with pytest.raises(ConfigError, match="tokens"):
        mix.consume("a", -1)
    with pytest.raises(ConfigError, match=r"consumed\[1\]"):
        mix.sum_over_ranks([mix.consumed(), {"b": (0, 0)}])
    with pytest.raises(ConfigError, match="exhausted_specs"):
        LeastConsumed(["a"], state={"exhausted_specs": "a"})


def test_saying_twice_that_a_source_is_used_up_changes_nothing():
    mix = LeastConsumed(["a", "b"])
    mix.exhaust("a")
    mix.exhaust("a")
    assert mix.pick() == "b"
