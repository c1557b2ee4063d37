"""Losses of RL: those of trl and tinker, with gradients; packed or not, on one
device or several.
"""

import dataclasses
import json
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.batch import (
    PackedBatch,
    hidden_stats,
    pack_rows,
    token_mean,
    unified_loss_from_hidden,
)
from headrace.errors import ConfigError
from headrace_posttrain import Correction, PolicyLoss, importance_ratio, kl_estimate, policy_loss
from headrace_posttrain.losses.policy_loss import PRESETS

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "losses.json").read_text())
ROLLOUTS = GOLDEN["rollouts"]
NAMES = ("log_probs", "old", "reference", "entropy", "sampler")


def settings_of(ours):
    correction = ours.get("correction")
    return PolicyLoss(
        **{**ours, "correction": None if correction is None else Correction(**correction)}
    )


def losses_of(cases, batch, log_probs, old, reference, entropy, sampler):
    """Of each case the loss with its metrics, and its gradients for log
    probabilities and entropy.
    """

    def one(log_probs, entropy, loss):
        return policy_loss(
            log_probs,
            batch,
            loss,
            old_log_probs=old,
            reference_log_probs=reference,
            entropy=entropy,
            sampler_log_probs=sampler,
        )

    return [
        jax.value_and_grad(partial(one, loss=loss), (0, 1), has_aux=True)(log_probs, entropy)
        for loss in cases
    ]


def golden_layout(losses, name, advantages, order=None):
    said = {"advantages": ROLLOUTS[advantages], "log_probs": ROLLOUTS["sampler"]}
    return losses.Layout(ROLLOUTS["mask"], name, order=order, **said)


@cache
def golden_losses(losses, name):
    """All losses of the golden file, compiled as one program."""
    of = {True: [], False: []}
    for case in GOLDEN["policy"]:
        of["token_level" in case["trl"]].append(settings_of(case["ours"]))
    done = {}
    for token_level, cases in of.items():
        layout = golden_layout(
            losses, name, "token_advantages" if token_level else "advantages", [3, 0, 5, 1, 2, 4]
        )
        run = jax.jit(partial(losses_of, tuple(cases)))
        done[token_level] = (
            layout,
            iter(run(layout.batch.expand(), *(layout.lay(ROLLOUTS[n]) for n in NAMES))),
        )
    return [
        (done[t][0], next(done[t][1]))
        for t in ("token_level" in case["trl"] for case in GOLDEN["policy"])
    ]


@pytest.mark.parametrize("name", ["packed", pytest.param("one a row", marks=pytest.mark.slow)])
def test_losses_and_gradients_are_those_of_trl(losses, name):
    for case, (layout, found) in zip(GOLDEN["policy"], golden_losses(losses, name), strict=True):
        (loss, metrics), (gradient, of_entropy) = found
        label = str(case["trl"])
        np.testing.assert_allclose(loss, case["loss"], atol=1e-6, rtol=1e-6, err_msg=label)
        np.testing.assert_allclose(
            layout.take(gradient), case["gradient"], atol=1e-6, rtol=1e-6, err_msg=label
        )
        if case["entropy_gradient"] is not None:
            np.testing.assert_allclose(
                layout.take(of_entropy), case["entropy_gradient"], atol=1e-6, err_msg=label
            )
        names = {"kl": "kl", "entropy": "entropy", "policy_loss": "policy_loss"}
        if (
            case["trl"].get("importance_sampling_level") != "sequence"
            and case["ours"].get("dual_clip") is None
        ):
            names |= {
                "clip_ratio/low_mean": "clip_low_share",
                "clip_ratio/high_mean": "clip_high_share",
            }
        for theirs in names.keys() & case["logged"].keys():
            assert float(metrics[names[theirs]]) == pytest.approx(
                case["logged"][theirs], abs=1e-6
            ), (label, theirs)
        assert all(np.isfinite(v) for v in metrics.values()), label


def test_the_golden_losses_differ_and_clip(losses):
    """What would not be seen by a case that never clips: the cases have clipped, masked and
    corrected labels.
    """
    assert len({case["loss"] for case in GOLDEN["policy"]}) == len(GOLDEN["policy"])
    shares = [
        case["logged"] for case in GOLDEN["policy"] if case["logged"].get("clip_ratio/region_mean")
    ]
    assert len(shares) > 10
    metrics = [found[0][1] for _, found in golden_losses(losses, "packed")]
    assert any(0 < m["correction_share"] < 1 for m in metrics if "correction_share" in m)
    assert any(0 < m["sequence_mask_share"] < 1 for m in metrics if "sequence_mask_share" in m)
    assert any(0 < m["dual_clip_share"] < 1 for m in metrics if "dual_clip_share" in m)


