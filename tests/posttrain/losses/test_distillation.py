"""Distillation against trl's and a plain sum, z-loss, and labels of several next tokens."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace import DataLoader
from headrace.batch import (
    PackedBatch,
    hidden_stats,
    pack_rows,
    token_mean,
    token_stats,
    unified_loss,
)
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache
from headrace_posttrain import distillation_loss, mtp_batch, top_k_divergence, z_loss

VOCABULARY = 17
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "losses.json").read_text())[
    "distillation"
]


def masked_batch(mask):
    rows = pack_rows(np.ones(np.shape(mask), np.uint8))
    return PackedBatch(rows.token_ids, rows.source_id, loss_mask=np.asarray(mask, np.uint8))


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["direction"])
def test_over_the_whole_vocabulary_it_is_trls(case):
    teacher, student = (np.array(GOLDEN[name], np.float32) for name in ("teacher", "student"))
    batch = masked_batch(GOLDEN["mask"])
    order = np.random.default_rng(0).permuted(np.broadcast_to(np.arange(9), teacher.shape), axis=-1)
    of_teacher = jnp.take_along_axis(jax.nn.log_softmax(teacher), jnp.asarray(order), -1)

    def loss_of(logits, rest):
        stats = token_stats(logits, order, entropy=False, chunk=4)
        return token_mean(
            top_k_divergence(stats.log_probs, of_teacher, case["direction"], rest=rest), batch
        )

    for rest in (False, True):  # nothing is left of the mass
        loss, gradient = jax.jit(jax.value_and_grad(partial(loss_of, rest=rest)))(
            jnp.asarray(student)
        )
        assert float(loss) == pytest.approx(case["loss"], rel=1e-6, abs=2e-6 if rest else 1e-6)
        np.testing.assert_allclose(gradient, case["gradient"], atol=2e-6 if rest else 1e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("k", [1, 8])
def test_the_rest_is_one_more_outcome(direction, k):
    rng = np.random.default_rng(k)
    hidden = rng.normal(size=(2, 4, 5))
    matrix = rng.normal(size=(9, 5))
    teacher = rng.normal(size=(2, 4, 9))
    of_teacher = np.asarray(jax.nn.log_softmax(teacher))
    ids = np.argsort(-of_teacher)[..., :k]
    top = np.take_along_axis(of_teacher, ids, -1)

    def loss_of(hidden):
        stats = hidden_stats(hidden, matrix, ids, entropy=False, chunk=4)
        return top_k_divergence(stats.log_probs, jnp.asarray(top), direction).sum()

    def plain(hidden):
        policy = jax.nn.softmax(hidden @ matrix.T)
        p, t = (jnp.take_along_axis(x, jnp.asarray(ids), -1) for x in (policy, jnp.exp(of_teacher)))
        p, t = (jnp.concatenate([x, 1 - x.sum(-1, keepdims=True)], -1) for x in (p, t))
        return (t * jnp.log(t / p)).sum() if direction == "forward" else (p * jnp.log(p / t)).sum()

    at = jnp.asarray(hidden, jnp.float32)
    found, expected = (jax.jit(jax.value_and_grad(loss))(at) for loss in (loss_of, plain))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    # what is left of the mass is a difference of numbers near 1, in the plain sum too
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5, rtol=1e-4)
    whole = (np.exp(of_teacher) * (of_teacher - jax.nn.log_softmax(at @ matrix.T))).sum()
    if direction == "forward":
        assert float(found[0]) <= float(whole) * (1 + 1e-5)  # a lower bound


def test_tokens_that_the_teacher_did_not_name_and_mass_that_is_spent_are_finite():
    policy = jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.5]]))
    teacher = jnp.array([[0.0, -jnp.inf], [0.0, -jnp.inf]])
    value, gradient = jax.value_and_grad(lambda x: top_k_divergence(x, teacher).sum())(policy)
    assert float(value) == pytest.approx(np.log(2) + np.log(4), rel=1e-5)
    assert np.isfinite(gradient).all()
    with pytest.raises(ConfigError, match="teacher_log_probs"):
        top_k_divergence(policy, teacher[:, :1])
    with pytest.raises(ConfigError, match="Did you mean 'forward'"):
        top_k_divergence(policy, teacher, "forwards")


def test_z_loss():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 9)), jnp.float32)
    batch = masked_batch([[1, 0, 1, 0], [0, 1, 1, 0]])

    def plain(logits):
        return (jax.nn.logsumexp(logits, -1) ** 2 * batch.label_mask).sum() / 4

    def ours(logits):
        return z_loss(token_stats(logits, batch.labels, chunk=5).log_normalizer, batch)

    for a, b in zip(
        *(jax.jit(jax.value_and_grad(loss))(logits) for loss in (ours, plain)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
@pytest.mark.parametrize("denominator", ["weights", "tokens", "sequences", "groups"])
def test_labels_of_several_next_tokens_are_those_of_each_segment_alone(losses, depth, denominator):
    rng = np.random.default_rng(depth)
    lengths = [[4, 3, 0], [1, 6, 1]]
    tokens = rng.integers(1, 9, (2, 8))
    mask = rng.integers(0, 2, (2, 8)).astype(np.uint8)
    weights = rng.normal(size=(2, 8)).astype(np.float32)
    rows = pack_rows(tokens, segment_lengths=np.array(lengths, np.int32))
    batch = PackedBatch(
        rows.token_ids,
        rows.source_id,
        segment_lengths=rows.segment_lengths,
        loss_mask=mask,
        weights=weights,
        group_ids=np.array([[0, 1, 9], [1, 0, 0]], np.int32),
    )
    logits = rng.normal(size=(2, 8, 9)).astype(np.float32)
    found = jax.jit(lambda z, b: unified_loss(z, mtp_batch(b, depth), denominator))(logits, batch)
    log_p = np.asarray(jax.nn.log_softmax(logits))
    losses = {}
    trained = {}
    weight = 0.0
    for b, row in enumerate(lengths):
        for k, n in enumerate(row):
            at = sum(row[:k])
            unit = (b, k) if denominator == "sequences" else int(batch.group_ids[b, k])
            for i in range(at, at + n - 1 - depth):
                if mask[b, i + depth]:
                    w = float(weights[b, i + depth])
                    losses[unit] = losses.get(unit, 0.0) - w * log_p[b, i, tokens[b, i + depth + 1]]
                    trained[unit] = trained.get(unit, 0) + 1
                    weight += abs(w)
    total = sum(losses.values())
    expected = {
        "weights": total / max(1, weight),
        "tokens": total / max(1, sum(trained.values())),
    }.get(denominator, sum(v / trained[u] for u, v in losses.items()) / max(1, len(trained)))
    assert float(found) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_depth_is_not_negative():
    with pytest.raises(ConfigError, match="depth"):
        mtp_batch(pack_rows(np.array([[1, 2]])), -1)


def test_a_teacher_teaches_more_than_hard_labels():
    """A table of next tokens, learnt from few samples: with the teacher's top 4 it is nearer the
    truth.
    """
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.full(12, 0.3), 12).astype(np.float32)
    tokens = [0]
    for _ in range(160):
        tokens.append(int(rng.choice(12, p=truth[tokens[-1]] / truth[tokens[-1]].sum())))
    batch = pack_rows(np.array([tokens]))
    log_truth = np.log(truth[batch.tokens] + 1e-9)
    ids = np.argsort(-log_truth)[..., :4]
    top = jnp.asarray(np.take_along_axis(log_truth, ids, -1))

    def hard(table):
        return unified_loss(table[batch.tokens], batch)

    def soft(table):
        return token_mean(
            top_k_divergence(token_stats(table[batch.tokens], ids, entropy=False).log_probs, top),
            batch,
        )

    def learn(loss):
        step = jax.jit(lambda table: table - 3.0 * jax.grad(loss)(table))
        table = jnp.zeros((12, 12))
        for _ in range(200):
            table = step(table)
        seen = np.unique(tokens[:-1])
        return float(
            (truth * (np.log(truth + 1e-9) - jax.nn.log_softmax(table)))[seen].sum(1).mean()
        )

    assert learn(soft) < 0.5 * learn(hard)


def write_taught(path):
    """A cache with a teacher's three likeliest tokens of each, and weights; all follow from the
    token.
    """
    teacher = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))
    log_probs = np.asarray(jax.nn.log_softmax(teacher))
    ids = np.argsort(-log_probs)[:, :3]
    leaves = {
        LeafSpec("topk", "int32", width=3): lambda tokens: ids[tokens],
        LeafSpec("topk_log_probs", "float32", width=3): lambda tokens: np.take_along_axis(
            log_probs, ids, -1
        )[tokens],
        LeafSpec("weights", "float32", width=1): lambda tokens: tokens % 3 / 2,
    }
    documents = [np.random.default_rng(n).integers(0, VOCABULARY, 3 + n % 9) for n in range(24)]
    cache = write_cache(path, [documents], vocab_size=VOCABULARY, leaves=leaves)
    return cache, ids, np.take_along_axis(log_probs, ids, -1)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_losses_over_columns_of_a_cache_are_plain_sums(tmp_path, direction):
    """Loss and gradient of weighted NLL, distillation and z-loss against plain sums over the
    labels.
    """
    cache, ids, log_probs = write_taught(tmp_path / "cache")
    names = {"weight": "weights", "teacher_ids": "topk", "teacher_log_probs": "topk_log_probs"}
    dataset = PackedTokenDataset(cache, 16, columns=names).shuffle(seed=1)
    batch = DataLoader(dataset, 8).batch_at(0)
    logits = jnp.asarray(
        np.random.default_rng(3).normal(size=(*batch.tokens.shape, VOCABULARY)), jnp.float32
    )

    def ours(logits):
        ids, log_probs = map(batch.of_labels, ("teacher_ids", "teacher_log_probs"))
        stats = token_stats(logits, batch.labels, entropy=False)
        loss = distillation_loss(logits, batch, ids, log_probs, direction)
        return loss + 0.5 * unified_loss(logits, batch) + 1e-2 * z_loss(stats.log_normalizer, batch)

    tokens = np.asarray(batch.tokens)
    segments = np.asarray(batch.segment_ids)
    follows = (segments >= 0)[:, :-1] & (segments[:, 1:] == segments[:, :-1])
    label = tokens[:, 1:][follows]
    weight = label % 3 / 2

    def plain(logits):
        at = logits[:, :-1][follows]
        normalizer = jnp.log(jnp.exp(at).sum(-1))
        log_p = at - normalizer[:, None]
        p = jnp.exp(jnp.take_along_axis(log_p, ids[label], -1))
        t = np.exp(log_probs[label])
        p, t = (jnp.concatenate([x, 1 - x.sum(-1, keepdims=True)], -1) for x in (p, t))
        divergence = (t * jnp.log(t / p) if direction == "forward" else p * jnp.log(p / t)).sum(-1)
        nll = -jnp.take_along_axis(log_p, label[:, None], -1)[:, 0]
        trained = weight > 0
        return (weight * (divergence + 0.5 * nll)).sum() / weight.sum() + 1e-2 * (normalizer**2)[
            trained
        ].mean()

    found, expected = (jax.jit(jax.value_and_grad(loss))(logits) for loss in (ours, plain))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=2e-6, rtol=1e-4)


def test_next_labels_are_those_of_the_mtp_batches(tmp_path):
    cache, *_ = write_taught(tmp_path / "cache")
    batch = DataLoader(PackedTokenDataset(cache, 16, columns={"weight": "weights"}), 8).batch_at(0)
    labels = batch.next_labels(3)
    weights = batch.next_weights(3)
    for depth in range(3):
        one = mtp_batch(batch, depth)
        assert np.array_equal(labels[..., depth], one.labels)
        assert np.array_equal(weights[..., depth], one.token_weights)
