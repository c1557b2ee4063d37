"""The order of prompts: every prompt once a pass, random access, and the originals' orders."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace_posttrain import rollout_shares, tinker_schedule
from headrace_posttrain.rollouts.prompt_order import ListedOrder, PromptOrder, SlimeOrder

GOLDEN = Path(__file__).parents[2] / "golden"


def cases(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


@given(st.integers(1, 50), st.integers(0, 5), st.integers(0, 1000))
def test_every_prompt_once_a_pass_in_any_order_of_asking(n, epoch, seed):
    order = PromptOrder(n, seed=seed)
    positions = np.arange(epoch * n, (epoch + 1) * n)
    whole = order(positions)
    assert sorted(whole.tolist()) == list(range(n))
    assert [int(order(np.array([p]))[0]) for p in positions[::-1]] == whole[::-1].tolist()


def test_the_order_is_pinned():
    assert PromptOrder(8, seed=1)(np.arange(16)).tolist() == PINNED


def test_passes_and_seeds_differ():
    orders = {
        tuple(PromptOrder(20, seed=s)(np.arange(e * 20, e * 20 + 20)).tolist())
        for s in (0, 1)
        for e in range(4)
    }
    assert len(orders) == 8


@pytest.mark.parametrize("case", cases("slime_prompt_shuffle"))
def test_slime(case):
    positions = case["epoch"] * case["n"] + np.arange(case["n"])
    order = SlimeOrder(case["n"], seed=case["seed"])
    assert order(positions).tolist() == case["order"]
    assert [int(order(np.array([p]))[0]) for p in positions[::-1]] == case["order"][::-1]
    across = order(
        np.array([case["n"] - 1, case["n"]])
    ).tolist()  # the end of an epoch and the beginning of the next
    assert across == [int(order(np.array([p]))[0]) for p in (case["n"] - 1, case["n"])]


def test_listed_prompts_come_as_they_are_listed():
    assert ListedOrder(3, seed=9)(np.arange(2, 8)).tolist() == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("case", cases("tinker_rl_interleave"))
def test_tinker(case):
    sizes = [
        (batches - 1) * groups + last
        for batches, groups, last in case["sources(batches,groups,last)"]
    ]
    found = tinker_schedule(
        sizes, case["weights"], case["groups_per_batch"], case["total_batches"], seed=case["seed"]
    )
    assert [[list(place) for place in batch] for batch in found] == case["schedule"]


def test_tinker_without_a_number_of_batches_ends_with_the_smallest_source():
    # Shares of 6 and 2 groups a batch: 60 groups last 10 batches, 10 groups 5.
    found = tinker_schedule([60, 10], [3, 1], 8, seed=3)
    assert found == tinker_schedule([60, 10], [3, 1], 8, 5, seed=3)
    assert len(tinker_schedule([1, 1], [1, 1], 8, seed=3)) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"weights": [1, 0]}, "weights[1]"),
        ({"weights": [float("nan"), 1]}, "weights[0]"),
        ({"groups_per_batch": 0}, "groups_per_batch"),
        ({"total_batches": 0}, "total_batches"),
        ({"total_batches": 1.5}, "total_batches"),
    ],
)
def test_tinker_refuses(change, field):
    good = {"sizes": [2, 2], "weights": [1, 1], "groups_per_batch": 1, "total_batches": 1}
    with pytest.raises(ConfigError) as caught:
        tinker_schedule(**{**good, **change}, seed=0)
    assert caught.value.field == field


def test_bad_input():
    with pytest.raises(ConfigError, match="prompts"):
        PromptOrder(0, seed=0)
    with pytest.raises(ConfigError, match="position"):
        PromptOrder(3, seed=0)(np.array([-1]))
    with pytest.raises(ConfigError, match="weights"):
        tinker_schedule([1], [1, 2], 1, 1, seed=0)
    with pytest.raises(ConfigError, match=r"sizes\[1\]"):
        tinker_schedule([1, 0], [1, 2], 1, 1, seed=0)


PINNED = [4, 2, 3, 6, 5, 1, 7, 0, 5, 2, 4, 6, 3, 0, 7, 1]


@pytest.mark.parametrize("case", cases("megatron_rl_shares"), ids=lambda c: str(c["weights"]))
def test_shares_of_megatron_rl(case):
    assert rollout_shares(case["weights"], case["total"]) == case["counts"]


@given(
    st.lists(st.sampled_from([0, 0.001, 1, 2.5, 40]), min_size=1, max_size=8), st.integers(0, 40)
)
def test_whoever_has_a_weight_has_a_rollout(weights, total):
    weighted = sum(w > 0 for w in weights)
    if weighted == 0 or total < weighted:
        with pytest.raises(ConfigError):
            rollout_shares(weights, total)
        return
    counts = rollout_shares(weights, total)
    assert sum(counts) == total
    assert all((c > 0) == (w > 0) for c, w in zip(counts, weights, strict=True) if w == 0 or c == 0)


@given(
    st.lists(st.sampled_from([0, 0.25, 1, 2.5, 40]), min_size=1, max_size=8).filter(any),
    st.integers(8, 40),
)
def test_shares_of_an_array_are_those_of_a_list(weights, total):
    for dtype in (np.float64, np.float32):
        array = np.array(weights, dtype)
        assert (
            rollout_shares(array, total)
            == rollout_shares(list(array), total)
            == rollout_shares(weights, total)
        )


def test_shares_of_what_has_none():
    for weights in (
        np.zeros(2),
        np.array([np.nan, 1]),
        [1, float("inf")],
        np.zeros(0),
        np.ones((2, 2)),
    ):
        with pytest.raises(ConfigError, match="weights"):
            rollout_shares(weights, 8)
    for total in (-1, 2.5, float("nan")):
        with pytest.raises(ConfigError, match="total"):
            rollout_shares(np.ones(2), total)