def test_losses_and_gradients_are_those_that_tinker_documents(losses):
    cases = [settings_of(case["ours"]) for case in GOLDEN["tinker"]["losses"]]
    layout = golden_layout(losses, "packed", "token_advantages")
    laid = {n: layout.lay(ROLLOUTS[n]) for n in NAMES} | {
        "old": layout.batch.log_probs,
        "reference": layout.batch.log_probs,
    }
    found = jax.jit(partial(losses_of, tuple(cases)))(layout.batch, **laid)
    for case, ((loss, _), (gradient, _)) in zip(GOLDEN["tinker"]["losses"], found, strict=True):
        np.testing.assert_allclose(loss, case["loss"], rtol=1e-6, err_msg=case["name"])
        np.testing.assert_allclose(
            layout.take(gradient), case["gradient"], atol=1e-6, rtol=1e-6, err_msg=case["name"]
        )
    metrics = found[0][0][1]
    golden = GOLDEN["tinker"]["kl_sample_train"]
    for ours, theirs in (
        ("sampler_kl", "kl_sample_train_v1"),
        ("sampler_kl_k2", "kl_sample_train_v2"),
        ("sampler_entropy", "entropy"),
    ):
        assert float(metrics[ours]) == pytest.approx(golden[f"optim/{theirs}"], abs=1e-6)


EVERY = tuple(
    dataclasses.replace(loss, denominator=denominator, kl_coef=0.1, entropy_coef=0.1)
    for denominator, loss in {
        "weights": PRESETS["reinforce"],
        "tokens": dataclasses.replace(
            PRESETS["dapo"], correction=Correction(outside="mask"), max_sequence_kl=0.1
        ),
        "sequences": PRESETS["gspo"],
        "groups": PRESETS["cispo"],
        12.0: PolicyLoss(level="sequence_token", kl_ratio=True),
    }.items()
)


@pytest.fixture(scope="module")
def run_every():
    return jax.jit(partial(losses_of, EVERY))


def random_layout(losses, rng):
    mask = np.zeros((6, 7), int)
    for row, n in zip(mask, rng.integers(1, 8, 6), strict=True):
        row[:n] = rng.integers(0, 2, n)
    values = {n: rng.normal(-1, 0.5, mask.shape) for n in (*NAMES, "advantages")}

    def of(name, order):
        groups = [0, 0, 7, 7, 7, -3]
        return losses.Layout(
            mask,
            name,
            order=order,
            groups=groups,
            advantages=values["advantages"],
            log_probs=values["sampler"],
        )

    return of, values


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_every_loss_and_denominator_is_the_same_however_sequences_are_laid_out(
    losses, run_every, seed
):
    rng = np.random.default_rng(seed)
    of, values = random_layout(losses, rng)
    answers = []
    for name, order in (("one a row", list(range(6))), ("packed", rng.permutation(6).tolist())):
        layout = of(name, order)
        found = run_every(layout.batch.expand(), *(layout.lay(values[n]) for n in NAMES))
        answers.append([(loss, layout.take(g), layout.take(h), m) for (loss, m), (g, h) in found])
    for loss, one, other in zip(EVERY, *answers, strict=True):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5, err_msg=str(loss))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_losses_do_not_depend_on_the_devices(losses, run_every, kind):
    of, values = random_layout(losses, np.random.default_rng(3))
    layout = of("packed", None)
    arrays = (layout.batch.expand(), *(layout.lay(values[n]) for n in NAMES))
    expected = run_every(*arrays)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        found = jax.jit(partial(losses_of, EVERY))(
            *jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data")))
        )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5)


def test_reinforce_is_the_unified_loss(losses):
    layout = golden_layout(losses, "packed", "advantages")
    batch = dataclasses.replace(layout.batch, log_probs=None)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(*batch.tokens.shape, 4))
    matrix = rng.normal(size=(11, 4))

    def by_policy_loss(hidden):
        return policy_loss(
            hidden_stats(hidden, matrix, batch.labels, chunk=5).log_probs, batch, "reinforce"
        )[0]

    def by_unified_loss(hidden):
        return unified_loss_from_hidden(hidden, jnp.asarray(matrix), batch, "tokens")

    found, wanted = (
        jax.jit(jax.value_and_grad(f))(jnp.asarray(hidden))
        for f in (by_policy_loss, by_unified_loss)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_on_fresh_samples_every_gradient_is_the_policy_gradient(losses):
    layout = golden_layout(losses, "packed", "advantages")
    at = jnp.asarray(layout.lay(ROLLOUTS["old"]))
    gradients = {
        name: jax.jit(
            jax.grad(lambda x, loss=loss: policy_loss(x, layout.batch, loss, old_log_probs=at)[0])
        )(at)
        for name, loss in PRESETS.items()
        if loss.denominator == "tokens"
    }
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            layout.take(gradient), layout.take(gradients["reinforce"]), atol=1e-6, err_msg=name
        )


