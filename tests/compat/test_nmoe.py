"""nmoe's staged stream: golden windows, ranks and states; and the defects of the original, right
here.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace.mix.draws import Draws
from headrace.testing import tiny_cache
from headrace_compat import PlannedStage, StagePlan, StageStream, scale_stages
from headrace_compat.nmoe import fixed_point_weights, smooth_draws

CASES = json.loads((Path(__file__).parents[1] / "golden" / "nmoe_loader.json").read_text())["cases"]


def cursor(taken, shards):
    """nmoe's cursor after ``taken`` tokens of a source that starts over at its end."""
    wraps, place = divmod(taken, sum(shards))
    file = 0
    while place >= shards[file]:
        place -= shards[file]
        file += 1
    return {"file_idx": file, "pos_in_file": place, "wrap_count": wraps}


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"rank {c['dp_rank']} of {c['dp_world_size']}"
)
def test_windows_ranks_and_state_are_those_of_nmoe(case):
    seq_len = case["seq_len"]
    shards = case["shard_lens"]
    weights = {f"s{i}": w for i, w in enumerate(case["weights"])}
    plan = StagePlan([PlannedStage("pretrain", weights, 10**6)], seq_len)
    stream = StageStream(plan, BatchSchedule(case["tokens_per_update"] // seq_len))
    draws = Draws(stream)
    for s, step in enumerate(case["steps"]):
        first, size = draws.batch.rows_at(s)
        rows = np.array_split(np.arange(first, first + size), case["dp_world_size"])[
            case["dp_rank"]
        ]
        component, ordinal = draws.route(rows)
        texts = [
            [
                d * 10_000 + t % sum(shards[d])
                for t in range(k * (seq_len + 1), (k + 1) * (seq_len + 1))
            ]
            for d, k in zip(component.tolist(), ordinal.tolist(), strict=True)
        ]
        assert [t[:-1] for t in texts] == step["inputs"]
        assert [t[-1] for t in texts] == step["targets_last_col"]
    expected = dict(case["state_after"])
    taken = draws.starts_at(len(case["steps"])) * (seq_len + 1)
    assert {f"s{d}": cursor(int(n), shards[d]) for d, n in enumerate(taken)} == expected.pop(
        "cursors"
    )
    assert stream.nmoe_state(draws.batch.rows_at(len(case["steps"]))[0]) == expected


stages = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 1), min_size=1), st.integers(1, 60)
    ),
    min_size=1,
    max_size=4,
)


@given(stages, st.integers(1, 20))
def test_every_quota_of_every_stage_is_reached(parts, size):
    plan = StagePlan([PlannedStage(str(i), w, 10 * n) for i, (w, n) in enumerate(parts)], 10)
    stream = StageStream(plan, BatchSchedule(size))
    ends = np.cumsum([0, *plan.examples])
    assert stream.supply().sum() == stream.ends_after == ends[-1] == sum(n for _, n in parts)
    for k, quotas in enumerate(plan.quotas):
        drawn = stream.sequence(int(ends[k]), int(ends[k + 1]))
        assert np.bincount(drawn, minlength=len(plan.names)).tolist() == list(quotas)
        assert set(np.array(plan.names)[drawn]) <= set(parts[k][0])


def gives_up(weights_fp, quotas):
    """nmoe draws at most 2 n times for an example; whether that leaves a quota unmet."""
    left = list(quotas)
    draws = smooth_draws(weights_fp, [0] * len(left))
    while any(left):
        for _ in range(2 * len(left)):
            k, _ = next(draws)
            if left[k]:
                left[k] -= 1
                break
        else:
            return True
    return False


def test_mixes_that_stop_nmoe_short_of_its_quota_do_not_stop_this():
    rng = np.random.default_rng(0)
    short = 0
    for _ in range(300):
        weights = {
            str(i): float(w) for i, w in enumerate(rng.lognormal(0, 2.5, int(rng.integers(2, 7))))
        }
        first = PlannedStage("first", weights, int(rng.integers(5, 300)))
        plan = StagePlan([first, PlannedStage("next", {"z": 1}, 3)], 1)
        stream = StageStream(plan, BatchSchedule(4))
        head = stream.sequence(0, plan.examples[0])
        assert np.bincount(head, minlength=len(plan.names)).tolist() == list(plan.quotas[0])
        assert (
            stream.sequence(plan.examples[0], plan.examples[0] + 9).tolist()
            == [plan.names.index("z")] * 3
        )
        short += gives_up(fixed_point_weights(list(weights.values())), plan.quotas[0][:-1])
    assert short > 0


