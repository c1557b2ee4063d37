"""Micro-batches on devices: rows as the plan says, with all that lies beside their tokens; losses
that add up.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.batch import MicroBatchConfig, PackedBatch, unified_loss
from headrace.batch.micro_step import lay_out

S = 32
WIDTH = 3
VOCAB = 50


def random_batch(seed, rows=13, *, pairs=False):
    """Rows of random segments with everything that a batch may have; the last holds nothing."""
    rng = np.random.default_rng(seed)
    segments = rng.integers(1, S // 4, (rows, 2 if pairs else WIDTH)).astype(np.int32)
    segments[-1] = 0
    tokens = rng.integers(1, VOCAB, (rows, S)).astype(np.uint16)
    source = np.append(rng.integers(0, 3, rows - 1), -1).astype(np.int32)
    return PackedBatch(
        tokens,
        source,
        segment_lengths=segments,
        pairs=pairs,
        weights=rng.random((rows, 1)).astype(np.float32),
        token_mask=rng.integers(0, 2, (rows, S)).astype(np.uint8),
        log_probs=rng.random((rows, S)).astype(np.float32),
        group_ids=None if pairs else rng.integers(0, 4, segments.shape).astype(np.int32),
        rewards=rng.random(segments.shape).astype(np.float32),
        extras={"ids": rng.integers(0, 9, (rows, S, 2))},
    )


def split(batch, config, rows=2):
    segments = np.asarray(batch.segment_lengths)
    shape = config.shape(batch.batch_size, batch.seq_len, segments.shape[1], rows)
    return lay_out(batch, *config.plan(segments, shape), shape=shape)


def documents_of(batch, source):
    """Of each document all that a batch says of it, in some order."""
    flat = batch.expand()
    names = ("tokens", "labels", "token_weights", "label_mask", "position_ids")
    found = []
    for row, begins in enumerate(np.asarray(flat.cu_seqlens)):
        for k, (a, b) in enumerate(pairwise(begins)):
            if a < b and flat.segment_ids[row, a] >= 0:
                beside = [np.asarray(getattr(flat, name))[row, a:b].tolist() for name in names]
                more = [
                    np.asarray(batch.log_probs)[row, a:b].tolist(),
                    np.asarray(batch.extras["ids"])[row, a:b].tolist(),
                ]
                reward = float(batch.rewards[row, k])
                found.append(repr((beside, more, reward, int(source[row, k]))))
    return sorted(found)


@pytest.mark.parametrize(("balance", "pairs"), [("none", False), ("tokens", True)])
def test_every_document_comes_with_all_that_lies_beside_it(balance, pairs):
    batch = random_batch(3, pairs=pairs)
    step = split(batch, MicroBatchConfig(50, balance))
    source = np.broadcast_to(batch.source_id[:, None], batch.segment_lengths.shape)
    assert documents_of(step.rows, np.asarray(step.segment_sources)) == documents_of(batch, source)
    assert int(step.count) < step.number
    assert (np.asarray(step.rows.source_id) >= 0).sum() >= int(step.count)


def test_rows_without_segments_are_whole():
    batch = PackedBatch(np.arange(12).reshape(3, 4), np.array([0, 1, -1], np.int32))
    config = MicroBatchConfig(8)
    shape = config.shape(3, 4, 1, 1)
    step = lay_out(batch, *config.plan(np.array([[4], [4], [0]], np.int32), shape), shape=shape)
    assert step.at(0).tokens.tolist() == [[*range(8)]]
    assert int(step.count) == 1
    assert step.at(0).labels.tolist() == [[1, 2, 3, 0, 5, 6, 7, 0]]


EVERY = ("weights", "tokens", "sequences", "groups", 7.0, lambda some: 1.0 + some.label_mask.sum())


@pytest.mark.parametrize(
    "every", [("groups",), pytest.param(EVERY, marks=pytest.mark.slow, id="every")]
)
def test_losses_and_gradients_are_those_of_the_whole_step(every):
    batch = jax.tree.map(jnp.asarray, random_batch(1))
    table = jax.random.normal(jax.random.key(0), (VOCAB, VOCAB))

    def loss(table, some, denominator):
        return unified_loss(table[some.tokens], some, denominator)

    @jax.jit
    def of_batch(table, batch):
        return [jax.value_and_grad(loss)(table, batch, denominator) for denominator in every]

    compiled = []

    @jax.jit
    def of_step(table, step):
        compiled.append(step)

        def gradient(some, whole):
            return jax.value_and_grad(loss)(table, some, whole)

        return [step.sum(gradient, denominator) for denominator in every]

    expected = of_batch(table, batch)
    for balance in ("none", "tokens"):
        for (value, gradient), (loss_of_batch, its_gradient) in zip(
            of_step(table, split(batch, MicroBatchConfig(S, balance))), expected, strict=True
        ):
            assert float(value) == pytest.approx(float(loss_of_batch), rel=1e-5)
            np.testing.assert_allclose(gradient, its_gradient, atol=1e-6)
    assert len(compiled) == 1  # however many micro-batches hold rows
