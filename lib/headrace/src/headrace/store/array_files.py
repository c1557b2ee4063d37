"""Checks the files of an array by names, lengths and the last bytes of each shard file: the first
step of verify.

The last bytes of a shard file are its index and, before that, the checksum of its last chunk, which
``zarr.json`` names, so one small read detects an intact file in the wrong position
(:mod:`headrace.store.places`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from headrace.store import files
from headrace.store.array import StoredArray
from headrace.store.layout import CHUNKS, CRC_BYTES, NO_CHUNK, StoredLayout, checksum_bytes
from headrace.store.levanter_layout import LevanterArray
from headrace.store.places import check_place
from headrace.store.ragged import shard_sizes


@dataclass(frozen=True)
class FileFindings:
    """Problems of the files of an array, as (file, problem) pairs, and whether ``zarr.json`` names
    its chunks.
    """

    problems: list[tuple[str, str]]
    names_chunks: bool = True


def file_findings(array: StoredArray) -> FileFindings:
    """Checks the files of an array.

    Raises:
        CacheError: the store cannot be reached.
    """
    url = files.join(array.url, "zarr.json")
    raw = files.read_bytes(url)
    if raw is None:
        return FileFindings([(url, "is missing")])
    sparse = isinstance(array, LevanterArray)
    try:
        stored = StoredLayout.parse(json.loads(raw))
        longer = stored.length > array.length and not sparse
        if array.owner and not stored.owner and b"headrace_" in raw:
            raise ValueError("it is not as it was written")
        if array.owner and stored.owner not in ("", array.owner):
            return FileFindings([(url, "is of another part, or of another cache")])
        if stored.dtype != array.dtype.name or stored.length < array.length or longer:
            expected = f"{array.length} of {array.dtype.name}"
            raise ValueError(
                f"it holds {stored.length} of {stored.dtype}, and the ledger has {expected}"
            )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        return FileFindings([(url, f"is not the description of the array ({error})")])
    shards = -(-array.length // stored.shard)
    sizes = shard_sizes(array.url, shards)
    findings: list[tuple[str, str]] = []
    for number in range(shards):
        file = files.join(array.url, "c", str(number))
        if number not in sizes:
            if not isinstance(array, LevanterArray) or array.must_exist(number):
                findings.append((file, "is missing"))
        elif problem := _wrong_file(file, number, sizes[number], stored, array.length, sparse):
            findings.append((file, problem))
    return FileFindings(findings, CHUNKS.encode() in raw or not array.owner)


def _wrong_file(
    file: str, number: int, size: int, stored: StoredLayout, length: int, sparse: bool
) -> str | None:
    """The problem of a shard file of an array with this many elements; None if there is none."""
    index_bytes = stored.index_bytes
    if not index_bytes or not stored.index_last:
        return None
    itemsize = np.dtype(stored.dtype).itemsize
    elements = min(stored.shard, length - number * stored.shard)
    chunks = -(-elements // stored.chunk)
    checksum = checksum_bytes(stored.codecs, itemsize)
    if checksum is not None and not sparse:
        expected = chunks * (stored.chunk * itemsize + checksum) + index_bytes
        if size != expected:
            return f"has {size:,} bytes instead of {expected:,}"
        if stored.checksums is None:
            return None
    if size < index_bytes + CRC_BYTES:
        return f"has {size:,} bytes, less than its index"
    raw = files.read_range(file, size - index_bytes - CRC_BYTES, size)
    return _wrong_end(raw, size, stored, number, None if sparse else chunks)


def _wrong_end(
    raw: bytes, size: int, stored: StoredLayout, number: int, chunks: int | None
) -> str | None:
    """The problem of the last bytes of a shard file that should have this many chunks (None: any
    number).
    """
    shard_chunks = stored.shard // stored.chunk
    entries = np.frombuffer(raw, "<u8", shard_chunks * 2, CRC_BYTES).reshape(-1, 2)
    there = np.flatnonzero(entries[:, 0] != NO_CHUNK)
    ends = entries[there].astype(np.float64).sum(1)
    if ends.size and ends.max() != size - stored.index_bytes:
        return (
            f"has {size:,} bytes, which is not what its index says: it was cut off or overwritten"
        )
    if chunks is not None and there.size != chunks:
        return f"has {there.size} chunks instead of {chunks}"
    if stored.checksums is not None and ends.size:
        last = number * shard_chunks + int(there[np.argmax(ends)])
        try:
            check_place(raw[:CRC_BYTES], int(stored.checksums[last]))
        except ValueError:
            return (
                "is not the file that was written here: its last chunk is of another place or cache"
            )
    return None
