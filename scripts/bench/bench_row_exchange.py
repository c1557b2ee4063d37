"""How often each stored block is read, and what a step costs, with hosts that exchange rows and
without.

    python scripts/bench/bench_row_exchange.py --check --json docs/bench/row_exchange.json

Forecast for 64, 256 and 1,024 hosts: 20 and 200 Zipf components in braids as a config plans them,
batch 1024, blocks of 32 rows, constant weights and shares that each grow or fall by half. Counted
on four processes on CPU devices, each on one device, with real files: reads, batches that differ
(none may), and the time of a step that does nothing but take a batch. Reads per block are those
from step 361 on. Before that the borders of hosts are drawn twice, for which open blocks are read
once more, once in a run: an epoch of 64 blocks a strand has so many reads more.

Counted at a web server: four processes that train 640 steps in four goes, each with loaders of its
own, as after a restart. Nothing is left in memory then, so blocks that are open at a restart are
read again by anybody; reads per block are those of the blocks that each go needs.

--quick looks at fewer steps and at two of the four mixtures.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from _common import Report, run_bench
from bench_packed_reads import Counted

from headrace import DataLoader, MixtureDataset, TokenSeqDataset
from headrace.analysis.check.sizes import virtual_cache
from headrace.analysis.simulate.replay import Windows
from headrace.order.shuffle_config import resolve_strands
from headrace.store.layout import CacheLayout
from headrace.testing import web_server

BLOCK = 32
BATCHES_OPEN = 8
BLOCKS_A_STRAND = 64
RECENT = 16
START = 361
RAMP = 8192
HOSTS = (64, 256, 1024)
EVEN = 256  # of 1,024 hosts, each has one row of a batch: what these wait for is not evened out
PROCESSES = 4
PROCESS_BATCH = 128
PROCESS_COMPONENTS = 20
SEQ_LEN = 128
BAR = 1.05
SETTINGS = ("on", "off")
QUICK = ((20, True), (200, False))
GOES = (160, 320, 480, 640)
"""Steps at which a run is stopped; it goes on from there."""
QUICK_GOES = (60, 120)
QUICK_RESTARTS = [(20, True, "auto")]
RESTARTS = [*product((20, 200), (False, True), ("auto",)), (200, True, "off")]


def mixture(
    components: int,
    ramped: bool,
    steps: int,
    batch: int,
    root: Path | str | None = None,
    stop: int | None = None,
) -> MixtureDataset:
    """Zipf components in braids as a config plans them; ``ramped``: each share grows or falls by
    half in ``steps``. It ends there, or before step ``stop``.
    """
    first = 1 / np.arange(1, components + 1)
    first /= first.sum()
    last = first * np.random.default_rng(1).choice([0.5, 1.5], components) if ramped else first
    last = last / last.sum()
    seq_len = 8 if root is None else SEQ_LEN
    layout = CacheLayout("uint16", chunk_elements=BLOCK * seq_len)
    largest = np.maximum(first, last)
    lengths = (
        np.ceil(largest * batch * steps).astype(int) + BLOCK
        if root is not None
        else [1 << 36] * components
    )
    plan = resolve_strands(
        np.asarray(lengths),
        largest,
        batch_size=batch,
        strands=BATCHES_OPEN * batch,
        usual_shares=None if ramped else first,
    )
    strands = plan.strands.tolist()
    braids: dict[str, Any] = {}
    for k, (count, lap, begin) in enumerate(
        zip(strands, plan.laps.tolist(), [0, *accumulate(strands[:-1])], strict=True)
    ):
        name = f"c{k}"
        cache = (
            virtual_cache(name, seq_len * int(lengths[k]), layout=layout)
            if root is None
            else f"{root}/{name}"
        )
        rows = TokenSeqDataset(cache, seq_len, name=name)
        braids[name] = rows.braid_shuffle(
            seed=k, strands=count, lap=lap, first_strand=begin, io_block_size=BLOCK
        )
    weights = {
        name: {"linear": {0: float(a), steps: float(b)}} if ramped else float(a)
        for name, a, b in zip(braids, first, last, strict=True)
    }
    return MixtureDataset(braids, weights, batch, num_steps=stop or steps)


def forecast(components: int, ramped: bool, steps: int, batch: int = 1024) -> Iterator[list[Any]]:
    """Reads per block of a run: host and block met, over blocks met, whatever memory hosts have;
    and with the exchange, those of the busiest host over the mean.
    """
    dataset = mixture(components, ramped, RAMP, batch)
    windows = Windows(dataset, dataset.batch_schedule, 0, steps, "locality")
    ways = [(hosts, exchange) for hosts in HOSTS for exchange in (False, True)]
    recent = {way: deque[np.ndarray](maxlen=RECENT) for way in [(1, False), *ways]}
    reads = {way: np.zeros(2, np.int64) for way in recent}  # at the start, and after it
    of_hosts = {hosts: np.zeros(hosts, np.int64) for hosts in HOSTS}
    number = 0
    done = 0
    while done < steps:
        window = windows[number]
        later = int(window.first_step >= START)
        for hosts, exchange in recent:
            host = windows.hosts_of(number, hosts, exchange=exchange) if hosts > 1 else 0
            new = _new(recent[hosts, exchange], window.block * hosts + host)
            reads[hosts, exchange][later] += new.size
            if exchange:
                of_hosts[hosts] += np.bincount(new % hosts, minlength=hosts)
        number = number + 1
        done = window.first_step + window.steps
    epoch = BLOCKS_A_STRAND * BATCHES_OPEN * batch
    for hosts in HOSTS:
        without, there = (reads[hosts, exchange] / reads[1, False] for exchange in (False, True))
        once = int(reads[hosts, True][0] - reads[1, False][0])
        yield [
            components,
            "+-50%" if ramped else "constant",
            hosts,
            without[1],
            there[1],
            once,
            there[1] + once / epoch,
            windows.moved_rows(hosts, number) / batch,
            of_hosts[hosts].max() / of_hosts[hosts].mean(),
        ]


def _new(recent: deque[np.ndarray], keys: np.ndarray) -> np.ndarray:
    """Those that were not met in the last windows; a block is in use for 4 windows of 64
    steps.
    """
    distinct = np.unique(keys)
    new = distinct[~np.isin(distinct, np.concatenate(recent))] if recent else distinct
    recent.append(distinct)
    return new


def measure(args: argparse.Namespace, report: Report) -> None:
    steps, processes = (620, 400) if args.quick else (2048, 1000)
    rows: list[list[Any]] = []
    for components in (20, 200):
        for ramped in (False, True):
            if not args.quick or (components, ramped) in QUICK:
                rows += forecast(components, ramped, steps)
    report.table(
        f"Batch 1024, blocks of {BLOCK}, {steps} steps",
        [
            "components",
            "weights",
            "hosts",
            "reads per block",
            "exchange",
            "more, once",
            "in an epoch",
            "rows that move",
            "busiest host",
        ],
        rows,
    )
    for components, weights, hosts, _, _, _, reads, _, busiest in rows:
        name = f"exchange, {components} components, {weights}, {hosts} hosts"
        report.bar(f"{name}: reads per block per epoch", reads, at_most=BAR)
        if hosts <= EVEN:
            report.bar(f"{name}: reads of the busiest host over the mean", busiest, at_most=1.25)
    counted = count_on_processes(processes)
    report.table(
        f"{PROCESSES} processes, {PROCESS_COMPONENTS} components, +-50%, batch {PROCESS_BATCH},"
        f" {processes} steps",
        [
            "exchange",
            "reads per block",
            "share of rows that move",
            "ms a step",
            "bytes moved a step",
        ],
        [[name, *counted[name].values()] for name in SETTINGS],
    )
    goes = QUICK_GOES if args.quick else GOES
    restarted = [
        count_restarts(components, ramped, setting, goes)
        for components, ramped, setting in (QUICK_RESTARTS if args.quick else RESTARTS)
    ]
    report.table(
        f"At the server, {PROCESSES} processes, batch {PROCESS_BATCH}, {goes[-1]} steps,"
        f" {len(goes) - 1} restarts",
        ["components", "weights", "exchange", "reads per block of each go", "per block of the run"],
        restarted,
    )
    for components, weights, setting, reads, _ in restarted:
        if setting == "auto":
            name = f"{components} components, {weights}, restarts: reads per block"
            report.bar(name, reads, at_most=BAR)
    report.bar("exchange, 4 processes: reads per block", counted["on"]["reads"], at_most=BAR)
    report.bar("exchange, 4 processes: batches that differ", counted["differing"], at_most=0)


def count_on_processes(steps: int) -> dict[str, Any]:
    """What four processes read with and without the exchange, and how long a step takes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_caches(root, PROCESS_COMPONENTS, steps)
        run_hosts("--host", folder, str(steps))
        said = [json.loads((root / f"host{n}.json").read_text()) for n in range(PROCESSES)]
    counted: dict[str, Any] = {}
    for name in SETTINGS:
        of = [host[name] for host in said]
        counted[name] = {
            "reads": sum(x["fetches"] for x in of) / said[0]["blocks"],
            "moved": sum(x["moved"] for x in of) / (steps * PROCESS_BATCH),
            "ms": max(x["ms"] for x in of),
            "bytes": sum(x["bytes"] for x in of) / steps,
        }
    counted["differing"] = sum(
        a != b for host in said for a, b in zip(*(host[n]["sums"] for n in SETTINGS), strict=True)
    )
    return counted


