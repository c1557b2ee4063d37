"""Caches of Levanter: what the real one writes is read here, what is written here the real one
reads, leaf by leaf.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import TokenSeqDataset
from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    CacheUnfinishedError,
    ReadError,
)
from headrace.feed import DataLoader
from headrace.store import CacheLayout, open_cache
from headrace.store.array import StoredArray
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import write_cache
from headrace.testing.caches import random_documents
from headrace_levanter.export import write_levanter

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(scope="module")
def levanter():
    """The module ``levanter.store.cache``, with the warnings of its imports let pass."""
    pytest.importorskip("haliax", reason=NEEDS_LEVANTER)
    with pytest.WarningsRecorder(_ispytest=True):
        return pytest.importorskip("levanter.store.cache", reason=NEEDS_LEVANTER)


@st.composite
def rows(draw):
    """Documents with a mask as long as they are and a leaf of another length; zeros and empty
    documents included.
    """
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    high = draw(
        st.sampled_from([1, 2, 200])
    )  # 1: nothing but zeros, of which Levanter stores nothing
    lengths = draw(st.lists(st.integers(0, 20), min_size=1, max_size=12))
    return [
        {
            "input_ids": rng.integers(0, high, n).astype(np.int32),
            "mask": rng.integers(0, 2, n).astype(np.int32),
            "scores": rng.random(draw(st.integers(0, 3))).astype(np.float32),
        }
        for n in lengths
    ]


def exemplar(fields=("input_ids", "mask", "scores")):
    return {f: np.zeros(0, np.float32 if f == "scores" else np.int32) for f in fields}


def write_theirs(levanter, root, rows, cut=5, metadata=None):
    with levanter.SerialCacheWriter(
        root, exemplar(tuple(rows[0])), metadata=levanter.CacheMetadata(metadata or {})
    ) as writer:
        for at in range(0, len(rows), cut):
            writer.write_batch(rows[at : at + cut])
    return root


def check_rows(cache, rows):
    lengths = [r["input_ids"].size for r in rows]
    assert cache.num_documents == len(rows)
    assert cache.num_tokens == sum(lengths)
    assert cache.lengths().tolist() == lengths
    everything = np.concatenate([np.zeros(0, np.int32), *(r["input_ids"] for r in rows)])
    assert np.array_equal(cache.tokens(0, cache.num_tokens), everything)
    for name in rows[0]:
        leaf = cache.leaf(name)
        assert leaf.lengths().tolist() == [r[name].size for r in rows]
        for i, row in enumerate(rows):
            assert np.array_equal(leaf.document(i), row[name])
            if name == "input_ids":
                assert np.array_equal(cache.document(i), row[name])
        half = len(rows) // 2
        wanted = np.concatenate([np.zeros(0), *(r[name] for r in rows[half:])])
        assert np.array_equal(leaf.values(half, len(rows)), wanted)


@settings(max_examples=12)
@given(rows=rows(), cut=st.integers(1, 12))
def test_what_levanter_writes_is_read_here(levanter, rows, cut):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        write_theirs(levanter, root, rows, cut)
        check_rows(open_cache(root), rows)


@settings(max_examples=8)
@given(shards=st.lists(rows(), min_size=1, max_size=3))
def test_sharded_caches_of_levanter_are_read_here(levanter, shards):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        ledgers = []
        for k, shard in enumerate(shards):
            write_theirs(levanter, f"{root}/part-{k}", shard)
            ledgers.append(levanter.CacheLedger.load(f"{root}/part-{k}"))
        paths = [f"{root}/part-{k}" for k in range(len(shards))]
        counts = [ledger.field_counts for ledger in ledgers]
        levanter._merge_sharded_ledgers(root, paths, ledgers, counts, levanter.CacheMetadata({}))
        cache = open_cache(root)
        check_rows(cache, [row for shard in shards for row in shard])
        assert [p.name for p in cache.ledger.parts] == [f"part-{k}" for k in range(len(shards))]


def write_ours(root, parts):
    """Rows of :func:`rows`, a list a part, with one more leaf: a number per document."""
    leaves = [
        LeafSpec("mask", "uint8"),
        LeafSpec("scores", "float32"),
        LeafSpec("id", "int64", "fixed"),
    ]
    layout = CacheLayout("uint8", 16, 2)
    records = []
    for k, part in enumerate(parts):
        writer = PartWriter(root, f"{k:05d}", layout, leaves)
        for number, row in enumerate(part):
            lengths = {n: np.array([row[n].size]) for n in ("mask", "scores")}
            given = {n: (row[n], lengths[n]) for n in lengths} | {
                "id": (np.array([number - 3]), None)
            }
            writer.append(row["input_ids"], np.array([row["input_ids"].size]), given)
        records.append(writer.close())
    tokenizer = {
        "path": "t",
        "file": None,
        "fingerprint": "f",
        "vocab_size": 256,
        "bos": None,
        "bos_id": None,
    }
    tokenizer |= {"eos": "x", "eos_id": 7}
    ledger = Ledger(False, tokenizer, layout.to_dict(), leaves=[s.to_dict() for s in leaves])
    write_ledger(root, ledger.complete(records))
    return open_cache(root)


@settings(max_examples=12)
@given(
    parts=st.lists(rows(), min_size=1, max_size=3),
    form=st.sampled_from(["consolidated", "sharded"]),
)
def test_what_is_written_here_levanter_reads(levanter, parts, form):
    every = [row for part in parts for row in part]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        ours = write_ours(f"{root}/ours", parts)
        write_levanter(ours, f"{root}/theirs", form=form)
        shape = exemplar() | {"id": np.zeros(1, np.int64), "mask": np.zeros(0, np.uint8)}
        cache = levanter.TreeCache.load(f"{root}/theirs", shape)
        assert len(cache) == len(every)
        got = cache.get_batch_sync(list(range(len(every))))
        numbers = [k - 3 for part in parts for k in range(len(part))]
        for found, row, number in zip(got, every, numbers, strict=True):
            for name, values in row.items():
                assert np.array_equal(found[name], values)
            assert found["id"].tolist() == [number]
        back = open_cache(f"{root}/theirs")
        assert back.ledger.tokenizer == ours.ledger.tokenizer
        assert np.array_equal(back.tokens(0, back.num_tokens), ours.tokens(0, ours.num_tokens))
        for i in range(len(every)):
            assert np.array_equal(back.leaf("mask").document(i), ours.leaf("mask").document(i))
            assert np.array_equal(back.leaf("id").document(i), ours.leaf("id").document(i))


def test_files_are_those_of_levanter(levanter, tmp_path):
    """Older releases open nothing else: to the byte what they write. The newest compresses
    otherwise, and reads it.
    """
    documents = [np.append(d, 1) for d in random_documents(20)]
    write_theirs(
        levanter, str(tmp_path / "theirs"), [{"input_ids": d.astype(np.int32)} for d in documents]
    )
    write_levanter(write_cache(tmp_path / "ours", [documents]), str(tmp_path / "out"))
    for name in ("data", "offsets"):
        at = f"input_ids/{name}"
        ours = tmp_path / "out" / at
        theirs = tmp_path / "theirs" / at
        described = json.loads((ours / "zarr.json").read_text())
        theirs_described = json.loads((theirs / "zarr.json").read_text())
        compressions = [
            d["codecs"][0]["configuration"]["codecs"].pop() for d in (described, theirs_described)
        ]
        assert described == theirs_described
        if compressions[0] == compressions[1]:
            for file in ("zarr.json", "c/0"):
                assert (ours / file).read_bytes() == (theirs / file).read_bytes()
        else:
            assert compressions[1]["configuration"]["cname"] == "zstd"


def test_the_loader_gives_the_batches_of_the_same_tokens_here(levanter, tmp_path):
    documents = [d.astype(np.int32) for d in random_documents(60)]
    metadata = {"tokenizer": "t", "vocab_size": 256, "append_bos": False, "append_eos": True}
    theirs = write_theirs(
        levanter, str(tmp_path / "t"), [{"input_ids": d} for d in documents], 7, metadata
    )
    cache = open_cache(theirs)
    assert (cache.vocab_size, cache.ledger.tokenizer["eos_id"]) == (256, 255)
    layout = CacheLayout("int32", cache.layout.chunk_elements, cache.layout.shard_chunks)
    same = write_cache(tmp_path / "o", [documents], layout=layout, eos_id=255)
    rows = [
        TokenSeqDataset(c, 16, split_documents=True).block_shuffle(window_blocks=3, seed=1)
        for c in (cache, same)
    ]
    batches = [list(DataLoader(dataset, batch_size=8)) for dataset in rows]
    assert len(batches[0]) == len(batches[1]) > 3
    for a, b in zip(*batches, strict=True):
        assert all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def test_levanter_trains_on_what_is_written_here(levanter, tmp_path):
    """Its own dataset of sequences over our cache gives our tokens."""
    datasets = pytest.importorskip("levanter.data.text.datasets", reason=NEEDS_LEVANTER)
    ours = write_cache(tmp_path / "ours", [random_documents(30, seed=k) for k in range(2)])
    write_levanter(ours, str(tmp_path / "out" / "train"))
    cache = levanter.TreeCache.load(
        str(tmp_path / "out" / "train"), {"input_ids": np.zeros(0, np.int32)}
    )
    dataset = datasets.TokenSeqDataset(cache, 16).as_sync_dataset()
    assert len(dataset) == ours.num_tokens // 16
    for i in (0, len(dataset) - 1):
        assert np.array_equal(dataset[i]["input_ids"], ours.tokens(16 * i, 16 * i + 16))


def write_foreign(root, documents, codec, *, counts=True, dtype=np.int32):
    """A cache as other releases write it: other chunks and codecs, an older ledger."""
    import tensorstore as ts

    ends = np.cumsum([d.size for d in documents])
    for name, values in (
        ("data", np.concatenate(documents).astype(dtype)),
        ("offsets", np.concatenate([[len(documents)], ends])),
    ):
        inner = {
            "chunk_shape": [64],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, codec],
        }
        metadata = {"shape": [1 << 54], "data_type": values.dtype.name, "fill_value": 0}
        metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [256]}}
        metadata["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{root}/input_ids/{name}/"},
        }
        array = ts.open({**spec, "metadata": metadata}, create=True).result()
        array[: values.size].write(values).result()
    ledger = {
        "total_num_rows": len(documents),
        "shard_rows": {"": len(documents)},
        "is_finished": True,
    }
    ledger |= {
        "finished_shards": [""],
        "field_counts": {"input_ids": int(ends[-1])} if counts else {},
    }
    ledger |= {"metadata": {"preprocessor_metadata": {}}}
    Path(root, "shard_ledger.json").write_text(json.dumps(ledger))
    return open_cache(root)


CODECS = [
    {
        "name": "blosc",
        "configuration": {"cname": "zstd", "clevel": 1, "shuffle": "shuffle", "typesize": 4},
    },
    {
        "name": "blosc",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4},
    },
    {"name": "zstd", "configuration": {"level": 3}},
    {"name": "gzip", "configuration": {"level": 1}},
]


def test_a_ledger_that_says_nothing_of_its_tokenizer(tmp_path):
    """As Marin's own tokenizing leaves it, whose tokens are int64."""
    documents = random_documents(3)
    codec = {"name": "zstd", "configuration": {"level": 1}}
    write_foreign(str(tmp_path), documents, codec, dtype=np.int64)
    ledger = json.loads((tmp_path / "shard_ledger.json").read_text())
    for metadata in ({"preprocessor_metadata": None}, None):
        (tmp_path / "shard_ledger.json").write_text(json.dumps({**ledger, "metadata": metadata}))
        cache = open_cache(tmp_path)
        check_rows(cache, [{"input_ids": d} for d in documents])
        assert cache.ledger.tokenizer["path"] == "unknown"


