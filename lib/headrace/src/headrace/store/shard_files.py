"""What the files of a stored array must be: which there are, and how long each is. Reads no data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.levanter_layout import LevanterArray

_ENTRY = 16  # bytes of an index for each chunk: where it begins and how long it is
_CRC = 4
_NO_CHUNK = np.iinfo(np.uint64).max


@dataclass(frozen=True)
class _Description:
    """What ``zarr.json`` says of the files.

    Attributes:
        shard: Elements in a file.
        chunk: Elements in a chunk.
        chunk_bytes: Bytes of a stored chunk; None if they vary.
        index_bytes: Bytes of the index at the end of a file; 0 if there is none.
    """

    shard: int
    chunk: int
    chunk_bytes: int | None
    index_bytes: int


def file_findings(array: StoredArray) -> list[tuple[str, str]]:
    """What is wrong with the files of an array.

    Returns:
        (file, problem) pairs; empty if each file is there and as long as it must be.

    Raises:
        CacheError: the store cannot be reached.
    """
    url = files.join(array.url, "zarr.json")
    raw = files.read_bytes(url)
    if raw is None:
        return [(url, "is missing")]
    try:
        said = _describe(json.loads(raw), array)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return [(url, f"is not the description of the array ({error})")]
    sizes = shard_sizes(array.url, -(-array.length // said.shard))
    found: list[tuple[str, str]] = []
    sparse = isinstance(array, LevanterArray)
    for number in range(-(-array.length // said.shard)):
        file = files.join(array.url, "c", str(number))
        size = sizes.get(number)
        if size is None:
            if not sparse or array.must_exist(number):
                found.append((file, "is missing"))
        elif problem := _wrong_size(file, size, said, array, number, sparse):
            found.append((file, problem))
    return found


def _describe(data: dict[str, Any], array: StoredArray) -> _Description:
    (length,) = data["shape"]
    sparse = isinstance(array, LevanterArray)
    if data["data_type"] != array.dtype.name or length < array.length or (length > array.length and not sparse):
        expected = f"{array.length} of {array.dtype.name}"
        raise ValueError(f"it holds {length} of {data['data_type']}, and the ledger has {expected}")
    (shard,) = data["chunk_grid"]["configuration"]["chunk_shape"]
    codecs: list[dict[str, Any]] = data["codecs"]
    if codecs[0]["name"] != "sharding_indexed":
        return _Description(shard, shard, None, 0)
    sharding = codecs[0]["configuration"]
    (chunk,) = sharding["chunk_shape"]
    names = [c["name"] for c in sharding["codecs"]]
    plain = names in (["bytes"], ["bytes", "crc32c"])
    checked = any(c["name"] == "crc32c" for c in sharding.get("index_codecs", [{"name": "crc32c"}]))
    at_end = sharding.get("index_location", "end") == "end"
    return _Description(
        shard,
        chunk,
        chunk * array.dtype.itemsize + (_CRC if "crc32c" in names else 0) if plain else None,
        (shard // chunk * _ENTRY + (_CRC if checked else 0)) if at_end else 0,
    )


def shard_sizes(url: str, shards: int) -> dict[int, int]:
    """Bytes of each shard file of an array that is there, by its number; there should be ``shards`` of them."""
    fs, path = files.filesystem(files.join(url, "c"))
    if url.startswith(("http://", "https://")):  # no listings
        found: dict[int, int] = {}
        for number in range(shards):
            if fs.exists(f"{path}/{number}"):
                found[number] = int(fs.info(f"{path}/{number}")["size"])
        return found
    try:
        with files.client_errors(url):
            entries = cast("list[dict[str, Any]]", fs.ls(path, detail=True))
    except FileNotFoundError:
        return {}
    named = ((str(entry["name"]).rsplit("/", 1)[-1], entry) for entry in entries)
    return {int(name): int(entry["size"]) for name, entry in named if name.isdigit()}


def _wrong_size(file: str, size: int, said: _Description, array: StoredArray, number: int, sparse: bool) -> str | None:
    """What is wrong with the length of a shard file; None if nothing is."""
    if said.index_bytes == 0:
        return None
    chunks = -(-min(said.shard, array.length - number * said.shard) // said.chunk)
    if said.chunk_bytes is not None and not sparse:
        wanted = chunks * said.chunk_bytes + said.index_bytes
        return None if size == wanted else f"has {size:,} bytes instead of {wanted:,}"
    if size < said.index_bytes:
        return f"has {size:,} bytes, less than its index"
    fs, path = files.filesystem(file)
    with files.client_errors(file):
        raw = fs.cat_file(path, start=size - said.index_bytes, end=size)
    entries = np.frombuffer(raw, "<u8", count=said.shard // said.chunk * 2).reshape(-1, 2)
    there = entries[entries[:, 0] != _NO_CHUNK]
    ends = there[:, 0].astype(np.float64) + there[:, 1]
    if ends.size and ends.max() != size - said.index_bytes:
        return f"has {size:,} bytes, which is not what its index says: it was cut off or overwritten"
    if not sparse and there.shape[0] != chunks:
        return f"has {there.shape[0]} chunks instead of {chunks}"
    return None
