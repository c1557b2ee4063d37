"""The unified loss against hand-written references: values, gradients, denominators, devices,
memory.
"""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.batch import PackedBatch, pack_rows, token_nll, unified_loss, unified_loss_from_hidden
from headrace.batch.loss import coefficients
from headrace.batch.vocabulary import hidden_nll
from headrace.errors import ConfigError

DENOMINATORS = ("weights", "tokens", "sequences", "groups")
VOCABULARY = 37
WIDTH = 8


def some_batch(seed=0, rows=8, length=12):
    """Rows of several segments with padding, masks, weights of both signs, and groups spread over
    rows.
    """
    rng = np.random.default_rng(seed)
    segments = np.zeros((rows, 4), np.int32)
    for row in segments:
        left = length - rng.integers(0, 3)
        for k in range(rng.integers(1, 5)):
            row[k] = min(left, rng.integers(1, 7))
            left -= row[k]
    held = pack_rows(
        rng.integers(0, VOCABULARY, (rows, length)).astype(np.uint8), segment_lengths=segments
    )
    return dataclasses.replace(
        held,
        source_id=np.where(np.arange(rows) != 1, 0, -1),
        loss_mask=rng.integers(0, 3, (rows, length)).clip(0, 1).astype(np.uint8),
        weights=(rng.normal(size=(rows, length)) * rng.integers(0, 2, (rows, length))).astype(
            np.float32
        ),
        group_ids=rng.integers(-5, 5, segments.shape).astype(np.int32) * 1000,
    )


def reference(logits, batch, denominator):
    """Label by label, in float64."""
    logits = np.asarray(logits, np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    of_unit = {}
    trained = {}
    weight = 0.0
    for b in range(batch.batch_size):
        at = 0
        for k, n in enumerate(
            batch.segment_lengths[b] if batch.segment_lengths is not None else [batch.seq_len]
        ):
            group = (
                (b, k)
                if batch.group_ids is None or denominator == "sequences"
                else int(batch.group_ids[b, k])
            )
            for i in range(at, at + int(n) - 1):
                if not batch.valid[b] or (
                    batch.loss_mask is not None and not batch.loss_mask[b, i]
                ):
                    continue
                w = 1.0 if batch.weights is None else float(batch.weights[b, i])
                of_unit[group] = (
                    of_unit.get(group, 0.0) - w * log_p[b, i, int(batch.token_ids[b, i + 1])]
                )
                trained[group] = trained.get(group, 0) + 1
                weight += abs(w)
            at += int(n)
    if denominator == "weights":
        return sum(of_unit.values()) / max(1.0, weight)
    if denominator == "tokens":
        return sum(of_unit.values()) / max(1, sum(trained.values()))
    return sum(v / trained[g] for g, v in of_unit.items()) / max(1, len(trained))


def some_model(seed, batch):
    rng = np.random.default_rng(seed + 100)
    hidden = rng.normal(size=(batch.batch_size, batch.seq_len, WIDTH)).astype(np.float32)
    return jnp.asarray(hidden), jnp.asarray(rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))


@partial(jax.jit, static_argnames="denominator")
def both_losses(hidden, matrix, batch, denominator):
    return (
        unified_loss(hidden @ matrix.T, batch, denominator, chunk=10),
        unified_loss_from_hidden(hidden, matrix, batch, denominator, chunk=10),
    )


@pytest.mark.parametrize("denominator", DENOMINATORS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=12)
def test_loss_is_that_of_the_definition(denominator, seed):
    batch = some_batch(seed)
    hidden, matrix = some_model(seed, batch)
    wanted = reference(hidden @ matrix.T, batch, denominator)
    for found in both_losses(hidden, matrix, batch, denominator):
        assert float(found) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_the_default_is_the_formula_of_the_contract():
    batch = some_batch(3)
    hidden, matrix = some_model(3, batch)
    log_p = jax.nn.log_softmax(hidden @ matrix.T)
    log_p = jnp.take_along_axis(log_p, jnp.asarray(batch.labels)[..., None], -1)[..., 0]
    w = batch.token_weights
    wanted = -(w * log_p).sum() / max(1.0, np.abs(w).sum())
    assert float(unified_loss(hidden @ matrix.T, batch)) == pytest.approx(float(wanted), rel=1e-6)


