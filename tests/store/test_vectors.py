"""Vectors in pieces: what is read is what was written, whatever was asked for, and wherever it
lies.
"""

import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError, CacheError, ConfigError
from headrace.store import files, vectors
from headrace.store.vectors import PiecedVector, VectorWriter


def write(url, values, dtype="<u4", cuts=()):
    writer = VectorWriter(url, dtype, "table")
    for chunk in np.split(values, sorted(cuts)):
        writer.append(chunk)
    return writer.finish()


@pytest.mark.parametrize("store", ["disk", "memory"])
@given(
    numbers=st.lists(st.integers(0, 2**32 - 1), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    asked=st.lists(st.integers(0, 59), max_size=20),
    limits=st.tuples(st.integers(-70, 70), st.integers(-70, 70)),
)
def test_indexed_as_an_array_is(tmp_path_factory, store, numbers, cuts, asked, limits):
    values = np.array(numbers, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "_PIECE_BYTES", 16)  # 4 numbers
        patch.setattr(vectors, "_KEPT_BYTES", 48)
        patch.setattr(vectors, "_RUN", 2)
        patch.setattr(vectors, "_REQUESTS", 3)
        root = str(tmp_path_factory.mktemp("v")) if store == "disk" else "memory://vectors"
        vector = PiecedVector(f"{root}/v.bin", write(f"{root}/v.bin", values, cuts=cuts), "table")
        assert (len(vector), vector.size, vector.dtype) == (
            values.size,
            values.size,
            np.dtype("<u4"),
        )
        places = np.array([k for k in asked if k < values.size], np.int64)
        for _ in range(2):
            assert vector[places].tolist() == values[places].tolist()
            assert vector[limits[0] : limits[1]].tolist() == values[limits[0] : limits[1]].tolist()
        assert np.asarray(vector, np.int64).tolist() == numbers
        assert vector[:: 1 + len(asked)].tolist() == numbers[:: 1 + len(asked)]
        assert vector[values % 2 == 1].tolist() == [n for n in numbers if n % 2]
        if numbers:
            assert int(vector[-1]) == numbers[-1]


@pytest.mark.parametrize("store", ["disk", "memory"])
@pytest.mark.parametrize("at", [0, 17, 63, 64, 80, 191, 192, 260])
def test_each_damage_is_noticed_where_it_is_read(tmp_path, monkeypatch, store, at):
    monkeypatch.setattr(vectors, "_PIECE_BYTES", 64)
    url = f"{tmp_path}/v.bin" if store == "disk" else "memory://damaged/v.bin"
    record = write(url, np.arange(48))  # 192 bytes in 3 pieces, and 3 digests
    raw = bytearray(files.read_bytes(url))
    raw[at] ^= 1
    files.write_atomic(url, bytes(raw))
    if at >= 192:
        with pytest.raises(CacheCorruptError, match=r"v\.bin.*another digest"):
            PiecedVector(url, record, "table")
        return
    vector = PiecedVector(url, record, "table")
    piece = at // 64
    with pytest.raises(CacheCorruptError, match=f"piece {piece} .*Delete the table's folder"):
        vector[np.array([16 * piece])]
    other = 16 * ((piece + 1) % 3)
    assert vector[np.array([other])].tolist() == [other]


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_files_that_are_missing_or_of_another_size(tmp_path, store):
    url = f"{tmp_path}/v.bin" if store == "disk" else "memory://sizes/v.bin"
    record = write(url, np.arange(48))
    raw = files.read_bytes(url)
    for other in (raw[:-1], raw + b"x", raw[:3]):
        files.write_atomic(url, other)
        with pytest.raises(
            CacheCorruptError, match=r"bytes instead of|another size|another digest"
        ):
            PiecedVector(url, record, "table")
    with pytest.raises(CacheCorruptError, match="is missing"):
        PiecedVector(f"{url}.other", record, "table")
    objects = {"dtype": "O", "length": 24}  # numbers as addresses, in a file of the same size
    for lie in ({"piece": 0}, {"length": -1}, {"dtype": "x"}, {"dtype": "f4"}, objects):
        with pytest.raises((ValueError, TypeError)):
            PiecedVector(url, {**record, **lie}, "table")
    with pytest.raises(KeyError):
        PiecedVector(url, {"dtype": "<u4"}, "table")


def test_what_cannot_be_written_is_said(tmp_path):
    writer = VectorWriter(f"{tmp_path}/v.bin", "<u4", "table")
    with pytest.raises(ConfigError, match="is more than a table file holds"):
        writer.append(np.array([1 << 32]))
    writer.append(np.arange(3))
    writer.abort()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written"):
        VectorWriter(f"{tmp_path}/file/v.bin", "<u4", "table").append(np.arange(3))


def test_a_part_is_not_left_behind_on_a_full_disk(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = VectorWriter(f"{tmp_path}/v.bin", "<u4", "table")
    writer.append(np.arange(500))  # not written yet
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        writer.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_part_does_not_replace_what_a_store_has(root):
    url = f"{root}/v.bin"
    record = write(url, np.arange(100))
    writer = VectorWriter(url, "<u4", "table")
    writer.append(np.arange(50) + 7)
    writer.abort()
    assert PiecedVector(url, record, "table")[np.array([0, 99])].tolist() == [0, 99]
