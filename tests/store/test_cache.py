"""Opening caches, and what happens when something of one is lost or damaged: an
error, never data.
"""

import asyncio
import concurrent.futures
import gc
import re
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorstore
from msgspec.structs import replace

from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    CacheUnfinishedError,
    ConfigError,
    ReadError,
)
from headrace.store import CacheLayout, TokenCache, open_cache
from headrace.store.array import StoredArray
from headrace.store.files import kvstore_spec
from headrace.store.ledger import Ledger, read_ledger, write_ledger
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", chunk_elements=64, shard_chunks=4)


@pytest.fixture
def cache(tmp_path):
    return write_cache(
        tmp_path / "cache", [random_documents(60, seed=k) for k in range(2)], layout=LAYOUT
    )


def shards(cache, part="00001"):
    return sorted(
        Path(cache.path, "parts", part, "input_ids", "data", "c").iterdir(),
        key=lambda p: int(p.name),
    )


def test_a_missing_cache_says_how_to_build_one(tmp_path):
    with pytest.raises(CacheMissingError, match="there is no such folder") as caught:
        open_cache(f"{tmp_path}/nope")
    assert (caught.value.field, caught.value.value) == ("cache", f"{tmp_path}/nope")
    assert (caught.value.cure or "").startswith("Build one: headrace build SOURCE")
    assert (caught.value.cure or "").endswith(f"--output {tmp_path}/nope")
    with pytest.raises(CacheMissingError, match=r"holds no ledger\.json"):
        open_cache(tmp_path)
    (tmp_path / "texts").mkdir()
    with pytest.raises(CacheMissingError, match="the folder holds no ledger") as caught:
        open_cache(tmp_path / "texts")
    assert f"--tokenizer FILE --output {tmp_path}/texts-cache" in str(caught.value)


def test_an_unfinished_cache_says_how_to_finish_it(tmp_path):
    write_ledger(str(tmp_path), Ledger(False, {"vocab_size": 3}, LAYOUT.to_dict()))
    with pytest.raises(CacheUnfinishedError, match="was not finished") as caught:
        open_cache(tmp_path)
    assert "Run the same command again" in (caught.value.cure or "")
    assert f"headrace cache inspect {tmp_path}" in (caught.value.cure or "")
    assert isinstance(caught.value, CacheError)


def test_opening_reads_no_array(cache):
    shutil.rmtree(Path(cache.path, "parts"))
    opened = open_cache(cache.path)
    assert (opened.num_tokens, opened.num_documents, opened.vocab_size) == (
        cache.num_tokens,
        120,
        256,
    )
    assert "documents=120" in repr(opened)


def test_a_lost_shard_is_an_error(cache):
    shards(cache)[1].unlink()
    first = cache.ledger.parts[0].tokens
    assert cache.tokens(first, first + 256).size == 256  # the shard before it is there
    with pytest.raises(ReadError, match=r"chunk 4 cannot be read .*is missing") as caught:
        cache.tokens(first + 256, first + 258)
    assert caught.value.value == cache.parts[1].data.url
    assert "source locations" not in str(caught.value)
    with pytest.raises(ReadError, match="chunks 4 to 7"):
        cache.parts[1].data.read_into(np.empty(256, np.uint8), 256).result()
    with pytest.raises(ReadError):
        asyncio.run(_awaited(cache.parts[1].data.read(256, 300)))


async def _awaited(future):
    return await future


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_any_flipped_bit_is_an_error(tmp_path, compression):
    """In a chunk, its checksum, or the index of the shard."""
    layout = CacheLayout("uint8", 32, 4, compression)
    cache = write_cache(tmp_path, [[np.arange(128) % 50]], layout=layout)
    (shard,) = shards(cache, "00000")
    content = shard.read_bytes()
    for at in range(len(content)):
        shard.write_bytes(bytes([*content[:at], content[at] ^ (1 << at % 8), *content[at + 1 :]]))
        with pytest.raises(ReadError, match="cannot be read"):
            open_cache(tmp_path).tokens(0, 128)
    shard.write_bytes(content)
    assert open_cache(tmp_path).tokens(0, 128).tolist() == (np.arange(128) % 50).tolist()


def test_a_cut_off_shard_is_an_error(cache):
    shard = shards(cache)[0]
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ReadError):
        cache.tokens(cache.num_tokens - cache.ledger.parts[1].tokens, cache.num_tokens)


def test_a_lost_array_is_an_error(cache):
    Path(cache.path, "parts", "00000", "input_ids", "data", "zarr.json").unlink()
    with pytest.raises(CacheError, match="cannot be opened") as caught:
        cache.tokens(0, 1)
    assert caught.value.value == cache.parts[0].data.url


def test_parts_of_another_build_are_an_error(cache, tmp_path):
    """Somebody copied a part over: lengths or dtype are not those of the ledger."""
    other = write_cache(
        tmp_path / "other", [random_documents(10)], layout=CacheLayout("uint16", 64, 4)
    )
    target = Path(cache.path, "parts", "00000")
    shutil.rmtree(target)
    shutil.copytree(Path(other.path, "parts", "00000"), target)
    with pytest.raises(
        CacheCorruptError, match=rf"holds {other.num_tokens} elements of uint16, but the ledger has"
    ):
        cache.tokens(0, 1)


