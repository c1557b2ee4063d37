"""The loader on a warm local cache: speed against ``np.memmap`` + ``np.take``, and reads against seed 004's table.

    python scripts/bench/bench_data_loading.py --json docs/bench/data_loading.json

Table 1: rows of 2,048 tokens in batches of 128, delivered as sharded jax arrays, shuffled as named, against a gather of
the same rows from a memory map into one reused buffer (the floor: no batch object, no device, no plan, no checksum).
Each strategy is timed between two runs of the floor, from its second epoch on; ``share`` is its speed over the floors'
mean. The default budget holds the whole corpus (1 GiB); ``4 times the budget`` is a corpus of which it holds a quarter,
with 64 strands. ``first pass`` is the first epoch, in which every block is held against its checksum. ``read`` is the
same through TensorStore instead of memory-mapped files; ``core s per 1e9`` the processor time of all
threads. ``three sources`` is a braided mixture of three caches.

Table 2: zstd. One epoch from nothing, against TensorStore reading the same blocks one after the other, four in flight.

Table 3: columns. The same rows of uint32 tokens alone, with a float32 for each token, with 8 teacher ids and log
probabilities for each, and with a number of each document: ``share`` is of the speed of tokens alone, timed before and
after. A batch has 2, 17 and 2 times the bytes. Tokens alone of a cache that has these leaves take the processor time of
those of a cache without; the least of several runs in turn counts.

Table 4: the read counters of marin issue 2917: 20 groups of 16 batches of 128 out of 16,384 examples, each group in one
``get_batch``. ``reads`` counts runs of neighbouring rows, as there; ``blocks`` is what the loader itself reads for the
same steps, each stored block once while it stays in memory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, run_bench, touch_memory

from headrace import DataLoader, MixtureDataset, TokenCache, TokenSeqDataset
from headrace.data import AsyncDataset
from headrace.metrics import LoaderStats
from headrace.store.layout import CacheLayout, LeafSpec
from headrace.testing import write_cache

SEQ_LEN, BATCH, EXAMPLES = 2048, 128, 16_384
GROUPS, GROUP_BATCHES, SEED_BLOCK, SEED_WINDOW = 20, 16, 128, 8
SEED_READS = {"full": 35_650, "era 1024": 20, "block 128x8": 287}
FLOOR_SHARE, MIXED_SHARE, ZSTD_SHARE, COLUMN_SHARE, UNASKED = 0.5, 0.9, 0.9, 0.6, 1.02
LARGE_SHARE = {"uint32": 0.6, "uint16": 0.45}
DTYPES = tuple(LARGE_SHARE)

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


def loader_speed(
    dataset: AsyncDataset, batches: int, skip: int, **options: Any
) -> tuple[float, LoaderStats, list[float], float]:
    """Tokens a second after ``skip`` batches, the counters, the seconds between batches, processor seconds."""
    with DataLoader(dataset, batch_size=BATCH, **options) as loader:
        seconds: list[float] = []
        with loader.iter_from_step(0) as stream:
            for _ in range(skip - 1):
                next(stream)
            batch = next(stream)
            batch.token_ids.block_until_ready()
            spent, last = time.process_time(), time.perf_counter()
            started = last
            for _ in range(batches):
                batch = next(stream)
                now = time.perf_counter()
                seconds.append(now - last)
                last = now
            batch.token_ids.block_until_ready()
            elapsed, spent = time.perf_counter() - started, time.process_time() - spent
        return batches * BATCH * SEQ_LEN / elapsed, loader.stats(), seconds, spent


def three_sources(cache: TokenCache) -> AsyncDataset:
    """Three sources of one cache's size each, braided, 3 : 2 : 1."""
    sources = {n: TokenSeqDataset(cache, SEQ_LEN, name=n) for n in "abc"}
    weights = {"a": 3, "b": 2, "c": 1}
    strands = {n: 8 * BATCH * w // 6 for n, w in weights.items()}
    braided = {n: s.braid_shuffle(seed=k, strands=strands[n]) for k, (n, s) in enumerate(sources.items())}
    return MixtureDataset(braided, weights, BATCH)


def same(dataset: AsyncDataset) -> AsyncDataset:
    """The same dataset for every run: what was checked once is not checked again."""
    return dataset


def fresh(path: str) -> AsyncDataset:
    """A dataset of a cache that nobody has read yet in this process."""
    return STRATEGIES["braid"](TokenSeqDataset(TokenCache.open(path), SEQ_LEN)).repeat()


def bench_speed(report: Report, folder: Path, examples: int, batches: int, repeats: int) -> None:
    rows = []
    shares: dict[str, float] = {}
    for dtype in DTYPES:
        cache, flat = make_cache(folder, dtype, examples)
        floor_speed(flat, batches)  # the first pass maps the pages

        epoch = examples // BATCH
        runs: list[tuple[str, Callable[[], AsyncDataset], dict[str, Any], int, int]] = []
        for name, strategy in STRATEGIES.items():
            made = partial(same, strategy(TokenSeqDataset(cache, SEQ_LEN)).repeat())
            runs.append((name, made, {}, epoch, batches))
        runs.append(("three sources", partial(same, three_sources(cache)), {}, 6 * epoch, batches))
        few_open = TokenSeqDataset(cache, SEQ_LEN).braid_shuffle(batch_size=BATCH, seed=0, strands=64).repeat()
        quarter = {"prefetch_bytes": flat.nbytes // 4}
        runs.append(("braid, 4 times the budget", partial(same, few_open), quarter, epoch, batches))
        runs.append(("braid, first pass", partial(fresh, cache.path), {}, 1, epoch - 1))
        runs.append(("braid, first pass, read", partial(fresh, cache.path), {"memory_map": False}, 1, epoch - 1))
        touch_memory()
        for name, make, options, skip, count in runs:
            loader_speed(make(), count // 4, 1, **options)
            taken, floors = [], []
            for _ in range(repeats):
                dataset = make()
                before = floor_speed(flat, batches)
                found = loader_speed(dataset, count, skip, **options)
                floors.append((before + floor_speed(flat, batches)) / 2)
                taken.append((found[0] / floors[-1], *found))
            share, speed, stats, seconds, spent = sorted(taken, key=lambda t: t[0])[len(taken) // 2]
            shares[f"{dtype} {name}"] = share
            rows.append(
                [
                    dtype,
                    name,
                    speed / 1e6,
                    speed / SEQ_LEN,
                    share,
                    max(t[0] for t in taken),
                    statistics.mean(floors) / 1e6,
                    stats.reads.block_fetches,
                    stats.reads.mapped_blocks,
                    1e3 * float(np.percentile(seconds, 50)),
                    1e3 * float(np.percentile(seconds, 95)),
                    1e9 * spent / (count * BATCH * SEQ_LEN),
                ]
            )
    columns = ["dtype", "strategy", "M tokens/s", "examples/s", "share of floor", "best share", "floor M tokens/s"]
    columns += ["blocks fetched", "of them mapped", "p50 ms", "p95 ms", "core s per 1e9"]
    report.table(f"Speed: {examples:,} examples x {SEQ_LEN}, batch {BATCH}, {batches} batches", columns, rows)
    report.note("Shares are medians of runs side by side with the floor; figures in M tokens/s hold for this run only.")
    for name in ("full", "braid"):
        for dtype in DTYPES:
            report.bar(f"{name}: share of memmap + take, {dtype}", shares[f"{dtype} {name}"], at_least=FLOOR_SHARE)
    for dtype, least in LARGE_SHARE.items():
        share = shares[f"{dtype} braid, 4 times the budget"]
        report.bar(f"braid, 4 times the budget: share of memmap + take, {dtype}", share, at_least=least)
    mixed = shares["uint32 three sources"] / shares["uint32 braid"]
    report.bar("three sources: share of one", mixed, at_least=MIXED_SHARE)
    report.bar(
        "memory-mapped over read, first pass",
        shares["uint32 braid, first pass"] / shares["uint32 braid, first pass, read"],
        at_least=1,
    )


def bench_zstd(report: Report, folder: Path, examples: int, repeats: int) -> None:
    tokens = np.random.default_rng(0).zipf(1.3, examples * SEQ_LEN).clip(1, 50_000).astype(np.uint16)
    layout = CacheLayout("uint16", compression="zstd")
    path = folder / "zstd"
    write_cache(path, [[tokens]], vocab_size=65_536, layout=layout)
    taken = []
    for _ in range(repeats):
        blocks = block_speed(TokenCache.open(path))
        dataset = TokenSeqDataset(TokenCache.open(path), SEQ_LEN).braid_shuffle(batch_size=BATCH, seed=0)
        started = time.perf_counter()
        with DataLoader(dataset, batch_size=BATCH) as loader:
            for batch in loader:
                batch.token_ids.block_until_ready()
        speed = examples * SEQ_LEN / (time.perf_counter() - started)
        taken.append((speed / blocks, speed / 1e6, blocks / 1e6))
    share, speed, blocks = sorted(taken)[len(taken) // 2]
    columns = ["M tokens/s, braid", "M tokens/s, TensorStore's blocks in order", "share"]
    report.table("zstd: one epoch from nothing, uint16", columns, [[speed, blocks, share]])
    report.bar("zstd: share of TensorStore's block rate", share, at_least=ZSTD_SHARE)


COLUMN_LEAVES = {
    "a float for each token": [LeafSpec("weights", "float32", width=1)],
    "8 ids and log probabilities": [LeafSpec("topk", "int32", width=8), LeafSpec("log_probs", "float32", width=8)],
    "a number of each document": [LeafSpec("score", "float32", "fixed")],
}


def bench_columns(report: Report, folder: Path, examples: int, batches: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    documents = np.split(rng.integers(0, 50_000, examples * SEQ_LEN).astype(np.uint32), examples * 2)
    leaves = {leaf: partial(column_values, leaf) for leaves in COLUMN_LEAVES.values() for leaf in leaves}
    cache = write_cache(folder / "columns", [documents], vocab_size=65_536, layout=CacheLayout("uint32"), leaves=leaves)
    plain = STRATEGIES["braid"](TokenSeqDataset(cache, SEQ_LEN)).repeat()
    bare = write_cache(folder / "bare", [documents], vocab_size=65_536, layout=CacheLayout("uint32"))
    without = STRATEGIES["braid"](TokenSeqDataset(bare, SEQ_LEN)).repeat()
    rows = []
    runs = [[loader_speed(d, batches, examples // BATCH)[3] for d in (plain, without)] for _ in range(3 * repeats)]
    unasked, bare_s = np.min(runs, axis=0)
    for name, specs in COLUMN_LEAVES.items():
        columns = {leaf.name: leaf.name for leaf in specs}
        dataset = STRATEGIES["braid"](TokenSeqDataset(cache, SEQ_LEN, columns=columns)).repeat()
        loader_speed(dataset, batches, examples // BATCH)
        taken = []
        for _ in range(repeats):
            before = loader_speed(plain, batches, examples // BATCH)
            speed, stats, _, _ = loader_speed(dataset, batches, examples // BATCH)
            after = loader_speed(plain, batches, examples // BATCH)[0]
            per_fetch = (stats.reads.mapped_blocks + stats.reads.tensorstore_reads_issued) / stats.reads.block_fetches
            of_plain = 2 * speed / (before[0] + after)
            taken.append([of_plain, speed / 1e6, stats.reads.block_fetches / before[1].reads.block_fetches, per_fetch])
        rows.append([name, *sorted(taken)[len(taken) // 2]])
    heads = ["column", "share of tokens alone", "M tokens/s", "fetches, of those of tokens alone", "reads per fetch"]
    report.table(f"Columns: {examples:,} examples x {SEQ_LEN}, braid", heads, rows)
    report.bar("leaves that nobody asks for: processor time, of a cache without", unasked / bare_s, at_most=UNASKED)
    report.bar("a float column: share of tokens alone", rows[0][1], at_least=COLUMN_SHARE)
    report.bar("columns: fetches of blocks, of those of tokens alone", max(row[3] for row in rows), at_most=1)


def column_values(leaf: LeafSpec, ids: np.ndarray) -> np.ndarray:
    """Values that go with the tokens of a document."""
    return ids[:1] if leaf.kind == "fixed" else np.broadcast_to(ids[:, None] % 97, (ids.size, leaf.width or 1))


def block_speed(cache: TokenCache, in_flight: int = 4) -> float:
    """Tokens a second of TensorStore alone: all blocks in order, each into a buffer that is there already."""
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
            batches=64 if args.quick else 512,
            repeats=2 if args.quick else 7,
        )
        columns_of = EXAMPLES // 16  # 17 times the bytes
        bench_columns(report, Path(folder), columns_of, 64 if args.quick else 512, 2 if args.quick else 7)
        bench_zstd(report, Path(folder), EXAMPLES, repeats=2 if args.quick else 7)
        bench_reads(report, Path(folder))


if __name__ == "__main__":
    run_bench("bench_data_loading", __doc__, measure)
