"""Schedules of slime and Megatron-LM, and where ours are right and theirs are not."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.index.dp_schedule import dp_balanced_packing, dp_schedule
from headrace.index.flops import TransformerCost
from headrace.index.rollout_shares import rollout_shares

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEDULE = json.loads((GOLDEN / "slime_dp_schedule.json").read_text())
FLOPS = SCHEDULE["flops_model"]
MODEL = TransformerCost(
    hidden_size=FLOPS["hidden_size"],
    num_layers=FLOPS["num_layers"],
    num_heads=FLOPS["num_attention_heads"],
    head_size=FLOPS["kv_channels"],
    num_kv_heads=FLOPS["num_query_groups"],
    ffn_size=FLOPS["ffn_hidden_size"],
    vocab_size=FLOPS["vocab_size"],
)


def attempt(call):
    """What a call returns, or None and what it is refused with."""
    try:
        return call(), ""
    except ConfigError as error:
        return None, str(error)


def cases(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def test_flops_of_slime():
    assert MODEL.flops(np.array([1000])).tolist() == [SCHEDULE["flops_of_1000"]]


@pytest.mark.parametrize("case", SCHEDULE["cases"], ids=lambda c: f"dp{c['dp']}-cp{c['cp']}-vpp{c['vpp']}")
def test_schedules_of_slime(case):
    found = dp_schedule(
        case["lengths"],
        case["rollout_ids"],
        batch_size=case["global_batch_size"],
        ranks=case["dp"],
        max_tokens=case["max_tokens_per_gpu"] * case["cp"],
        costs=MODEL.flops(np.array(case["lengths"])),
        balance_ranks=case["balance_data"],
        balance_costs=case["balance_by_flops"],
        multiple=case["mb_group"] if case["vpp"] > 1 else 1,
    )
    assert found.samples == case["partitions"]
    assert found.micro_batches == case["micro_batch_indices"]
    assert found.num_micro_batches == case["num_microbatches"]
    assert found.batch_sizes == case["global_batch_sizes"]


@given(
    st.lists(st.integers(1, 50), min_size=4, max_size=40),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_every_sample_once_and_ranks_in_step(tokens, ranks, multiple, balance_ranks, balance_costs, static, data):
    ids = sorted(data.draw(st.lists(st.integers(0, 9), min_size=len(tokens), max_size=len(tokens))))
    batch = data.draw(st.integers(1, 5))
    sizes = {"micro_batch_size": 2} if static else {"max_tokens": 60}
    flags = {"balance_ranks": balance_ranks, "balance_costs": balance_costs and not static, "multiple": multiple}
    found, refused = attempt(lambda: dp_schedule(tokens, ids, batch_size=batch, ranks=ranks, **sizes, **flags))
    if found is None:
        assert "cannot be filled" in refused
        return
    assert sorted([*found.dropped, *(i for r in found.samples for i in r)]) == list(range(len(tokens)))
    assert {len(m) for m in found.micro_batches} == {sum(found.num_micro_batches)}
    assert len(set(ids)) // batch == len(found.num_micro_batches)
    for samples, batches in zip(found.samples, found.micro_batches, strict=True):
        assert [i for b in batches for i in b] == list(range(len(samples)))
        if not static:
            assert all(sum(tokens[samples[i]] for i in b) <= 60 for b in batches)
    begin = np.cumsum([0, *found.num_micro_batches])
    step_of = {}
    for samples, batches in zip(found.samples, found.micro_batches, strict=True):
        for step, (a, b) in enumerate(itertools.pairwise(begin)):
            for i in (samples[k] for m in batches[a:b] for k in m):
                assert step_of.setdefault(ids[i], step) == step  # siblings stay in one step


def test_sizes_are_asked_for_once():
    for sizes in ({}, {"max_tokens": 4, "micro_batch_size": 1}):
        with pytest.raises(ConfigError, match="give one of"):
            dp_schedule([1], [0], batch_size=1, ranks=1, **sizes)


@pytest.mark.parametrize("case", cases("megatron_dp_balanced_packing"), ids=lambda c: f"dp{c['dp']}")
def test_packing_of_megatron(case):
    found = dp_balanced_packing(
        case["lengths"],
        case["max_seqlen_per_rank"] * case["cp"],
        ranks=case["dp"],
        copies=case["cp"],
        multiple=case["vp_group"] or 1,
    )
    assert found == case["groups"]


def test_the_first_pack_gives_samples_too():
    # the original never takes from its first pack and stops with "Not enough samples to move"
    assert dp_balanced_packing([1, 1, 1, 9], 10, ranks=4) == [[[0], [3], [2], [1]]]
    with pytest.raises(ConfigError, match="4 packs are needed for 4 ranks"):
        dp_balanced_packing([1, 1, 1], 10, ranks=4)


@pytest.mark.parametrize("case", cases("megatron_rl_shares"), ids=lambda c: str(c["weights"]))
def test_shares_of_megatron_rl(case):
    assert rollout_shares(case["weights"], case["total"]) == case["counts"]


@given(st.lists(st.sampled_from([0, 0.001, 1, 2.5, 40]), min_size=1, max_size=8), st.integers(0, 40))
def test_whoever_has_a_weight_has_a_rollout(weights, total):
    weighted = sum(w > 0 for w in weights)
    if weighted == 0 or total < weighted:
        with pytest.raises(ConfigError):
            rollout_shares(weights, total)
        return
    counts = rollout_shares(weights, total)
    assert sum(counts) == total
    assert all((c > 0) == (w > 0) for c, w in zip(counts, weights, strict=True) if w == 0 or c == 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 14), st.booleans())
def test_samples_without_a_rollout_or_a_cost_are_refused(tokens, count, static):
    size = {"micro_batch_size": 2} if static else {"max_tokens": 9}
    ids, costs = list(range(len(tokens))), [1.5] * count
    for field, call in (
        ("rollout_ids", lambda: dp_schedule(tokens, range(count), batch_size=1, ranks=1, **size)),
        ("costs", lambda: dp_schedule(tokens, ids, batch_size=1, ranks=1, costs=costs, **size)),
    ):
        if count == len(tokens):
            assert sorted(i for r in call().samples for i in r) == ids
            continue
        with pytest.raises(ConfigError) as caught:
            call()
        assert (caught.value.field, caught.value.value) == (field, count)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan")])
def test_counts_that_are_none_are_named(wrong):
    given_ = {"batch_size": 1, "ranks": 1, "multiple": 1}
    for name in (*given_, "max_tokens", "micro_batch_size"):
        size = {} if name in ("max_tokens", "micro_batch_size") else {"max_tokens": 9}
        with pytest.raises(ConfigError) as caught:
            dp_schedule([3, 5], [0, 1], **(given_ | size | {name: wrong}))
        assert caught.value.field == name
    for name in ("max_tokens", "ranks", "copies", "multiple"):
        with pytest.raises(ConfigError) as caught:
            dp_balanced_packing(**({"tokens": [3, 5], "max_tokens": 9, "ranks": 1} | {name: wrong}))
        assert caught.value.field == name
    for tokens in ([3, -5], [3, float("nan")]):
        with pytest.raises(ConfigError, match=r"Look at tokens\[1\]"):
            dp_schedule(tokens, [0, 1], micro_batch_size=1, **given_)


@given(st.lists(st.sampled_from([0, 0.25, 1, 2.5, 40]), min_size=1, max_size=8).filter(any), st.integers(8, 40))
def test_shares_of_an_array_are_those_of_a_list(weights, total):
    for dtype in (np.float64, np.float32):
        array = np.array(weights, dtype)
        assert rollout_shares(array, total) == rollout_shares(list(array), total) == rollout_shares(weights, total)


def test_shares_of_what_has_none():
    for weights in (np.zeros(2), np.array([np.nan, 1]), [1, float("inf")], np.zeros(0), np.ones((2, 2))):
        with pytest.raises(ConfigError, match="weights"):
            rollout_shares(weights, 8)
    for total in (-1, 2.5, float("nan")):
        with pytest.raises(ConfigError, match="total"):
            rollout_shares(np.ones(2), total)