@pytest.mark.parametrize(
    "codec", CODECS, ids=lambda c: c["name"] + c["configuration"].get("cname", "")
)
@pytest.mark.parametrize("counts", [True, False])
def test_any_chunk_and_codec_and_ledgers_without_counts(tmp_path, codec, counts):
    documents = random_documents(40)
    cache = write_foreign(str(tmp_path), documents, codec, counts=counts)
    check_rows(cache, [{"input_ids": d} for d in documents])
    assert (cache.layout.chunk_elements, cache.layout.shard_chunks) == (64, 4)


def test_a_lost_shard_is_an_error_where_it_can_be_told(tmp_path):
    cache = write_foreign(str(tmp_path), random_documents(6000, max_tokens=120), CODECS[0])
    shutil.rmtree(tmp_path / "input_ids" / "offsets" / "c")
    with pytest.raises(ReadError, match="shard file c/0 is missing") as caught:
        open_cache(tmp_path).lengths(0, 3)
    assert caught.value.value == f"{tmp_path}/input_ids/offsets"
    assert cache.num_tokens > 1 << 16


def test_lost_tokens_are_an_error_if_there_are_many(levanter, tmp_path):
    rows = [{"input_ids": np.ones(1 << 17, np.int32)}]
    write_theirs(levanter, str(tmp_path), rows)
    (tmp_path / "input_ids" / "data" / "c" / "0").unlink()
    with pytest.raises(ReadError, match="shard file c/0 is missing"):
        open_cache(tmp_path).document(0)


