"""Rows over what remains of a cache: the corpus, filtered and cut by hand, is the oracle."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.store import TokenCache
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

PARTS = (slice(0, 25), slice(25, 25), slice(25, 26), slice(26, 60))


@pytest.fixture(scope="module")
def documents() -> list[np.ndarray]:
    return random_documents(60, vocab_size=60_000, seed=5)


@pytest.fixture(scope="module")
def cache(tmp_path_factory, documents) -> TokenCache:
    parts = [documents[part] for part in PARTS]
    return write_cache(tmp_path_factory.mktemp("c") / "c", parts, vocab_size=60_000, eos_id=59_999)


def rows_by_hand(documents: list[np.ndarray], removed: set[int], seq_len: int) -> list[list[int]]:
    rows: list[list[int]] = []
    for part in PARTS:
        kept = [documents[d] for d in range(part.start, part.stop) if d not in removed]
        stream = np.concatenate([np.zeros(0, np.int64), *kept])
        rows += stream[: stream.size // seq_len * seq_len].reshape(-1, seq_len).tolist()
    return rows


@given(removed=st.sets(st.integers(0, 59), max_size=50), seq_len=st.integers(8, 70))
def test_rows_are_windows_over_what_remains(cache, documents, removed, seq_len):
    wanted = rows_by_hand(documents, removed, seq_len)
    removes = DocumentFilter(sorted(removed))
    if not wanted:
        with pytest.raises(ConfigError, match="is longer than the data"):
            TokenSeqDataset(cache, seq_len, removed=removes)
        return
    dataset = TokenSeqDataset(cache, seq_len, removed=removes)
    assert dataset.read(np.arange(len(dataset))).tokens.tolist() == wanted
    picks = np.random.default_rng(seq_len).integers(0, len(dataset), 9)
    assert dataset.read(picks).tokens.tolist() == [wanted[i] for i in picks.tolist()]
    left_out = sum(documents[d].size for d in removed)
    assert (dataset.removed_documents, dataset.removed_tokens) == (len(removed), left_out)
    assert dataset.dropped_tokens + len(dataset) * seq_len + left_out == cache.num_tokens


def test_rows_begin_anew_at_a_chunk_behind_a_gap_that_is_rare(tmp_path):
    documents = random_documents(2000, seed=2)
    cache = write_cache(tmp_path / "c", [documents[:500], documents[500:]])
    removed = [5, 300, 301, 499, 500, 900, 920, 1998]
    dataset = TokenSeqDataset(cache, 2, removed=DocumentFilter(removed))
    wanted: list[list[int]] = []
    for part in (range(500), range(500, 2000)):
        stream = np.concatenate([documents[d] for d in part])
        gone = np.concatenate([np.full(documents[d].size, d in removed) for d in part])
        cuts = [
            border
            for border in range(256, stream.size - 511, 256)
            if gone[border - 256 : border].any() and not gone[border : border + 512].any()
        ]
        for a, b in itertools.pairwise([0, *cuts, stream.size]):
            left = stream[a:b][~gone[a:b]]
            wanted += left[: left.size // 2 * 2].reshape(-1, 2).tolist()
    assert dataset.read(np.arange(len(dataset))).tokens.tolist() == wanted
    assert dataset.dropped_tokens + 2 * len(wanted) + dataset.removed_tokens == cache.num_tokens


def test_rare_gaps_cost_hardly_any_reads(tmp_path):
    documents = [np.full(n, 7) for n in np.random.default_rng(0).integers(1, 200, 2500).tolist()]
    cache = write_cache(tmp_path / "c", [documents])
    reads = []
    for removed in ([], [500, 2000], np.arange(0, 2500, 20)):
        order = TokenSeqDataset(cache, 16, removed=DocumentFilter(removed)).braid_shuffle(
            seed=0, strands=8
        )
        with (
            DataLoader(order, 8, prefetch_bytes=64 * 256) as loader,
            loader.iter_from_step(0) as batches,
        ):
            for _ in batches:
                pass
            reads.append(loader.stats().reads.block_fetches * 256 / cache.num_tokens)
    assert reads[0] < 1.05
    assert reads[1] < 1.05
    assert (
        1.5 < reads[2] < 2.05
    )  # every 2,000 tokens, fewer than 256 rows: blocks lie across chunks


def test_the_loader_delivers_the_same_rows(cache, documents):
    removed = {0, 3, 4, 24, 25, 30, 59}
    dataset = TokenSeqDataset(cache, 16, removed=DocumentFilter(sorted(removed))).braid_shuffle(
        seed=1, batch_size=8
    )
    rows: list[list[int]] = []
    with DataLoader(dataset, batch_size=8) as loader, loader.iter_from_step(0) as batches:
        for batch in batches:
            rows += np.asarray(batch.tokens)[np.asarray(batch.valid)].tolist()
    assert sorted(rows) == sorted(rows_by_hand(documents, removed, 16))


def test_shuffles_of_what_remains_visit_every_row_once(cache):
    dataset = TokenSeqDataset(cache, 8, removed=DocumentFilter(np.arange(0, 60, 7)))
    wanted = sorted(dataset.read(np.arange(len(dataset))).tokens.tolist())
    for shuffled in (
        dataset.shuffle(0),
        dataset.block_shuffle(io_block_size=4, window_blocks=3, seed=0),
        dataset.braid_shuffle(io_block_size=4, strands=7, seed=0),
    ):
        assert sorted(shuffled.read(np.arange(len(dataset))).tokens.tolist()) == wanted


def test_the_description_names_what_is_gone(cache):
    plain = TokenSeqDataset(cache, 16)
    same = TokenSeqDataset(cache, 16, removed=DocumentFilter([]))
    one, other = (TokenSeqDataset(cache, 16, removed=DocumentFilter([d])) for d in (1, 2))
    again = TokenSeqDataset(cache, 16, removed=DocumentFilter(np.arange(60) == 1))
    assert plain.describe() == same.describe()
    assert one.describe() == again.describe()
    assert len({json.dumps(d.describe()) for d in (plain, one, other)}) == 3
    assert one.describe()["removed"]["documents"] == 1


def test_a_filter_that_leaves_nothing_is_refused(cache):
    with pytest.raises(ConfigError, match="leaves nothing of") as caught:
        TokenSeqDataset(cache, 16, removed=DocumentFilter(np.ones(60, bool)))
    assert caught.value.field == "removed"
    with pytest.raises(ConfigError, match="once 59 documents are removed") as caught:
        TokenSeqDataset(cache, 64, removed=DocumentFilter(np.arange(60) != 7))
    assert caught.value.field == "seq_len"


@given(block=st.integers(8, 60), seq_len=st.integers(2, 8))
def test_rows_of_blocks_are_the_blocks_tokens(cache, documents, block, seq_len):
    dataset = TokenSeqDataset(cache, seq_len, block_tokens=block)
    wanted: list[list[int]] = []
    ends: list[list[int]] = []
    for part in PARTS:
        stream = np.concatenate([np.zeros(0, np.int64), *documents[part]])
        for begin in range(0, stream.size, block):
            inside = stream[begin : begin + block]
            rows = inside[: inside.size // seq_len * seq_len].reshape(-1, seq_len).tolist()
            (wanted if inside.size == block else ends).extend(rows)
    assert dataset.read(np.arange(len(dataset))).tokens.tolist() == wanted + ends
    assert dataset.dropped_tokens == cache.num_tokens - len(wanted + ends) * seq_len
    assert dataset.describe()["block_tokens"] == block
