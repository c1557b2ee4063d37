"""Caches on object stores: real servers of the protocols, the same code and the same batches as on
a local disk.
"""

import os

import jax
import numpy as np
import pytest

from headrace.data import TokenSeqDataset
from headrace.errors import CacheMissingError, CacheUnfinishedError, PlanMismatchError, ReadError
from headrace.feed import DataLoader
from headrace.run import open_run
from headrace.store import CacheLayout, RetryPolicy, files, open_cache, use_policy
from headrace.store.files import kvstore_spec
from headrace.store.ledger import Ledger, read_ledger, read_part_record, write_ledger
from headrace.store.ragged import PartWriter, data_url
from headrace.store.remote import delete_keys, filesystem
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", chunk_elements=128, shard_chunks=3, compression="zstd")
PARTS = [random_documents(40, seed=k) for k in range(2)]


def loader(cache, seed=1):
    return DataLoader(
        TokenSeqDataset(cache, 16).block_shuffle(window_blocks=3, seed=seed), batch_size=8
    )


def test_a_cache_there_gives_the_batches_of_one_here(root, tmp_path):
    there = write_cache(root, PARTS, layout=LAYOUT)
    here = write_cache(tmp_path, PARTS, layout=LAYOUT)
    opened = open_cache(root)
    assert (opened.num_documents, opened.num_tokens) == (80, here.num_tokens)
    assert opened.fingerprint == there.fingerprint == here.fingerprint
    assert np.array_equal(opened.tokens(0, opened.num_tokens), here.tokens(0, here.num_tokens))
    assert opened.lengths().tolist() == here.lengths().tolist()
    remote = list(loader(opened))
    local = list(loader(here))
    assert len(remote) == len(local) == loader(here).num_steps
    for a, b in zip(remote, local, strict=True):
        assert all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def test_a_part_is_written_anew_over_what_a_killed_writer_left(root):
    """The files are TensorStore's, and fsspec must see and delete them."""
    part = files.join(root, "parts", "00000")
    delete_keys(part)
    assert files.tree_bytes(part) == 0
    killed = PartWriter(root, "00000", LAYOUT)
    killed.append(np.ones(1000, np.uint8), np.array([1000]))
    assert files.tree_bytes(part) > 0
    assert read_part_record(root, "00000") is None
    cache = write_cache(root, [[np.array([1, 2, 3])]], layout=LAYOUT)
    assert cache.tokens(0, 3).tolist() == [1, 2, 3]
    assert not files.exists(files.join(data_url(root, "00000"), "c", "1"))
    delete_keys(root)
    assert not files.exists(files.join(root, "ledger.json"))
    assert files.tree_bytes(root) == 0


def test_listings_are_never_old(root):
    fs, path = filesystem(root)
    files.write_atomic(files.join(root, "ledger.json"), b"{}")
    assert [n.rsplit("/", 1)[-1] for n in fs.ls(path, detail=False)] == ["ledger.json"]
    PartWriter(root, "00000", LAYOUT)  # begun: the first file of its array is there
    assert sorted(n.rsplit("/", 1)[-1] for n in fs.ls(path, detail=False)) == [
        "ledger.json",
        "parts",
    ]


def test_missing_and_unfinished_caches(root):
    with pytest.raises(CacheMissingError, match="is not a token cache") as caught:
        open_cache(root)
    assert f"--output {root}" in str(caught.value)
    write_ledger(root, Ledger(False, {"vocab_size": 3}, LAYOUT.to_dict()))
    with pytest.raises(CacheUnfinishedError):
        open_cache(root)
    ledger = read_ledger(root)
    assert ledger is not None
    assert not ledger.finished


def test_a_lost_shard_is_an_error(root):
    use_policy(RetryPolicy(deadline_s=1, hedge_p95=None))  # a shard may come back for two minutes
    cache = write_cache(root, PARTS, layout=LAYOUT)
    delete_keys(files.join(data_url(root, "00001"), "c", "0"))
    with pytest.raises(ReadError, match="cannot be read") as caught:
        open_cache(root).tokens(0, cache.num_tokens)
    assert caught.value.value == data_url(root, "00001")
    with (
        pytest.raises(ReadError, match=r"chunk \d cannot be read for step \d"),
        loader(cache) as broken,
    ):
        list(broken)


def test_a_run_may_have_its_folder_there(root, tmp_path):
    cache = write_cache(tmp_path, PARTS, layout=LAYOUT)
    manifest = open_run(root, loader(cache))
    assert open_run(root, loader(cache)) == manifest
    with pytest.raises(PlanMismatchError, match="seed"):
        open_run(root, loader(cache, seed=2))


def test_caches_are_read_from_web_servers(web):
    folder, url = web
    here = write_cache(folder / "cache", PARTS, layout=LAYOUT)
    there = open_cache(f"{url}/cache")
    assert np.array_equal(there.tokens(0, there.num_tokens), here.tokens(0, here.num_tokens))
    assert there.lengths().tolist() == here.lengths().tolist()
    with pytest.raises(CacheMissingError):
        open_cache(f"{url}/other")


@pytest.mark.parametrize(
    ("host", "url"),
    [("localhost:1", "http://localhost:1"), ("https://h:1/", "https://h:1"), ("default", None)],
)
def test_the_emulator_of_gcs_is_passed_on_to_tensorstore(monkeypatch, host, url):
    for name in ("TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", host)
    kvstore_spec("gs://bucket/x")
    assert os.environ.get("TENSORSTORE_GCS_HTTP_URL") == url
    assert ("GOOGLE_AUTH_TOKEN_FOR_TESTING" in os.environ) == (url is not None)
