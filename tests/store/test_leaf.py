"""Leaves beside the tokens: what goes in comes out, for any kind, dtype and parts; what does not
fit is said.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import CacheError, ConfigError, IndexOutOfRangeError, ReadError
from headrace.store import CacheLayout, TokenCache, files, open_cache, remote, verify
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, read_ledger, read_part_record, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import write_cache
from headrace.testing.caches import random_documents

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
DTYPES = ["bool", "uint8", "int8", "int16", "int64", "uint64", "float32", "float64"]


def finish(root, layout, leaves, records):
    ledger = Ledger(
        False, {"vocab_size": 256}, layout.to_dict(), leaves=[s.to_dict() for s in leaves]
    )
    write_ledger(str(root), ledger.complete(records))
    return open_cache(root)


@settings(max_examples=25)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), compression=st.sampled_from(["none", "zstd"]))
def test_what_goes_in_comes_out(data, dtype, compression):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=3))
    layout = CacheLayout(
        "uint8", data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3)), compression
    )
    leaves = [LeafSpec("loose", dtype), LeafSpec("one", dtype, "fixed")]
    high = 2 if dtype == "bool" else 100
    wanted = {"input_ids": [], "loose": [], "one": []}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        records = []
        for k, sizes in enumerate(parts):
            writer = PartWriter(root, f"{k:05d}", layout, leaves)
            for size in sizes:
                row = {
                    "input_ids": rng.integers(0, 9, size),
                    "one": rng.integers(0, high, 1).astype(dtype),
                }
                row["loose"] = rng.integers(0, high, rng.integers(0, 5)).astype(dtype)
                lengths = {n: np.array([v.size]) for n, v in row.items()}
                given = {"loose": (row["loose"], lengths["loose"]), "one": (row["one"], None)}
                writer.append(row["input_ids"], lengths["input_ids"], given)
                for name, values in row.items():
                    wanted[name].append(values)
            records.append(writer.close())
            assert records[-1] == read_part_record(root, f"{k:05d}")
        cache = finish(root, layout, leaves, records)
        assert cache.leaves == ["loose", "one"]
        n = cache.num_documents
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))
        for name, rows in wanted.items():
            leaf = cache.leaf(name)
            assert (leaf.num_documents, leaf.num_elements) == (n, sum(r.size for r in rows))
            assert leaf.kind == ("fixed" if name == "one" else "ragged")
            assert leaf.lengths().tolist() == [r.size for r in rows]
            assert leaf.lengths(a, b).tolist() == [r.size for r in rows[a:b]]
            values = leaf.values(a, b)
            assert values.dtype == leaf.dtype
            assert np.array_equal(values, np.concatenate([np.zeros(0), *rows[a:b]]))
            for i, row in enumerate(rows):
                assert np.array_equal(leaf.document(i), row)
            everything = np.concatenate([np.zeros(0), *rows])
            assert np.array_equal(np.concatenate([np.zeros(0), *leaf.blocks(3)]), everything)
            ends = np.concatenate([np.zeros(0, int), *leaf.ends(3)])
            assert ends.tolist() == np.cumsum([r.size for r in rows]).tolist()
            with pytest.raises(IndexOutOfRangeError):
                leaf.document(n)
        assert verify(root, deep=True).damages == []


def test_a_leaf_is_named_by_its_content_in_the_fingerprint(tmp_path):
    layout = CacheLayout("uint8", 16, 2)
    leaves = [LeafSpec("m", "uint8")]

    def made(name, value):
        writer = PartWriter(str(tmp_path / name), "0", layout, leaves)
        writer.append(np.array([1, 2]), np.array([2]), {"m": (np.array([value]), np.array([1]))})
        return finish(tmp_path / name, layout, leaves, [writer.close()])

    one = made("1", 5)
    same = made("2", 5)
    other = made("3", 6)
    plain = write_cache(tmp_path / "4", [[np.array([1, 2])]], layout=layout)
    assert one.fingerprint == same.fingerprint
    assert len({c.fingerprint for c in (one, other, plain)}) == 3


def test_unknown_leaves_and_caches_without(tmp_path):
    cache = write_cache(tmp_path, [random_documents(4)])
    assert cache.leaves == []
    with pytest.raises(ConfigError, match="is not a leaf of") as caught:
        cache.leaf("input_id")
    assert "input_ids" in (caught.value.cure or "")
    assert np.array_equal(cache.leaf("input_ids").values(0, 4), cache.tokens(0, cache.num_tokens))


ONE = np.array([1])


@pytest.mark.parametrize(
    ("leaves", "problem"),
    [
        (None, r"has the leaves \['fixed', 'loose'\], but \[\] were given"),
        ({"loose": (ONE, ONE)}, "but .'loose'. were given"),
        (
            {"loose": (ONE, ONE), "fixed": (ONE, ONE)},
            "lengths were given for one value per document",
        ),
        ({"loose": (ONE, None), "fixed": (ONE, None)}, "no lengths were given"),
        (
            {"loose": (ONE, ONE * 2), "fixed": (ONE, None)},
            "lengths add up to 2, not to the 1 values of leaf loose",
        ),
        (
            {"loose": (ONE, np.array([1, 0])), "fixed": (ONE, None)},
            "values of leaf loose are of 2 documents, not 1",
        ),
        (
            {"loose": (ONE, ONE), "fixed": (np.array([1, 2]), None)},
            "values of leaf fixed are of 2 documents, not 1",
        ),
        (
            {"loose": (ONE * 300, ONE), "fixed": (ONE, None)},
            r"a value of leaf loose outside 0 \.\. 255",
        ),
        (
            {"loose": (ONE * 0.5, ONE), "fixed": (ONE, None)},
            r"a value of leaf loose outside 0 \.\. 255",
        ),
        (
            {"loose": (ONE, ONE), "fixed": (ONE * 200, None)},
            r"a value of leaf fixed outside -128 \.\. 127",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path, leaves, problem):
    specs = [LeafSpec("loose", "uint8"), LeafSpec("fixed", "int8", "fixed")]
    writer = PartWriter(str(tmp_path), "7", CacheLayout("uint8", 8, 2), specs)
    with pytest.raises(CacheError, match=problem) as caught:
        writer.append(ONE, ONE, leaves)
    assert caught.value.value == "7"
    writer.append(ONE, ONE, {"loose": (ONE, ONE), "fixed": (-ONE, None)})
    record = writer.close()
    assert (record.documents, record.tokens, record.leaves["loose"].elements) == (1, 1, 1)


def test_two_leaves_of_one_name(tmp_path):
    with pytest.raises(ConfigError, match="names a leaf twice"):
        PartWriter(
            str(tmp_path),
            "0",
            CacheLayout("uint8"),
            [LeafSpec("a", "bool"), LeafSpec("a", "uint8")],
        )


@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_on_object_stores(request, store, tmp_path):
    from headrace_levanter.export import write_levanter

    root = files.join(request.getfixturevalue(f"{store}_bucket"), tmp_path.name)
    layout = CacheLayout("uint8", 16, 2, "zstd")
    leaves = [LeafSpec("m", "int16"), LeafSpec("id", "int32", "fixed")]
    documents = random_documents(20)
    writer = PartWriter(f"{root}/own", "0", layout, leaves)
    lengths = np.array([d.size for d in documents])
    flat = np.concatenate(documents)
    writer.append(flat, lengths, {"m": (-flat, lengths), "id": (np.arange(20), None)})
    cache = finish(f"{root}/own", layout, leaves, [writer.close()])
    write_levanter(cache, f"{root}/levanter/train")
    for path in (f"{root}/own", f"{root}/levanter/train"):
        there = open_cache(path)
        assert np.array_equal(there.tokens(0, there.num_tokens), flat)
        for i in (0, 7, 19):
            assert np.array_equal(there.leaf("m").document(i), -documents[i].astype(int))
            assert there.leaf("id").document(i).tolist() == [i]
        assert verify(path, deep=True).damages == []
        shard = files.join(there.leaf("m").parts[0].data.url, "c", "0")
        remote.delete_keys(shard)
        if path.endswith("own"):
            assert [d.file for d in verify(path).damages] == [shard]


def test_offsets_that_say_more_than_the_ledger(tmp_path):
    """What lies beyond the values is not read, even where the ledger names no digests of them."""
    write_cache(tmp_path, [random_documents(30, seed=1)], layout=CacheLayout("uint8", 8, 2))
    for file in tmp_path.rglob("zarr.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "attributes": {}}))
    ledger = read_ledger(str(tmp_path))
    shorter = replace(ledger, parts=[replace(ledger.parts[0], tokens=16)])
    cache = TokenCache(str(tmp_path), shorter)
    with pytest.raises(
        ReadError,
        match=r"offsets = .*says that values lie at 0 \.\. \d+, and the ledger that there are 16",
    ):
        cache.leaf("input_ids").values(0, cache.num_documents)
