"""Advantages of labels against loops and the cookbook's, and what becomes of them in a batch."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch import pack_rows
from headrace.errors import ConfigError
from headrace_posttrain import (
    gae,
    group_advantages,
    kl_penalty,
    segment_sums,
    value_loss,
    whiten,
    whiten_labels,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "losses.json").read_text())
ROLLOUTS = GOLDEN["rollouts"]


def slowly(mask, values, rewards, token_rewards, discount, trace):
    """Sequence by sequence, from the end, over what is trained on."""
    advantages = np.zeros(mask.shape)
    for i in range(len(mask)):
        trained = np.flatnonzero(mask[i])
        following = 0.0
        after = 0.0
        for t in trained[::-1]:
            reward = token_rewards[i, t] + (rewards[i] if t == trained[-1] else 0.0)
            after = reward + discount * following - values[i, t] + discount * trace * after
            advantages[i, t] = after
            following = values[i, t]
    return advantages, np.where(mask, advantages + values, 0)


@jax.jit
def quickly(values, batch, token_rewards):
    return [
        gae(values, batch, token_rewards=token_rewards, discount=d, trace=t)
        for d, t in ((1.0, 1.0), (0.9, 0.8), (0.9, 0.0))
    ]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_it_is_that_of_loops_packed_or_not(losses, seed):
    rng = np.random.default_rng(seed)
    mask = np.zeros((6, 7), int)
    for row, n in zip(mask, rng.integers(1, 8, 6), strict=True):
        row[:n] = rng.integers(0, 3, n).clip(0, 1)
    values = rng.normal(size=mask.shape)
    token_rewards = rng.normal(size=mask.shape)
    rewards = rng.normal(size=6)
    layout = losses.Layout(mask, "packed", rewards=rewards, order=rng.permutation(6).tolist())
    found = quickly(layout.lay(values), layout.batch, layout.lay(token_rewards))
    for (discount, trace), answers in zip(((1.0, 1.0), (0.9, 0.8), (0.9, 0.0)), found, strict=True):
        for a, b in zip(
            answers, slowly(mask, values, rewards, token_rewards, discount, trace), strict=True
        ):
            np.testing.assert_allclose(layout.take(a), b, atol=2e-6)


def test_rewards_may_be_given_and_must_be_known():
    batch = pack_rows(np.array([[1, 2, 3]]))
    advantages, _ = gae(jnp.zeros((1, 3)), batch, jnp.array([[2.0]]), discount=0.5)
    assert advantages.tolist() == [[1.0, 2.0, 0.0]]
    assert gae(jnp.zeros((1, 3)), batch, token_rewards=jnp.ones((1, 3)))[0].tolist() == [
        [2.0, 1.0, 0.0]
    ]
    with pytest.raises(ConfigError, match="rewards"):
        gae(jnp.zeros((1, 3)), batch)


@pytest.mark.parametrize(
    "case", GOLDEN["tinker"]["kl_penalties"], ids=lambda case: f"discount {case['discount']}"
)
def test_the_penalty_is_the_cookbooks(losses, case):
    mask = np.array(ROLLOUTS["mask"])
    layout = losses.Layout(mask, "packed", order=[2, 0, 4, 1, 5, 3])
    found = kl_penalty(
        layout.lay(ROLLOUTS["sampler"]),
        layout.lay(ROLLOUTS["reference"]),
        layout.batch,
        case["coef"],
        centered=True,
        discount=case["discount"],
    )
    expected = np.array(case["added"])
    if case[
        "discount"
    ]:  # the cookbook discounts what a tool said as well, and penalizes it for what comes later
        steps = slowly(
            mask,
            np.zeros(mask.shape),
            np.zeros(6),
            np.array(GOLDEN["tinker"]["kl_penalties"][0]["added"]),
            0.9,
            1.0,
        )
        expected = steps[0]
    np.testing.assert_allclose(layout.take(found), np.where(mask, expected, 0), atol=1e-6)


def test_kl_in_the_reward_of_rloo(losses):
    """trl takes beta times the sum of log o - log ref from each completion's reward before it
    compares them.
    """
    mask = np.array(ROLLOUTS["mask"])
    layout = losses.Layout(mask, "packed")
    penalty = kl_penalty(
        layout.lay(ROLLOUTS["old"]), layout.lay(ROLLOUTS["reference"]), layout.batch, 0.3
    )
    sums = np.asarray(segment_sums(penalty, layout.batch))[:, :-1]
    real = layout.batch.segment_lengths > 0
    expected = 0.3 * ((np.array(ROLLOUTS["old"]) - np.array(ROLLOUTS["reference"])) * mask).sum(1)
    np.testing.assert_allclose(np.sort(-sums[real]), np.sort(expected), atol=1e-6)
    advantages = group_advantages(1.0 + sums[real], layout.batch.group_ids[real], "rloo").values
    assert advantages.sum() == pytest.approx(0, abs=1e-5)


def test_whitening_on_a_device_is_that_of_the_host(losses):
    mask = np.array(ROLLOUTS["mask"])
    values = np.array(ROLLOUTS["token_advantages"])
    layout = losses.Layout(mask, "packed")
    found = layout.take(whiten_labels(layout.lay(values), layout.batch))
    np.testing.assert_allclose(found, np.where(mask, whiten(values, mask), 0), atol=1e-6)


def test_the_loss_of_a_critic(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed")
    mask = np.array(ROLLOUTS["mask"], bool)
    values, returns, old = (np.array(ROLLOUTS[n]) for n in ("log_probs", "reference", "old"))
    arrays = [layout.lay(x) for x in (values, returns)]
    assert float(value_loss(arrays[0], arrays[1], layout.batch)) == pytest.approx(
        ((values - returns) ** 2 / 2)[mask].mean(), rel=1e-5
    )
    clipped = np.clip(values, old - 0.2, old + 0.2)
    expected = np.maximum((values - returns) ** 2, (clipped - returns) ** 2)[mask].mean() / 2
    found = value_loss(arrays[0], arrays[1], layout.batch, old_values=layout.lay(old), clip=0.2)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match="clip"):
        value_loss(arrays[0], arrays[1], layout.batch, clip=0.2)