def test_the_folder_above_names_the_splits(levanter, tmp_path):
    rows = [{"input_ids": np.arange(5, dtype=np.int32)}]
    write_theirs(levanter, str(tmp_path / "c" / "train"), rows)
    write_theirs(levanter, str(tmp_path / "c" / "validation"), rows)
    named = f"Name one of them: {tmp_path}/c/train, {tmp_path}/c/validation"
    with pytest.raises(CacheMissingError, match=re.escape(named)):
        open_cache(tmp_path / "c")


def test_empty_caches_of_levanter(tmp_path):
    ledger = {
        "total_num_rows": 0,
        "shard_rows": {},
        "is_finished": True,
        "finished_shards": [],
        "layout": "sharded",
    }
    ledger |= {
        "field_counts": {},
        "field_counts_by_shard": {},
        "metadata": {"preprocessor_metadata": {}},
    }
    (tmp_path / "shard_ledger.json").write_text(json.dumps(ledger))
    cache = open_cache(tmp_path)
    assert (cache.num_documents, cache.num_tokens, [*cache.parts]) == (0, 0, [])


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"is_finished": False}, CacheUnfinishedError, "was not finished building by Levanter"),
        ({"total_num_rows": 4}, CacheCorruptError, "its shards have 3 rows, not 4"),
        ({"finished_shards": ["../x"]}, CacheCorruptError, "lies outside the cache"),
        ({"finished_shards": ["/x"]}, CacheCorruptError, "lies outside the cache"),
        ({"finished_shards": ["a", "a"]}, CacheCorruptError, "named twice"),
        ({"finished_shards": None}, CacheCorruptError, "is not a ledger of Levanter"),
        (
            {"field_counts_by_shard": {"a": {"scores": 3}}},
            CacheError,
            "has no input_ids, only scores",
        ),
        ({}, CacheError, "is missing"),
    ],
)
def test_ledgers_that_cannot_be_used(tmp_path, change, error, problem):
    ledger = {
        "total_num_rows": 3,
        "shard_rows": {"a": 3},
        "is_finished": True,
        "finished_shards": ["a"],
    }
    ledger |= {
        "layout": "sharded",
        "field_counts": {"input_ids": 3},
        "field_counts_by_shard": {"a": {"input_ids": 3}},
    }
    (tmp_path / "shard_ledger.json").write_text(json.dumps({**ledger, **change}))
    with pytest.raises(error, match=problem):
        open_cache(tmp_path)


