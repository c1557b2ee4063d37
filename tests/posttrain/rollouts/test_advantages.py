"""Advantages against the originals' numbers, and where the originals are wrong: groups go by
number.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace_posttrain import AdvantageSpec, drop_constant, group_advantages, not_constant, whiten
from headrace_posttrain.rollouts.advantages import PRESETS, group_moments, nonzero_std

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


ESTIMATORS = {("grpo", True): "slime", ("grpo", False): "dr_grpo"}


@pytest.mark.parametrize(
    "case", golden("slime_grpo")["cases"], ids=lambda c: f"{c['estimator']}-{len(c['rewards'])}"
)
def test_slime(case):
    if case["estimator"] == "ppo":
        assert case["normalized"] == case["rewards"]  # ppo's rewards are not normalised: no preset
        return
    preset = ESTIMATORS.get((case["estimator"], case["grpo_std_normalization"]), "dr_grpo")
    n = case["n_samples_per_prompt"]
    # what slime does where the count does not fit is what a single group gives
    whole = len(case["rewards"]) == n * case["rollout_batch_size"]
    groups = np.arange(len(case["rewards"])) // n if whole else np.zeros(len(case["rewards"]), int)
    found = group_advantages(np.array(case["rewards"]), groups, preset).values
    np.testing.assert_allclose(found, case["normalized"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", golden("megatron_grpo")["cases"])
def test_megatron(case):
    rewards = np.concatenate([np.array(r, float) for r in case["rewards"]])
    turns = np.concatenate(case["num_turns"])
    groups = np.repeat(np.arange(len(case["rewards"])), [len(r) for r in case["rewards"]])
    found = group_advantages(rewards, groups, "megatron", counted=turns > 0).values
    np.testing.assert_allclose(np.repeat(found, turns), case["advantages"], rtol=1e-12)


def test_what_megatron_leaves_out_gets_nothing_and_moves_nothing():
    found = group_advantages(
        np.array([1.0, 0.0, 9e9]),
        np.zeros(3, int),
        "megatron",
        counted=np.array([True, True, False]),
    )
    alone = group_advantages(np.array([1.0, 0.0]), np.zeros(2, int), "megatron")
    assert found.values.tolist() == [*alone.values.tolist(), 0.0]
    left_out = group_advantages(
        np.array([1.0, np.nan]), np.zeros(2, int), counted=np.array([True, False])
    )
    assert (left_out.values.tolist(), left_out.single_groups) == ([0.0, 0.0], 1)


@pytest.mark.parametrize("case", golden("losses")["advantages"]["cases"])
def test_trl(case):
    rewards = np.array(case["rewards"])
    preset = case["preset"] if isinstance(case["preset"], str) else AdvantageSpec(**case["preset"])
    order = np.array([4, 0, 3, 1, 5, 2])
    groups = np.arange(rewards.size) // golden("losses")["advantages"]["group"]
    found = group_advantages(rewards[order], groups[order], preset).values
    np.testing.assert_allclose(found, np.array(case["advantages"])[order], atol=1e-9)


def test_advantages_of_the_whole_batch():
    rewards = np.array([1.0, 0.0, 1.0, 1.0, 4.0])
    groups = np.array([0, 0, 1, 1, 2])
    without = group_advantages(rewards, groups, "reinforce_pp").values
    np.testing.assert_allclose(
        without, (rewards - rewards.mean()) / rewards.std(ddof=1), rtol=1e-6
    )  # groups say nothing
    centered = np.array([0.5, -0.5, 0.0, 0.0, 0.0])
    found = group_advantages(rewards, groups, "reinforce_pp_baseline")
    np.testing.assert_allclose(found.values, centered / centered.std(ddof=1), rtol=1e-6)
    assert (found.single_groups, found.zero_var_groups) == (1, 1)
    counted = np.array([True, True, True, True, False])
    assert group_advantages(rewards, groups, "reinforce_pp", counted=counted).values[-1] == 0


def test_leave_one_out_is_the_mean_of_the_others():
    rewards = np.array([3.0, 5.0, 1.0, 0.5, 2.0])
    groups = np.array([2, 9, 2, 9, 2])
    expected = [
        r - np.mean([rewards[j] for j in range(5) if groups[j] == g and j != i])
        for i, (r, g) in enumerate(zip(rewards, groups, strict=True))
    ]
    np.testing.assert_allclose(
        group_advantages(rewards, groups, "rloo").values, expected, rtol=1e-12
    )


@pytest.mark.parametrize("case", golden("tinker_advantages")["cases"])
def test_tinker(case):
    found = group_advantages(
        np.array(case["rewards"]), np.zeros(len(case["rewards"]), int), "tinker"
    ).values
    np.testing.assert_allclose(found, case["advantages"], atol=1e-7)


@pytest.mark.parametrize("case", golden("tinker_advantages")["constant_reward_filter"])
def test_constant_groups_of_tinker(case):
    assert [case["groups"][i] for i in drop_constant(case["groups"])] == case["kept"]


def test_all_constant_groups_leave_the_first():
    assert drop_constant([[1.0, 1.0], [0.0]]) == [0]
    assert drop_constant([]) == []


@pytest.mark.parametrize("case", golden("nanomoe_rl")["cases"])
def test_nanomoe(case):
    found = group_advantages(
        np.array(case["rewards"]), np.zeros(len(case["rewards"]), int), "nanomoe"
    ).values
    weights = np.array(case["token_weights"])
    mask = np.array([*case["loss_mask"][1:], 0])
    np.testing.assert_allclose(found[:, None] * mask, weights, rtol=1e-6)


@pytest.mark.parametrize("case", golden("slime_dynamic_filter")["cases"])
def test_slime_filter(case):
    found = nonzero_std(np.array(case["rewards"], float))
    assert found.keep == case["keep"]
    # slime prints an integer reward as an integer; ours are floats
    assert found.reason.removesuffix(".0") == case["reason"].removesuffix(".0")


@pytest.mark.parametrize("case", golden("slime_whiten")["cases"])
def test_slime_whitening(case):
    found = whiten(np.array(case["values"]), np.array(case["mask"]), shift_mean=case["shift_mean"])
    np.testing.assert_allclose(found, case["out"], rtol=1e-5, atol=1e-6)


def test_whitening_keeps_the_mean_if_asked():
    values = np.array([1.0, 2.0, 5.0])
    mask = np.array([1, 1, 1])
    assert whiten(values, mask, shift_mean=False).mean() == pytest.approx(values.mean())
    with pytest.raises(ConfigError, match="mask"):
        whiten(values, mask * 0)


a_reward = st.floats(-5, 5).map(
    lambda r: round(r, 9)
)  # two that differ by 1e-300 have no variance in float64
rewards_by_group = st.lists(st.lists(a_reward, min_size=1, max_size=6), min_size=1, max_size=6)


OF_GROUPS = sorted(name for name, spec in PRESETS.items() if spec.scale == "group")


@given(rewards_by_group, st.sampled_from(OF_GROUPS), st.randoms())
def test_groups_go_by_number_not_by_place(rewards, preset, shuffler):
    # slime reshapes to [-1, n] and takes a ragged batch for one group: a group's advantages then
    # depend on the others
    flat = np.array([r for group in rewards for r in group])
    number = np.array([101 * g - 50 for g, group in enumerate(rewards) for _ in group])
    order = list(range(flat.size))
    shuffler.shuffle(order)
    found = np.empty(flat.size)
    found[order] = group_advantages(flat[order], number[order], preset).values
    alone = [group_advantages(np.array(g), np.zeros(len(g), int), preset).values for g in rewards]
    np.testing.assert_allclose(found, np.concatenate(alone), atol=1e-9)


@given(rewards_by_group)
def test_counts(rewards):
    flat = np.array([r for group in rewards for r in group])
    found = group_advantages(flat, np.repeat(np.arange(len(rewards)), [len(r) for r in rewards]))
    assert found.groups == len(rewards)
    assert found.single_groups == sum(len(r) == 1 for r in rewards)
    assert found.zero_var_groups == sum(len(r) > 1 and len(set(r)) == 1 for r in rewards)
    assert np.isfinite(found.values).all()


def test_a_group_of_one_is_zero_and_counted():
    # slime's golden file holds null (NaN) there
    for preset in PRESETS:
        found = group_advantages(np.array([3.0]), np.array([8]), preset)
        assert (found.values.tolist(), found.single_groups, found.zero_var_groups) == ([0.0], 1, 0)


def test_rounding_makes_no_advantage():
    # three times 0.1 has a mean that is not 0.1
    for preset in PRESETS:
        found = group_advantages(np.full(3, 0.1), np.zeros(3, int), preset)
        assert (found.values == 0).all()
        assert found.zero_var_groups == 1


def test_clips():
    spec = AdvantageSpec(None, reward_clip=2.0, advantage_clip=0.5)
    found = group_advantages(np.array([100.0, 0.0, 2.0]), np.zeros(3, int), spec).values
    assert found.tolist() == [0.5, -0.5, 0.5]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", ["slime", AdvantageSpec(reward_clip=1.0)])
def test_a_reward_that_is_no_number_names_its_group(wrong, spec):
    with pytest.raises(ConfigError, match=r"rewards\[2\].*group 41"):
        group_advantages(np.array([1.0, 0.0, wrong]), np.array([7, 7, 41]), spec)


def test_bad_input():
    with pytest.raises(ConfigError, match="Did you mean 'slime'"):
        group_advantages(np.array([1.0]), np.array([0]), "slim")
    with pytest.raises(ConfigError, match="groups"):
        group_moments(np.array([1.0]), np.array([0, 1]))
    with pytest.raises(ConfigError, match="epsilon"):
        AdvantageSpec(-1.0)
    with pytest.raises(ConfigError, match="baseline"):
        AdvantageSpec(baseline="mean")
    with pytest.raises(ConfigError, match="scale"):
        AdvantageSpec(scale="all")


def test_no_rewards():
    found = group_advantages(np.zeros(0), np.zeros(0, int))
    assert (found.values.size, found.groups) == (0, 0)
    assert not_constant(np.array([1.0, 1.0])).reason == "constant"
