"""How often hosts read each stored chunk of packed rows: by a plan, in runs, and of a store that
was written in packs.

    python scripts/bench/bench_packed_reads.py --check --json docs/bench/packed_reads.json

Sources with Zipf weights hold documents of log-normal lengths, a third of a row on average, in
chunks of 16 rows; a run goes through them once. The first table replays the loaders of 8, 64 and
1,024 hosts, as `headrace config simulate` does, with memory for four times the chunks that their
strands have open, with and without row exchange; `auto` is what its default setting reads: with it
where that saves more than a twentieth. 200 sources have four times as many rows, so that the
smallest, of some 3,500, is still one that is read in runs, and memory for sixteen times the open
chunks: 100 MiB on each of 64 hosts with rows of 4,096 two-byte tokens. The second table is counted
at a web server, from which the loaders of 8 (and 64) hosts read one after the other; each host has
a device of its own in their place. "one by one" is `run_blocks: 1`, which is the default in plain
stores; up to 32 are that of shuffled ones.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import jax
import numpy as np
from _common import Report, run_bench
from bench_object_store import HostPlacement
from jax.sharding import Mesh

from headrace import ComponentConfig, DataLoader, LmDataConfig
from headrace.analysis.simulate.replay import Windows, replay
from headrace.data import MixtureDataset
from headrace.feed import loader as loader_module
from headrace.feed.exchange import WORTH_IT
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.order.shuffle_config import BraidShuffleConfig
from headrace.pack.spec import PackingConfig
from headrace.store import CacheLayout
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import FaultProxy, web_server

ROW = 64
CHUNK_ROWS = 16
LAYOUT = CacheLayout("uint16", CHUNK_ROWS * ROW, 256)
SMALL_STORE = 0.02  # reads at the ends of strands, which are 64 chunks long at the server
OPEN = {1: 4, 20: 4, 200: 16}
"""Times the chunks that strands have open fit into the memory of the hosts, by sources."""
TOUCHED = 2.63  # chunks of a block of 16 packs
STORES = {
    "plain, one by one": ("plain", 1, 3.0),
    "plain, runs of 16": ("plain", 16, 1.15),
    "shuffled, one by one": ("shuffled", 1, 3.0),
    "shuffled, default": ("shuffled", None, 1.10),
    "written in packs": ("packed", None, 1.02),
}


def write_source(root: Path, rows: int, seed: int) -> None:
    """Documents that fill about so many rows, plain, shuffled and in packs."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(np.log(ROW / 5), 0.9, 4 * rows), 1, ROW).astype(np.int64)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), rows * ROW)]
    plain = str(root / "plain")
    writer = PartWriter(plain, "00000", LAYOUT)
    writer.append(random.integers(0, 1 << 16, int(lengths.sum())).astype(np.uint16), lengths)
    tokenizer = {"vocab_size": 1 << 16, "fingerprint": "numbers", "path": "numbers", "file": None}
    write_ledger(plain, Ledger(False, tokenizer, LAYOUT.to_dict()).complete([writer.close()]))
    for name, pack in (("shuffled", None), ("packed", ROW)):
        how = ReshuffleConfig(seed, pack=pack)
        reshuffle(plain, str(root / name), how, engine="inline", progress=False)


def mixture(
    root: str, store: str, run_blocks: int | None, sources: int, batch: int, plans: str = ""
) -> MixtureDataset:
    packing = PackingConfig(plans=None if store == "packed" else plans or f"{root}/plans")
    components = {
        f"source{k}": ComponentConfig(f"{root}/{k}/{store}", weight, packing=packing)
        for k, weight in enumerate(shares(sources))
    }
    shuffle = BraidShuffleConfig(run_blocks=run_blocks)
    config = LmDataConfig(components, seq_len=ROW, batch_size=batch, shuffle=shuffle, max_epochs=1)
    dataset = config.dataset()
    assert isinstance(dataset, MixtureDataset)
    return dataset


def shares(sources: int) -> list[float]:
    shares = 1 / np.arange(1, sources + 1)
    return (shares / shares.sum()).tolist()


def memory_of(dataset: MixtureDataset, hosts: int) -> int:
    """Chunks for which each host has memory."""
    strands = sum(part.shuffle_order().strands for part in dataset.components)
    return int(OPEN[len(dataset.components)] * TOUCHED * strands / hosts) + 64


