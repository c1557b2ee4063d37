"""Losses of preferences: those of trl and tinker-cookbook, with gradients; in any layout, on one
device or several.
"""

import dataclasses
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.batch import token_nll, unified_loss
from headrace.errors import ConfigError
from headrace_posttrain import (
    PreferenceLoss,
    dpo_weights,
    kto_loss,
    kto_reference_point,
    pair_log_probs,
    pair_weights,
    preference_loss,
)
from headrace_posttrain.losses.preference_loss import PRESETS

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "losses.json").read_text())
ROLLOUTS = GOLDEN["rollouts"]
CASES = [
    PRESETS["orpo"] if c["ours"] == "orpo" else PreferenceLoss(**c["ours"])
    for c in GOLDEN["preference"]
]


def losses_of(cases, batch, log_probs, reference):
    def one(log_probs, loss):
        return preference_loss(
            log_probs, batch, loss, reference_log_probs=reference if loss.reference else None
        )

    return [jax.value_and_grad(partial(one, loss=loss), has_aux=True)(log_probs) for loss in cases]


@pytest.fixture(scope="module")
def run_cases():
    return jax.jit(partial(losses_of, tuple(CASES)))


def test_losses_and_gradients_are_those_of_trl(losses, run_cases):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", order=[4, 5, 0, 1, 2, 3], pairs=True)
    found = run_cases(
        layout.batch, layout.lay(ROLLOUTS["log_probs"]), layout.lay(ROLLOUTS["reference"])
    )
    for case, ((loss, _), gradient) in zip(GOLDEN["preference"], found, strict=True):
        # orpo's stand-in rounds its scores to float32 before it takes the logarithm of odds
        tolerance = 2e-6 if case["ours"] == "orpo" else 1e-6
        np.testing.assert_allclose(
            loss, case["loss"], atol=tolerance, rtol=tolerance, err_msg=str(case["trl"])
        )
        np.testing.assert_allclose(
            layout.take(gradient), case["gradient"], atol=1e-6, rtol=1e-5, err_msg=str(case["trl"])
        )


def test_dpo_and_what_is_logged_are_those_of_the_cookbook(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", pairs=True)
    loss, metrics = preference_loss(
        layout.lay(ROLLOUTS["log_probs"]),
        layout.batch,
        PreferenceLoss(beta=0.3),
        reference_log_probs=layout.lay(ROLLOUTS["reference"]),
    )
    golden = GOLDEN["tinker"]["dpo"]
    assert float(loss) == pytest.approx(golden["loss"], abs=1e-6)
    for name in ("accuracy", "margin", "chosen_reward", "rejected_reward"):
        assert float(metrics[name]) == pytest.approx(golden["logged"][name], abs=1e-6)


def test_the_gradient_of_dpo_is_that_of_weighted_pairs(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", pairs=True)
    rng = np.random.default_rng(0)
    logits, reference = (
        jnp.asarray(rng.normal(size=(*layout.batch.tokens.shape, 11)), jnp.float32)
        for _ in range(2)
    )
    of_reference = -token_nll(reference, layout.batch.labels)

    def dpo(logits):
        log_probs = -token_nll(logits, layout.batch.labels)
        return preference_loss(log_probs, layout.batch, "dpo", reference_log_probs=of_reference)[0]

    sums = [
        pair_log_probs(layout.batch, -token_nll(z, layout.batch.labels))
        for z in (logits, reference)
    ]
    weights = pair_weights(
        layout.batch, dpo_weights(*map(np.asarray, (*sums[0], *sums[1])), beta=0.1)
    )
    weighted = dataclasses.replace(layout.batch, weights=weights)
    expected = jax.jit(jax.grad(lambda z: unified_loss(z, weighted, 3)))(logits)
    np.testing.assert_allclose(jax.jit(jax.grad(dpo))(logits), expected, atol=1e-6)


def test_kto_is_trls(losses):
    golden = GOLDEN["kto"]
    layout = losses.Layout(
        ROLLOUTS["mask"],
        "packed",
        rewards=np.where(golden["desirable"], 1, -1),
        order=[5, 2, 0, 1, 4, 3],
    )
    batch = layout.batch

    def loss_of(log_probs):
        kl = jnp.maximum(0, np.mean(golden["kl_sums"]))
        of = partial(
            kto_loss,
            batch=batch,
            desirable=batch.rewards > 0,
            beta=golden["beta"],
            weights=golden["weights"],
        )
        return of(log_probs, layout.lay(ROLLOUTS["reference"]), kl=kl)[0]

    loss, gradient = jax.jit(jax.value_and_grad(loss_of))(layout.lay(ROLLOUTS["log_probs"]))
    assert float(loss) == pytest.approx(golden["loss"], abs=1e-6)
    np.testing.assert_allclose(layout.take(gradient), golden["gradient"], atol=1e-6)


def test_the_reference_point_is_the_mean_over_answers_and_never_negative(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed")
    mask = np.array(ROLLOUTS["mask"])
    log_ratio = np.array(ROLLOUTS["log_probs"]) - np.array(ROLLOUTS["reference"])
    point = kto_reference_point(
        layout.lay(ROLLOUTS["log_probs"]), layout.lay(ROLLOUTS["reference"]), layout.batch
    )
    assert float(point) == pytest.approx(max(0, (log_ratio * mask).sum(1).mean()), abs=1e-6)
    other = kto_reference_point(
        layout.lay(ROLLOUTS["reference"]), layout.lay(ROLLOUTS["log_probs"]), layout.batch
    )
    assert float(other) == pytest.approx(max(0, -(log_ratio * mask).sum(1).mean()), abs=1e-6)
    assert {float(point) == 0, float(other) == 0} == {True, False}


@pytest.mark.parametrize(
    "kind", [pytest.param(AxisType.Auto, marks=pytest.mark.slow), AxisType.Explicit]
)
def test_losses_do_not_depend_on_the_devices(losses, run_cases, kind):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", pairs=True)
    arrays = (layout.batch, layout.lay(ROLLOUTS["log_probs"]), layout.lay(ROLLOUTS["reference"]))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    expected = run_cases(*arrays)
    with jax.set_mesh(mesh):
        found = jax.jit(partial(losses_of, tuple(CASES)))(
            *jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))
        )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5)


