"""``sequence_layout``: every token is on the rank that zig-zag or stripes give it, with label, position and segment."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, TokenSeqDataset
from headrace.batch.context_parallel import attention_work, sequence_layout, striped, zigzag
from headrace.batch.packed_batch import pack_rows
from headrace.data import PackedTokenDataset
from headrace.errors import ConfigError
from headrace.testing import tiny_cache


def sharding(data: int, context: int) -> NamedSharding:
    devices = np.array(jax.devices()[: data * context]).reshape(data, context)
    return NamedSharding(Mesh(devices, ("data", "context")), PartitionSpec("data", "context"))


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize(("data", "context"), [(2, 4), (4, 2), (1, 8)])
def test_each_device_holds_its_part_of_the_same_batch(layout, data, context):
    dataset = PackedTokenDataset(tiny_cache(documents=300), seq_len=32, algorithm="next_fit").shuffle(seed=0).repeat()
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
@given(st.sampled_from(["zigzag", "striped"]), st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))
def test_it_is_a_permutation_of_places(layout, ranks, chunk, rows):
    tokens = np.random.default_rng(0).integers(1, 99, (rows, 2 * ranks * chunk))
    [lay_out] = sequence_layout(layout, ranks)
    batch = pack_rows(tokens, extras={"place": np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)})
    laid = lay_out(batch)
    place = laid.extras["place"]
    assert np.sort(place, axis=1).tolist() == [[*range(tokens.shape[1])]] * rows
    assert (laid.position_ids == place).all()
    assert (laid.tokens == np.take_along_axis(tokens, place, 1)).all()
    assert (laid.labels == np.take_along_axis(np.asarray(batch.labels), place, 1)).all()


def test_what_cannot_be_laid_out_is_refused():
    dataset = TokenSeqDataset(tiny_cache(), seq_len=12)
    with pytest.raises(ConfigError, match=r"seq_len = 12: does not divide into 8 chunks. Use 16, or sequence_layout="):
        DataLoader(dataset, 8, sharding=sharding(2, 4), sequence_layout="zigzag")
    with pytest.raises(ConfigError, match="sequence_layout = 'zigzag': needs a sharding that splits sequences"):
        DataLoader(dataset, 8, sequence_layout="zigzag")
    with pytest.raises(ConfigError, match=r"sequence_layout = 'zig-zag': is not one of those. Did you mean 'zigzag'"):
        DataLoader(dataset, 8, sharding=sharding(2, 4), sequence_layout="zig-zag")