def replay_hosts(windows: Windows, hosts: int, steps: int, slots: int) -> list[float]:
    """How often a chunk is read without and with row exchange."""
    distinct = windows.distinct(steps)
    return [
        float(replay(windows, hosts, steps, slots, hosts, exchange=exchange).by_step.sum())
        / distinct
        for exchange in (False, True)
    ]


class Counted(FaultProxy):
    """Counts requests for chunks of tokens."""

    chunks = 0

    def decide(self, head: Any) -> Any:
        entry, status = super().decide(head)
        is_chunk = "/data/c/" in unquote(entry.path) and not (entry.range or "").startswith(
            "bytes=-"
        )
        self.chunks += entry.method == "GET" and is_chunk
        return entry, status


def count_at_server(server: Counted, dataset: MixtureDataset, hosts: int) -> float:
    """Requests for chunks of all hosts in an epoch, over its chunks."""
    batch = dataset.batch_schedule.max_size
    assert dataset.length is not None  # one epoch
    windows = Windows(dataset, dataset.batch_schedule, 0, None, "locality")
    distinct = windows.distinct(-(-dataset.length // batch))
    memory = memory_of(dataset, hosts) * LAYOUT.chunk_elements * 2
    device = Mesh(np.array(jax.devices()[:1]), ("data",))
    server.chunks = 0
    for number in range(hosts):
        placement = partial(HostPlacement, number=number, hosts=hosts)
        with patch.object(loader_module, "Placement", placement):
            loader = DataLoader(dataset, mesh=device, prefetch_bytes=memory, row_exchange="off")
        with loader, loader.iter_from_step(0) as batches:
            for _ in batches:
                pass
    return server.chunks / distinct


def measure(args: argparse.Namespace, report: Report) -> None:
    batch = 64 if args.quick else 1024
    with tempfile.TemporaryDirectory() as folder:
        replayed: list[list[Any]] = []
        for sources in (1,) if args.quick else (1, 20, 200):
            rows = (1 << 16) if args.quick else (1 << 20) * (4 if sources == 200 else 1)
            root = f"{folder}/{sources}"
            for k, share in enumerate(shares(sources)):
                write_source(Path(root, str(k)), int(rows * share), k)
            for name, (store, run_blocks, bar) in STORES.items():
                if sources == 200 and run_blocks is not None:
                    continue  # what nobody gets unless they ask for it
                size = batch // 8 if store == "plain" else batch  # where a row has 8 strands
                dataset = mixture(root, store, run_blocks, sources, size)
                windows = Windows(dataset, dataset.batch_schedule, 0, None, "locality")
                steps = int(0.95 * rows) // size
                for hosts in (8, 64, 1024):
                    if hosts <= size:
                        alone, exchanged = replay_hosts(
                            windows, hosts, steps, memory_of(dataset, hosts)
                        )
                        reads = exchanged if alone > WORTH_IT * exchanged else alone
                        replayed.append([sources, rows, name, size, hosts, alone, exchanged, reads])
                        label = f"{name}, {sources} sources, {hosts} hosts: reads of a chunk"
                        report.bar(label, reads, at_most=bar)
        columns = ["sources", "packs in all", "rows", "batch", "hosts"]
        columns += ["reads of a chunk", "with exchange", "auto"]
        report.table("Replayed", columns, replayed)
        counted: list[list[Any]] = []
        rows = 1 << 16
        write_source(Path(folder, "served", "0"), rows, 0)
        with web_server(Path(folder, "served")) as url, Counted(url) as server:
            for name, (store, run_blocks, bar) in STORES.items():
                if args.quick and run_blocks == 1:
                    continue
                dataset = mixture(server.url, store, run_blocks, 1, 64, plans=f"{folder}/plans")
                for hosts in (8,) if args.quick else (8, 64):
                    reads = count_at_server(server, dataset, hosts)
                    counted.append([name, hosts, reads])
                    most = bar if store == "packed" else bar + SMALL_STORE
                    report.bar(f"{name}, {hosts} hosts: requests of a chunk", reads, at_most=most)
        report.table(f"At the server, {rows:,} rows", ["rows", "hosts", "requests"], counted)


if __name__ == "__main__":
    run_bench("bench_packed_reads", __doc__, measure)