@given(stages, st.data())
def test_the_state_of_any_stage_goes_on_as_the_whole(parts, data):
    plan = StagePlan([PlannedStage(str(i), w, n) for i, (w, n) in enumerate(parts)], 1)
    stream = StageStream(plan, BatchSchedule(3))
    length = sum(plan.examples)
    whole = stream.sequence(0, length).tolist()
    cut = data.draw(st.integers(0, length - 1))
    rest, _ = StageStream(plan, BatchSchedule(5)).walk(stream.state_at(cut), cut, length - cut)
    assert rest == whole[cut:]
    state = stream.nmoe_state(cut)
    assert state["global_sequence_index"] == cut
    stage = int(
        np.searchsorted(np.cumsum(plan.examples), max(cut - 1, 0), side="right")
    )  # as nmoe, it changes before the next draw
    assert (state["stage_index"], state["current_stage"]) == (stage, plan.stages[stage].name)


def test_budgets_count_the_tokens_that_are_taken():
    # 700 tokens in windows of 7 + 1: nmoe takes 800 of them
    stage = PlannedStage("pretrain", {"a": 1, "b": 1}, 700)
    taken = StageStream(StagePlan([stage], 8), BatchSchedule(1)).supply().sum() * 8
    assert 700 - 8 < taken <= 700


def test_a_stage_may_end_within_a_step():
    plan = StagePlan([PlannedStage("a", {"x": 1}, 5), PlannedStage("b", {"y": 1, "x": 1}, 5)], 1)
    stream = StageStream(plan, BatchSchedule(4))
    assert [stream.components_at(s).tolist() for s in range(3)] == [
        [0, 0, 0, 0],
        [0, 1, 0, 1],
        [0, 1],
    ]
    _, ordinal = Draws(stream).route(np.arange(10))
    assert ordinal.tolist() == [0, 1, 2, 3, 4, 0, 5, 1, 6, 2]  # x goes on where it stopped


def test_plans_have_a_digest_and_scale():
    first = PlannedStage("a", {"x": 1, "y": 2}, 30)
    second = PlannedStage("b", {"x": 1}, 10)
    digest = StagePlan([first, second], 1).digest
    assert digest == StagePlan([first, second], 1).digest
    assert digest != StagePlan([second, first], 1).digest
    assert digest != StagePlan([first, PlannedStage("b", {"x": 1}, 11)], 1).digest
    assert [s.tokens for s in scale_stages([first, second], 10**9)] == [750_000_000, 250_000_000]


def test_bad_plans_are_refused():
    good = PlannedStage("a", {"x": 1}, 5)
    for weights, tokens in (
        ({}, 5),
        ({"x": 0}, 5),
        ({"x": -1}, 5),
        ({"x": 1}, -1),
        ({"x": 1}, 1.5),
        ({"x": 1}, True),
    ):
        with pytest.raises(ConfigError):
            PlannedStage("a", weights, tokens)
    cases = [
        ([], 1, "one stage"),
        ([good, good], 1, "distinct"),
        ([good], 6, "holds no"),
        ([good], 0, "at least 1"),
    ]
    for stages_, size, word in cases:
        with pytest.raises(ConfigError, match=word):
            StagePlan(stages_, size)
    with pytest.raises(ConfigError, match="no tokens"):
        scale_stages([PlannedStage("a", {"x": 1}, 0)], 5)


def test_a_mixture_follows_a_plan_whatever_the_order_of_its_components():
    stages = [PlannedStage("a", {"x": 3, "y": 1}, 160), PlannedStage("b", {"y": 1}, 80)]
    plan = StagePlan(stages, 8)
    batch = BatchSchedule(4)
    rows = {n: TokenSeqDataset(tiny_cache(documents=200), 8, name=n) for n in ("y", "x")}
    mixture = MixtureDataset.of(rows, plan.mixture(batch))
    assert mixture.names == ("x", "y")
    drawn, _ = mixture.draws.route(np.arange(30))
    assert drawn.tolist() == StageStream(plan, batch).sequence(0, 30).tolist()
    assert np.bincount(drawn[:20]).tolist() == [15, 5]
    with pytest.raises(ConfigError, match=r"are not those of the plan. Give \['x', 'y'\]"):
        MixtureDataset.of({"x": rows["x"]}, plan.mixture(batch))
