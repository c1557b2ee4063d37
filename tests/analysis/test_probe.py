"""The probe finds what lies between blocks, reads no more than it may, and refuses what cannot be
told.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headrace.analysis.probe import neighbourhoods, probe_cache, unigram_losses
from headrace.errors import ConfigError
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import CountingArray, with_arrays


@pytest.fixture
def striped(tmp_path):
    """Documents of 64 tokens; every other stretch of 16 documents uses a quarter of
    the vocabulary.
    """
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 16 if (d // 16) % 2 else 64, 64) for d in range(1024)]
    return write_cache(tmp_path / "striped", [documents], vocab_size=64)


def test_stretches_that_differ_are_seen_and_shuffling_cures_them(striped):
    found = probe_cache(striped, 16, batch_size=16, block=16)
    assert found.icc > 0.5
    assert found.needs_shuffling
    assert found.noise["none"] > 5
    assert found.noise["none"] > found.noise["block, 8 blocks"] > found.noise["braid (default)"]
    assert found.noise["full"] == pytest.approx(1, abs=0.3)


def test_random_tokens_need_no_shuffling():
    found = probe_cache(tiny_cache(documents=2000), 8, batch_size=16, block=16)
    assert abs(found.icc) < 0.05
    assert not found.needs_shuffling
    assert set(found.to_dict()) >= {"icc", "noise", "needs_shuffling", "nested"}


def test_a_sample_reads_what_it_may_and_finds_the_same(striped):
    counted = with_arrays(striped, CountingArray)
    whole = probe_cache(striped, 8, batch_size=16, block=8)
    part = probe_cache(counted, 8, batch_size=16, block=8, max_blocks=512)
    read = sum(p.data.elements for p in counted.parts if isinstance(p.data, CountingArray))
    assert read <= 512 * 8 * 8
    assert part.rows == 512 * 8
    assert part.of_rows == whole.rows == 8192
    assert part.icc == pytest.approx(whole.icc, abs=0.15)


def test_losses_of_a_model_go_in_place_of_frequencies(striped):
    rows = striped.num_tokens // 16
    losses = np.random.default_rng(1).normal(size=rows)
    found = probe_cache(striped, 16, block=16, losses=losses)
    assert found.value == "given losses"
    assert abs(found.icc) < 0.05
    with pytest.raises(ConfigError, match="one loss per row"):
        probe_cache(striped, 16, losses=losses[:-1])


def test_unigram_loss_is_the_cross_entropy_of_the_sample():
    tokens = np.random.default_rng(2).integers(0, 7, (50, 9))
    p = np.bincount(tokens.ravel()) / tokens.size
    assert unigram_losses(tokens).mean() == pytest.approx(-(p * np.log(p)).sum())
    assert unigram_losses(np.zeros((3, 4), np.uint16)).tolist() == [0, 0, 0]


def test_neighbourhoods_nest_and_are_at_least_eight():
    for rows, block in ((128, 16), (1000, 16), (10**7, 32)):
        units = neighbourhoods(rows, block)
        assert units[0] == block
        assert rows // units[-1] >= 8
        assert all(b == 4 * a for a, b in pairwise(units))


@pytest.mark.parametrize(("seq_len", "block"), [(16, 1), (64, 1000), (0, 16)])
def test_what_cannot_be_told_is_refused(striped, seq_len, block):
    with pytest.raises(ConfigError):
        probe_cache(striped, seq_len, block=block)