def test_a_ledger_with_an_unknown_layout(cache):
    ledger = read_ledger(cache.path)
    assert ledger is not None
    of_json = replace(ledger, layout=ledger.layout | {"dtype": "float16"})
    with pytest.raises(CacheCorruptError, match="is not a dtype of tokens"):
        TokenCache(cache.path, of_json)


def test_a_read_that_comes_just_after_its_time_is_no_error(cache):
    class Late:
        """Done at the moment at which the wait for it ends."""

        def result(self, timeout=None):
            if timeout is not None:
                raise TimeoutError
            return np.arange(3)

        def done(self):
            return True

    read = cache.parts[0].data.read(0, 64)
    read.future = Late()
    assert read.result(timeout=0).tolist() == [0, 1, 2]


def test_a_read_that_takes_longer_than_asked_goes_on(cache):
    future = cache.parts[0].data.read(0, 64)
    while True:
        try:
            data = future.result(timeout=0)
        except TimeoutError:
            continue
        break
    assert np.array_equal(data, cache.tokens(0, 64))


def test_arrays_open_once_for_all_threads(cache, monkeypatch):
    opened = []
    really = tensorstore.open
    monkeypatch.setattr(tensorstore, "open", lambda *a, **k: (opened.append(a), really(*a, **k))[1])
    array = StoredArray(cache.parts[0].data.url, cache.parts[0].data.length, LAYOUT)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: array.read(k, k + 1).result()[0], range(64)))
    assert len(opened) == 1
    assert found == cache.tokens(0, 64).tolist()


@pytest.mark.parametrize(
    ("url", "spec"),
    [
        ("gs://b/x/y/", {"driver": "gcs", "bucket": "b", "path": "x/y/"}),
        ("https://h:8/x", {"driver": "http", "base_url": "https://h:8", "path": "/x/"}),
        ("file:///a/b", {"driver": "file", "path": "/a/b/"}),
    ],
)
def test_stores_of_urls(url, spec, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert kvstore_spec(url) == spec


def test_s3_follows_the_variables_of_aws(monkeypatch):
    for name in (
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    plain = {"driver": "s3", "bucket": "b", "path": "x/"}
    assert kvstore_spec("s3://b/x") == plain
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    plain["aws_credentials"] = {"type": "environment"}
    assert kvstore_spec("s3://b/x") == plain
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000/")
    assert kvstore_spec("s3://b/x") == plain | {
        "endpoint": "http://minio:9000",
        "aws_region": "us-east-1",
    }
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://ceph:7480")
    assert kvstore_spec("s3://b/x") == plain | {
        "endpoint": "http://ceph:7480",
        "aws_region": "eu-west-1",
    }


def test_no_store_for_other_schemes():
    with pytest.raises(ConfigError, match="cannot be stored under"):
        kvstore_spec("hdfs://x/y")


def test_tiny_caches_tell_their_tokenizer(tmp_path):
    """Like every cache: what opens a cache finds the keys that a built one has."""
    record = tiny_cache(tmp_path, documents=3).ledger.tokenizer
    assert {"path", "file", "fingerprint", "vocab_size", "bos", "bos_id", "eos", "eos_id"} <= set(
        record
    )


@pytest.mark.parametrize("file", ["../secret.json", "/etc/passwd", "a\0b", 3])
def test_the_copy_of_the_tokenizer_lies_in_the_cache(cache, file):
    ledger = read_ledger(cache.path)
    write_ledger(cache.path, replace(ledger, tokenizer={**ledger.tokenizer, "file": file}))
    with pytest.raises(CacheCorruptError, match="has a ledger whose tokenizer cannot be used"):
        open_cache(cache.path)


def test_a_cache_that_nobody_holds_goes_at_once(tmp_path):
    """With what its arrays have mapped; not only when the interpreter looks for cycles."""
    cache = write_cache(tmp_path, [random_documents(30, seed=1)])
    cache.tokens(0, cache.num_tokens)
    assert len(cache.ledger.parts[0].name)
    gone = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("typed", "meant"), [("doc", "docs"), ("docs2", "docs"), ("web", None)])
def test_a_cache_of_nearly_that_name_is_named(tmp_path, typed, meant):
    write_cache(tmp_path / "docs", [random_documents(3)])
    (tmp_path / "do").mkdir()  # is no cache
    with pytest.raises(CacheMissingError) as caught:
        open_cache(str(tmp_path / typed))
    near = re.findall(r"Did you mean '(.*?)'\?", str(caught.value))
    assert near == ([] if meant is None else [str(tmp_path / meant)])
    assert all(open_cache(path).num_documents == 3 for path in near)
    assert f"headrace build SOURCE --tokenizer FILE --output {tmp_path}" in str(caught.value)


def test_a_description_that_is_nested_without_end_is_the_caches_error(cache):
    path = Path(cache.path, "parts", "00000", "input_ids", "data", "zarr.json")
    path.write_text("[" * 100_000)
    assert cache.parts[0].data.mapped() is None
    with pytest.raises(CacheError, match="cannot be opened"):
        cache.tokens(0, 1)
