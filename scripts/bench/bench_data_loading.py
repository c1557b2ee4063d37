"""The loader on a local cache: compressed blocks, columns beside tokens, and read counters against
seed 004's table.

    python scripts/bench/bench_data_loading.py --json docs/bench/data_loading.json

Table 1: zstd. One epoch from nothing, against TensorStore reading the same blocks one after the
other, four in flight.

Table 2: columns. Rows of 2,048 uint32 tokens alone, in batches of 128, with a float32 for each
token, with 8 teacher ids and log probabilities for each, and with a number of each document:
``share`` is of the speed of tokens alone, timed before and after. A batch has 2, 17 and 2 times the
bytes. Beside it: the share that ``np.take`` keeps if it takes the same rows of a second array too.
Tokens alone of a cache that has these leaves take the processor time of those of a cache without;
the least of several runs in turn counts.

Table 3: the read counters of marin issue 2917: 20 groups of 16 batches of 128 out of 16,384
examples, each group in one ``get_batch``. ``reads`` counts runs of neighbouring rows, as there;
``blocks`` is what the loader itself reads for the same steps, each stored block once while it stays
in memory.

The speed of plain rows is the subject of ``bench_local_speed.py``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, run_bench, take_share, touch_memory

from headrace import DataLoader, TokenSeqDataset, open_cache
from headrace.data import AsyncDataset
from headrace.metrics import LoaderStats
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout, LeafSpec
from headrace.testing import write_cache

SEQ_LEN = 2048
BATCH = 128
EXAMPLES = 16_384
GROUPS = 20
GROUP_BATCHES = 16
SEED_BLOCK = 128
SEED_WINDOW = 8
SEED_READS = {"full": 35_650, "era 1024": 20, "block 128x8": 287}
ZSTD_SHARE = 0.9
COLUMN_SHARE = 0.6
UNASKED = 1.02

Strategy = Callable[[TokenSeqDataset], AsyncDataset]
STRATEGIES: dict[str, Strategy] = {
    "full": lambda d: d.shuffle(0),
    "era 1024": lambda d: d.era_shuffle(1024, seed=0),
    "block 128x8": lambda d: d.block_shuffle(
        io_block_size=SEED_BLOCK, window_blocks=SEED_WINDOW, seed=0
    ),
    "block 32x512": lambda d: d.block_shuffle(window_blocks=512, seed=0),
    "braid": lambda d: d.braid_shuffle(batch_size=BATCH, seed=0),
}


def loader_speed(
    dataset: AsyncDataset, batches: int, skip: int, **options: Any
) -> tuple[float, LoaderStats, list[float], float]:
    """Tokens a second after ``skip`` batches, the counters, the seconds between batches, processor
    seconds.
    """
    with DataLoader(dataset, batch_size=BATCH, **options) as loader:
        seconds: list[float] = []
        with loader.iter_from_step(0) as stream:
            for _ in range(skip - 1):
                next(stream)
            batch = next(stream)
            batch.token_ids.block_until_ready()
            spent = time.process_time()
            last = time.perf_counter()
            started = last
            for _ in range(batches):
                batch = next(stream)
                now = time.perf_counter()
                seconds.append(now - last)
                last = now
            batch.token_ids.block_until_ready()
            elapsed = time.perf_counter() - started
            spent = time.process_time() - spent
        return batches * BATCH * SEQ_LEN / elapsed, loader.stats(), seconds, spent


def bench_zstd(report: Report, folder: Path, examples: int, repeats: int) -> None:
    tokens = (
        np.random.default_rng(0).zipf(1.3, examples * SEQ_LEN).clip(1, 50_000).astype(np.uint16)
    )
    layout = CacheLayout("uint16", compression="zstd")
    path = folder / "zstd"
    write_cache(path, [[tokens]], vocab_size=65_536, layout=layout)
    measurements = []
    for _ in range(repeats):
        touch_memory(1 << 30)
        blocks = block_speed(open_cache(path))
        dataset = TokenSeqDataset(open_cache(path), SEQ_LEN).braid_shuffle(batch_size=BATCH, seed=0)
        started = time.perf_counter()
        with DataLoader(dataset, batch_size=BATCH) as loader:
            for batch in loader:
                batch.token_ids.block_until_ready()
        speed = examples * SEQ_LEN / (time.perf_counter() - started)
        measurements.append((speed / blocks, speed / 1e6, blocks / 1e6))
    share, speed, blocks = sorted(measurements)[len(measurements) // 2]
    columns = ["M tokens/s, braid", "M tokens/s, TensorStore's blocks in order", "share"]
    report.table("zstd: one epoch from nothing, uint16", columns, [[speed, blocks, share]])
    report.bar("zstd: share of TensorStore's block rate", share, at_least=ZSTD_SHARE)


COLUMN_LEAVES = {
    "a float for each token": [LeafSpec("scores", "float32", width=1)],
    "8 ids and log probabilities": [
        LeafSpec("topk", "int32", width=8),
        LeafSpec("log_probs", "float32", width=8),
    ],
    "a number of each document": [LeafSpec("quality", "float32", "fixed")],
}


def bench_columns(report: Report, folder: Path, examples: int, batches: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    documents = np.split(
        rng.integers(0, 50_000, examples * SEQ_LEN).astype(np.uint32), examples * 2
    )
    leaves = {
        leaf: partial(column_values, leaf) for leaves in COLUMN_LEAVES.values() for leaf in leaves
    }
    cache = write_cache(
        folder / "columns",
        [documents],
        vocab_size=65_536,
        layout=CacheLayout("uint32"),
        leaves=leaves,
    )
    plain = STRATEGIES["braid"](TokenSeqDataset(cache, SEQ_LEN)).repeat()
    bare = write_cache(
        folder / "bare", [documents], vocab_size=65_536, layout=CacheLayout("uint32")
    )
    without = STRATEGIES["braid"](TokenSeqDataset(bare, SEQ_LEN)).repeat()
    rows = []
    runs = [
        [loader_speed(d, batches, examples // BATCH)[3] for d in (plain, without)]
        for _ in range(3 * repeats)
    ]
    unasked, bare_s = np.min(runs, axis=0)
    for name, specs in COLUMN_LEAVES.items():
        columns = {leaf.name: leaf.name for leaf in specs}
        dataset = STRATEGIES["braid"](TokenSeqDataset(cache, SEQ_LEN, columns=columns)).repeat()
        loader_speed(dataset, batches, examples // BATCH)
        measurements = []
        for _ in range(repeats):
            before = loader_speed(plain, batches, examples // BATCH)
            speed, stats, _, _ = loader_speed(dataset, batches, examples // BATCH)
            after = loader_speed(plain, batches, examples // BATCH)[0]
            per_fetch = (
                stats.reads.mapped_blocks + stats.reads.tensorstore_reads_issued
            ) / stats.reads.block_fetches
            of_plain = 2 * speed / (before[0] + after)
            measurements.append(
                [
                    of_plain,
                    speed / 1e6,
                    stats.reads.block_fetches / before[1].reads.block_fetches,
                    per_fetch,
                ]
            )
        rows.append([name, *sorted(measurements)[len(measurements) // 2]])
    tokens = np.concatenate(documents).reshape(-1, SEQ_LEN)
    shares = sorted(
        take_share(tokens, tokens.astype(np.float32), BATCH, batches) for _ in range(repeats)
    )
    share_of_take = shares[repeats // 2]
    report.number("np.take of tokens and a float column: share of tokens alone", share_of_take)
    heads = [
        "column",
        "share of tokens alone",
        "M tokens/s",
        "fetches, of those of tokens alone",
        "reads per fetch",
    ]
    report.table(f"Columns: {examples:,} examples x {SEQ_LEN}, braid", heads, rows)
    report.bar(
        "leaves that nobody asks for: processor time, of a cache without",
        unasked / bare_s,
        at_most=UNASKED,
    )
    report.bar("a float column: share of tokens alone", rows[0][1], at_least=COLUMN_SHARE)
    report.bar("a float column: that share, of np.take's", rows[0][1] / share_of_take, at_least=1)
    report.bar(
        "columns: fetches of blocks, of those of tokens alone",
        max(row[3] for row in rows),
        at_most=1,
    )


def column_values(leaf: LeafSpec, ids: np.ndarray) -> np.ndarray:
    """Values that go with the tokens of a document."""
    return (
        ids[:1]
        if leaf.kind == "fixed"
        else np.broadcast_to(ids[:, None] % 97, (ids.size, leaf.width or 1))
    )


def block_speed(cache: TokenCache, in_flight: int = 4) -> float:
    """Tokens a second of TensorStore alone: all blocks in order, each into a buffer that is there
    already.
    """
    data = cache.parts[0].data
    out = np.zeros((in_flight, data.chunk_elements), data.dtype)
    started = time.perf_counter()
    reads: deque[Any] = deque()
    for number, start in enumerate(range(0, data.length, data.chunk_elements)):
        if len(reads) == in_flight:
            reads.popleft().result()
        size = min(data.chunk_elements, data.length - start)
        reads.append(data.read_into(out[number % in_flight, :size], start))
    for read in reads:
        read.result()
    return data.length / (time.perf_counter() - started)


def bench_reads(report: Report, folder: Path) -> None:
    tokens = np.zeros(
        EXAMPLES * 16, np.uint16
    )  # rows of 16 tokens: counters do not depend on the row's length
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
        rows.append(
            [
                name,
                reads.coalesced_ranges,
                SEED_READS[name],
                asked,
                reads.coalesced_ranges / asked,
                blocks,
            ]
        )
        if (
            name != "full"
        ):  # the table's full shuffle counts repeats across epochs of one order; ours is re-keyed
            report.bar(
                f"{name}: reads for {asked:,} examples",
                reads.coalesced_ranges,
                at_most=1.15 * SEED_READS[name],
            )
    columns = [
        "strategy",
        "reads",
        "seed 004",
        "examples",
        "reads per example",
        "blocks read by the loader",
    ]
    report.table(
        f"Reads: {EXAMPLES:,} examples, {GROUPS} groups of {GROUP_BATCHES} x {BATCH}", columns, rows
    )


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        columns_of = EXAMPLES // 16 if args.quick else EXAMPLES // 4  # 17 times the bytes
        bench_columns(
            report, Path(folder), columns_of, 64 if args.quick else 512, 2 if args.quick else 7
        )
        bench_zstd(report, Path(folder), 4 * EXAMPLES, repeats=2 if args.quick else 7)
        bench_reads(report, Path(folder))


if __name__ == "__main__":
    run_bench("bench_data_loading", __doc__, measure)
