"""``sequence_layout``: every token is on the rank that zig-zag or stripes give it, with label,
position and segment.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, TokenSeqDataset
from headrace.batch import attention_work, pack_rows, unified_loss, zigzag
from headrace.batch.context_parallel import sequence_layout, striped
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.store.layout import LeafSpec
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents
from headrace_posttrain import distillation_loss


def sharding(data: int, context: int) -> NamedSharding:
    devices = np.array(jax.devices()[: data * context]).reshape(data, context)
    return NamedSharding(Mesh(devices, ("data", "context")), PartitionSpec("data", "context"))


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize(("data", "context"), [(2, 4), (4, 2), (1, 8)])
def test_each_device_holds_its_part_of_the_same_batch(layout, data, context):
    dataset = (
        PackedTokenDataset(tiny_cache(documents=300), seq_len=32, algorithm="next_fit")
        .shuffle(seed=0)
        .repeat()
    )
    plain = DataLoader(dataset, 8, sharding=sharding(data, context)).batch_at(3).expand()
    loader = DataLoader(dataset, 8, sharding=sharding(data, context), sequence_layout=layout)
    split = zigzag(np.array([32]), context) if layout == "zigzag" else striped(32, context)
    with loader.iter_from_step(3) as batches:
        for batch in (loader.batch_at(3), next(batches)):
            for name in ("tokens", "labels", "position_ids", "segment_ids", "token_weights"):
                values = getattr(batch, name)
                whole = np.asarray(getattr(plain, name))
                assert values.sharding.spec == PartitionSpec("data", "context")
                for shard in values.addressable_shards:
                    rows, columns = shard.index
                    own = split.token[(columns.start or 0) // (32 // context)]
                    assert (np.asarray(shard.data) == whole[rows][:, own]).all()
    work = attention_work(split, np.array([32]))
    assert work.max() - work.min() <= 32  # of 528 in all: one look at the row at most
    assert loader.describe() == DataLoader(dataset, 8, sharding=sharding(data, context)).describe()


@settings(max_examples=30)
@given(
    st.sampled_from(["zigzag", "striped"]), st.integers(2, 5), st.integers(1, 4), st.integers(1, 3)
)
def test_it_is_a_permutation_of_places(layout, ranks, chunk, rows):
    tokens = np.random.default_rng(0).integers(1, 99, (rows, 2 * ranks * chunk))
    [lay_out] = sequence_layout(layout, ranks)
    batch = pack_rows(
        tokens, extras={"place": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)}
    )
    laid = lay_out(batch)
    place = laid.extras["place"]
    assert np.sort(place, axis=1).tolist() == [[*range(tokens.shape[1])]] * rows
    assert (laid.position_ids == place).all()
    assert (laid.tokens == np.take_along_axis(tokens, place, 1)).all()
    assert (laid.labels == np.take_along_axis(np.asarray(batch.labels), place, 1)).all()


def test_what_cannot_be_laid_out_is_refused():
    dataset = TokenSeqDataset(tiny_cache(), seq_len=12)
    with pytest.raises(
        ConfigError,
        match=r"seq_len = 12: does not divide into 8 chunks. Use 16, or sequence_layout=",
    ):
        DataLoader(dataset, 8, sharding=sharding(2, 4), sequence_layout="zigzag")
    with pytest.raises(
        ConfigError, match="sequence_layout = 'zigzag': needs a sharding that splits sequences"
    ):
        DataLoader(dataset, 8, sequence_layout="zigzag")
    with pytest.raises(
        ConfigError,
        match=r"sequence_layout = 'zig-zag': is not one of those. Did you mean 'zigzag'",
    ):
        DataLoader(dataset, 8, sharding=sharding(2, 4), sequence_layout="zig-zag")


def teacher_of(tokens: np.ndarray) -> np.ndarray:
    return (tokens[:, None] * 7 + np.arange(3)) % 256


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("packed", [True, False])
def test_columns_lie_beside_tokens_and_beside_labels_and_losses_are_those_of_whole_rows(
    layout, packed, tmp_path
):
    leaves = {
        LeafSpec("topk", "int32", "ragged", 3): teacher_of,
        LeafSpec("lw", "float32", "ragged", 1): lambda t: t % 5 / 4,
    }
    cache = write_cache(tmp_path / "c", [random_documents(200)], leaves=leaves)
    names = {"teacher": "topk", "weight": "lw"}
    rows = (
        PackedTokenDataset(cache, seq_len=32, columns=names)
        if packed
        else TokenSeqDataset(cache, seq_len=32, columns=names)
    )
    dataset = rows.shuffle(seed=0).repeat()
    further = dataset.map(
        lambda b: dataclasses.replace(b, extras={**(b.extras or {}), "next": b.next_labels(2)})
    )
    whole = DataLoader(dataset, 8, sharding=sharding(2, 4)).batch_at(3)
    laid = DataLoader(further, 8, sharding=sharding(2, 4), sequence_layout=layout).batch_at(3)
    tokens, labels = (np.asarray(getattr(laid, name)).reshape(-1) for name in ("tokens", "labels"))
    mask = np.asarray(laid.label_mask).reshape(-1)
    there = np.asarray(laid.segment_ids).reshape(-1) >= 0
    flat = (
        np.asarray(laid.extras["teacher"]).reshape(-1, 3),
        np.asarray(laid.of_labels("teacher")).reshape(-1, 3),
    )
    assert (flat[0][there] == teacher_of(tokens[there])).all()
    assert (flat[1][mask] == teacher_of(labels[mask])).all()
    assert (np.asarray(laid.token_weights).reshape(-1)[mask] == labels[mask] % 5 / 4).all()
    assert (np.asarray(laid.extras["next"])[..., 0].reshape(-1)[mask] == labels[mask]).all()
    table = jax.random.normal(jax.random.key(0), (256, 256))

    def loss(table, batch, denominator):
        logits = table[batch.tokens]
        teacher = batch.of_labels("teacher"), jnp.full(batch.of_labels("teacher").shape, -2.0)
        distilled = distillation_loss(logits, batch, *teacher, denominator=denominator)
        return unified_loss(logits, batch, denominator) + distilled

    for denominator in ("weights", "tokens", 7.0):
        ours, theirs = (
            jax.value_and_grad(loss)(table, batch, denominator) for batch in (laid, whole)
        )
        assert np.allclose(ours[0], theirs[0], rtol=1e-5)
        assert np.allclose(ours[1], theirs[1], atol=1e-5)
    for denominator in ("sequences", "groups"):
        with pytest.raises(ConfigError, match=f"denominator = '{denominator}': needs whole rows"):
            loss(table, laid, denominator)
    with pytest.raises(
        ConfigError, match=r"extras = 'techer': is no column of the batch. Did you mean 'teacher'"
    ):
        laid.of_labels("techer")
