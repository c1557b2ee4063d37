"""What the first look costs at a store: one request for a file, few for a table, and none for the
rest of it.
"""

import gzip
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.errors import SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.first_look import HEAD_BYTES, TABLE_BYTES, faults_of_sources
from headrace.store import files

BYTES = TokenizerConfig("bytes")
LINE = json.dumps({"text": "some words"}).encode() + b"\n"


def put(root: str, contents: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(
            lambda name: files.write_atomic(files.join(root, name), contents[name]), contents
        ):
            pass


def reads(remote: Any) -> int:
    """Requests for the content of a file: listings of GCS and S3 do not name one in their path."""
    return sum(
        request.method in ("GET", "HEAD") and ".jsonl" in request.path.partition("?")[0]
        for request in remote.proxy.log
    )


def test_a_thousand_files_cost_a_thousand_requests(remote: Any):
    count = 1000 if remote.root.startswith("gs") else 100  # moto is slow
    bad = {f"{k:04}.jsonl" for k in (3, 50, count - 1)}
    names = [f"{k:04}.jsonl" for k in range(count)]
    put(remote.root, {name: b"no json\n" * 2 if name in bad else LINE * 9 for name in names})
    source = SourceConfig([remote.root])
    remote.proxy.clear()
    ((*faults,),) = faults_of_sources([(source, BYTES)])
    assert {str(fault.field).rpartition("/")[2] for fault in faults} == bad
    assert reads(remote) == count
    with pytest.raises(SourceError, match="3 files cannot be built from"):
        build_cache(source, BYTES, files.join(remote.root, "cache"), progress=False)
    assert not files.exists(files.join(remote.root, "cache", "ledger.json"))


def test_of_large_files_little_is_read(remote: Any, monkeypatch: pytest.MonkeyPatch):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    chance = random.Random(0)
    texts = [chance.randbytes(400).hex() for _ in range(10_000)]
    packed = gzip.compress(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts), 1)
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"text": texts, "other": texts}), sink)
    contents = {
        "a.jsonl": LINE * 200_000,
        "b.jsonl.gz": packed,
        "c.parquet": sink.getvalue().to_pybytes(),
        "d.txt": b"x" * (4 << 20),
    }
    put(remote.root, contents)
    read: list[int] = []
    read_range: Callable[..., bytes] = files.read_range

    def counted(path: str, start: int, stop: int) -> bytes:
        read.append(stop - start)
        return read_range(path, start, stop)

    monkeypatch.setattr(files, "read_range", counted)
    remote.proxy.clear()
    assert faults_of_sources([(SourceConfig([remote.root]), BYTES)]) == [[]]
    assert len(read) <= 3 + 4
    assert sum(read) < 3 * HEAD_BYTES + TABLE_BYTES


def test_a_table_without_the_column_costs_one_request(remote: Any):
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    pytest.importorskip("pyarrow.parquet").write_table(
        arrow.table({"body": [random.Random(0).randbytes(300).hex()] * 9000}), sink
    )
    content = sink.getvalue().to_pybytes()
    put(remote.root, {f"{k}.jsonl.parquet": content for k in range(3)})
    remote.proxy.clear()
    (faults,) = faults_of_sources([(SourceConfig([remote.root]), BYTES)])
    assert len(faults) == 3
    assert reads(remote) == 3