def test_an_empty_batch_and_answers_that_are_certain_have_finite_losses(losses):
    layout = losses.Layout(np.zeros((2, 7), int), "packed", pairs=True)
    zeros = jnp.zeros(layout.batch.tokens.shape)
    for loss in PRESETS.values():
        value, _ = preference_loss(
            zeros, layout.batch, loss, reference_log_probs=zeros if loss.reference else None
        )
        assert float(value) == 0
    sure = losses.Layout(np.ones((2, 7), int), "packed", pairs=True)
    orpo = jax.value_and_grad(lambda x: preference_loss(x, sure.batch, "orpo")[0])
    value, gradient = jax.jit(orpo)(zeros)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_pairs_may_be_counted_by_the_caller(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", pairs=True)
    arrays = layout.lay(ROLLOUTS["log_probs"]), layout.batch
    by_six = preference_loss(*arrays, PreferenceLoss(reference=False), pairs=6)[0]
    assert float(by_six) == pytest.approx(
        float(preference_loss(*arrays, PreferenceLoss(reference=False))[0]) / 2
    )


def test_bad_input(losses):
    layout = losses.Layout(ROLLOUTS["mask"], "packed", pairs=True)
    zeros = jnp.zeros(layout.batch.tokens.shape)
    with pytest.raises(ConfigError, match=r"reference_log_probs.*reference=False"):
        preference_loss(zeros, layout.batch)
    with pytest.raises(ConfigError, match=r"reference_log_probs.*Leave it out"):
        preference_loss(zeros, layout.batch, "simpo", reference_log_probs=zeros)
    with pytest.raises(ConfigError, match=r"batch.pairs.*unit=2"):
        preference_loss(zeros, dataclasses.replace(layout.batch, pairs=False), "simpo")
    with pytest.raises(ConfigError, match="Did you mean 'simpo'"):
        preference_loss(zeros, layout.batch, "sipo")
    with pytest.raises(ConfigError, match="log_probs"):
        preference_loss(zeros[:, 1:], layout.batch, "simpo")
    with pytest.raises(ConfigError, match="desirable"):
        kto_loss(zeros, zeros, layout.batch, jnp.ones((4, 1), bool))
    with pytest.raises(ConfigError, match="beta"):
        kto_loss(zeros, zeros, layout.batch, jnp.ones((4, 4), bool), beta=0)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("beta", {"beta": 0.0}),
        ("label_smoothing", {"label_smoothing": 0.5}),
        ("label_smoothing", {"label_smoothing": 0.1, "link": "hinge"}),
        ("link", {"link": "sigmoids"}),
        ("nll_coef", {"nll_coef": -1.0}),
        ("odds", {"odds": True}),
    ],
)
def test_settings_that_cannot_be(field, change):
    with pytest.raises(ConfigError) as caught:
        PreferenceLoss(**change)
    assert caught.value.field == field
