"""Mapped chunks are what TensorStore reads, or there are none: whatever is odd is left to
TensorStore.
"""

import gc
import json
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import DataLoader, HeadraceError, TokenSeqDataset
from headrace.store import CacheLayout, TokenCache, mapped
from headrace.store.array import StoredArray
from headrace.store.ledger import encode_ledger, read_ledger
from headrace.store.mapped import map_array
from headrace.store.ragged import ArrayWriter
from headrace.testing import write_cache
from headrace.testing.caches import CountingArray, random_documents

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="files are mapped on Linux only"
)


def stored(folder, length=50, dtype="uint16", chunk=8, shard=3, compression="none"):
    layout = CacheLayout(dtype, chunk, shard, compression)
    writer = ArrayWriter(str(folder), layout)
    values = (np.arange(length) * 7 + 1).astype(dtype)
    writer.append(values)
    writer.close()
    return StoredArray(str(folder), length, layout), values


def content(array, found, chunk):
    """The copied chunk, and whether it is sound."""
    into = np.full(found.chunk_bytes, 99, np.uint8)
    assert found.address(chunk)
    sound = found.copy(chunk, into)
    return into.view(array.dtype), sound


def shard_file(array, number):
    return Path(array.url, "c", str(number))


@settings(max_examples=30)
@given(
    length=st.integers(1, 90),
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "int64"]),
    chunk=st.integers(1, 17),
    shard=st.integers(1, 4),
)
def test_chunks_hold_what_was_written(tmp_path_factory, length, dtype, chunk, shard):
    array, values = stored(tmp_path_factory.mktemp("a"), length, dtype, chunk, shard)
    found = array.mapped()
    assert found is not None
    assert found is array.mapped()
    for number in range(-(-length // chunk)):
        wanted = values[number * chunk : (number + 1) * chunk]
        assert found.address(number)
        for _ in range(2):
            copied, sound = content(array, found, number)
            assert sound
            assert copied[: wanted.size].tolist() == wanted.tolist()


def test_a_flipped_bit_fails_the_check_of_its_chunk_and_of_no_other(tmp_path):
    array, _ = stored(tmp_path)
    held = bytearray(shard_file(array, 1).read_bytes())
    held[16 + 4 + 3] ^= 1  # in chunk 4
    shard_file(array, 1).write_bytes(held)
    found = array.mapped()
    assert found is not None
    assert [content(array, found, number)[1] for number in range(7)] == [True] * 4 + [False] + [
        True
    ] * 2


def test_what_is_lost_or_broken_is_left_to_tensorstore(tmp_path):
    array, _ = stored(tmp_path, length=8 * 3 * 6)
    shard_file(array, 0).unlink()
    os.truncate(shard_file(array, 1), 30)
    os.truncate(shard_file(array, 2), 3)
    held = bytearray(shard_file(array, 3).read_bytes())
    held[-9] ^= 1  # the index
    shard_file(array, 3).write_bytes(held)
    found = array.mapped()
    assert found is not None
    assert [found.address(number) != 0 for number in range(18)] == [False] * 12 + [True] * 6


def test_a_chunk_that_the_index_places_outside_the_file_is_not_mapped(tmp_path):
    array, _ = stored(tmp_path, length=24)
    held = shard_file(array, 0).read_bytes()
    index = np.frombuffer(held[-52:-4], "<u8").copy()
    # chunk 1 far outside, chunk 2 of another size
    index[2] = 1 << 40
    index[5] = 19
    broken = index.tobytes()
    native = mapped.native()
    assert native is not None
    crc = native.calls.crc32c(0, np.frombuffer(broken, np.uint8).ctypes.data, len(broken))
    shard_file(array, 0).write_bytes(held[:-52] + broken + crc.to_bytes(4, "little"))
    found = array.mapped()
    assert found is not None
    assert [found.address(number) != 0 for number in range(3)] == [True, False, False]


def test_other_layouts_are_not_mapped(tmp_path):
    assert stored(tmp_path / "zstd", compression="zstd")[0].mapped() is None
    array, _ = stored(tmp_path / "plain")
    path = Path(array.url, "zarr.json")
    written = path.read_text()
    for change in (
        lambda m: m.update(shape=[49]),
        lambda m: m.update(data_type="int16"),
        lambda m: m.update(codecs=[{"name": "bytes", "configuration": {"endian": "little"}}]),
        lambda m: m["codecs"][0]["configuration"].update(index_location="start"),
        lambda m: m["codecs"][0]["configuration"]["codecs"][0].update(
            configuration={"endian": "big"}
        ),
        lambda m: m["codecs"][0]["configuration"].update(codecs=[{"name": "bytes"}]),
        lambda m: m["chunk_key_encoding"].update(name="v2"),
        lambda m: m.pop("codecs"),
    ):
        metadata = json.loads(written)
        change(metadata)
        path.write_text(json.dumps(metadata))
        assert map_array(Path(array.url), np.dtype("uint16"), 50, array.chunk_elements) is None
    path.write_text(written)
    assert map_array(Path(array.url), np.dtype("uint16"), 50, array.chunk_elements) is not None
    path.unlink()
    assert map_array(Path(array.url), np.dtype("uint16"), 50, array.chunk_elements) is None


def test_arrays_that_are_read_in_another_way_are_asked_to_read(tmp_path):
    array, _ = stored(tmp_path)
    assert CountingArray(array.url, array.length, array.layout).mapped() is None
    assert StoredArray("gs://bucket/a", 50, array.layout).mapped() is None


def test_without_what_it_takes_nothing_is_mapped(tmp_path, monkeypatch):
    array, _ = stored(tmp_path)
    monkeypatch.setattr(mapped, "native", lambda: None)
    assert array.mapped() is None


def test_maps_are_counted_and_end_with_the_array(tmp_path, monkeypatch):
    gc.collect()
    before = mapped._maps
    monkeypatch.setattr(mapped, "MAX_MAPS", before + 2)
    array, _ = stored(tmp_path, length=8 * 3 * 3)
    found = array.mapped()
    assert found is not None
    files = len(os.listdir("/proc/self/fd"))
    assert [found.address(number) != 0 for number in range(9)] == [True] * 6 + [False] * 3
    assert mapped._maps == before + 2
    assert len(os.listdir("/proc/self/fd")) == files  # a map needs no open file
    del found, array
    gc.collect()
    assert mapped._maps == before


MOUNTS = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / {root}/far\040away rw - nfs4 server:/corpus rw
41 40 0:51 / {root}/far\040away/scratch rw - xfs /dev/sdb rw
42 27 0:52 / {root}/bucket rw - fuse.gcsfuse gcs rw
43 27 0:53 / {root}/hidden rw - nfs4 server:/old rw
44 27 0:54 / {root}/hidden rw - ext4 /dev/sdc rw
"""


@pytest.mark.parametrize(
    ("folder", "remote"),
    [
        ("near", False),
        ("far away", True),
        ("far away/scratch", False),
        ("bucket/a", True),
        ("hidden", False),
    ],
)
def test_files_of_other_machines_are_read_and_not_mapped(tmp_path, folder, remote):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(root=tmp_path).strip())
    (tmp_path / folder).mkdir(parents=True)
    assert mapped._is_remote(tmp_path / folder, mounts) is remote


def test_a_place_that_is_not_known_counts_as_another_machine(tmp_path, monkeypatch):
    array, _ = stored(tmp_path / "a")
    assert array.mapped() is not None
    assert mapped._is_remote(tmp_path, tmp_path / "no mountinfo")
    monkeypatch.setattr(mapped, "_is_remote", lambda _: True)
    assert map_array(tmp_path / "a", array.dtype, array.length, array.chunk_elements) is None


def test_a_ledger_that_tells_of_other_chunks_misplaces_no_row(tmp_path):
    """Whoever wrote it: what is stored is read as it is stored, or not at all."""
    write_cache(
        tmp_path,
        [random_documents(300, seed=k) for k in range(2)],
        layout=CacheLayout("uint8", 32, 2),
    )

    def batches():
        cache = TokenCache(str(tmp_path), read_ledger(str(tmp_path)))
        data = TokenSeqDataset(cache, 16).shuffle(0)
        return np.concatenate([batch.tokens for batch in DataLoader(data, batch_size=8)])

    wanted = batches()
    for file in tmp_path.rglob("zarr.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "attributes": {}}))
    ledger = read_ledger(str(tmp_path))
    for chunk in (2, 16, 64, 128):
        changed = replace(ledger, layout=ledger.layout | {"chunk_elements": chunk})
        (tmp_path / "ledger.json").write_bytes(encode_ledger(changed)[0])
        try:
            got = batches()
        except HeadraceError:
            continue
        assert np.array_equal(got, wanted), chunk


def test_a_chunk_whose_checksum_the_file_has_lost_is_not_sound(tmp_path):
    """The checksum begins the page after the chunk's."""
    array, _ = stored(tmp_path / "a", 3 * mmap.PAGESIZE, "uint8", mmap.PAGESIZE, 3)
    chunks = array.mapped()
    assert chunks.check(0)
    os.truncate(shard_file(array, 0), mmap.PAGESIZE)
    assert not chunks.check(0)
    assert not content(array, chunks, 0)[1]


@pytest.mark.parametrize("how", ["copy", "check"])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_file_that_loses_its_pages_while_a_chunk_is_read_ends_no_process(
    tmp_path, monkeypatch, how, kept
):
    chunk = 2 * mmap.PAGESIZE
    array, values = stored(tmp_path / "a", 3 * chunk, "uint8", chunk, 3)
    found = array.mapped()
    assert found is not None
    assert content(array, found, 2)[1]
    system = mapped.native()
    assert system is not None
    bring = found._bring

    def bring_and_lose(number, at):
        present = bring(number, at)
        os.truncate(shard_file(array, 0), kept * mmap.PAGESIZE)
        return present

    # As if another process cut the file off between the two: pages come, and are gone when read.
    monkeypatch.setattr(found, "_bring", bring_and_lose)
    monkeypatch.setattr(system, "bring", mmap.MADV_WILLNEED)
    if how == "copy":
        into, sound = content(array, found, 0)
        assert not sound
        assert not into[kept * mmap.PAGESIZE :].any()
        assert np.array_equal(into[: kept * mmap.PAGESIZE], values[: kept * mmap.PAGESIZE])
    else:
        os.truncate(shard_file(array, 0), kept * mmap.PAGESIZE)
        assert not found.check(0)
