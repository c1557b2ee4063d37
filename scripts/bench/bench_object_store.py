"""Several hosts on one mixture in an object store that is far away: requests, waiting, and the
first batch.

    python scripts/bench/bench_object_store.py --json docs/bench/object_store.json

A GCS server (fake-gcs-server) and an S3 server (moto) on this machine, each behind a proxy that
answers ``--latency`` milliseconds late and logs every request. Three components, each read once,
braided; one ``DataLoader`` a host, all in this process but with caches of their own, as on machines
of their own: each asks for the rows of its part of each batch and pays for its own shard indices.
Every host takes a batch, works for 100 ms, and takes the next.

Table 1: what went over the wire in the whole run, by the proxy's log. ``GETs a block`` is requests
for data over stored blocks, 1 is the least; ``with indices`` counts shard indices and metadata too,
which in a run of this size weigh more than in a real one (one a shard and host). ``forecast`` is
what ``headrace.analysis.simulate`` says beforehand. ``waiting`` is of the host that waited most,
once every strand of the braids has begun its first block (20 batches), and next to it from the
second batch on; ``first batch`` from opening the caches to the first batch, metadata and indices
included.

``first batch`` is also shown to wait for nothing but its own blocks: a host starts once more, and
every request for data beyond those blocks hangs.

Table 2: one host that does nothing but read, every request 50 ms away (``bench_peers.py --latency
50`` has the others). The rate is that of the proxy, which is written in Python and runs in this
process; moto, in Python too, is slower still, at any distance.

Table 3: what a chunk of 65,536 uint16 tokens costs when the GCS server is no distance away and 16
are asked for at a time: headrace's reader, TensorStore's own array, and TensorStore's request
alone, in turn, in a process of their own.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import jax
import numpy as np
import tensorstore as ts
from _common import Report, run_bench
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace import DataLoader, MixtureDataset, TokenSeqDataset, open_cache
from headrace.analysis import simulate
from headrace.errors import ReadError
from headrace.feed import loader as loader_module
from headrace.feed.placement import Placement
from headrace.store.files import kvstore_spec
from headrace.store.http_messages import Head
from headrace.store.layout import CacheLayout
from headrace.store.retry import RetryPolicy, use_policy
from headrace.testing import FaultProxy, Faults, gcs_server, s3_server, write_cache
from headrace.testing.faults import Fate, LoggedRequest
from headrace.testing.servers import use_gcs, use_s3

HOSTS = 8
BATCH = 128
SEQ_LEN = 1024
BLOCK_ROWS = 16
SHARD_BLOCKS = 256
LAYOUT = CacheLayout("uint16", BLOCK_ROWS * SEQ_LEN, SHARD_BLOCKS)
WEIGHTS = {"web": 5, "code": 2, "books": 1}
STRANDS = 4 * BATCH
PREFETCH_BYTES = 64 << 20
WORK_S = 0.1
FAR_S = 0.05
WARM_STEPS = 20  # every strand of the braids has begun a block by then
GETS_A_BLOCK = 1.1
OFF_FORECAST = 0.02
WAITING = 0.02


class Gate(FaultProxy):
    """A proxy that lets only so many requests for data through; the others hang.

    Attributes:
        left: Requests for data that may still pass; None: all.
    """

    left: int | None = None

    def decide(self, head: Head) -> tuple[LoggedRequest, int]:
        entry, status = super().decide(head)
        if self.left is not None and kind_of(entry) == "data":
            self.left -= 1
            if self.left < 0:
                hang: Fate = "hang"
                entry.fate = hang
        return entry, status


def kind_of(entry: LoggedRequest) -> str:
    """Whether a request is for data, for a shard's index (its last bytes) or for something else."""
    if entry.method != "GET" or "/data/c/" not in unquote(entry.path):
        return "other"
    return "index" if entry.range.startswith("bytes=-") else "data"


