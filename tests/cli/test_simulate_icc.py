"""``headrace icc`` as a user types it."""

import json

import numpy as np
import pytest

from headrace.testing import tiny_cache


@pytest.fixture
def cache(tmp_path):
    return tiny_cache(tmp_path / "cache", documents=2000)


def test_table_and_json(headrace, cache):
    arguments = ("icc", cache.path, "--seq-len", "8", "--batch-size", "16", "--block", "16")
    said = headrace(*arguments)
    assert said.code == 0
    assert "between blocks" in said.out
    assert "may be read as it is stored" in said.out
    found = json.loads(headrace(*arguments, "--json").out)
    assert found["needs_shuffling"] is False
    assert next(iter(found["noise"])) == "none"


def test_losses_of_a_model(headrace, cache, tmp_path):
    rows = cache.num_tokens // 8
    np.save(tmp_path / "losses.npy", np.repeat(np.arange(rows // 16 + 1), 16)[:rows] * 1.0)
    arguments = ("icc", cache.path, "--seq-len", "8", "--batch-size", "16", "--block", "16", "--losses")
    assert "needs shuffling" in headrace(*arguments, str(tmp_path / "losses.npy")).out
    (tmp_path / "text.npy").write_text("no array")
    refused = headrace(*arguments, str(tmp_path / "text.npy"))
    assert refused.code == 2
    assert "numpy.save" in refused.err


def test_a_cache_that_is_too_small_is_refused(headrace, cache):
    refused = headrace("icc", cache.path, "--seq-len", "4096")
    assert refused.code == 2
    assert "smaller block" in refused.err