def write_caches(root: Path, components: int, steps: int) -> None:
    """Caches with what a run of so many steps may need."""
    from headrace.testing import write_cache

    first = 1 / np.arange(1, components + 1)
    largest = 1.6 * first / first.sum()
    for k in range(components):
        elements = (int(largest[k] * PROCESS_BATCH * steps) + 4 * BLOCK) * SEQ_LEN
        tokens = np.random.default_rng(k).integers(0, 60000, elements, dtype=np.uint16)
        layout = CacheLayout("uint16", BLOCK * SEQ_LEN, 64)
        write_cache(root / f"c{k}", [[tokens[:-1]]], eos_id=60001, layout=layout)


def run_hosts(what: str, *arguments: str) -> None:
    """Runs this file as the processes of a job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    command = [sys.executable, __file__, what, address]
    hosts = [
        subprocess.Popen([*command, str(n), *arguments], env=environment, stdout=subprocess.DEVNULL)
        for n in range(PROCESSES)
    ]
    try:
        if any(host.wait() for host in hosts):
            raise SystemExit("a process of the job failed")
    finally:
        for host in hosts:
            host.kill()


def count_restarts(components: int, ramped: bool, setting: str, steps: Sequence[int]) -> list[Any]:
    """Requests for blocks of a job that stops at some steps and is restarted there, over the blocks that each of its
    goes needs, and over those of the run.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_caches(Path(folder), components, steps[-1])
        with web_server(folder) as url:
            server = Counted(url)
            with server:
                job = [server.url, components, ramped, setting, steps]
                run_hosts("--restarts", json.dumps(job))
        goes = 0
        whole_run = mixture(components, ramped, steps[-1], PROCESS_BATCH, folder)
        windows = partial(Windows, whole_run, whole_run.batch_schedule, row_order="locality")
        for first, stop in pairwise((0, *steps)):
            goes += windows(first, stop).distinct(stop)
        once = windows(0, steps[-1]).distinct(steps[-1])
    weights = "+-50%" if ramped else "constant"
    return [components, weights, setting, server.chunks / goes, server.chunks / once]