def plain(hidden, matrix, batch, denominator):
    nll = -jnp.take_along_axis(
        jax.nn.log_softmax(hidden @ matrix.T), jnp.asarray(batch.labels)[..., None], -1
    )[..., 0]
    return (coefficients(batch, denominator) * batch.token_weights * nll).sum()


@cache
def plain_gradients(denominator):
    batch = some_batch(1)
    return jax.jit(jax.grad(partial(plain, batch=batch, denominator=denominator), (0, 1)))(
        *some_model(1, batch)
    )


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("chunk", [1, 10, 37, 4096])
def test_gradients_are_those_of_a_plain_softmax(denominator, chunk):
    batch = some_batch(1)
    hidden, matrix = some_model(1, batch)

    def by_logits(hidden, matrix):
        return unified_loss(hidden @ matrix.T, batch, denominator, chunk=chunk)

    def by_hidden(hidden, matrix):
        return unified_loss_from_hidden(hidden, matrix, batch, denominator, chunk=chunk)

    for loss in (by_logits, by_hidden):
        found = jax.jit(jax.grad(loss, (0, 1)))(hidden, matrix)
        for one, right in zip(found, plain_gradients(denominator), strict=True):
            np.testing.assert_allclose(one, right, atol=1e-6, rtol=1e-6)


def test_gradients_reach_the_likelihood_of_each_token_and_the_weights():
    batch = some_batch(2)
    hidden, matrix = some_model(2, batch)
    labels = jnp.asarray(batch.labels)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=labels.shape), jnp.float32)

    def by_chunks(h):
        return (direction * hidden_nll(h, matrix, labels, chunk=5)).sum()

    def whole(h):
        return -(
            direction
            * jnp.take_along_axis(jax.nn.log_softmax(h @ matrix.T), labels[..., None], -1)[..., 0]
        ).sum()

    found, wanted = (jax.jit(jax.grad(one))(hidden) for one in (by_chunks, whole))
    np.testing.assert_allclose(found, wanted, atol=2e-6, rtol=2e-6)
    assert by_chunks(hidden) == pytest.approx(float(whole(hidden)), rel=1e-5)


def test_low_precision_logits_keep_their_type_in_the_gradient():
    batch = some_batch(4)
    hidden, matrix = some_model(4, batch)
    logits = (hidden @ matrix.T).astype(jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda z: unified_loss(z, batch, chunk=10)))(logits)
    assert gradient.dtype == jnp.bfloat16
    assert unified_loss(logits, batch).dtype == jnp.float32
    wanted = jax.jit(jax.grad(lambda z: unified_loss(z, batch)))(logits.astype(jnp.float32))
    np.testing.assert_allclose(gradient.astype(np.float32), wanted, atol=1e-3)


