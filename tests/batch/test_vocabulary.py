"""Entropy, normaliser and log probabilities of several labels, against a plain softmax, with
gradients.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from headrace.batch import hidden_stats, token_stats
from headrace.errors import ConfigError

SIZE = 37
WIDTH = 6


def some_model(seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    return (
        jnp.asarray(scale * rng.normal(size=(2, 4, WIDTH)), jnp.float32),
        jnp.asarray(rng.normal(size=(SIZE, WIDTH)), jnp.float32),
        rng.integers(0, SIZE, (2, 4, 3)),
        tuple(
            jnp.asarray(rng.normal(size=shape), jnp.float32)
            for shape in ((2, 4, 3), (2, 4), (2, 4))
        ),
    )


def plain(hidden, matrix, labels):
    log_p = jax.nn.log_softmax(hidden @ matrix.T)
    norm = jax.nn.logsumexp(hidden @ matrix.T, axis=-1)
    return (
        jnp.take_along_axis(log_p, jnp.asarray(labels), -1),
        norm,
        -(jnp.exp(log_p) * log_p).sum(-1),
    )


def along(stats, directions):
    return sum((a * b).sum() for a, b in zip(stats, directions, strict=True))


@cache
def plain_gradients():
    hidden, matrix, labels, directions = some_model()
    return jax.jit(jax.value_and_grad(lambda h, m: along(plain(h, m, labels), directions), (0, 1)))(
        hidden, matrix
    )


@pytest.mark.parametrize("chunk", [1, 10, 37, 4096])
def test_values_and_gradients_are_those_of_a_plain_softmax(chunk):
    hidden, matrix, labels, directions = some_model()

    def by_hidden(hidden, matrix):
        return along(hidden_stats(hidden, matrix, labels, chunk=chunk), directions)

    def by_logits(hidden, matrix):
        return along(token_stats(hidden @ matrix.T, labels, chunk=chunk), directions)

    for loss in (by_hidden, by_logits):
        found = jax.jit(jax.value_and_grad(loss, (0, 1)))(hidden, matrix)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain_gradients()), strict=True):
            np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-5)


def test_entropy_is_exact_where_logits_are_large_and_where_some_are_impossible():
    logits = jnp.array(
        [[1e4, 1e4, 0.0, 0.0], [0.0, 0.0, 0.0, -jnp.inf], [5e3, 0.0, -jnp.inf, -jnp.inf]]
    )

    def entropy(z):
        return token_stats(z, jnp.zeros(3, jnp.int32), chunk=3).entropy

    np.testing.assert_allclose(np.asarray(entropy(logits)), [np.log(2), np.log(3), 0], atol=1e-6)
    assert np.isfinite(jax.grad(lambda z: entropy(z).sum())(logits)).all()


def test_one_label_a_position_or_several():
    hidden, matrix, labels, _ = some_model()
    stats = hidden_stats(hidden, matrix, labels)
    one = hidden_stats(hidden, matrix, labels[..., 1], entropy=False)
    np.testing.assert_allclose(one.log_probs, stats.log_probs[..., 1])
    assert one.entropy is None
    with pytest.raises(ConfigError, match="labels"):
        token_stats(hidden @ matrix.T, labels[:1])
    with pytest.raises(ConfigError, match="labels"):
        token_stats(hidden @ matrix.T, labels[..., None])


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_on_a_mesh(kind):
    hidden, matrix, labels, directions = some_model()
    alone = jax.value_and_grad(
        lambda h: along(hidden_stats(h, matrix, labels, chunk=10), directions)
    )
    expected = jax.jit(alone)(hidden)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, PartitionSpec("data"))
        whole = jax.device_put(matrix)
        (hidden, labels, directions) = jax.device_put((hidden, labels, directions), split)
        whole = jax.device_put(matrix, NamedSharding(mesh, PartitionSpec()))
        found = jax.jit(
            jax.value_and_grad(lambda h, m, y, d: along(hidden_stats(h, m, y, chunk=10), d))
        )(hidden, whole, labels, directions)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_all_logits_are_never_whole_in_float32(losses):
    rows = 32
    size = 2048
    chunk = 128
    hidden = jnp.ones((rows, 8), jnp.bfloat16)
    matrix = jnp.ones((size, 8), jnp.bfloat16)

    def loss(hidden, matrix):
        stats = hidden_stats(hidden, matrix, jnp.zeros(rows, jnp.int32), chunk=chunk)
        assert stats.entropy is not None
        return (stats.log_probs + stats.entropy + stats.log_normalizer**2).sum()

    traced = jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden, matrix)
    assert losses.largest_float32(traced.jaxpr) <= max(rows * chunk, size * 8)
    of_teacher = jax.grad(
        lambda h: hidden_stats(
            h, matrix, jnp.zeros((rows, 64), jnp.int32), chunk=chunk
        ).log_probs.sum()
    )
    used = jax.jit(of_teacher).lower(hidden).compile().memory_analysis()
    if used is not None:  # of 64 ids each, no [N, chunk, 64] is held
        assert used.temp_size_in_bytes < 4 * rows * size
