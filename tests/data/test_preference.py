"""Pairs: together in a row, even chosen and odd rejected; and DPO's gradient as weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.data.examples import Example
from headrace.data.loss import token_nll, unified_loss
from headrace.data.preference import dpo_weights, pack_pairs, pair_examples, pairs_of_rows
from headrace.errors import ConfigError


def some_pairs(count=5, seed=0):
    rng = np.random.default_rng(seed)

    def one(prompt):
        answer = rng.integers(0, 20, rng.integers(1, 5))
        mask = np.r_[np.zeros(prompt.size), np.ones(answer.size)].astype(np.uint8)
        return Example(np.concatenate([prompt, answer]), loss_mask=mask)

    prompts = [rng.integers(0, 20, rng.integers(1, 4)) for _ in range(count)]
    return [(one(p), one(p)) for p in prompts]


def test_even_is_chosen_and_odd_is_rejected_in_one_row():
    batch = pack_pairs(some_pairs(), 16, np.arange(1, 6, dtype=np.float32))
    for b in range(batch.batch_size):
        for k in range(0, int((batch.segment_lengths[b] > 0).sum()), 2):
            pair = batch.group_ids[b, k]
            assert batch.group_ids[b, k + 1] == pair
            for segment, sign in ((k, 1), (k + 1, -1)):
                weights = batch.token_weights[b][batch.label_mask[b] & (batch.segment_ids[b] == segment)]
                assert (weights == sign * (pair + 1)).all()


def test_the_gradient_is_that_of_dpo():
    pairs = some_pairs()
    pairs_batch = pack_pairs(pairs, 16)
    rng = np.random.default_rng(1)
    shape = (*pairs_batch.token_ids.shape, 20)
    logits, reference = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2))
    beta, count = 0.3, len(pairs)

    def of_pairs(logits):
        log_p = jnp.where(pairs_batch.label_mask, -token_nll(logits, pairs_batch.labels), 0.0)
        sums = jnp.zeros((2, count))
        side = (pairs_batch.segment_ids % 2).clip(0)
        pair = np.take_along_axis(pairs_batch.group_ids, pairs_batch.segment_ids.clip(0), 1)
        return sums.at[side, pair].add(log_p)

    def dpo(logits):
        (chosen, rejected), (chosen_r, rejected_r) = of_pairs(logits), of_pairs(reference)
        return -jax.nn.log_sigmoid(beta * ((chosen - chosen_r) - (rejected - rejected_r))).mean()

    weights = dpo_weights(*map(np.asarray, (*of_pairs(logits), *of_pairs(reference))), beta=beta)
    weighted = pack_pairs(pairs, 16, weights)
    assert np.array_equal(weighted.token_ids, pairs_batch.token_ids)
    found = jax.grad(lambda z: unified_loss(z, weighted, count))(logits)
    np.testing.assert_allclose(found, jax.grad(dpo)(logits), atol=1e-6)


def test_rows_of_a_cache_are_paired():
    rows = [Example(np.array([i + 1])) for i in range(4)]
    assert [a.tokens[0] for a, _ in pairs_of_rows(rows, [1, 0, 1, 0])] == [1, 3]
    with pytest.raises(ConfigError, match="odd number"):
        pairs_of_rows(rows[:3])
    with pytest.raises(ConfigError, match=r"rows\[2\]"):
        pairs_of_rows(rows, [1, 0, 0, 1])


def test_bad_input():
    pairs = some_pairs(2)
    with pytest.raises(ConfigError, match="weights"):
        pair_examples(pairs, np.ones(3, np.float32))
    with pytest.raises(ConfigError, match="weights"):
        pair_examples(pairs, -1.0)
    long = dataclasses.replace(pairs[0][0], tokens=np.arange(9), loss_mask=None)
    with pytest.raises(ConfigError, match=r"examples\[2:4\]"):
        pack_pairs([pairs[0], (long, long)], 16)
    assert pair_examples([]) == []
