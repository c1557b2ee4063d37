"""Losses by source against a sum label by label."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.batch import MicroBatchConfig, PackedBatch, loss_by_source, pack_rows
from headrace.batch.loss import SourceLosses
from headrace.batch.micro_step import lay_out
from headrace.errors import ConfigError

SOURCES = 5


def some_batch(seed: int, rows: int = 8, length: int = 12) -> PackedBatch:
    """Rows of several segments of one source each, with padding, empty rows and weights."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 5, (rows, 3)).astype(np.int32)
    batch = pack_rows(random.integers(0, 9, (rows, length)), segment_lengths=lengths)
    return dataclasses.replace(
        batch,
        source_id=random.integers(-1, SOURCES, rows).astype(np.int32),
        loss_mask=random.integers(0, 3, (rows, length)).clip(0, 1).astype(np.uint8),
        weights=random.normal(size=(rows, length)).astype(np.float32),
    )


def reference(batch: PackedBatch, losses: np.ndarray) -> np.ndarray:
    """Sums and weights, ``[2, sources]``."""
    found = np.zeros((2, SOURCES))
    weights = np.asarray(batch.token_weights, np.float64)
    for row, column in np.argwhere(weights != 0):
        source = int(batch.source_id[row])
        found[0, source] += weights[row, column] * float(losses[row, column])
        found[1, source] += abs(weights[row, column])
    return found


def numbers(losses: SourceLosses) -> np.ndarray:
    return np.array([losses.sums, losses.weights])


def some_losses(batch: PackedBatch, seed: int) -> np.ndarray:
    losses = np.random.default_rng(seed).normal(2, 1, batch.tokens.shape).astype(np.float32)
    # of labels that do not count
    return np.where(np.asarray(batch.token_weights) == 0, np.nan, losses)


@pytest.mark.parametrize("seed", range(5))
def test_sums_and_weights_are_those_of_the_labels(seed: int):
    batch = some_batch(seed)
    losses = some_losses(batch, seed)
    inside = jax.jit(loss_by_source, static_argnums=2)(batch, losses, SOURCES)
    assert numbers(inside) == pytest.approx(reference(batch, losses), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_is_summed_over_all_devices(kind: AxisType):
    batch = some_batch(7)
    losses = some_losses(batch, 7)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,), devices=jax.devices()[:4])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    put = jax.tree.map(lambda leaf: jax.device_put(leaf, rows), (batch, losses))
    with jax.set_mesh(mesh):
        inside = jax.jit(loss_by_source, static_argnums=2)(*put, SOURCES)
    assert numbers(inside) == pytest.approx(reference(batch, losses), rel=1e-5, abs=1e-5)
    assert inside.sums.sharding.is_fully_replicated


def test_segments_of_several_sources_in_a_row():
    """Micro-batches join rows of several sources; together they are the batch."""
    random = np.random.default_rng(3)
    lengths = np.array([[2], [3], [4], [3]], np.int32)
    batch = pack_rows(
        random.integers(0, 9, (4, 4)),
        source_id=np.array([2, 0, 4, 0], np.int32),
        segment_lengths=lengths,
    )
    config = MicroBatchConfig(8)
    shape = config.shape(batch_size=4, seq_len=4, row_segments=1, ways=1)
    step = lay_out(batch, *config.plan(lengths, shape), shape=shape)

    def loss_of(tokens: np.ndarray) -> np.ndarray:
        return np.asarray(tokens, np.float32) + 1

    together = loss_by_source(
        step.rows, jnp.asarray(loss_of(step.rows.labels)), SOURCES, source_ids=step.segment_sources
    )
    assert numbers(together) == pytest.approx(reference(batch, loss_of(batch.labels)), rel=1e-6)


def test_losses_are_added_and_named():
    one = SourceLosses(jnp.array([2.0, 0.0, 6.0]), jnp.array([1.0, 0.0, 2.0]))
    assert (one + one).by_name(["web", "code", "math"]) == {"web": 2.0, "math": 3.0}


def test_losses_of_another_shape_are_refused():
    with pytest.raises(ConfigError, match="token_losses"):
        loss_by_source(some_batch(0), jnp.zeros((2, 2)), SOURCES)
