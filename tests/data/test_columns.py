"""Columns of caches beside the tokens of batches: every value beside its token, by a slow count of its own; and what is
refused.
"""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, MixtureDataset, TokenSeqDataset
from headrace.data import PackedTokenDataset
from headrace.data.documents import DocumentFilter
from headrace.store.layout import CacheLayout, LeafSpec
from headrace.testing import write_cache

K, VOCABULARY = 3, 60_000
COLUMNS = {"weight": "loss_weights", "teacher_ids": "topk", "teacher_log_probs": "topk_log_probs", "score": "score"}
MASKED = ("loss_mask",)


def weight_of(ids):
    return (ids % 7 / 4).astype(np.float32)


def topk_of(ids):
    return np.stack([(ids + 11 * k) % VOCABULARY for k in range(K)], axis=-1)


def log_probs_of(ids):
    return -(np.stack([ids % (5 + k) for k in range(K)], axis=-1) / 3 + 0.5).astype(np.float32)


LEAVES = {
    LeafSpec("loss_weights", "float32", "ragged", 1): weight_of,
    LeafSpec("topk", "int32", "ragged", K): topk_of,
    LeafSpec("topk_log_probs", "float32", "ragged", K): log_probs_of,
    LeafSpec("score", "float64", "fixed"): lambda ids: (ids[:1] if ids.size else np.zeros(1)) / 8,
    LeafSpec("number", "int64", "fixed"): lambda ids: np.array([ids.size]),
}


def documents_of(seed, count, longest=40):
    """Documents whose ids are all different, so that an id names its place; some are empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, longest, count)
    ids = seed * 20_000 + np.arange(sizes.sum())
    return np.split(ids.astype(np.uint16), np.cumsum(sizes)[:-1])


def make_cache(path, seed, *, parts=2, count=60, mask=None, chunk=64):
    documents = documents_of(seed, count)
    layout = CacheLayout("uint16", chunk_elements=chunk, shard_chunks=4)
    split = [documents[k::parts] for k in range(parts)]
    return write_cache(path, split, vocab_size=VOCABULARY, layout=layout, mask=mask, leaves=LEAVES)


def score_table(seeds, count=60):
    """The score of the document of every id."""
    table = np.full(VOCABULARY, np.nan)
    for seed in seeds:
        for document in documents_of(seed, count):
            table[document] = document[:1] / 8 if document.size else 0
    return table


def check_batch(batch, seeds, *, mask=None):
    """Each value beside its token: what the token's id says that it must be."""
    ids, batch = np.asarray(batch.token_ids).astype(np.int64), jax.tree.map(np.asarray, batch)
    there = batch.segment_ids >= 0
    there &= batch.valid[:, None]
    trained = there if mask is None else there & (mask(ids) != 0)
    assert np.array_equal(batch.token_mask, np.where(trained, weight_of(ids), 0))
    assert batch.token_mask.dtype == np.float32
    extras = batch.extras
    assert sorted(extras) == ["score", "teacher_ids", "teacher_log_probs"]
    assert np.array_equal(extras["teacher_ids"], np.where(there[..., None], topk_of(ids), 0))
    assert np.array_equal(extras["teacher_log_probs"], np.where(there[..., None], log_probs_of(ids), 0))
    assert np.array_equal(extras["score"], np.where(there, score_table(seeds)[ids], 0).astype(np.float32))
    assert {n: v.dtype.name for n, v in extras.items()} == {
        "score": "float32", "teacher_ids": "int32", "teacher_log_probs": "float32",
    }  # fmt: skip
    follows = np.append(ids[:, 1:], np.zeros_like(ids[:, :1]), axis=1)
    ends = np.append(batch.segment_ids[:, 1:] != batch.segment_ids[:, :-1], np.ones_like(ids[:, :1], bool), axis=1)
    of_label = np.where((ends | ~there)[..., None], 0, topk_of(follows))
    assert np.array_equal(batch.of_labels("teacher_ids"), of_label)
    heavy = ~ends & there & (True if mask is None else mask(follows) != 0)
    assert np.array_equal(batch.token_weights, np.where(heavy, weight_of(follows), 0).astype(np.float32))


@st.composite
def runs(draw, root):
    """A mixture of one to three caches: packed or not, filtered, split, shuffled; and its seeds and mask."""
    packed, mask = draw(st.booleans()), draw(st.sampled_from([None, lambda ids: ids % 3]))
    seeds = list(range(draw(st.integers(1, 3))))
    seq_len = draw(st.sampled_from([8, 16, 48]))
    components = {}
    for seed in seeds:
        cache = make_cache(f"{root}/{seed}", seed, parts=draw(st.integers(1, 3)), mask=mask)
        removed = draw(st.none() | st.lists(st.integers(0, 59), max_size=20).map(DocumentFilter))
        how = {"removed": removed, "name": f"c{seed}", "columns": COLUMNS}
        if packed:
            how["algorithm"] = draw(st.sampled_from(["windowed", "bfd", "next_fit"]))
        dataset = (PackedTokenDataset if packed else TokenSeqDataset)(cache, seq_len, **how)
        match draw(st.sampled_from(["whole", "documents", "blocks"])):
            case "documents":
                dataset = dataset.holdout_documents(one_in=4)[draw(st.integers(0, 1))]
            case "blocks":
                dataset = dataset.holdout(one_in=3, io_block_size=2)[0]
        shuffle = draw(st.sampled_from(["plain", "full", "braid"]))
        if shuffle == "full":
            dataset = dataset.shuffle(seed)
        elif shuffle == "braid":
            dataset = dataset.braid_shuffle(seed=seed, strands=min(3, len(dataset)))
        components[f"c{seed}"] = dataset
    return MixtureDataset(components, dict.fromkeys(components, 1), 8), seeds, mask


def placements():
    """Four topologies: one device, rows over all, rows and columns, all columns."""
    devices = np.asarray(jax.devices())
    yield NamedSharding(Mesh(devices[:1], ("data",)), PartitionSpec("data"))
    yield NamedSharding(Mesh(devices, ("data",)), PartitionSpec("data"))
    yield NamedSharding(Mesh(devices.reshape(2, 4), ("data", "seq")), PartitionSpec("data", "seq"))
    yield NamedSharding(Mesh(devices, ("seq",)), PartitionSpec(None, "seq"))


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_each_value_is_beside_its_token(tmp_path_factory, data):
    dataset, seeds, mask = data.draw(runs(tmp_path_factory.mktemp("columns")))
    check_batch(dataset.read(np.arange(24)), seeds, mask=mask)
    sharding = data.draw(st.sampled_from(list(placements())))
    loader = DataLoader(dataset, sharding=sharding, prefetch_bytes=1 << 22)
    check_batch(loader.batch_at(2), seeds, mask=mask)
    with loader.iter_from_step(0) as batches:
        for _, batch in zip(range(5), batches, strict=False):
            check_batch(batch, seeds, mask=mask)
            assert batch.extras["teacher_ids"].sharding.spec == sharding.spec
    mapped = DataLoader(dataset.map(lambda batch: batch), sharding=sharding)
    check_batch(mapped.batch_at(1), seeds, mask=mask)