def run_goes(
    address: str,
    number: int,
    url: str,
    components: int,
    ramped: bool,
    setting: Literal["auto", "off"],
    steps: Sequence[int],
) -> None:
    """A process of a job that is stopped and goes on."""
    jax.distributed.initialize(address, PROCESSES, number)
    for first, stop in pairwise((0, *steps)):
        dataset = mixture(components, ramped, steps[-1], PROCESS_BATCH, url, stop)
        loader = DataLoader(dataset, row_exchange=setting)
        with loader, loader.iter_from_step(first) as batches:
            for _ in range(first, stop):
                jax.block_until_ready(next(batches))


def run_host(root: Path, address: str, number: int, steps: int) -> None:
    jax.distributed.initialize(address, PROCESSES, number)
    dataset = mixture(PROCESS_COMPONENTS, True, steps, PROCESS_BATCH, root)
    windows = Windows(dataset, dataset.batch_schedule, 0, steps, "locality")
    said: dict[str, Any] = {"blocks": windows.distinct(steps)}
    for setting in SETTINGS:
        loader = DataLoader(dataset, row_exchange=setting)
        sums: list[int] = []
        times: list[float] = []
        with loader.iter_from_step(0) as batches:
            for _ in range(steps):
                started = time.perf_counter()
                batch = next(batches)
                jax.block_until_ready(batch)
                times.append(time.perf_counter() - started)
                local = np.asarray(batch.token_ids.addressable_data(0)).astype(np.int64)
                sums.append(int((local * np.arange(1, local.size + 1).reshape(local.shape)).sum()))
        reads = loader.stats().reads
        said[setting] = {
            "fetches": reads.block_fetches,
            "moved": reads.exchanged_examples,
            "bytes": reads.exchanged_bytes,
            "ms": 1000 * float(np.mean(times[steps // 10 :])),
            "sums": sums,
        }
        loader.close()
    (root / f"host{number}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        run_host(Path(sys.argv[4]), sys.argv[2], int(sys.argv[3]), int(sys.argv[5]))
    elif sys.argv[1:2] == ["--restarts"]:
        run_goes(sys.argv[2], int(sys.argv[3]), *json.loads(sys.argv[4]))
    else:
        run_bench("bench_row_exchange", __doc__, measure)