def test_estimates_of_kl_are_unbiased_and_their_gradients_are_known():
    p = jnp.log(jnp.array([0.7, 0.2, 0.1]))
    q = jnp.log(jnp.array([0.2, 0.3, 0.5]))
    exact = float((jnp.exp(p) * (p - q)).sum())
    for name in ("k1", "k3"):
        assert float((jnp.exp(p) * kl_estimate(p, q, name)).sum()) == pytest.approx(exact, abs=1e-6)
    assert float(kl_estimate(p, q, "k3").min()) >= 0
    # the expectation of k2's gradient, under samples of p, is KL's: sum of p (log p - log q) d log
    # p
    found = jax.vmap(jax.grad(lambda x, y: kl_estimate(x, y, "k2")))(p, q)
    np.testing.assert_allclose(found, p - q, rtol=1e-6)
    assert (
        float(jax.grad(lambda y: kl_estimate(p, y, "k3").sum())(q).sum()) == 0
    )  # the reference is held fixed


def test_ratios_do_not_overflow_and_labels_that_are_not_trained_on_are_not_looked_at():
    batch = dataclasses.replace(
        pack_rows(np.array([[1, 2, 3, 4]])), loss_mask=np.array([[1, 1, 0, 0]], np.uint8)
    )
    log_probs = jnp.array([[-1.0, -1.0, np.nan, np.inf]])
    old = jnp.array([[-500.0, -1.0, np.nan, -np.inf]])
    for level in ("token", "sequence", "sequence_token", "product"):
        ratio = jax.value_and_grad(lambda x, lv=level: importance_ratio(x, old, batch, lv).sum())
        value, gradient = jax.jit(ratio)(log_probs)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
    ppo = jax.value_and_grad(
        lambda x: policy_loss(x, batch, "ppo", old_log_probs=old), has_aux=True
    )
    (_, metrics), gradient = jax.jit(ppo)(log_probs)
    assert np.isfinite(gradient).all()
    assert float(metrics["ratio_max"]) == pytest.approx(np.exp(20), rel=1e-5)
    assert float(metrics["ratio_min"]) == 1


def test_nothing_to_train_on_is_a_loss_of_zero():
    batch = dataclasses.replace(
        pack_rows(np.array([[1, 2, 3]])), loss_mask=np.zeros((1, 3), np.uint8)
    )
    zeros = jnp.zeros((1, 3))
    for loss in PRESETS:
        value, metrics = policy_loss(zeros, batch, loss, old_log_probs=zeros, entropy=zeros)
        assert float(value) == 0
        assert (float(metrics["ratio_max"]), float(metrics["entropy"])) == (1, 0)


def test_a_mean_over_tokens_counts_each_label_once():
    batch = pack_rows(np.array([[1, 2, 3, 4]]), segment_lengths=np.array([[3, 1]]))
    assert float(token_mean(jnp.array([[1.0, 2.0, np.nan, np.nan]]), batch)) == 1.5


def test_what_is_missing_is_named_with_a_cure():
    batch = pack_rows(np.array([[1, 2, 3]]))
    zeros = jnp.zeros((1, 3))
    with pytest.raises(ConfigError, match=r"old_log_probs.*stop_gradient"):
        policy_loss(zeros, batch, "ppo")
    policy_loss(zeros, batch, "ppo", old_log_probs=zeros)
    for loss, field in (
        (PolicyLoss(kl_coef=0.1), "reference_log_probs"),
        (PolicyLoss(entropy_coef=0.1), "entropy"),
        (PolicyLoss(max_sequence_kl=0.1), "sampler_log_probs"),
        (PolicyLoss(correction=Correction()), "sampler_log_probs"),
    ):
        with pytest.raises(ConfigError) as caught:
            policy_loss(zeros, batch, loss, old_log_probs=zeros)
        assert caught.value.field == field
    logged = PackedBatch(batch.token_ids, batch.source_id, log_probs=np.zeros((1, 3), np.float32))
    with pytest.raises(
        ConfigError, match="old_log_probs"
    ):  # the sampler's own against itself corrects nothing
        policy_loss(zeros, logged, PolicyLoss(correction=Correction()))
    with pytest.raises(ConfigError, match="Did you mean 'dapo'"):
        policy_loss(zeros, logged, "dapp")
    with pytest.raises(ConfigError, match="log_probs"):
        policy_loss(jnp.zeros((1, 4)), logged)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("clip_low", partial(PolicyLoss, clip_low=-0.1)),
        ("kl_coef", partial(PolicyLoss, kl_coef=float("nan"))),
        ("dual_clip", partial(PolicyLoss, dual_clip=1.1)),
        ("level", partial(PolicyLoss, level="seq")),
        ("objective", partial(PolicyLoss, objective="ppo")),
        ("kl", partial(PolicyLoss, kl="k4")),
        ("high", partial(Correction, low=2.0, high=1.0)),
        ("low", partial(Correction, low=-1.0)),
        ("outside", partial(Correction, outside="drop")),
    ],
)
def test_settings_that_cannot_be(field, make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field