@pytest.mark.parametrize("denominator", DENOMINATORS)
def test_loss_and_gradient_do_not_depend_on_the_devices(denominator):
    batch = jax.tree.map(jnp.asarray, some_batch(5))
    hidden, matrix = some_model(5, batch)

    def loss(hidden, matrix, batch):
        return unified_loss_from_hidden(hidden, matrix, batch, denominator, chunk=10)

    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    wanted = step(hidden, matrix, batch)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    found = step(
        jax.device_put(hidden, split),
        jax.device_put(matrix, whole),
        jax.tree.map(lambda x: jax.device_put(x, split), batch),
    )
    assert float(found[0]) == pytest.approx(
        reference(hidden @ matrix.T, some_batch(5), denominator), rel=1e-5
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert found[1][0].sharding.is_equivalent_to(split, 3)


def test_all_logits_are_never_whole_in_float32(losses):
    rows = 2
    length = 16
    size = 2048
    chunk = 128
    batch = jax.tree.map(jnp.asarray, pack_rows(np.ones((rows, length), np.uint16)))
    hidden = jnp.ones((rows, length, WIDTH), jnp.bfloat16)
    matrix = jnp.ones((size, WIDTH), jnp.bfloat16)
    logits = jnp.ones((rows, length, size), jnp.bfloat16)
    whole = rows * length * size

    def from_hidden(h, m):
        return unified_loss_from_hidden(h, m, batch, chunk=chunk)

    def from_logits(z):
        return unified_loss(z, batch, chunk=chunk)

    def careless(z):
        return (-jax.nn.log_softmax(z.astype(jnp.float32))[..., 0] * batch.token_weights).sum()

    allowed = max(rows * length * chunk, size * WIDTH)
    assert (
        losses.largest_float32(jax.make_jaxpr(jax.grad(from_hidden, (0, 1)))(hidden, matrix).jaxpr)
        <= allowed
    )
    assert (
        losses.largest_float32(jax.make_jaxpr(jax.grad(from_logits))(logits).jaxpr)
        <= rows * length * chunk
    )
    assert (
        losses.largest_float32(jax.make_jaxpr(jax.grad(careless))(logits).jaxpr) >= whole
    )  # the instrument sees it
    used = jax.jit(jax.grad(from_hidden, (0, 1))).lower(hidden, matrix).compile().memory_analysis()
    if used is not None:
        assert used.temp_size_in_bytes < 4 * whole


def test_a_denominator_may_be_a_number_or_a_function():
    batch = some_batch(6)
    hidden, matrix = some_model(6, batch)
    logits = hidden @ matrix.T
    total = float(unified_loss(logits, batch, 1.0))
    assert float(unified_loss(logits, batch, 64)) == pytest.approx(total / 64, rel=1e-5)
    by_row = unified_loss(logits, batch, lambda b: jnp.full((b.labels.shape[0], 1), 4.0))
    assert float(by_row) == pytest.approx(total / 4, rel=1e-5)


def test_labels_that_weigh_nothing_are_not_looked_at():
    logits = np.zeros((1, 3, 4), np.float32)
    logits[0, 2, 0] = -np.inf  # the end of the row predicts token 0, with probability 0
    batch = pack_rows(np.array([[1, 2, 3]]))
    loss, gradient = jax.value_and_grad(unified_loss)(jnp.asarray(logits), batch)
    assert float(loss) == pytest.approx(np.log(4))
    assert np.isfinite(gradient).all()


def test_nothing_to_train_on_is_a_loss_of_zero():
    batch = dataclasses.replace(some_batch(7), loss_mask=np.zeros((8, 12), np.uint8))
    hidden, matrix = some_model(7, batch)
    for denominator in DENOMINATORS:
        assert float(unified_loss(hidden @ matrix.T, batch, denominator)) == 0.0


def test_a_label_of_no_advantage_counts_and_a_masked_one_does_not():
    # the mean over tokens of an RL batch must not grow because some rewards happen to be the mean
    tokens = np.array([[1, 2, 3]])
    mask = np.array([[1, 1, 1]], np.uint8)
    weights = np.array([[1.0, 0.0, 0.0]], np.float32)
    base = pack_rows(tokens)
    batch = PackedBatch(base.token_ids, base.source_id, loss_mask=mask, weights=weights)
    logits = jnp.zeros((1, 3, 4))
    assert float(unified_loss(logits, batch, "tokens")) == pytest.approx(np.log(4) / 2)
    masked = dataclasses.replace(batch, loss_mask=np.array([[1, 0, 0]], np.uint8))
    assert float(unified_loss(logits, masked, "tokens")) == pytest.approx(np.log(4))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("denominator", {"denominator": "token"}),
        ("denominator", {"denominator": 0}),
        ("chunk", {"chunk": 0}),
        ("logits", {"logits": jnp.zeros((8, 11, 4))}),
    ],
)
def test_what_cannot_be_is_said(field, change):
    batch = some_batch()
    given_ = {"logits": jnp.zeros((8, 12, VOCABULARY)), **change}
    with pytest.raises(ConfigError) as caught:
        unified_loss(given_.pop("logits"), batch, **given_)
    assert caught.value.field == field


def test_a_matrix_of_another_width_is_named():
    batch = some_batch()
    with pytest.raises(ConfigError, match="unembedding"):
        unified_loss_from_hidden(jnp.zeros((8, 12, 4)), jnp.zeros((4, 9)), batch)


