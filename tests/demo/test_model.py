"""The demo's model: its loss is the one that the batch contract states, and it sees no token that
it must not see.
"""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import pack_rows
from headrace.demo import Transformer
from headrace.demo.train import make_optimizer, next_token_loss, rotate, train_step

VOCAB = 17
SEQ = 12
EOS = 0


@pytest.fixture(scope="module")
def model():
    return Transformer(VOCAB, dim=16, layers=2, heads=2, key=jax.random.key(0))


class Weighted(eqx.Module):
    """A batch with other weights than its segments give."""

    tokens: jax.Array
    labels: jax.Array
    position_ids: jax.Array
    segment_ids: jax.Array
    token_weights: jax.Array


def weighted(batch, weights):
    arrays = (
        batch.tokens,
        batch.labels,
        batch.position_ids,
        batch.segment_ids,
        weights.astype(np.float32),
    )
    return Weighted(*map(jnp.asarray, arrays))


def random_rows(rows, seed):
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, SEQ)).astype(np.uint16)


@dataclass
class Rows:
    """Arguments of the model for one row."""

    tokens: Any
    positions: Any
    segments: Any


def one_row(seed, segments=None):
    return Rows(
        random_rows(1, seed)[0].astype(np.int32),
        np.arange(SEQ, dtype=np.int32),
        np.zeros(SEQ, np.int32) if segments is None else segments,
    )


@eqx.filter_jit
def call(model, tokens, positions, segments):
    return model(tokens, positions, segments)


def logits(model, row):
    return np.asarray(
        call(model, jnp.asarray(row.tokens), jnp.asarray(row.positions), jnp.asarray(row.segments))
    )


def test_the_loss_equals_its_definition_written_as_loops(model):
    batch = pack_rows(random_rows(3, seed=1), eos_id=EOS)
    weights = batch.token_weights * np.random.default_rng(2).normal(size=(3, SEQ))
    batch = weighted(batch, weights)
    total = 0.0
    for row in range(3):
        scores = logits(
            model, Rows(batch.tokens[row], batch.position_ids[row], batch.segment_ids[row])
        )
        for place in range(SEQ):
            shifted = scores[place].astype(np.float64) - scores[place].max()
            log_probability = shifted[batch.labels[row, place]] - np.log(np.exp(shifted).sum())
            total += weights[row, place] * log_probability
    expected = -total / max(1.0, np.abs(weights).sum())
    assert float(eqx.filter_jit(next_token_loss)(model, batch)) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_weight_has_no_loss_and_no_gradient(model):
    batch = pack_rows(random_rows(2, seed=3))
    batch = weighted(batch, np.zeros((2, SEQ)))
    loss, gradients = eqx.filter_jit(eqx.filter_value_and_grad(next_token_loss))(model, batch)
    assert float(loss) == 0
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


def test_an_untrained_model_is_close_to_guessing():
    model = Transformer(1000, dim=32, layers=1, heads=4, key=jax.random.key(1))
    batch = pack_rows(np.random.default_rng(0).integers(0, 1000, (8, 32)).astype(np.uint16))
    assert float(eqx.filter_jit(next_token_loss)(model, batch)) == pytest.approx(
        np.log(1000), abs=0.3
    )


@settings(max_examples=10)
@given(place=st.integers(0, SEQ - 1), seed=st.integers(0, 100))
def test_a_token_changes_nothing_before_it_and_something_at_it(model, place, seed):
    row = one_row(seed)
    changed = row.tokens.copy()
    changed[place] = (changed[place] + 1) % VOCAB
    before = logits(model, row)
    after = logits(model, replace(row, tokens=changed))
    np.testing.assert_allclose(before[:place], after[:place], rtol=0, atol=1e-6)
    assert np.abs(before[place] - after[place]).max() > 1e-3


@settings(max_examples=10)
@given(border=st.integers(1, SEQ - 1), seed=st.integers(0, 100))
def test_a_segment_sees_nothing_of_the_one_before_it(model, border, seed):
    row = one_row(seed, segments=(np.arange(SEQ) >= border).astype(np.int32))
    changed = row.tokens.copy()
    changed[:border] = (changed[:border] + 1) % VOCAB
    np.testing.assert_allclose(
        logits(model, row)[border:],
        logits(model, replace(row, tokens=changed))[border:],
        rtol=0,
        atol=1e-6,
    )


def test_a_segment_means_the_same_wherever_it_stands_in_its_row(model):
    tokens = random_rows(1, seed=5)[0]
    tokens[:6] = [3, 4, 5, 6, 7, EOS]
    alone = pack_rows(np.concatenate([tokens[6:], tokens[6:]])[None, :], eos_id=None)
    packed = pack_rows(tokens[None, :], eos_id=EOS)
    apart = logits(
        model, Rows(alone.tokens[0, :6], alone.position_ids[0, :6], alone.segment_ids[0, :6])
    )
    within = logits(
        model, Rows(packed.tokens[0], packed.position_ids[0], np.minimum(packed.segment_ids[0], 1))
    )[6:]
    first_end = np.flatnonzero(tokens[6:] == EOS)
    same = slice(0, int(first_end[0]) + 1 if first_end.size else 6)
    np.testing.assert_allclose(within[same], apart[same], rtol=0, atol=1e-5)


def test_rotation_keeps_lengths_and_only_distance_counts():
    x = jax.random.normal(jax.random.key(0), (4, 2, 8))
    positions = jnp.array([0, 1, 5, 9])
    turned = rotate(x, positions)
    later = rotate(x, positions + 7)
    np.testing.assert_allclose(
        jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5
    )
    np.testing.assert_allclose(
        jnp.einsum("qhd,khd->hqk", turned, turned),
        jnp.einsum("qhd,khd->hqk", later, later),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("devices", [1, 4])
def test_training_on_one_batch_learns_it_and_stays_on_every_device(model, devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    batch = jax.device_put(
        pack_rows(random_rows(8, seed=7)), NamedSharding(mesh, PartitionSpec("data"))
    )
    optimizer = make_optimizer(40, peak_lr=1e-2)
    fresh = (model, optimizer.init(eqx.filter(model, eqx.is_array)))
    trained, state = eqx.filter_shard(fresh, NamedSharding(mesh, PartitionSpec()))
    losses = []
    for _ in range(40):
        trained, state, loss = train_step(trained, state, optimizer, batch)
        losses.append(float(loss))
    assert losses[-1] < 0.6 * losses[0]
    leaf = jax.tree.leaves(eqx.filter(trained, eqx.is_array))[0]
    assert leaf.sharding.is_fully_replicated
    assert len(leaf.sharding.device_set) == devices
