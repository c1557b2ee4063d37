"""Sums over segments against loops, in rows of any make, with gradients and on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.batch import PackedBatch, pack_rows
from headrace_posttrain import discounted_sums, segment_means, segment_sums, spread_segments
from headrace_posttrain.losses.segments import next_in_segment

ROWS = 4
LENGTH = 12


def some_batch(seed, by_eos):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, (ROWS, LENGTH))
    segments = np.zeros((ROWS, 3), np.int32)
    for row in segments:
        row[:] = rng.multinomial(rng.integers(0, LENGTH + 1), np.full(3, 1 / 3))
        row[:] = sorted(row, key=lambda n: n == 0)  # zeros behind the last
    rows = pack_rows(tokens, eos_id=0) if by_eos else pack_rows(tokens, segment_lengths=segments)
    mask = rng.integers(0, 3, (ROWS, LENGTH)).clip(0, 1).astype(np.uint8)
    batch = PackedBatch(
        rows.token_ids,
        rows.source_id,
        segment_lengths=rows.segment_lengths,
        eos_id=rows.eos_id,
        loss_mask=mask,
    )
    values = rng.normal(size=(ROWS, LENGTH)).astype(np.float32)
    return batch, np.where(batch.label_mask, values, np.nan).astype(np.float32)


def slowly(batch, values, decay):
    """Sums of segments, their means at each label, discounted sums, and the next value."""
    ids = batch.segment_ids
    mask = batch.label_mask
    sums = np.zeros((ROWS, batch.cu_seqlens.shape[1] - 1))
    means, run, following = (np.zeros((ROWS, LENGTH)) for _ in range(3))
    for b in range(ROWS):
        for k in range(ids[b].max() + 1):
            here = np.flatnonzero(ids[b] == k)
            trained = [i for i in here if mask[b, i]]
            sums[b, k] = values[b, trained].sum()
            means[b, here] = sums[b, k] / max(1, len(trained))
            so_far = 0.0
            for i in trained[::-1]:
                run[b, i] = so_far = values[b, i] + decay * so_far
            following[b, here[:-2]] = here[2:]
    return sums, means, run, following


@jax.jit
def quickly(batch, values, places):
    sums = segment_sums(values, batch)
    return (
        sums,
        segment_means(values, batch),
        discounted_sums(values, batch, 0.7),
        next_in_segment(places, batch, 2),
        spread_segments(sums, batch),
    )


@pytest.mark.parametrize("by_eos", [False, True])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10)
def test_sums_are_those_of_loops(by_eos, seed):
    batch, values = some_batch(seed, by_eos)
    *found, spread = quickly(batch, values, np.broadcast_to(np.arange(LENGTH), values.shape))
    expected = slowly(batch, values, 0.7)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    at = np.maximum(batch.segment_ids, 0)
    np.testing.assert_allclose(
        spread,
        np.where(batch.segment_ids < 0, 0, np.take_along_axis(expected[0], at, 1)),
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sums_on_a_mesh(kind):
    batch, values = some_batch(1, by_eos=False)
    arguments = batch, values, np.broadcast_to(np.arange(LENGTH), values.shape)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        found = jax.jit(lambda *a: quickly(*a))(
            *jax.device_put(arguments, NamedSharding(mesh, PartitionSpec("data")))
        )
    for a, b in zip(found, quickly(*arguments), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_gradients_reach_the_labels_that_are_trained_on():
    batch, values = some_batch(2, by_eos=False)
    direction = np.random.default_rng(0).normal(size=values.shape).astype(np.float32)
    gradient = jax.grad(lambda v: (segment_means(v, batch) * direction).sum())(jnp.asarray(values))
    expected = np.zeros(values.shape)
    for b in range(ROWS):
        for k in range(batch.segment_ids[b].max() + 1):
            here = batch.segment_ids[b] == k
            trained = here & batch.label_mask[b]
            expected[b, trained] = direction[b, here].sum() / max(1, trained.sum())
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
