"""The loader on a warm local cache: speed against ``np.memmap`` + ``np.take``, and reads against seed 004's table.

    python scripts/bench/bench_data_loading.py --json docs/bench/data_loading.json

Table 1: rows of 2,048 tokens in batches of 128, delivered as sharded jax arrays, shuffled as named, against a gather of
the same rows from a memory map (the floor: no batch object, no device, no plan). Each strategy is timed between two
runs of the floor; ``share`` is its speed over their mean.

Table 2: the read counters of marin issue 2917: 20 groups of 16 batches of 128 out of 16,384 examples, each group in one
``get_batch``. ``reads`` counts runs of neighbouring rows, as there; ``blocks`` is what the loader itself reads for the
same steps, each stored block once while it stays in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _common import Report, run_bench

from headrace.data.dataset import AsyncDataset
from headrace.data.token_seq import TokenSeqDataset
from headrace.feed.loader import DataLoader
from headrace.metrics import LoaderStats
from headrace.store.cache import TokenCache
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN, BATCH, EXAMPLES = 2048, 128, 16_384
GROUPS, GROUP_BATCHES, SEED_BLOCK, SEED_WINDOW = 20, 16, 128, 8
SEED_READS = {"full": 35_650, "era 1024": 20, "block 128x8": 287}
FLOOR_SHARE = 0.15
DTYPES = ("uint32", "uint16")

Strategy = Callable[[TokenSeqDataset], AsyncDataset]
STRATEGIES: dict[str, Strategy] = {
    "full": lambda d: d.shuffle(0),
    "era 1024": lambda d: d.era_shuffle(1024, seed=0),
    "block 128x8": lambda d: d.block_shuffle(io_block_size=SEED_BLOCK, window_blocks=SEED_WINDOW, seed=0),
    "block 32x512": lambda d: d.block_shuffle(window_blocks=512, seed=0),
    "braid": lambda d: d.braid_shuffle(batch_size=BATCH, seed=0),
}


def make_cache(folder: Path, dtype: str, examples: int) -> tuple[TokenCache, np.ndarray]:
    """A cache of random tokens in one document, and the same tokens in a flat file."""
    tokens = np.random.default_rng(0).integers(0, 50_000, examples * SEQ_LEN).astype(dtype)
    cache = write_cache(folder / dtype, [[tokens]], vocab_size=65_536, layout=CacheLayout(dtype))
    flat = folder / f"{dtype}.bin"
    tokens.tofile(flat)
    return cache, np.memmap(flat, dtype=dtype, mode="r").reshape(-1, SEQ_LEN)


def floor_speed(flat: np.ndarray, batches: int) -> float:
    """Tokens a second of gathering shuffled rows from the memory map into one reused buffer."""
    order = np.random.default_rng(1).permutation(len(flat))
    out = np.empty((BATCH, SEQ_LEN), flat.dtype)
    started = time.perf_counter()
    for k in range(batches):
        at = k * BATCH % (len(order) - BATCH + 1)
        np.take(flat, order[at : at + BATCH], axis=0, out=out, mode="clip")
    return batches * BATCH * SEQ_LEN / (time.perf_counter() - started)


def loader_speed(dataset: AsyncDataset, batches: int) -> tuple[float, LoaderStats, list[float]]:
    """Tokens a second from the second batch on, the counters, and the seconds between batches."""
    with DataLoader(dataset.repeat(), batch_size=BATCH) as loader:
        seconds: list[float] = []
        with loader.iter_from_step(0) as stream:
            batch = next(stream)
            batch.token_ids.block_until_ready()
            last = started = time.perf_counter()
            for _ in range(batches):
                batch = next(stream)
                now = time.perf_counter()
                seconds.append(now - last)
                last = now
            batch.token_ids.block_until_ready()
            elapsed = time.perf_counter() - started
        return batches * BATCH * SEQ_LEN / elapsed, loader.stats(), seconds


def bench_speed(report: Report, folder: Path, examples: int, batches: int, repeats: int) -> None:
    rows = []
    shares: dict[str, float] = {}
    for dtype in DTYPES:
        cache, flat = make_cache(folder, dtype, examples)
        floor_speed(flat, batches)  # the first pass maps the pages
        for name, strategy in STRATEGIES.items():
            dataset = strategy(TokenSeqDataset(cache, SEQ_LEN))
            loader_speed(dataset, batches // 4)  # compiles, and warms the page cache
            taken, floors = [], []
            for _ in range(repeats):
                before = floor_speed(flat, batches)
                speed, stats, seconds = loader_speed(dataset, batches)
                floors.append((before + floor_speed(flat, batches)) / 2)
                taken.append((speed / floors[-1], speed, stats, seconds))
            share, speed, stats, seconds = sorted(taken, key=lambda t: t[0])[len(taken) // 2]
            shares[f"{dtype} {name}"] = share
            rows.append(
                [
                    dtype,
                    name,
                    speed / 1e6,
                    speed / SEQ_LEN,
                    share,
                    statistics.mean(floors) / 1e6,
                    stats.reads.tensorstore_reads_issued,
                    stats.reads.reads_per_example,
                    1e3 * float(np.percentile(seconds, 50)),
                    1e3 * float(np.percentile(seconds, 95)),
                    batches * BATCH * SEQ_LEN / speed,
                ]
            )
    columns = ["dtype", "strategy", "M tokens/s", "examples/s", "share of floor", "floor M tokens/s", "reads issued"]
    columns += ["reads per example", "p50 ms", "p95 ms", "elapsed s"]
    report.table(f"Speed: {examples:,} examples x {SEQ_LEN}, batch {BATCH}, {batches} batches", columns, rows)
    report.note("Shares are medians of runs side by side with the floor; figures in M tokens/s hold for this run only.")
    for name in STRATEGIES:
        report.bar(f"{name}: share of memmap + take, 4-byte tokens", shares[f"uint32 {name}"], at_least=FLOOR_SHARE)


def bench_reads(report: Report, folder: Path) -> None:
    tokens = np.zeros(EXAMPLES * 16, np.uint16)  # rows of 16 tokens: counters do not depend on the row's length
    layout = CacheLayout("uint16", chunk_elements=SEED_BLOCK * 16)
    cache = write_cache(folder / "reads", [[tokens]], layout=layout)
    rows = []
    for name, strategy in list(STRATEGIES.items())[:3]:
        base = TokenSeqDataset(cache, 16)
        dataset = strategy(base).repeat()
        group = GROUP_BATCHES * BATCH
        before = base.read_stats + type(base.read_stats)()
        for k in range(GROUPS):
            dataset.read(np.arange(k * group, (k + 1) * group))
        reads = base.read_stats - before
        with DataLoader(dataset, batch_size=BATCH) as loader, loader.iter_from_step(0) as stream:
            for _ in range(GROUPS * GROUP_BATCHES):
                next(stream)
            blocks = loader.stats().reads.block_fetches
        asked = reads.examples_requested
        rows.append([name, reads.coalesced_ranges, SEED_READS[name], asked, reads.coalesced_ranges / asked, blocks])
        if name != "full":  # the table's full shuffle counts repeats across epochs of one order; ours is re-keyed
            report.bar(f"{name}: reads for {asked:,} examples", reads.coalesced_ranges, at_most=1.15 * SEED_READS[name])
    columns = ["strategy", "reads", "seed 004", "examples", "reads per example", "blocks read by the loader"]
    report.table(f"Reads: {EXAMPLES:,} examples, {GROUPS} groups of {GROUP_BATCHES} x {BATCH}", columns, rows)


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        bench_speed(
            report,
            Path(folder),
            EXAMPLES,
            batches=128 if args.quick else 512,
            repeats=3 if args.quick else 7,
        )
        bench_reads(report, Path(folder))


if __name__ == "__main__":
    run_bench("bench_data_loading", __doc__, measure)
