"""Hold-out of datasets: no token on both sides, whatever is shuffled afterwards, and whole chunks
are read.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import AsyncDataset, MixtureDataset, PlannedDataset, TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.store import TokenCache
from headrace.testing import write_cache


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    """Every token is a number of its own: what overlaps shows."""
    lengths = np.random.default_rng(0).integers(0, 90, 800).tolist()
    ends = np.cumsum([0, *lengths])
    documents = [
        np.arange(a, b) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    parts = [documents[:300], documents[300:310], documents[310:]]
    return write_cache(tmp_path_factory.mktemp("c") / "c", parts, vocab_size=1 << 20)


def tokens(dataset: AsyncDataset) -> np.ndarray:
    return dataset.read(np.arange(len(dataset))).tokens


@given(
    seq_len=st.integers(3, 40),
    one_in=st.integers(2, 9),
    seed=st.integers(0, 3),
    block=st.none() | st.integers(1, 9),
)
def test_sides_are_disjoint_and_together_everything(cache, seq_len, one_in, seed, block):
    whole = TokenSeqDataset(cache, seq_len)
    train, validation = whole.holdout(one_in, seed=seed, io_block_size=block)
    a = tokens(train)
    b = tokens(validation)
    assert np.array_equal(
        np.sort(np.concatenate([a, b]), axis=0), tokens(whole)
    )  # rows rise with their tokens
    wanted = len(whole) / one_in
    size = block or 256 // seq_len
    assert wanted - size * one_in < len(validation) <= wanted


@pytest.mark.parametrize("by", ["blocks", "documents"])
def test_train_never_meets_validation_whatever_the_shuffle(cache, by):
    whole = TokenSeqDataset(cache, 16)
    train, validation = (
        whole.holdout(8, seed=1) if by == "blocks" else whole.holdout_documents(8, seed=1)
    )
    held = tokens(validation)
    shuffled = {
        "none": train,
        "full": train.shuffle(0),
        "era": train.era_shuffle(100, seed=0),
        "block": train.block_shuffle(window_blocks=4, seed=0),
        "braid": train.braid_shuffle(strands=20, seed=0),
    }
    for name, order in shuffled.items():
        three_epochs = order.repeat(3)
        met = three_epochs.read(np.arange(len(three_epochs))).tokens
        assert np.intersect1d(met, held).size == 0, name
        assert np.unique(met).size + held.size <= cache.num_tokens
    again = (whole.holdout(8, seed=1) if by == "blocks" else whole.holdout_documents(8, seed=1))[1]
    assert np.array_equal(tokens(again), held)


def test_other_seeds_and_shares_hold_out_others(cache):
    whole = TokenSeqDataset(cache, 16)
    described = {str(whole.holdout(g, seed=s)[1].describe()) for g in (4, 8) for s in (0, 1)}
    assert len(described) == 4
    assert not np.array_equal(
        tokens(whole.holdout(4, seed=0)[1]), tokens(whole.holdout(4, seed=1)[1])
    )


@pytest.mark.parametrize("shuffle", ["braid", "block"])
def test_shuffles_of_the_train_side_read_whole_chunks(cache, shuffle):
    train, _ = TokenSeqDataset(cache, 16).holdout(8, seed=1)
    assert isinstance(train, PlannedDataset)
    block = train.default_io_block_size()
    order = (
        train.braid_shuffle(strands=8, seed=0)
        if shuffle == "braid"
        else train.block_shuffle(seed=0)
    )
    assert isinstance(order, PlannedDataset)
    rows = order.locate(np.arange(len(order))).row
    whole = train.locate(np.arange(len(train) // block * block)).row.reshape(-1, block)
    assert set(rows.tolist()) >= set(whole.ravel().tolist())
    pieces = train.sources[0].pieces(whole.ravel())
    chunk = (pieces.array << 32) + pieces.start // 256
    parts = len(cache.parts)
    several = (chunk.reshape(-1, block)[:, 0] != chunk.reshape(-1, block)[:, -1]).sum()
    assert several <= parts  # a block is a chunk, but where the ends of parts are put together
    with (
        DataLoader(order, 16, prefetch_bytes=60 * 512 * 2) as loader,
        loader.iter_from_step(0) as batches,
    ):
        for _ in batches:
            pass
        fetches = loader.stats().reads.block_fetches
    if shuffle == "braid":
        assert fetches <= 1.15 * len(train) / block


def test_documents_stay_whole(cache):
    whole = TokenSeqDataset(cache, 8, removed=DocumentFilter([0, 1, 2, 3, 500]))
    train, validation = whole.holdout_documents(10, seed=2)
    ends = np.cumsum(cache.lengths())
    sides = [
        np.unique(np.searchsorted(ends, tokens(side), side="right")) for side in (train, validation)
    ]
    assert np.intersect1d(sides[0], sides[1]).size == 0
    assert not {0, 1, 2, 3, 500} & set(np.concatenate(sides).tolist())
    for side in (train, validation):
        assert side.removed_tokens + side.dropped_tokens + len(side) * 8 == cache.num_tokens
        assert side.dropped_tokens < 3 * 8
    gone = {0, 1, 2, 3, 500}
    assert train.removed_documents + validation.removed_documents == cache.num_documents + len(gone)


def test_a_mixture_takes_train_sides(cache):
    train, validation = TokenSeqDataset(cache, 16).holdout(8)
    mixture = MixtureDataset({"a": train.braid_shuffle(seed=0, strands=8)}, {"a": 1}, 16)
    held = tokens(validation)
    with DataLoader(mixture) as loader:
        for step in (0, 1, 500):
            assert np.intersect1d(np.asarray(loader.batch_at(step).tokens), held).size == 0


def test_small_corpora_are_split_in_small_blocks(tmp_path):
    cache = write_cache(tmp_path / "c", [[np.arange(200)]])
    train, validation = TokenSeqDataset(cache, 4).holdout(10)
    assert (len(train), len(validation)) == (46, 4)
    with pytest.raises(
        ConfigError, match="is more than the 50 blocks of 1 examples that there are"
    ) as caught:
        TokenSeqDataset(cache, 4).holdout(51)
    assert caught.value.field == "one_in"
    with pytest.raises(ConfigError, match="is more than the 1 documents that there are"):
        TokenSeqDataset(cache, 4).holdout_documents(2)


def test_a_split_after_a_shuffle_is_refused(cache):
    whole = TokenSeqDataset(cache, 16)
    for late in (
        whole.shuffle(0),
        whole.braid_shuffle(seed=0, strands=4),
        whole.repeat(2),
        whole.shuffle(0).take(50),
    ):
        for dataset in (late, late.map(lambda batch: batch)):
            with pytest.raises(ConfigError, match="Split first, then shuffle"):
                dataset.holdout(4)
    with pytest.raises(ConfigError, match="holdout needs a dataset with an end"):
        whole.repeat().holdout(4)
    assert len(whole.take(100).holdout(4, io_block_size=5)[1]) == 25
