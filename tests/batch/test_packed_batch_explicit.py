"""On meshes of ``jax.make_mesh``, whose axes are explicit, all that a batch derives is what the
host derives.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from headrace import DataLoader, load_config
from headrace.batch import (
    pack_rows,
    token_nll,
    unified_loss,
    unified_loss_from_hidden,
    weighted_mean,
)
from headrace.testing import tiny_cache

MESHES = {
    "data": ({"data": 4}, P("data")),
    "data x seq": ({"data": 2, "seq": 4}, P("data", "seq")),
    "data x model": ({"data": 2, "model": 2}, P("data")),
}
DERIVED = (
    "tokens",
    "valid",
    "labels",
    "label_mask",
    "token_weights",
    "position_ids",
    "segment_ids",
    "cu_seqlens",
    "segment_groups",
)
DENOMINATORS = ("weights", "tokens", "sequences", "groups")
VOCAB = 9


def host_batch(kind):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (4, 16)).astype(np.uint16)
    mask = rng.integers(0, 2, (4, 16)).astype(np.uint8)
    source = np.array([0, 2, 1, -1], np.int32)  # the last only fills up
    lengths = np.array([[3, 5, 0, 0], [4, 4, 4, 4], [16, 0, 0, 0], [1, 1, 2, 7]], np.int32)
    return {
        "whole rows": pack_rows(tokens, source, token_mask=mask),
        "eos": pack_rows(tokens, source, eos_id=0, token_mask=mask),
        "lengths": pack_rows(tokens, source, segment_lengths=lengths, token_mask=mask),
        "pairs": pack_rows(tokens, source, segment_lengths=lengths, pairs=True),
    }[kind]


KINDS = ("whole rows", "eos", "lengths", "pairs")
EACH = [("data x seq", kind, how) for kind in KINDS for how in ("eager", "jit")] + [
    (name, kind, "jit") for name in ("data", "data x model") for kind in KINDS[:3]
]
HOW = {"eager": lambda f: f, "jit": jax.jit}


def on_mesh(mesh, spec, batch):
    """As a loader puts it there: leaves of another width than the rows are sharded
    over rows alone.
    """

    def put(leaf):
        fits = leaf.shape[:2] == batch.token_ids.shape
        return jax.device_put(leaf, NamedSharding(mesh, spec if fits else P(*spec[:1])))

    return jax.tree.map(put, batch)


def mesh_of(axes):
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
    assert set(mesh.axis_types) == {AxisType.Explicit}
    return mesh


def assert_same(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


def everything(batch):
    return {name: getattr(batch, name) for name in DERIVED}, batch.expand(), batch.flatten()


@pytest.mark.parametrize(("name", "kind", "how"), EACH)
def test_all_that_is_derived_is_the_hosts(name, kind, how):
    axes, spec = MESHES[name]
    batch = host_batch(kind)
    mesh = mesh_of(axes)
    sharded = on_mesh(mesh, spec, batch)
    found = HOW[how](everything)(sharded)
    assert_same(found, everything(batch))
    for leaf, derived in found[0].items():
        of_rows = leaf in ("valid", "cu_seqlens", "segment_groups")
        wanted = NamedSharding(mesh, P(*spec[:1]) if of_rows else spec)
        assert derived.sharding.is_equivalent_to(wanted, derived.ndim), leaf


@pytest.mark.parametrize("name", DERIVED)
def test_each_alone_under_jit(name):
    """Nothing else in the step says what the mesh is."""
    axes, spec = MESHES["data x seq"]
    batch = host_batch("whole rows")
    found = jax.jit(lambda b: getattr(b, name))(on_mesh(mesh_of(axes), spec, batch))
    assert_same(found, getattr(batch, name))


def losses(batch, logits):
    nll = token_nll(logits, batch.labels)
    return {d: weighted_mean(nll, batch, d) for d in DENOMINATORS} | {
        "default": unified_loss(logits, batch)
    }


@pytest.mark.parametrize(
    ("name", "kind", "how"), [*(e for e in EACH if e[2] == "jit"), ("data x seq", "eos", "eager")]
)
def test_losses_are_the_hosts(name, kind, how):
    axes, spec = MESHES[name]
    batch = host_batch(kind)
    mesh = mesh_of(axes)
    logits = np.random.default_rng(1).normal(size=(4, 16, VOCAB)).astype(np.float32)
    placed = jax.device_put(logits, NamedSharding(mesh, spec))
    sharded = on_mesh(mesh, spec, batch)
    wanted = jax.jit(partial(losses, batch))(logits)  # what is derived is numpy's
    found = HOW[how](losses)(sharded, placed)
    for denominator, loss in wanted.items():
        np.testing.assert_allclose(found[denominator], loss, rtol=1e-5)


@pytest.mark.parametrize("denominator", DENOMINATORS[::2])
def test_gradients_of_sharded_sequences(denominator):
    axes, spec = MESHES["data x seq"]
    batch = host_batch("eos")
    mesh = mesh_of(axes)
    rng = np.random.default_rng(1)
    hidden, matrix = (
        rng.normal(size=shape).astype(np.float32) for shape in ((4, 16, 6), (VOCAB, 6))
    )
    loss = jax.value_and_grad(partial(unified_loss_from_hidden, denominator=denominator), (0, 1))
    wanted = jax.jit(partial(loss, batch=batch))(jnp.asarray(hidden), jnp.asarray(matrix))
    placed = jax.device_put((hidden, matrix), (NamedSharding(mesh, spec), NamedSharding(mesh, P())))
    found = jax.jit(loss)(
        *placed, on_mesh(mesh, spec, batch).expand()
    )  # the loss reads it as it reads a batch
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [[], ["split_documents=true"], ["split_documents=true", "components.a.packing={}"]]
)
def test_what_a_loader_delivers(settings, tmp_path):
    tiny_cache(tmp_path / "a", documents=60)
    plan = [f"components.a={{cache: {tmp_path / 'a'}}}", "seq_len=16", "batch_size=8", *settings]
    dataset = load_config(overrides=plan).dataset()
    mesh = mesh_of({"data": 4, "seq": 2})
    with DataLoader(dataset, sharding=NamedSharding(mesh, P("data", "seq"))) as loader:
        batch = loader.batch_at(0)
    host = jax.tree.map(np.asarray, batch)
    assert_same(everything(batch), everything(host))


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("eos_id", [None, 0])
def test_columns_beside_the_labels_are_the_hosts(name, eos_id):
    axes, spec = MESHES[name]
    mesh = mesh_of(axes)
    plain = host_batch("whole rows")
    rng = np.random.default_rng(2)
    extras = {
        "topk": rng.integers(0, VOCAB, (4, 16, 3)).astype(np.int32),
        "score": rng.random((4, 16), np.float32),
    }
    weights = rng.integers(0, 3, (4, 16)).astype(np.float32) / 2
    batch = pack_rows(
        plain.token_ids, plain.source_id, eos_id=eos_id, token_mask=weights, extras=extras
    )
    if eos_id is None:
        batch = replace(batch, weights=np.array([[1], [0.5], [2], [0]], np.float32))

    def derived(batch):
        ahead = batch.next_labels(3), batch.next_weights(3)
        return batch.token_weights, batch.label_mask, *ahead, *map(batch.of_labels, extras)

    assert_same(jax.jit(derived)(on_mesh(mesh, spec, batch)), derived(batch))


@pytest.mark.parametrize("name", MESHES)
def test_columns_are_flattened_and_expanded_with_their_tokens(name):
    axes, spec = MESHES[name]
    mesh = mesh_of(axes)
    rng = np.random.default_rng(3)
    extras = {
        "topk": rng.integers(0, VOCAB, (4, 16, 3)).astype(np.int32),
        "score": rng.random((4, 16), np.float32),
    }
    lengths = np.array([[5, 7], [16, 0], [3, 0], [1, 15]], np.int32)
    batch = pack_rows(host_batch("whole rows").token_ids, segment_lengths=lengths, extras=extras)
    on_devices = jax.jit(lambda b: (b.flatten().extras, b.expand().extras))(
        on_mesh(mesh, spec, batch)
    )
    assert_same(
        on_devices, ({n: leaf.reshape(64, *leaf.shape[2:]) for n, leaf in extras.items()}, extras)
    )
    compact = batch.flatten().compact()
    for number, (row, begin, stop) in enumerate(
        [(0, 0, 5), (0, 5, 12), (1, 0, 16), (2, 0, 3), (3, 0, 1), (3, 1, 16)]
    ):
        first, last = compact.cu_seqlens[number : number + 2]
        for leaf, values in extras.items():
            assert (compact.extras[leaf][first:last] == values[row, begin:stop]).all()
    assert pack_rows(np.array([[1, 2]])).flatten().compact().extras is None
