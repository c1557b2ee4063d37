"""Ten trillion tokens: what opening costs, and how many requests a block takes, whatever the number
of parts and hosts.

    python scripts/bench/bench_scale.py --check --json docs/bench/scale.json

The ledgers are real files of so many parts; the arrays behind them are forged by a web server of
the bench's own, which counts every request. Table 1: ``open_cache`` of a local cache in a
process of its own: CPU, and the growth of the largest memory. Table 2: 200 caches of 100,000 parts
each in one run, from opening to the first batch of 1,024 rows.

Table 3: 64 and 1,024 hosts that read a braid over one cache of 100,000 parts, one after the other
in this process, each with a cache, arrays and a reader of its own; the plan that all hosts make
alike is made once. The ledger is opened as hosts of a job open it, one for all, through a key-value
store in memory in place of JAX's. All requests are counted at the server: those to open the cache,
and all over the blocks that were read. ``forecast`` is what ``headrace.analysis.simulate`` says
beforehand of all requests.

Tables 4 and 5: pack plans, see :mod:`_scaling_plans`. Table 6: filters, see
:mod:`_scaling_filters`. Table 7: builds of small corpora, see :mod:`_scaling_builds`. ``--quick``
has 16 and 64 hosts and fewer steps, makes plans of 4e6 documents and opens some of 1e7; its filters
are of 1e7, and it builds 1e4 small files alone. ``--only`` leaves the other tables out.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import _scaling_builds
import _scaling_filters
import _scaling_plans
import google_crc32c
import jax
import numpy as np
from _common import Report, run_bench
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, MixtureDataset, TokenSeqDataset
from headrace.analysis import simulate
from headrace.analysis.simulate.forecast import RunSteps
from headrace.data.async_dataset import AsyncDataset
from headrace.data.dataset import BatchOrder
from headrace.feed.host_ledgers import SharedLedgers
from headrace.feed.placement import Placement
from headrace.feed.plan import RunRows
from headrace.feed.reader import PlannedReader
from headrace.metrics import IterationStats
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout, attributes_of
from headrace.store.ledger import LEDGER_NAME, Ledger, encode_ledger, readers_need
from headrace.store.ledger_table import TABLE_NAME, encode_table, narrow

SEQ_LEN = 16
CHUNK_ROWS = 8
CHUNKS = 4
LAYOUT = CacheLayout("uint16", SEQ_LEN * CHUNK_ROWS, 256)
PARTS = 100_000
BATCH = 1024
CACHES = 200
NAME = "cache"


def forge(parts: int) -> tuple[bytes, bytes, np.ndarray]:
    """``ledger.json``, ``ledger.bin`` and the digests of a cache of so many parts, which only the
    second lists.
    """
    digests = np.frombuffer(np.random.default_rng(0).bytes(32 * parts), "V32")
    tokens = np.full(parts, CHUNKS * LAYOUT.chunk_elements)
    tokens[::7] -= SEQ_LEN  # chunks that end early
    tokenizer = {
        "path": "forged",
        "file": None,
        "fingerprint": "forged",
        "vocab_size": 50_000,
        "eos_id": 0,
    }
    filler = {
        "": "x" * (1 << 17)
    }  # so that it is not read at once, as it is not where it lists the parts
    raw, name = encode_ledger(Ledger(True, tokenizer, LAYOUT.to_dict(), metadata=filler))
    columns = {
        "name": np.array([f"{k:06d}".encode() for k in range(parts)]),
        "documents": narrow(np.full(parts, 3)),
        "tokens": narrow(tokens),
        "digest": digests,
    }
    head = readers_need(Ledger(True, tokenizer, LAYOUT.to_dict()))
    return raw, encode_table(columns, head, name, "sha256:" + "0" * 64), digests


class Forger(asyncio.Protocol):
    """Answers for any number of caches that are all alike; counts requests by kind."""

    counts: ClassVar[Counter[str]] = Counter()
    small: ClassVar[dict[str, bytes]] = {}  # ledger.json and ledger.bin
    chunk: ClassVar[bytes] = b""
    digests: ClassVar[np.ndarray] = np.zeros(0, "V32")

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._heard = b""

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while b"\r\n\r\n" in self._heard:
            head, self._heard = self._heard.split(b"\r\n\r\n", 1)
            self._transport.write(self._answer(head.decode()))

    def _answer(self, head: str) -> bytes:
        path = head.split(" ", 2)[1].split("?")[0]
        if path.startswith("/count"):
            said = json.dumps(self.counts)
            self.counts.clear()
            return self._ok(said.encode(), None)
        body = self._body(path)
        if body is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        return self._ok(body, re.search(r"(?i)^range: bytes=(\d*)-(\d*)", head, re.MULTILINE))

    def _ok(self, body: bytes, span: re.Match[str] | None) -> bytes:
        if span is None:
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        first = int(span[1]) if span[1] else len(body) - int(span[2])
        last = min(int(span[2]), len(body) - 1) if span[1] and span[2] else len(body) - 1
        head = (
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %d-%d/%d\r\nContent-Length:"
            b" %d\r\n\r\n"
        )
        return head % (first, last, len(body), last + 1 - first) + body[first : last + 1]

    def _body(self, path: str) -> bytes | None:
        rest = path.strip("/").partition("/")[2]
        self.counts[
            "chunks" if "/c/" in rest else "zarr.json" if rest.endswith("zarr.json") else "ledgers"
        ] += 1
        if "/c/" in rest:
            return self._shard()
        return (
            self._description(int(rest.split("/")[1]))
            if rest.endswith("zarr.json")
            else self.small.get(rest)
        )

    @classmethod
    @functools.cache
    def _shard(cls) -> bytes:
        index = np.full((LAYOUT.shard_chunks, 2), (1 << 64) - 1, "<u8")
        index[:CHUNKS, 0] = np.arange(CHUNKS) * len(cls.chunk)
        index[:CHUNKS, 1] = len(cls.chunk)
        return (
            cls.chunk * CHUNKS
            + index.tobytes()
            + google_crc32c.value(index.tobytes()).to_bytes(4, "little")
        )

    def _description(self, part: int) -> bytes:
        metadata = LAYOUT.zarr_metadata(
            CHUNKS * LAYOUT.chunk_elements - (SEQ_LEN if part % 7 == 0 else 0)
        )
        metadata["attributes"] = attributes_of(
            metadata, f"sha256:{bytes(self.digests[part]).hex()} data"
        )
        return json.dumps(metadata).encode()


def serve(parts: int, said: Any) -> None:
    """Runs the server; ``said`` gets its port."""
    raw, table, Forger.digests = forge(parts)
    Forger.small = {LEDGER_NAME: raw, TABLE_NAME: table}
    tokens = np.arange(LAYOUT.chunk_elements, dtype="<u2").tobytes()
    Forger.chunk = tokens + google_crc32c.value(tokens).to_bytes(4, "little")

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Forger, "127.0.0.1", 0)
        said.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server(parts: int) -> Iterator[str]:
    """The address of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(parts, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def counts(url: str) -> Counter[str]:
    """What the server counted since it was last asked."""
    with urllib.request.urlopen(f"{url}/count") as answer:
        return Counter(json.loads(answer.read()))


def used(*, reset: bool = False) -> tuple[float, float]:
    """CPU seconds of this process so far, and the most MiB that it had since this was ``reset``."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (most,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return time.process_time(), int(most) / 1024


def apart(job: str, *arguments: Any) -> list[float]:
    """What a function of this module says in a process of its own."""
    command = [sys.executable, __file__, "--job", job, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def job_open(path: str) -> list[float]:
    """CPU seconds and MiB that it takes to open a cache."""
    TokenCache.open_member(f"{path}-small")  # what is imported and worked out once
    before = used(reset=True)
    cache = TokenCache.open_member(path)
    assert cache.num_tokens > len(cache.parts) * SEQ_LEN
    return [after - first for after, first in zip(used(), before, strict=True)]


def job_first_batch(url: str, number: str) -> list[float]:
    """CPU seconds from opening so many caches to the first batch of their mixture, likewise MiB,
    and requests.
    """
    TokenCache.open_member(f"{url}/warm")
    jax.devices()
    counts(url)
    before = used(reset=True)
    caches = {f"c{k}": TokenCache.open_member(f"{url}/c{k}") for k in range(int(number))}
    sources = {
        name: TokenSeqDataset(cache, SEQ_LEN).braid_shuffle(seed=0, strands=32, batch_size=None)
        for name, cache in caches.items()
    }
    loader = DataLoader(
        MixtureDataset(sources, dict.fromkeys(sources, 1.0), BATCH), prefetch_bytes=1 << 28
    )
    assert loader.batch_at(0).tokens.shape == (BATCH, SEQ_LEN)
    return [
        *(after - first for after, first in zip(used(), before, strict=True)),
        sum(counts(url).values()),
    ]


class KeyValueStore:
    """The calls of JAX's client of its coordination service that share ledgers, in memory."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def key_value_set(self, key: str, value: Any) -> None:
        if key in self._values:
            raise RuntimeError("ALREADY_EXISTS")
        self._values[key] = value

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> Any:
        return self._values[key]

    key_value_set_bytes = key_value_set
    blocking_key_value_get_bytes = blocking_key_value_get


class HostPlacement(Placement):
    """One device in place of all those of host ``number`` of ``hosts``."""

    def __init__(self, number: int, hosts: int) -> None:
        super().__init__(
            NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
        )
        self.number = number
        self.hosts = hosts

    def local_rows(self, batch_size: int) -> np.ndarray:
        return np.arange(
            self.number * batch_size // self.hosts, (self.number + 1) * batch_size // self.hosts
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """What hosts read: so many steps of a braid of so many strands."""

    steps: int
    strands: int

    def dataset(self, cache: TokenCache) -> AsyncDataset[Any]:
        return TokenSeqDataset(cache, SEQ_LEN).braid_shuffle(
            seed=1, strands=self.strands, batch_size=BATCH
        )


def read_steps(root: str, hosts: int, run: Run) -> int:
    """All hosts read a cache; the block fetches, by their own count."""
    shared = SharedLedgers(KeyValueStore())
    fetches = 0
    real = RunRows.of_steps
    planned: dict[tuple[int, int], Any] = {}

    def once(rows: RunRows, first: int, count: int) -> Any:
        if (first, count) not in planned:
            planned[first, count] = real(rows, first, count)
        dataset: Any = rows.dataset
        return planned[first, count]._replace(dataset=dataset, space=dataset.block_space)

    with mock.patch.object(RunRows, "of_steps", once):
        for number in range(hosts):
            order = BatchOrder(run.dataset(TokenCache.open_member(root, once=shared)), BATCH)
            stats = IterationStats()
            reader = PlannedReader(order, HostPlacement(number, hosts), 1 << 26, stats)
            for _ in reader.batches(0, run.steps):
                pass
            reader.close()
            fetches += stats.reads.block_fetches
    return fetches


def hosts_row(report: Report, root: str, hosts: int, run: Run) -> list[Any]:
    """A row of the third table."""
    url = root.rsplit("/", 1)[0]
    order = BatchOrder(run.dataset(TokenCache.open_member(root)), BATCH)
    planned = order.planned
    assert planned is not None
    forecast = simulate(
        planned,
        order.schedule,
        hosts=[hosts],
        steps=RunSteps(0, run.steps, 1 << 30),
        cache_bytes=1 << 26,
    )
    (of_hosts,) = forecast.by_hosts
    blocks = round(of_hosts.block_fetches / of_hosts.reads_per_block)
    counts(url)
    spent = time.process_time()
    fetches = read_steps(root, hosts, run)
    spent = time.process_time() - spent
    counted = counts(url)
    requests = sum(counted.values())
    opening = counted["ledgers"] + counted["zarr.json"]
    title = f"{hosts:,} hosts"
    report.bar(f"{title}: requests per block", requests / blocks, at_most=1.05)
    report.bar(f"{title}: requests to open the cache", opening, at_most=8)
    report.bar(f"{title}: requests over forecast", requests / of_hosts.requests, within=(1.0, 0.02))
    row = [
        hosts,
        run.steps,
        blocks,
        fetches,
        opening,
        requests,
        requests / blocks,
        of_hosts.requests,
    ]
    return [*row, 1e3 * spent / requests]


def measure(args: argparse.Namespace, report: Report) -> None:
    if args.only in (None, "parts"):
        measure_parts(args, report)
    if args.only in (None, "plans"):
        _scaling_plans.measure_plans(args, apart, report)
    if args.only in (None, "filters"):
        _scaling_filters.measure_filters(args, apart, report)
    if args.only in (None, "builds"):
        _scaling_builds.measure_builds(args, report)


def measure_parts(args: argparse.Namespace, report: Report) -> None:
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for parts, most_s, most_mib in ((100_000, 0.1, None), (1_000_000, 1.0, 150)):
            for name, size in (("cache", parts), ("cache-small", 10)):
                raw, table, _ = forge(size)
                root = Path(folder, str(parts), name)
                root.mkdir(parents=True)
                (root / LEDGER_NAME).write_bytes(raw)
                (root / TABLE_NAME).write_bytes(table)
            seconds, mib = apart("open", f"{folder}/{parts}/cache")
            report.bar(f"{parts:,} parts: CPU s to open", seconds, at_most=most_s)
            if most_mib is not None:
                report.bar(f"{parts:,} parts: MiB to open", mib, at_most=most_mib)
            rows.append(
                [
                    parts,
                    seconds,
                    mib,
                    (Path(folder, str(parts), "cache") / TABLE_NAME).stat().st_size / 2**20,
                ]
            )
    report.table("Opening a local cache", ["parts", "CPU s", "MiB", "MiB of ledger.bin"], rows)
    with server(PARTS) as url:
        seconds, mib, requests = apart("first_batch", url, CACHES)
        report.bar(
            f"{CACHES} caches of {PARTS:,} parts: CPU s to the first batch", seconds, at_most=10
        )
        columns = ["caches", "parts of each", "CPU s to the first batch", "MiB", "requests"]
        report.table(
            "Many caches in one run", columns, [[CACHES, PARTS, seconds, mib, int(requests)]]
        )
        run, hosts = (Run(16, BATCH), (16, 64)) if args.quick else (Run(64, 8 * BATCH), (64, 1024))
        rows = [hosts_row(report, f"{url}/{NAME}", number, run) for number in hosts]
    columns = [
        "hosts",
        "steps",
        "blocks",
        "block fetches",
        "to open",
        "requests",
        "per block",
        "forecast",
    ]
    columns.append("CPU ms each")
    report.table(f"Hosts on {PARTS:,} parts over HTTP", columns, rows)


JOBS = {"open": job_open, "first_batch": job_first_batch}
JOBS |= _scaling_plans.JOBS | _scaling_filters.JOBS | _scaling_builds.JOBS


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", choices=["parts", "plans", "filters", "builds"], help="measure these tables alone"
    )
    parser.add_argument(
        "--folder",
        help="where plans of 1e9 documents are forged: 36 GB; the system's own by default",
    )
    parser.add_argument(
        "--planned",
        type=int,
        nargs="+",
        default=[100_000_000, 300_000_000],
        help="documents that are planned",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(JOBS[sys.argv[2]](*sys.argv[3:])))
    else:
        run_bench("bench_scale", __doc__, measure, add_arguments=flags)