def test_a_ledger_that_is_nested_without_end(tmp_path):
    (tmp_path / "shard_ledger.json").write_text("[" * 100_000)
    with pytest.raises(CacheCorruptError, match="is not a ledger of Levanter"):
        open_cache(tmp_path)
    ours = write_cache(tmp_path / "ours", [random_documents(3)])
    with pytest.raises(CacheError, match="holds a cache of Levanter already"):
        write_levanter(ours, str(tmp_path))


def test_nothing_is_overwritten(tmp_path):
    ours = write_cache(tmp_path / "ours", [random_documents(3)])
    write_levanter(ours, str(tmp_path / "out"))
    write_levanter(ours, str(tmp_path / "out"))  # it is finished: nothing is to do
    other = write_cache(tmp_path / "other", [random_documents(4)])
    with pytest.raises(CacheError, match="holds a cache of Levanter already"):
        write_levanter(other, str(tmp_path / "out"))
    with pytest.raises(CacheError, match="holds a token cache already"):
        write_levanter(ours, str(tmp_path / "ours"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "ledger.json").write_text("{")
    with pytest.raises(CacheError, match="holds a token cache already"):
        write_levanter(ours, str(tmp_path / "damaged"))


def test_an_interrupted_conversion_is_not_a_cache_and_is_done_again(tmp_path, monkeypatch):
    ours = write_cache(tmp_path / "ours", [random_documents(30)])
    with pytest.raises(KeyboardInterrupt):
        write_levanter(ours, str(tmp_path / "out"), advance=_interrupt)
    with pytest.raises(CacheUnfinishedError):
        open_cache(tmp_path / "out")
    write_levanter(ours, str(tmp_path / "out"))
    assert np.array_equal(open_cache(tmp_path / "out").tokens(0, 50), ours.tokens(0, 50))


def _interrupt(_):
    raise KeyboardInterrupt


def test_ids_that_do_not_fit_are_refused(tmp_path):
    ours = write_cache(tmp_path / "o", [[np.array([2**31])]], vocab_size=2**32)
    with pytest.raises(CacheError, match="int32 does not hold"):
        write_levanter(ours, str(tmp_path / "out"))


def test_opening_reads_a_fixed_number_of_files(tmp_path, monkeypatch):
    """A ledger and two descriptions, whatever the number of rows; no array is opened."""
    write_foreign(str(tmp_path), random_documents(40), CODECS[0])
    opened = []
    monkeypatch.setattr(StoredArray, "_opened", lambda self: opened.append(self.url))
    cache = open_cache(tmp_path)
    assert cache.num_documents == 40
    assert opened == []
