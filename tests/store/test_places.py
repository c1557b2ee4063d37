"""Sound chunks in another's place are refused however they are read: mapped, by TensorStore, over
HTTP.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheError, ReadError
from headrace.store import CacheLayout, RetryPolicy, use_policy
from headrace.store.array import StoredArray
from headrace.store.layout import CHUNKS, attributes_of, named_in
from headrace.store.ragged import ArrayWriter, name_owner
from headrace.store.retry import own_counts
from headrace.testing import web_server

DIGEST = "sha256:ab"


def written(
    folder: Path, seed: int, layout: CacheLayout, length: int
) -> tuple[StoredArray, np.ndarray]:
    """An array that names its chunks, and its values."""
    values = np.random.default_rng(seed).integers(0, 1 << 16, length).astype(layout.dtype)
    writer = ArrayWriter(str(folder / "data"), layout)
    writer.append(values)
    writer.close()
    name_owner(DIGEST, {writer.url: writer.checksums})
    return StoredArray(writer.url, length, layout, lambda: DIGEST), values


def reads(array: StoredArray):
    """The chunks of an array, each read in the ways that there are; None where one is refused."""
    size = array.chunk_elements
    length = array.length
    for chunk in range(-(-length // size)):
        for start, stop in (
            (chunk * size, min(chunk * size + size, length)),
            (chunk * size, chunk * size + 1),
        ):
            try:
                yield chunk, start, array.read(start, stop).result()
            except ReadError as error:
                file = f"c/{chunk // array.layout.shard_chunks}"
                if "not the one that was written here" not in str(error) or file not in str(error):
                    raise
                yield chunk, start, None
        mapped = array.mapped()
        if mapped is not None and mapped.address(chunk):
            out = np.zeros(size, array.dtype)
            yield (
                chunk,
                chunk * size,
                out[: length - chunk * size] if mapped.copy(chunk, out.view(np.uint8)) else None,
            )


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_shard_file_in_another_place_gives_nothing(tmp_path, compression, over_http):
    layout = CacheLayout("uint16", 8, 3, compression)
    array, values = written(tmp_path / "a", 0, layout, 24 * 3 + 5)
    folder = Path(array.url)
    other = Path(written(tmp_path / "b", 1, layout, 24 * 3 + 5)[0].url)
    assert all(
        np.array_equal(found, values[start:][: len(found)]) for _, start, found in reads(array)
    )
    shutil.copyfile(folder / "c/0", folder / "c/1")  # doubled
    shutil.copyfile(other / "c/3", folder / "c/3")  # of another array
    before = use_policy(RetryPolicy(damaged_attempts=3, first_delay_s=0.001)), own_counts().damaged
    try:
        with web_server(tmp_path / "a") as server:
            again = StoredArray(
                f"{server}/data" if over_http else array.url, array.length, layout, lambda: DIGEST
            )
            for chunk, start, found in reads(again):
                if chunk // 3 in (1, 3):
                    assert found is None
                else:
                    assert np.array_equal(found, values[start:][: len(found)])
    finally:
        use_policy(before[0])
    assert own_counts().damaged - before[1] == (
        16 if over_http else 0
    )  # two more requests for each of 8 reads


@given(
    length=st.integers(0, 60), chunk=st.integers(1, 9), shard=st.integers(1, 5), zstd=st.booleans()
)
def test_every_chunk_is_named_in_its_order(tmp_path_factory, length, chunk, shard, zstd):
    layout = CacheLayout("uint16", chunk, shard, "zstd" if zstd else "none")
    array, values = written(tmp_path_factory.mktemp("a"), 0, layout, length)
    metadata = json.loads(Path(array.url, "zarr.json").read_bytes())
    owner, checksums = named_in(metadata)
    assert owner == f"{DIGEST} data"
    assert checksums is not None
    assert checksums.size == -(-length // chunk)
    assert np.array_equal(array.read(0, length).result(), values)


def test_a_changed_list_of_chunks_is_refused(tmp_path):
    array, _ = written(tmp_path, 0, CacheLayout("uint16", 8, 3), 50)
    path = Path(array.url, "zarr.json")
    metadata = json.loads(path.read_bytes())
    named = metadata["attributes"][CHUNKS]
    for text in ("A" + named[1:] if named[0] != "A" else "B" + named[1:], named[:-8], "!", 3):
        path.write_text(
            json.dumps({**metadata, "attributes": {**metadata["attributes"], CHUNKS: text}})
        )
        with pytest.raises(CacheError, match="cannot be opened"):
            StoredArray(array.url, 50, array.layout, lambda: DIGEST).read(0, 50).result()
    _, checksums = named_in(metadata)
    assert checksums is not None
    path.write_text(
        json.dumps(
            {**metadata, "attributes": attributes_of(metadata, f"{DIGEST} data", checksums[1:])}
        )
    )
    with pytest.raises(CacheError, match="names 6 chunks instead of 7"):
        StoredArray(array.url, 50, array.layout, lambda: DIGEST).read(0, 50).result()


def test_arrays_that_do_not_name_their_chunks_are_read_as_before(tmp_path):
    array, values = written(tmp_path, 0, CacheLayout("uint16", 8, 3), 50)
    name_owner(DIGEST, {array.url: None})
    assert CHUNKS not in Path(array.url, "zarr.json").read_text()
    assert all(
        np.array_equal(found, values[start:][: len(found)]) for _, start, found in reads(array)
    )