def test_one_value_a_token():
    nll = token_nll(jnp.zeros((2, 3, 5)), jnp.zeros((2, 3), jnp.int32), chunk=2)
    assert nll.shape == (2, 3)
    np.testing.assert_allclose(nll, np.log(5), rtol=1e-6)


def explicit_mesh(**axes):
    """``jax.make_mesh`` makes such: types of arrays then say how they are sharded, and a scan or a
    join may not mix.
    """
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Explicit,) * len(axes)
    )


@pytest.mark.parametrize("denominator", ["weights", "tokens", "sequences", "groups"])
def test_on_a_mesh_with_explicit_axes(denominator):
    mesh = explicit_mesh(data=2)
    rng = np.random.default_rng(0)
    lengths = np.array([[3, 5, 0], [8, 0, 0], [2, 2, 3], [1, 1, 0]], np.int32)
    tokens = rng.integers(0, 9, (4, 8))
    for batch in (pack_rows(tokens, segment_lengths=lengths), pack_rows(tokens, eos_id=0)):
        logits = rng.normal(size=(4, 8, 9)).astype(np.float32)
        on_one = jax.value_and_grad(partial(unified_loss, batch=batch, denominator=denominator))
        wanted = jax.jit(on_one)(jnp.asarray(logits))
        with jax.set_mesh(mesh):
            sharded, z = jax.device_put((batch, logits), NamedSharding(mesh, PartitionSpec("data")))
            loss = jax.value_and_grad(partial(unified_loss, denominator=denominator))
            found = jax.jit(loss)(z, sharded)
            expanded = jax.jit(PackedBatch.expand)(sharded)
            flat = jax.jit(PackedBatch.flatten)(sharded)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-6)
        wanted_leaves = jax.tree.leaves((batch.expand(), batch.flatten()))
        for leaf, same in zip(jax.tree.leaves((expanded, flat)), wanted_leaves, strict=True):
            assert np.array_equal(leaf, same)
        assert flat.tokens.sharding.spec == PartitionSpec("data")


@cache
def hidden_case():
    """Hidden states, a matrix and a batch, and the loss of these on one device,
    with its gradients.
    """
    rng = np.random.default_rng(0)
    batch = pack_rows(rng.integers(0, 9, (4, 8)), eos_id=0)
    hidden = rng.normal(size=(4, 8, 6))
    unembedding = rng.normal(size=(10, 6))
    loss = jax.jit(jax.value_and_grad(partial(unified_loss_from_hidden, batch=batch), (0, 1)))
    return hidden, unembedding, batch, loss(jnp.asarray(hidden), jnp.asarray(unembedding))


@pytest.mark.parametrize(
    "rows", [("data", None, None), (("data", "model"), None, None), ("data", "model", None)]
)
@pytest.mark.parametrize(
    "matrix", [(None, None), ("model", None), (None, "model"), ("data", "model")]
)
def test_hidden_states_and_matrix_on_a_mesh_with_explicit_axes(rows, matrix):
    mesh = explicit_mesh(data=2, model=2)
    hidden, unembedding, batch, wanted = hidden_case()
    place = {spec: NamedSharding(mesh, PartitionSpec(*spec)) for spec in (rows, rows[:1], matrix)}
    arguments = jax.device_put(
        (hidden, unembedding, batch), (place[rows], place[matrix], place[rows[:1]])
    )
    with jax.set_mesh(mesh):
        found = jax.jit(jax.value_and_grad(partial(unified_loss_from_hidden, chunk=3), (0, 1)))(
            *arguments
        )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert found[1][1].sharding.is_equivalent_to(place[matrix], 2)


def test_logits_that_are_split_over_the_vocabulary_on_a_mesh_with_explicit_axes():
    mesh = explicit_mesh(data=2, model=2)
    rng = np.random.default_rng(0)
    batch = pack_rows(rng.integers(0, 9, (4, 8)))
    logits = rng.normal(size=(4, 8, 10)).astype(np.float32)
    wanted = jax.value_and_grad(unified_loss)(jnp.asarray(logits), batch)
    with jax.set_mesh(mesh):
        z = jax.device_put(logits, NamedSharding(mesh, PartitionSpec("data", None, "model")))
        found = jax.jit(jax.value_and_grad(unified_loss))(
            z, jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
        )
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-6)
