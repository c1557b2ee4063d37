"""Policies by name give the sequences of the systems that they are named after."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.plan import POLICIES, Plan, plan_of, policy_kind, policy_names
from headrace.mix.policy import MixingPolicy
from headrace.mix.stages import Stage

GOLDEN = Path(__file__).parents[1] / "golden"


def policy(
    name: str, weights: list[object], *, sizes: list[int | None] | None = None, **extra: object
) -> MixingPolicy:
    names = [f"c{k}" for k in range(len(weights))]
    blend = Blend(dict(zip(names, weights, strict=True)))
    stages = [Stage(0, blend), *extra.pop("more", [])]  # pyright: ignore[reportGeneralTypeIssues]
    none = [None] * len(names)
    arguments: dict[str, object] = {"sizes": sizes or none, "limits": none, "seq_len": 8} | extra
    make = policy_kind(name).make
    return make(Plan(names, stages, BatchSchedule(4), make, **arguments))  # pyright: ignore[reportArgumentType]


def sequence(made: MixingPolicy, n: int) -> list[int]:
    return Draws(made).route(np.arange(n))[0].tolist()


@pytest.mark.parametrize(
    ("file", "name", "wanted"),
    [("nmoe_swrr", "swrr", "sequence"), ("megatron_blending", "greedy", "dataset_index")],
)
def test_sequences_of_other_systems(file, name, wanted):
    cases = json.loads((GOLDEN / f"{file}.json").read_text())["cases"]
    for case in cases:
        assert sequence(policy(name, case["weights"]), len(case[wanted])) == case[wanted]


@pytest.mark.parametrize("name", ["quota", "swrr", "greedy"])
def test_weights_go_to_their_names_whatever_their_order(name):
    blend = Blend({"b": 3, "a": 1})
    none = [None, None]
    plan = plan_of([Stage(0, blend)], name, "ab", BatchSchedule(8))
    made = plan.make(replace(plan, sizes=none, limits=none, seq_len=8))
    assert np.bincount(sequence(made, 64)).tolist() == [16, 48]


def test_exhaustive_and_least_consumed():
    for case in json.loads((GOLDEN / "megatron_blending_exhaustive.json").read_text())["cases"]:
        made = policy("exhaustive", [1] * len(case["sizes"]), sizes=case["sizes"])
        assert sequence(made, sum(case["sizes"])) == case["dataset_index"]
    drawn = np.bincount(sequence(policy("least_consumed", [1, 1, 1], sizes=[6, 6, 6]), 12))
    assert drawn.tolist() == [4, 4, 4]


def test_quota_is_the_default_and_takes_everything():
    made = policy(
        "quota", [3, {"linear": {0: 1, 9: 3}}], more=[Stage(5, Blend({"c1": 1}))], limits=[None, 30]
    )
    assert np.bincount(sequence(made, 40)).sum() == 40
    assert next(iter(POLICIES)) == "quota"


@pytest.mark.parametrize(
    ("name", "weights", "extra", "said"),
    [
        ("quotas", [1], {}, "Did you mean 'quota'"),
        ("swrr", [1, {"step": {0: 1, 5: 2}}], {}, "constant weights only"),
        ("greedy", [1, 1], {"limits": [5, None]}, "knows no limits"),
        ("greedy", [1, 1], {"more": [Stage(5, Blend({"c0": 1}))]}, "knows no stages"),
        ("exhaustive", [1, 1], {"sizes": [5, None]}, "components with an end"),
        ("least_consumed", [3, 1], {"sizes": [5, 5]}, "takes no weights"),
    ],
)
def test_what_a_policy_does_not_know(name, weights, extra, said):
    with pytest.raises(ConfigError, match=said):
        policy(name, weights, **extra)


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("first_steps", [[], [5], [1, 4], [0, 4, 4], [0, 9, 4]])
def test_stages_out_of_order_are_refused_with_every_policy(
    policy: str, first_steps: list[int]
) -> None:
    stages = [Stage(step, Blend({"a": 1, "b": 1})) for step in first_steps]
    with pytest.raises(ConfigError, match=r"^stages\[\d\]\.step"):
        plan_of(stages, policy, "ab", BatchSchedule(8))
