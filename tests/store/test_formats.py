"""docs/formats.md: a reader that is written from the page alone reads every token, as of every
snapshot, and the checksums of a cache of Levanter's.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zstandard

from headrace.store import CacheLayout, open_cache, verify
from headrace.store.layout import Compression
from headrace.store.snapshots import add_appended, member_path
from headrace.testing import write_cache
from headrace.testing.caches import random_documents, remove
from headrace_levanter.export import write_levanter

# The reader: plain Python, NumPy and zstandard.


def read_record(path: Path, kind: str, version: int, of: str) -> dict:
    """The content of a sealed record."""
    head, content = path.read_bytes().removesuffix(b"\n").split(b"\n")
    seal = json.loads(head)
    sealed = f"{kind}\n{version}\n{of}\n".encode() + content
    assert (seal["kind"], seal["version"], seal["of"]) == (kind, version, of)
    assert seal["digest"] == "sha256:" + hashlib.sha256(sealed).hexdigest()
    return json.loads(content)


def read_array(folder: Path) -> np.ndarray:
    """All values of an array."""
    described = json.loads((folder / "zarr.json").read_text())
    (length,) = described["shape"]
    (shard_values,) = described["chunk_grid"]["configuration"]["chunk_shape"]
    sharding = described["codecs"][0]["configuration"]
    (chunk_values,) = sharding["chunk_shape"]
    compressed = any(codec["name"] == "zstd" for codec in sharding["codecs"])
    dtype = np.dtype(described["data_type"]).newbyteorder("<")
    values = np.zeros(-(-length // shard_values) * shard_values, dtype)
    chunks = shard_values // chunk_values
    for shard in range(-(-length // shard_values)):
        raw = (folder / "c" / str(shard)).read_bytes()
        index = np.frombuffer(raw[-16 * chunks - 4 : -4], "<u8").reshape(chunks, 2)
        for number, (start, size) in enumerate(index.tolist()):
            if size == 2**64 - 1:
                continue
            stored = raw[start : start + size - 4]  # without its CRC-32C
            if compressed:
                stored = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
            first = shard * shard_values + number * chunk_values
            values[first : first + chunk_values] = np.frombuffer(stored, dtype)
    return values[:length]


def read_member(folder: Path) -> tuple[str, list[np.ndarray]]:
    """The fingerprint of an ordinary cache, and the tokens of its documents."""
    raw = (folder / "ledger.json").read_bytes()
    ledger = json.loads(raw)
    assert (ledger["format_version"], ledger["finished"]) == (1, True)
    blank = raw.replace(ledger["digest"].encode(), b"", 1)
    assert ledger["digest"] == "sha256:" + hashlib.sha256(blank).hexdigest()
    documents = []
    lines = []
    for part in ledger["parts"]:
        leaves = sorted(part["leaves"].items())
        lines.append(part["digest"] + "".join(f" {name}={leaf['digest']}" for name, leaf in leaves))
        tokens = read_array(folder / "parts" / part["name"] / "input_ids" / "data")
        offsets = read_array(folder / "parts" / part["name"] / "input_ids" / "offsets")
        documents += [tokens[a:b] for a, b in itertools.pairwise(offsets)]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest(), documents


def read_snapshot(folder: Path, snapshot: int) -> dict[int, np.ndarray]:
    """The documents of a snapshot that are not removed, by number."""
    fingerprint, documents = read_member(folder)
    removed: set[int] = set()
    appended = 0
    if snapshot > 1:
        content = read_record(folder / "snapshots.json", "snapshots", 1, fingerprint)
        for change in content["changes"][: snapshot - 1]:
            for first, end in change["removed"]:
                removed |= set(range(first, end))
            if change["appended"] is not None:
                appended += 1
                found, more = read_member(folder / "appended" / str(appended))
                assert (found, len(more)) == (
                    change["appended"]["fingerprint"],
                    change["appended"]["documents"],
                )
                documents += more
    return {n: document for n, document in enumerate(documents) if n not in removed}


# The test.


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_reader_from_the_page_reads_every_token_of_every_snapshot(
    tmp_path: Path, compression: Compression
):
    documents = random_documents(90, vocab_size=60_000, seed=3)
    layout = CacheLayout("uint16", 64, 4, compression)
    write_cache(
        tmp_path / "c", [documents[:50], [], documents[50:]], vocab_size=60_000, layout=layout
    )
    built = open_cache(tmp_path / "c").as_member
    for number in (1, 2):
        more = random_documents(20, vocab_size=60_000, seed=number)
        folder = member_path(str(tmp_path / "c"), number)
        appended = write_cache(folder, [more], vocab_size=60_000, layout=layout)
        add_appended(str(tmp_path / "c"), built, number, appended.as_member)
        if number == 1:
            remove(tmp_path / "c", 3, 95)
    for snapshot in (1, 2, 3, 4):
        cache = open_cache(tmp_path / "c", snapshot)
        expected = {n: cache.document(n) for n in range(cache.num_documents)}
        for number in cache.removed().numbers(np.arange(cache.removed().total)).tolist():
            del expected[number]
        read = read_snapshot(tmp_path / "c", snapshot)
        assert read.keys() == expected.keys()
        assert all(np.array_equal(read[n], expected[n]) for n in read)
    assert [len(read_snapshot(tmp_path / "c", n)) for n in (1, 2, 3, 4)] == [90, 110, 108, 128]


def test_checksums_of_levanters_caches_are_what_the_page_says(tmp_path: Path):
    documents = random_documents(4000, vocab_size=60_000, max_tokens=300, seed=4)
    cache = write_cache(
        tmp_path / "c", [documents], vocab_size=60_000, layout=CacheLayout("uint16")
    )
    write_levanter(cache, str(tmp_path / "l"))
    recorded = Path(verify(str(tmp_path / "l"), record=True).recorded)
    assert recorded == tmp_path / "l" / "headrace_checksums.json"
    fingerprint = open_cache(tmp_path / "l").fingerprint
    content = read_record(recorded, "levanter_checksums", 1, fingerprint)
    ends = np.cumsum([0, *map(len, documents)])
    values = {"input_ids/data": np.concatenate(documents), "input_ids/offsets": ends}
    assert content.keys() == values.keys()
    chunks: list[np.ndarray] = []
    for name, array in values.items():
        entry = content[name]
        stored = array.astype(np.dtype(entry["dtype"]).newbyteorder("<"))
        chunks = [stored[at : at + entry["chunk"]] for at in range(0, array.size, entry["chunk"])]
        sums = np.frombuffer(base64.b64decode(entry["crc32c"]), "<u4")
        assert entry["length"] == array.size
        assert sums.tolist() == [google_crc32c.value(chunk.tobytes()) for chunk in chunks]
    assert len(chunks) == 1 < np.ceil(ends[-1] / content["input_ids/data"]["chunk"])
