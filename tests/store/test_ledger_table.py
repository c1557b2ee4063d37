"""``ledger.bin``: written, stale and hostile, and what opening from it costs in
requests and calls.
"""

import hashlib
import json
import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from headrace.errors import CacheCorruptError
from headrace.store import CacheLayout, TokenCache, open_cache
from headrace.store.ledger_table import ColumnTable, encode_table, read_table
from headrace.store.retry import wire
from headrace.testing import FaultProxy, tiny_cache, web_server, write_cache
from headrace.testing.caches import random_documents

LAYOUT = CacheLayout("uint8", 64, 4)


@pytest.fixture
def cache(tmp_path):
    return write_cache(
        tmp_path / "c", [random_documents(9, seed=k) for k in range(12)], layout=LAYOUT
    )


def resigned(raw, change):
    """The file with another head, and a digest that fits."""
    end = 48 + int.from_bytes(raw[8:16], "little")
    head = json.loads(raw[48:end])
    change(head)
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    pad = bytes(-(48 + len(text)) % 64)
    signed = raw[:8] + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return signed + pad + raw[-(-end // 64) * 64 :]


def column(head, name):
    return next(column for column in head["columns"] if column["name"] == name)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.update(parts=2**70),
        lambda head: head.update(parts=-1),
        lambda head: head.update(parts=2**27),
        lambda head: head.update(parts=13),
        lambda head: head.update(opened=9),
        lambda head: head.update(format_version=3),
        lambda head: head.update(columns=[]),
        lambda head: head.update(cache={}),
        lambda head: head.update(cache={"leaves": [{"name": 1}]}),
        lambda head: head.update(cache=None),
        lambda head: head["cache"].update(layout=None),
        lambda head: head["cache"].update(tokenizer={"vocab_size": -1}),
        lambda head: head["cache"].update(layout={"dtype": "uint8", "chunk_elements": 2**40}),
        lambda head: column(head, "tokens").update(dtype="S100"),
        lambda head: column(head, "tokens").update(dtype="O8"),
        lambda head: column(head, "tokens").update(dtype="u8"),
        lambda head: column(head, "name").update(dtype="u4"),
        lambda head: column(head, "name").update(dtype="S999"),
    ],
)
def test_a_hostile_head_is_refused(cache, change):
    table = Path(cache.path, "ledger.bin")
    table.write_bytes(resigned(table.read_bytes(), change))
    with pytest.raises(CacheCorruptError):
        open_cache(cache.path)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("name", np.array([b"../a", b"b"]), "no folder's name"),
        ("name", np.array([b".a", b"b"]), "no folder's name"),
        ("name", np.array([b"a/b", b"b"]), "no folder's name"),
        ("name", np.array([b"a\0b", b"b"]), "no folder's name"),
        ("name", np.array([b"", b"b"]), "no folder's name"),
        ("name", np.array([b"b", b"b"]), "names a part twice"),
        ("tokens", np.array([2**63, 1], np.uint64), "tokens out of range"),
        ("documents", np.array([2**57, 1], np.uint64), "documents out of range"),
    ],
)
def test_hostile_columns_are_refused(name, values, problem):
    columns = {
        "name": np.array([b"a", b"b"]),
        "documents": np.array([1, 2], np.uint8),
        "tokens": np.array([3, 4], np.uint8),
        "digest": np.frombuffer(bytes(range(64)), "V32"),
    }
    raw = encode_table(columns | {name: values}, {"leaves": []}, "", "")
    with pytest.raises(CacheCorruptError, match=problem):
        ColumnTable("/c/ledger.bin", raw)
    assert len(ColumnTable("/c/ledger.bin", encode_table(columns, {"leaves": []}, "", ""))) == 2


def test_opening_costs_the_same_requests_whatever_the_parts(tmp_path):
    for parts in (1, 40):
        write_cache(
            tmp_path / str(parts),
            [random_documents(3, seed=k) for k in range(parts)],
            layout=LAYOUT,
        )
    with web_server(tmp_path) as url, FaultProxy(url) as proxy:
        for parts in (1, 40):
            proxy.clear()
            before = wire()
            cache = TokenCache.open_member(f"{proxy.url}/{parts}")
            assert [entry.path.rsplit("/", 1)[-1] for entry in proxy.log] == [
                "ledger.json",
                "ledger.bin",
                "zarr.json",
            ]
            assert (wire() - before).requests == len(proxy.log) == cache.opening_requests(64)
            chunk = LAYOUT.chunk_elements
            for part in (*range(parts), *range(parts)):
                tokens = (
                    cache.parts[part]
                    .data.read(0, min(chunk, int(cache.part_tokens[part])))
                    .result()
                )
                assert tokens.size
            assert len(proxy.log) == 3 + 2 * parts  # one a chunk and read


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_chunks_that_lie_elsewhere_are_found_by_the_index(tmp_path, compression):
    """No release writes such a file; a ledger that promised wrongly costs requests, and no wrong
    token.
    """
    layout = CacheLayout("uint8", 64, 4, compression)
    cache = write_cache(tmp_path / "c", [random_documents(40, seed=1)], layout=layout)
    right = cache.tokens(0, cache.num_tokens)
    file = Path(cache.path, "parts/00000/input_ids/data/c/0")
    raw = file.read_bytes()
    index = np.frombuffer(raw[-68:-4], "<u8").reshape(4, 2).copy()
    index[index[:, 0] != 2**64 - 1, 0] += 5
    file.write_bytes(
        b"12345"
        + raw[:-68]
        + index.tobytes()
        + google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    )
    with web_server(tmp_path) as url, FaultProxy(url) as proxy:
        remote = open_cache(f"{proxy.url}/c")
        assert np.array_equal(remote.tokens(0, 64), right[:64])
        assert np.array_equal(remote.tokens(0, remote.num_tokens), right)


def test_both_ledgers_of_another_cache_are_refused_where_arrays_say_nothing(tmp_path):
    for k, name in enumerate("ab"):
        write_cache(tmp_path / name, [random_documents(9, seed=k)], layout=LAYOUT)
    for file in ("ledger.json", "ledger.bin"):
        shutil.copyfile(tmp_path / "b" / file, tmp_path / "a" / file)
    with (
        web_server(tmp_path) as url,
        pytest.raises(CacheCorruptError, match=r"ledger\.bin are of another cache"),
    ):
        open_cache(f"{url}/a")


def test_there_is_none(tmp_path):
    assert read_table(f"{tmp_path}/ledger.bin") is None
    assert tiny_cache().ledger.format_version == 2