class HostPlacement(Placement):
    """One device in place of all those of host ``number`` of ``hosts``."""

    def __init__(self, sharding: NamedSharding, number: int, hosts: int) -> None:
        super().__init__(sharding)
        self.number = number
        self.hosts = hosts

    def local_rows(self, batch_size: int) -> np.ndarray:
        return np.arange(
            self.number * batch_size // self.hosts, (self.number + 1) * batch_size // self.hosts
        )

    def transfer(self, local: Any, batch_size: int, **_: Any) -> Any:
        return jax.device_put


_patching = threading.Lock()


def loader_of(root: str, steps: int, number: int = 0, hosts: int = 1) -> DataLoader:
    """The loader of one host, which opens everything anew."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    placement = partial(HostPlacement, number=number, hosts=hosts)
    dataset = mixture(root, steps)
    with _patching, mock.patch.object(loader_module, "Placement", placement):
        return DataLoader(dataset, sharding=sharding, prefetch_bytes=PREFETCH_BYTES)


def mixture(root: str, steps: int) -> MixtureDataset:
    """The components in a store, braided, each used up by the last step."""
    total = sum(WEIGHTS.values())
    parts = {
        name: TokenSeqDataset(open_cache(f"{root}/{name}"), SEQ_LEN, name=name).braid_shuffle(
            seed=k, strands=STRANDS * weight // total
        )
        for k, (name, weight) in enumerate(WEIGHTS.items())
    }
    return MixtureDataset(parts, WEIGHTS, BATCH, num_steps=steps)


def write(root: str, steps: int) -> int:
    """Writes the components; the number of stored blocks."""
    random = np.random.default_rng(0)
    blocks = 0
    for name, weight in WEIGHTS.items():
        rows = steps * BATCH * weight // sum(WEIGHTS.values())
        tokens = random.integers(0, 50_000, rows * SEQ_LEN).astype(np.uint16)
        write_cache(f"{root}/{name}", [[tokens]], vocab_size=1 << 16, layout=LAYOUT)
        blocks += -(-rows // BLOCK_ROWS)
    return blocks


class HostRun(threading.Thread):
    """A host that takes a batch, works for a while, and takes the next."""

    def __init__(self, root: str, steps: int, number: int, hosts: int, work_s: float) -> None:
        super().__init__(name=f"host-{number}", daemon=True)
        self.job = root, steps, number, hosts
        self.work_s = work_s
        self.waits: list[float] = []  # of each batch; the first from before the loader was made
        self.error: BaseException | None = None

    def waiting(self, first_step: int) -> float:
        """Share of the time from ``first_step`` on."""
        waited = sum(self.waits[first_step:])
        return waited / (waited + self.work_s * len(self.waits[first_step:]))

    def run(self) -> None:
        try:
            began = time.perf_counter()
            loader = loader_of(*self.job)
            with loader.iter_from_step(0) as batches:
                asked = began
                for batch in batches:
                    jax.block_until_ready(batch.tokens)
                    self.waits.append(time.perf_counter() - asked)
                    time.sleep(self.work_s)
                    asked = time.perf_counter()
        except BaseException as error:  # noqa: BLE001  # whoever joins it gets it
            self.error = error


def run_hosts(root: str, steps: int, hosts: int, work_s: float) -> list[HostRun]:
    """Runs all hosts side by side."""
    runs = [HostRun(root, steps, number, hosts, work_s) for number in range(hosts)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        if run.error is not None:
            raise run.error
    return runs


def many_hosts(
    report: Report, title: str, root: str, proxy: Gate, steps: int, late_s: float
) -> list[Any]:
    """A row of the first table."""
    blocks = write(root, steps)
    planned = mixture(root, steps)
    (forecast,) = simulate(
        planned, planned.batch_schedule, hosts=[HOSTS], cache_bytes=PREFETCH_BYTES
    ).by_hosts
    proxy.clear()
    proxy.faults = Faults(latency_s=late_s)
    runs = run_hosts(root, steps, HOSTS, WORK_S)
    log = [kind_of(r) for r in proxy.log]
    proxy.faults = Faults()
    data = log.count("data")
    gets = sum(r.method == "GET" for r in proxy.log)
    steady, whole = (max(run.waiting(step) for run in runs) for step in (WARM_STEPS, 1))
    first = [run.waits[0] for run in runs]
    if any(len(run.waits) != steps for run in runs):
        raise RuntimeError(f"not all hosts took {steps} batches")
    report.bar(f"{title}: GETs for data a block", data / blocks, at_most=GETS_A_BLOCK)
    report.bar(
        f"{title}: GETs for data over forecast",
        data / forecast.block_fetches,
        within=(1.0, OFF_FORECAST),
    )
    if title.startswith("GCS"):  # moto, in Python, is slower than the latency that is asked for
        report.bar(f"{title}: share of time waiting, worst host", steady, at_most=WAITING)
    row = [title, steps, blocks, data, forecast.block_fetches, data / blocks, gets / blocks]
    return [*row, 100 * steady, 100 * whole, min(first), max(first)]


def first_batch_alone(report: Report, title: str, root: str, proxy: Gate, steps: int) -> list[Any]:
    """Whether the first batch comes if every request for data but those for its own
    blocks hangs.
    """
    proxy.clear()
    loader_of(root, steps, 0, HOSTS).batch_at(0)
    own = sum(kind_of(r) == "data" for r in proxy.log)
    came: list[int] = []
    for let_through in (own, own - 1):
        with passing(proxy, let_through), loader_of(root, steps, 0, HOSTS) as loader:
            batches = loader.iter_from_step(0)
            taking = threading.Thread(target=_take, args=(batches, came, let_through), daemon=True)
            taking.start()
            taking.join(5.0 if let_through == own else 1.0)
            loader.close()
            taking.join()
    least = min(came, default=0) / own if came else float("nan")
    report.bar(
        f"{title}: requests the first batch waits for, over its blocks", least, within=(1.0, 0.0)
    )
    return [title, own, min(came, default=None)]


def _take(batches: Iterator[Any], came: list[int], let_through: int) -> None:
    try:
        next(batches)
    except ReadError:
        return  # closed while it waited
    came.append(let_through)


@contextmanager
def passing(proxy: Gate, requests: int) -> Iterator[None]:
    """Lets so many requests for data pass while the block runs."""
    proxy.left = requests
    try:
        yield
    finally:
        proxy.left = None
        proxy.release()
        time.sleep(0.5)  # TensorStore asks again by itself
        proxy.clear()


def one_host(title: str, root: str, proxy: Gate, steps: int) -> list[Any]:
    """A row of the second table."""
    proxy.clear()
    proxy.faults = Faults(latency_s=FAR_S)
    began = time.perf_counter()
    (run,) = run_hosts(root, steps, 1, 0.0)
    seconds = time.perf_counter() - began
    requests = proxy.count("GET")
    proxy.faults = Faults()
    return [title, steps, steps * BATCH * SEQ_LEN / seconds / 1e6, requests / seconds, run.waits[0]]


@contextmanager
def store(kind: str) -> Iterator[tuple[str, Gate]]:
    """A bucket and the proxy in front of it."""
    server, use = {"GCS": (gcs_server, use_gcs), "S3": (s3_server, use_s3)}[kind]
    with server() as url:
        proxy = Gate(url)
        with proxy, use(proxy.url) as bucket:
            yield bucket, proxy


def chunk_costs(chunks: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall milliseconds a chunk, of each way to read."""
    layout = CacheLayout("uint16")
    size = layout.chunk_elements
    stored = 256
    at_once = 16
    tokens = np.random.default_rng(0).integers(0, 50_000, stored * size).astype(np.uint16)
    outs = [np.empty(size, np.uint16) for _ in range(at_once + 1)]
    with gcs_server() as server, use_gcs(server) as bucket:
        array = (
            write_cache(f"{bucket}/cost", [[tokens]], vocab_size=1 << 16, layout=layout)
            .parts[0]
            .data
        )
        kvstore: Any = ts.KvStore.open(kvstore_spec(array.url)).result()
        spec = {
            "driver": "zarr3",
            "kvstore": kvstore_spec(array.url),
            "recheck_cached_data": "open",
        }
        pool = ts.Context(
            {"cache_pool": {"total_bytes_limit": 1 << 20}}
        )  # holds the index, and no chunk
        own: Any = ts.open(spec, context=pool).result()
        ways: dict[str, Callable[[int], Any]] = {
            "headrace": lambda k: array.read_into(outs[k % len(outs)], k % stored * size),
            "TensorStore's array": lambda k: ts.array(outs[k % len(outs)], copy=False).write(
                own[k % stored * size : (k % stored + 1) * size]
            ),
            "TensorStore's request": lambda k: kvstore.read(
                "c/0",
                byte_range=slice(k % stored * (2 * size + 4), (k % stored + 1) * (2 * size + 4)),
            ),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, start in ways.items():
                spent = time.process_time()
                began = time.perf_counter()
                reads: deque[Any] = deque()
                for k in range(chunks):
                    if len(reads) == at_once:
                        reads.popleft().result()
                    reads.append(start(k))
                for read in reads:
                    read.result()
                seconds = time.process_time() - spent, time.perf_counter() - began
                found[name].append((1e3 * seconds[0] / chunks, 1e3 * seconds[1] / chunks))
        return found


def costs(report: Report, *, quick: bool) -> None:
    """The third table. TensorStore takes one address of GCS a process: another process asks the
    server itself.
    """
    chunks, repeats = (500, 3) if quick else (2000, 5)
    job = (
        f"import json, bench_object_store as b; print(json.dumps(b.chunk_costs({chunks},"
        f" {repeats})))"
    )
    command = [sys.executable, "-c", job]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    rows = [
        [name, *(statistics.median(column) for column in zip(*runs, strict=True))]
        for name, runs in found.items()
    ]
    report.table("A chunk of 65,536 tokens at no distance", ["reader", "CPU ms", "wall ms"], rows)


def measure(args: argparse.Namespace, report: Report) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # of moto: a line a request otherwise
    late_s = args.latency / 1e3
    # Forecasts have no hedges, and servers in Python are late whenever this machine is busy.
    use_policy(RetryPolicy(hedge_p95=None))
    many: list[list[Any]] = []
    alone: list[list[Any]] = []
    one: list[list[Any]] = []
    for kind, steps in (("GCS", 120 if args.quick else 400), ("S3", 40 if args.quick else 120)):
        with store(kind) as (bucket, proxy):
            root = f"{bucket}/bench"
            title = f"{kind}, {args.latency:g} ms"
            many.append(many_hosts(report, title, root, proxy, steps, late_s))
            one.append(one_host(f"{kind}, {FAR_S * 1e3:g} ms", root, proxy, steps))
            alone.append(first_batch_alone(report, kind, root, proxy, steps))
    columns = [
        "store",
        "batches",
        "blocks",
        "GETs for data",
        "forecast",
        "GETs a block",
        "with indices",
    ]
    columns += ["waiting %", "from batch 2 on", "first batch s", "slowest first s"]
    report.table(
        f"{HOSTS} hosts, batch {BATCH} x {SEQ_LEN}, {WORK_S * 1e3:g} ms of work a batch",
        columns,
        many,
    )
    report.table("First batch of a host", ["store", "its blocks", "came with so many"], alone)
    columns = ["store", "batches", "M tokens/s", "requests/s", "first batch s"]
    report.table("One host that only reads", columns, one)
    costs(report, quick=args.quick)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--latency", type=float, default=30.0, metavar="MS", help="of every request (30)"
    )


if __name__ == "__main__":
    run_bench("bench_object_store", __doc__, measure, add_arguments=add_arguments)
