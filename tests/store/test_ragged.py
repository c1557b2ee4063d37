"""Writing and reading ragged stores: what goes in comes out, whatever the lengths, parts, chunks,
shards and codecs.
"""

import hashlib
import os
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheError, IndexOutOfRangeError
from headrace.store import CacheLayout, open_cache
from headrace.store.array import StoredArray
from headrace.store.lease import owning
from headrace.store.ledger import read_part_record
from headrace.store.ragged import ArrayWriter, PartWriter, data_url, written
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents

SCRATCH = (
    "/dev/shm" if os.path.isdir("/dev/shm") else None
)  # each file is synced: many small ones are slow on a disk

layouts = st.builds(
    CacheLayout,
    dtype=st.sampled_from(["uint8", "uint16", "uint32"]),
    chunk_elements=st.integers(1, 40),
    shard_chunks=st.integers(1, 5),
    compression=st.sampled_from(["none", "zstd"]),
)


@st.composite
def ragged(draw, largest=255):
    """Parts of documents of any length, empty ones included; parts may be empty too."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = draw(st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=4))
    return [[rng.integers(0, largest + 1, n) for n in part] for part in lengths]


@given(parts=ragged(), layout=layouts, data=st.data())
def test_what_goes_in_comes_out(parts, layout, data):
    documents = [d for part in parts for d in part]
    tokens = np.concatenate([np.zeros(0, np.int64), *documents])
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, parts, layout=layout)
        assert (cache.num_documents, cache.num_tokens) == (len(documents), tokens.size)
        assert cache.lengths().tolist() == [d.size for d in documents]
        assert cache.lengths().dtype == np.int64
        everything = cache.tokens(0, tokens.size)
        assert everything.dtype == np.dtype(layout.dtype) == cache.dtype
        assert np.array_equal(everything, tokens)
        for i, document in enumerate(documents):
            assert np.array_equal(cache.document(i), document)
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, tokens.size)] * 2)))
        assert np.array_equal(cache.tokens(a, b), tokens[a:b])
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(documents))] * 2)))
        assert cache.lengths(a, b).tolist() == [d.size for d in documents[a:b]]
        for bad in (len(documents), -1):
            with pytest.raises(IndexOutOfRangeError):
                cache.document(bad)
        with pytest.raises(IndexOutOfRangeError, match="tokens"):
            cache.tokens(0, tokens.size + 1)


@given(parts=ragged(), layout=layouts, cuts=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_the_same_documents_give_the_same_bytes_however_they_are_appended(parts, layout, cuts):
    documents = parts[0]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        one = f"{root}/one"
        many = f"{root}/many"
        records = []
        for target, batches in ((one, [documents]), (many, _batches(documents, cuts))):
            writer = PartWriter(target, "00000", layout)
            for batch in batches:
                writer.append(
                    np.concatenate([np.zeros(0, int), *batch]), np.array([d.size for d in batch])
                )
            records.append(writer.close())
        assert records[0] == records[1] == read_part_record(one, "00000")
        assert _contents(one) == _contents(many)
        tokens = np.concatenate([np.zeros(0, int), *documents]).astype(
            np.dtype(layout.dtype).newbyteorder("<")
        )
        offsets = np.concatenate([[0], np.cumsum([d.size for d in documents])]).astype("<i8")
        assert (
            records[0].digest
            == "sha256:" + hashlib.sha256(tokens.tobytes() + offsets.tobytes()).hexdigest()
        )


def _batches(documents, cuts):
    rest = list(documents)
    while rest:
        for n in cuts:
            yield rest[:n]
            rest = rest[n:]


def _contents(root):
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(Path(root).rglob("*"))
        if p.is_file()
    }


def test_the_writer_keeps_no_hold_of_the_buffers_it_is_given(tmp_path):
    """A tokenizer may reuse its arrays: what is written is what they held when they
    were appended.
    """
    writer = PartWriter(str(tmp_path), "0", CacheLayout("uint16", 64, 4))
    tokens = np.arange(10, dtype=np.uint16)
    lengths = np.array([4, 6])
    writer.append(tokens, lengths)
    tokens[:] = 7
    lengths[:] = 5
    record = writer.close()
    array = StoredArray(data_url(str(tmp_path), "0"), record.tokens, CacheLayout("uint16", 64, 4))
    assert array.read(0, 10).result().tolist() == list(range(10))


def test_memory_is_that_of_shards_and_each_shard_is_one_file(tmp_path):
    layout = CacheLayout("uint8", 16, 2)
    writer = ArrayWriter(f"{tmp_path}/a", layout)
    for _ in range(10):
        writer.append(np.ones(20, np.uint8))
        assert writer._filled < layout.shard_elements
    assert len(os.listdir(tmp_path / "a" / "c")) == 200 // 32  # what is full is on disk already
    writer.close()
    assert len(os.listdir(tmp_path / "a" / "c")) == -(-200 // 32)


def test_zeros_are_stored_and_not_left_out(tmp_path):
    """Tokens may all be 0, which is what a reader that forgives lost files would make up."""
    cache = write_cache(tmp_path, [[np.zeros(100, int)]], layout=CacheLayout("uint8", 8, 2))
    assert len(os.listdir(Path(data_url(str(tmp_path), "00000")) / "c")) == 7
    assert cache.tokens(0, 100).tolist() == [0] * 100


def test_a_part_starts_anew_over_what_a_killed_writer_left(tmp_path):
    layout = CacheLayout("uint8", 8, 2)
    killed = PartWriter(str(tmp_path), "00000", layout)
    killed.append(np.ones(100, int), np.array([100]))
    assert read_part_record(str(tmp_path), "00000") is None
    cache = write_cache(tmp_path, [[np.array([1, 2, 3])]], layout=layout)
    fresh = write_cache(tmp_path / "fresh", [[np.array([1, 2, 3])]], layout=layout)
    assert _contents(cache.path + "/parts") == _contents(fresh.path + "/parts")


def test_abort_leaves_nothing(tmp_path):
    writer = PartWriter(str(tmp_path), "00000", CacheLayout("uint8", 8, 2))
    writer.append(np.ones(100, int), np.array([100]))
    with owning(str(tmp_path)):
        writer.abort()
    assert not (tmp_path / "parts" / "00000").exists()


@pytest.mark.parametrize(
    ("tokens", "lengths", "problem"),
    [
        ([1, 2, 3], [2], "lengths add up to 2, not to the 3 tokens"),
        ([1, 2, 3], [4, -1], "lengths add up to 3"),
        ([1, 256], [2], r"an id outside 0 \.\. 255"),
        ([1, -1], [2], r"an id outside 0 \.\. 255"),
    ],
)
def test_bad_documents_are_refused_before_they_are_written(tmp_path, tokens, lengths, problem):
    writer = PartWriter(str(tmp_path), "00007", CacheLayout("uint8", 8, 2))
    with pytest.raises(CacheError, match=problem) as caught:
        writer.append(np.array(tokens), np.array(lengths))
    assert caught.value.value == "00007"
    writer.append(np.array([5]), np.array([1]))
    assert writer.close().tokens == 1


def test_a_store_that_cannot_be_written(tmp_path):
    (tmp_path / "parts").write_bytes(b"a file is in the way")
    with pytest.raises(CacheError, match="cannot be written"):
        PartWriter(str(tmp_path), "00000", CacheLayout())
    with pytest.raises(CacheError, match="cannot be written") as caught:
        ArrayWriter(f"{tmp_path}/parts/a", CacheLayout())
    assert "source locations" not in str(caught.value)
    assert "finished parts are kept" in str(caught.value)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cache("here", [random_documents(20)])
    cache = open_cache("here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cache.tokens(0, 10).size == 10


def test_odd_names_of_folders(tmp_path):
    for name in ("with space", "per%20cent", "ümläut", "a+b=c"):
        assert tiny_cache(tmp_path / name, documents=5).tokens(0, 3).size == 3


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    documents = random_documents(30)
    one = write_cache(tmp_path / "1", [documents])
    same = write_cache(tmp_path / "2", [documents], layout=CacheLayout("uint8", 7, 3, "zstd"))
    other = write_cache(tmp_path / "3", [documents[:-1]])
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_a_full_disk_says_what_is_missing_and_what_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(20, 8, 12))
    failed = Future()
    failed.set_exception(
        ValueError(
            "RESOURCE_EXHAUSTED: Failed to write 6103316butes to file 3: No space left on device"
        )
    )
    with pytest.raises(CacheError) as caught:
        written(failed, str(tmp_path / "data"))
    assert "No space left on device: 6,103,316 bytes to write, 12 bytes are free at" in str(
        caught.value
    )
    assert "run the same command again: finished parts are kept" in str(caught.value)
