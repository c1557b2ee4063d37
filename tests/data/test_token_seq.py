"""Rows over a cache's stream: parts, tails and end-of-text tokens against a walk over documents."""

import os
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import TokenSeqDataset
from headrace.errors import CacheMissingError, ConfigError
from headrace.store import CacheLayout
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None


@given(
    lengths=st.lists(st.lists(st.integers(0, 20), max_size=10), min_size=1, max_size=4),
    seq_len=st.integers(2, 30),
    chunk=st.integers(1, 50),
    split=st.booleans(),
)
def test_rows_are_windows_over_each_part(lengths, seq_len, chunk, split):
    rng = np.random.default_rng(0)
    parts = [[np.append(rng.integers(0, 255, n), 255) for n in part] for part in lengths]
    streams = [[t for d in part for t in d.tolist()] for part in parts]
    rows = [s[a : a + seq_len] for s in streams for a in range(0, len(s) - seq_len + 1, seq_len)]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, parts, eos_id=255, layout=CacheLayout("uint8", chunk, 3))
        if not rows:
            with pytest.raises(ConfigError, match="is longer than the data") as caught:
                TokenSeqDataset(cache, seq_len)
            assert (caught.value.field, caught.value.value) == ("seq_len", seq_len)
            return
        dataset = TokenSeqDataset(cache, seq_len, split_documents=split)
        batch = dataset.read(np.arange(len(dataset)))
        assert batch.tokens.tolist() == rows
        assert dataset.dropped_tokens == cache.num_tokens - len(rows) * seq_len
        assert dataset.dropped_tokens < seq_len * len(parts)
        wanted = [[0, *np.cumsum([t == 255 for t in row[:-1]]).tolist()] for row in rows]
        assert batch.segment_ids.tolist() == (wanted if split else [[0] * seq_len] * len(rows))
        assert dataset.eos_id == (255 if split else None)


def test_paths_of_any_kind_open_the_cache(tmp_path):
    tiny_cache(tmp_path, documents=10)
    for path in (str(tmp_path), tmp_path):
        assert TokenSeqDataset(path, 8).read([0]).tokens.shape == (1, 8)
    with pytest.raises(CacheMissingError):
        TokenSeqDataset(tmp_path / "nope", 8)


@pytest.mark.parametrize("seq_len", [1, 0, -5])
def test_short_rows_are_refused(seq_len):
    with pytest.raises(ConfigError, match="must be at least 2") as caught:
        TokenSeqDataset(tiny_cache(documents=5), seq_len)
    assert caught.value.field == "seq_len"


def test_a_row_longer_than_the_data_says_how_long_the_data_is():
    cache = tiny_cache(documents=20, parts=2)
    longest = max(p.tokens for p in cache.ledger.parts)
    with pytest.raises(
        ConfigError, match=rf"holds {longest} tokens in its longest part\. Use a shorter seq_len"
    ):
        TokenSeqDataset(cache, longest + 1)
    assert len(TokenSeqDataset(cache, longest)) >= 1


def test_rows_longer_than_a_chunk_have_blocks_of_one(tmp_path):
    cache = write_cache(tmp_path, [random_documents(50)], layout=CacheLayout("uint8", 16, 4))
    assert TokenSeqDataset(cache, 40).default_io_block_size() == 1
    assert TokenSeqDataset(cache, 5).default_io_block_size() == 3
