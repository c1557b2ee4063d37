"""Checking caches: what is damaged is found and named, what is sound is not, and only damaged parts
are built again.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheError, CacheMissingError, ConfigError, ReadError
from headrace.store import CacheLayout, open_cache, retry, verify
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, read_ledger, read_part_record, write_ledger
from headrace.store.ragged import PartWriter
from headrace.store.verify import invalidate
from headrace.testing import write_cache
from headrace.testing.caches import random_documents
from headrace_levanter.export import write_levanter

LEAVES = [LeafSpec("mask", "uint8"), LeafSpec("id", "int32", "fixed")]


def write(root, layout=None, parts=3):
    layout = layout or CacheLayout("uint8", 32, 4)
    records = []
    for k in range(parts):
        writer = PartWriter(str(root), f"{k:05d}", layout, LEAVES)
        for number, document in enumerate(random_documents(12, seed=k)):
            lengths = np.array([document.size])
            writer.append(
                document,
                lengths,
                {"mask": (document % 2, lengths), "id": (np.array([number]), None)},
            )
        records.append(writer.close())
    sources = [
        {"path": f"{k}{x}.txt", "size": 1, "version": "v", "part": f"{k:05d}"}
        for k in range(parts)
        for x in "ab"
    ]
    tokenizer = {"vocab_size": 256, "fingerprint": "f"}
    ledger = Ledger(
        False, tokenizer, layout.to_dict(), sources, leaves=[s.to_dict() for s in LEAVES]
    )
    write_ledger(str(root), ledger.complete(records))
    return Path(root)


def files_of(root, part="00001"):
    return sorted(p for p in (root / "parts" / part).rglob("*") if p.is_file())


@pytest.fixture(params=["none", "zstd"])
def root(request, tmp_path):
    return write(tmp_path / "cache", CacheLayout("uint8", 32, 4, request.param))


@pytest.mark.parametrize("deep", [False, True])
def test_sound_caches_have_no_damage(root, deep):
    seen = []
    expected = []
    report = verify(str(root), deep=deep, expect=expected.append, advance=seen.append)
    assert (report.damages, report.finished, report.deep, report.parts) == ([], True, deep, 3)
    cache = open_cache(root)
    elements = sum(cache.leaf(n).num_elements for n in ("input_ids", "mask", "id")) + 2 * (36 + 3)
    assert [report.elements] == expected == [elements]
    assert sum(seen) == (elements if deep else 0)
    assert report.to_dict()["damaged_parts"] == []


@settings(max_examples=15, deadline=None)
@given(
    documents=st.lists(st.integers(0, 70), max_size=9),
    chunk=st.integers(1, 40),
    shard=st.integers(1, 5),
    data=st.data(),
)
def test_sizes_of_any_layout(tmp_path_factory, documents, chunk, shard, data):
    compression = data.draw(st.sampled_from(["none", "zstd"]))
    root = tmp_path_factory.mktemp("cache")
    write_cache(
        root,
        [[np.arange(n) for n in documents]],
        layout=CacheLayout("uint16", chunk, shard, compression),
    )
    assert verify(str(root), deep=True).damages == []


def test_every_lost_file_is_found_and_named(root):
    for file in files_of(root):
        content = file.read_bytes()
        file.unlink()
        for deep in (False, True):
            report = verify(str(root), deep=deep)
            assert report.damaged_parts == ["00001"]
            (damage, *more) = report.damages
            assert not more, (file, report.damages)
            assert (damage.file, damage.problem) == (str(file), "is missing")
            assert damage.sources == ["1a.txt", "1b.txt"]
        file.write_bytes(content)
    assert verify(str(root), deep=True).damages == []


def test_every_cut_off_file_is_found(root):
    for file in files_of(root):
        content = file.read_bytes()
        for left in {
            0,
            1,
            len(content) // 2,
            len(content) - 2,
        }:  # the last byte of JSON is a newline
            file.write_bytes(content[:left])
            report = verify(str(root))
            assert report.damaged_parts == ["00001"], (file, left)
            assert {d.file for d in report.damages} == {str(file)}
        file.write_bytes(content)


def test_a_flipped_bit_is_found_by_the_deep_check_in_its_chunk(root):
    """Anywhere in any shard file: in a chunk, its checksum, or the index."""
    rng = np.random.default_rng(0)
    for file in (f for f in files_of(root) if f.parent.name == "c"):
        content = file.read_bytes()
        for at in sorted({0, len(content) - 1, *rng.integers(0, len(content), 2).tolist()}):
            file.write_bytes(bytes([*content[:at], content[at] ^ 4, *content[at + 1 :]]))
            report = verify(str(root), deep=True)
            assert {(d.part, d.file) for d in report.damages} == {("00001", str(file))}, at
            assert all(d.array == str(file.parent.parent) for d in report.damages)
        file.write_bytes(content)
    second = root / "parts/00001/input_ids/data/c/1"
    content = second.read_bytes()
    second.write_bytes(bytes([content[0] ^ 1, *content[1:]]))
    (damage,) = verify(str(root), deep=True).damages
    assert damage.chunks == [[4, 4]]  # the first chunk of the second file of four
    assert "chunk 4 cannot be read" in damage.problem


def without_owners(root):
    """The cache as it was written before arrays said whose they are."""
    for file in root.rglob("zarr.json"):
        metadata = json.loads(file.read_bytes())
        del metadata["attributes"]
        file.write_text(json.dumps(metadata))
    return root


def test_sound_files_of_another_part_are_found_by_the_digest(tmp_path):
    layout = CacheLayout("uint8", 32, 4)
    documents = random_documents(5)
    other = [np.where(d == d[-1], d - 1, d) for d in documents]
    a = write_cache(tmp_path / "a", [documents], layout=layout)
    b = write_cache(tmp_path / "b", [other], layout=layout)
    at = "parts/00000/input_ids"
    shutil.rmtree(Path(a.path, at))
    shutil.copytree(Path(b.path, at), Path(a.path, at))
    assert {d.problem for d in verify(a.path).damages} == {
        "is of another part, or of another cache"
    }
    without_owners(Path(a.path))  # as of an older release
    assert verify(a.path).damages == []
    (damage,) = verify(a.path, deep=True).damages
    assert "digests differ" in damage.problem


def test_records_must_be_those_of_the_ledger(root):
    record = root / "parts" / "00002" / "part.json"
    record.write_text((root / "parts" / "00001" / "part.json").read_text())
    (damage,) = verify(str(root)).damages
    assert (damage.part, damage.problem) == ("00002", "is not that of the ledger")
    record.write_text("{")
    assert "is not JSON" in verify(str(root)).damages[0].problem


def test_arrays_of_another_build_are_named(root):
    zarr = root / "parts" / "00000" / "mask" / "data" / "zarr.json"
    zarr.write_text(zarr.read_text().replace("uint8", "uint16"))
    for deep in (False, True):
        (damage,) = verify(str(root), deep=deep).damages
        assert (damage.part, damage.file) == ("00000", str(zarr))
        assert "is not the description of the array" in damage.problem


def test_what_is_no_cache(tmp_path):
    with pytest.raises(CacheMissingError):
        verify(str(tmp_path))
    with pytest.raises(CacheError, match="has no ledger"):
        invalidate(str(tmp_path), ["00000"])


def test_damaged_parts_are_built_again_and_no_others(root):
    (root / "parts" / "00001" / "input_ids" / "data" / "c" / "0").unlink()
    names = verify(str(root)).damaged_parts
    assert names == ["00001"]
    invalidate(str(root), names)
    ledger = read_ledger(str(root))
    assert ledger is not None
    assert (ledger.finished, ledger.parts) == (False, [])
    there = [read_part_record(str(root), f"{k:05d}") is not None for k in range(3)]
    assert there == [True, False, True]
    report = verify(str(root), deep=True)  # of what is complete
    assert (report.finished, report.parts, report.damages) == (False, 2, [])
    invalidate(str(root), [])
    with pytest.raises(ConfigError, match="was not built from sources as part of that name"):
        invalidate(str(root), ["../.."])


def test_nothing_is_changed_where_nothing_is_damaged(root):
    before = read_ledger(str(root))
    invalidate(str(root), verify(str(root), deep=True).damaged_parts)
    assert read_ledger(str(root)) == before


def test_ledgers_of_no_parts(tmp_path):
    write_ledger(str(tmp_path), Ledger(True, {"vocab_size": 3}, CacheLayout().to_dict()))
    assert verify(str(tmp_path), deep=True).damages == []


@pytest.mark.parametrize("form", ["consolidated", "sharded"])
def test_caches_of_levanter(tmp_path, form):
    cache = write_cache(
        tmp_path / "o", [random_documents(3000, max_tokens=90, seed=k) for k in range(2)]
    )
    root = tmp_path / "l"
    write_levanter(cache, str(root), form=form)
    assert verify(str(root), deep=True).damages == []
    (shard,) = root.glob(
        "input_ids/data/c/0" if form == "consolidated" else "part-00001/input_ids/data/c/0"
    )
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    assert [d.file for d in verify(str(root)).damages] == [str(shard)]
    shard.write_bytes(content[:10] + bytes(20) + content[30:])
    assert verify(str(root)).damages == []
    assert [d.file for d in verify(str(root), deep=True).damages] == [str(shard)]
    shard.unlink()
    assert [d.problem for d in verify(str(root)).damages] == ["is missing"]


def test_over_http(web):
    """Web servers have no listings: each file is asked for."""
    folder, url = web
    root = write(folder / "cache")
    assert verify(f"{url}/cache", deep=True).damages == []
    shard = root / "parts" / "00002" / "input_ids" / "data" / "c" / "1"
    shard.unlink()
    for deep in (False, True):
        (damage,) = verify(f"{url}/cache", deep=deep).damages
        assert (damage.file, damage.problem) == (
            f"{url}/cache/parts/00002/input_ids/data/c/1",
            "is missing",
        )


def test_damage_is_told_after_few_requests_and_a_run_still_asks_by_its_policy(web):
    folder, url = web
    root = write(folder / "cache")
    shard = root / "parts" / "00001" / "input_ids" / "data" / "c" / "0"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1  # of the second chunk of 32 tokens and 4 bytes of checksum
    shard.write_bytes(content)
    before = retry.use_policy(retry.RetryPolicy(damaged_attempts=5, first_delay_s=0.001))
    try:
        counts = retry.own_counts()
        damaged = counts.damaged
        (damage,) = verify(f"{url}/cache", deep=True).damages
        assert damage.chunks == [[1, 1]]
        assert counts.damaged - damaged == 2  # once more in its block, and once more by itself
        damaged = counts.damaged
        with pytest.raises(ReadError, match="chunk 1 cannot be read"):
            open_cache(f"{url}/cache").leaf("input_ids").parts[1].data.read(32, 64).result()
        assert counts.damaged - damaged == 4
    finally:
        retry.use_policy(before)


def test_a_cache_is_named_by_a_path(tmp_path):
    cache = write_cache(tmp_path / "cache", [[np.arange(9)]])
    assert verify(tmp_path / "cache") == verify(cache.path)
