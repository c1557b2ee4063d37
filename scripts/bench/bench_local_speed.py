"""Loading from local uncompressed caches, as a share of ``np.memmap`` + ``np.take`` of the same
rows.

    python scripts/bench/bench_local_speed.py --check --json docs/bench/local_speed.json
    python scripts/bench/bench_local_speed.py --consumers --check --json docs/bench/consumers.json

Rows of 2,048 random tokens in batches of 128, shuffled by the braid, delivered as jax arrays. The
floor gathers shuffled rows of the same corpus from a memory map into one buffer: no batch, no
device, no order, no checksum. The ``floor with jax arrays`` makes the two arrays of each batch as
well, in the cheapest way there is, and nothing else: what is between the two floors is the price
of delivering to jax at all. Each case is timed between two runs of the floor in the same process,
several times; its share is the median of those pairs. ``core s per 1e9`` is the processor time of
all threads for a billion tokens.

``within the budget``: ``prefetch_bytes`` holds the corpus; otherwise the corpus is four times the
budget. Both are in the page cache, and each block was held against its checksum before, except in
``first pass``. The ``200 sources`` are caches of their own. The second table has cases of 2-byte
tokens beside plain rows of the same cache; a batch with masks has half as many bytes again, so the
share that ``np.take`` keeps if it takes both is measured beside it. ``cold disk`` is the first pass
over files that the system was asked to drop, against reading them one after the other, 4 MiB at a
time.

The third table has the first pass over caches that are in the page cache, where each chunk is held
against its checksum, beside a later pass over the same rows: the best of rounds in which the two
take turns. By the clock it needs a machine that does nothing else; processor seconds do not.

In all of these the consumer waits for batches and looks at nothing. Second command: consumers that
look, one batch at a time, in a first pass and in later ones over rows of several documents.
``of ready batches`` compares with the same consumer on eight batches that are there already, timed
beside it: a training step on this machine's CPUs slows down by less, as it does more for a batch.
``of it loading`` are the processor seconds beyond those.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _common import Report, run_bench, take_share, touch_memory

from headrace import (
    DataLoader,
    MixtureDataset,
    PackedBatch,
    TokenSeqDataset,
    open_cache,
)
from headrace.data import AsyncDataset, PackedTokenDataset
from headrace.feed.gathering import Buffers
from headrace.feed.placement import Placement, batch_sharding
from headrace.store import TokenCache
from headrace.store.layout import CacheLayout
from headrace.testing import write_cache

SEQ_LEN = 2048
BATCH = 128
ROWS = 1 << 18
QUICK_ROWS = 1 << 15
LEAST_BUDGET = 1 << 28
SOURCES = 200
WITHIN = {"uint32": 0.8, "uint16": 0.6}
OVER = {"uint32": 0.6, "uint16": 0.45}
FIRST_PASS = 0.35
MANY_SOURCES = 0.6
THREE_SOURCES = 0.95
FIRST_OF_LATER = {"one source": 0.6, "20 sources": 0.5, "loss masks": 0.5}
OF_PLAIN = 0.7
COLD = 0.9
CORE_S = 2.0
SHORT_ROWS = 0.5

Make = Callable[[], AsyncDataset[Any]]


def make_tokens(rows: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50_000, rows * SEQ_LEN, dtype=dtype)


def make_cache(folder: Path, tokens: np.ndarray, **options: Any) -> TokenCache:
    """A cache of the tokens as one document."""
    return write_cache(
        folder, [[tokens]], vocab_size=65_536, layout=CacheLayout(tokens.dtype.name), **options
    )


class Floor:
    """Shuffled rows of a flat file of tokens, gathered into one buffer."""

    def __init__(self, path: Path, tokens: np.ndarray) -> None:
        tokens.tofile(path)
        self.path = path
        self.dtype = tokens.dtype
        self.bytes = tokens.nbytes

    def speed(self, batches: int, seq_len: int = SEQ_LEN) -> float:
        """Tokens a second."""
        flat = np.memmap(self.path, self.dtype, "r").reshape(-1, seq_len)
        order = np.random.default_rng(1).integers(0, len(flat), (batches, BATCH))
        out = np.empty((BATCH, seq_len), self.dtype)
        started = time.perf_counter()
        for rows in order:
            np.take(flat, rows, axis=0, out=out, mode="clip")
        return order.size * seq_len / (time.perf_counter() - started)

    def speed_with_arrays(self, batches: int, seq_len: int) -> float:
        """Tokens a second if tokens and sources of each batch become arrays of jax."""
        flat = np.memmap(self.path, self.dtype, "r").reshape(-1, seq_len)
        order = np.random.default_rng(1).integers(0, len(flat), (batches, BATCH))
        buffers = Buffers()
        placement = Placement(batch_sharding(None, None))
        sources = np.zeros((batches, BATCH), np.int32)
        tokens = placement.to_global(buffers.take(BATCH, seq_len, self.dtype), BATCH)
        started = time.perf_counter()
        for rows, source in zip(order, sources, strict=True):
            out = buffers.take(BATCH, seq_len, self.dtype)
            np.take(flat, rows, axis=0, out=out, mode="clip")
            tokens = placement.to_global(out, BATCH)
            placement.to_global(source, BATCH)
        tokens.block_until_ready()
        return order.size * seq_len / (time.perf_counter() - started)


def loader_speed(
    dataset: AsyncDataset[Any], batches: int, skip: int, **options: Any
) -> tuple[float, float]:
    """Tokens a second from the ``skip``-th batch on, and processor seconds for a
    billion of them.
    """
    with (
        DataLoader(dataset, batch_size=BATCH, **options) as loader,
        loader.iter_from_step(0) as stream,
    ):
        for _ in range(skip - 1):
            next(stream)
        next(stream).token_ids.block_until_ready()
        started = time.perf_counter()
        spent = time.process_time()
        for _ in range(batches - 1):
            next(stream)
        batch = next(stream)
        batch.token_ids.block_until_ready()
        elapsed = time.perf_counter() - started
        spent = time.process_time() - spent
    tokens = batches * batch.token_ids.size
    return tokens / elapsed, 1e9 * spent / tokens


class Bench:
    """Times cases against the floor, and keeps what they gave."""

    def __init__(self, floor: Floor, batches: int, repeats: int) -> None:
        self.floor = floor
        self.batches = batches
        self.repeats = repeats
        self.rows: list[list[Any]] = []
        self.share: dict[str, float] = {}
        self.core_s: dict[str, float] = {}

    def time(
        self,
        name: str,
        make: Make,
        skip: int,
        *,
        seq_len: int = SEQ_LEN,
        with_arrays: bool = False,
        **options: Any,
    ) -> None:
        """Times batches of the datasets that ``make`` gives, one for each repetition; beside the
        floor, or the one with jax arrays.
        """
        batches = self.batches * max(1, min(SEQ_LEN // seq_len, 4))
        floor_speed = self.floor.speed_with_arrays if with_arrays else self.floor.speed
        measurements = []
        for _ in range(self.repeats):
            before = floor_speed(batches, seq_len)
            speed, core_s = loader_speed(make(), batches, skip, **options)
            floor = (before + floor_speed(batches, seq_len)) / 2
            measurements.append((speed / floor, speed, core_s, floor))
        share, speed, core_s, floor = (
            statistics.median(column) for column in zip(*measurements, strict=True)
        )
        self.share[name] = share
        self.core_s[name] = core_s
        shares = [one[0] for one in measurements]
        dtype = self.floor.dtype.name
        self.rows.append(
            [dtype, name, share, min(shares), max(shares), speed / 1e6, floor / 1e6, core_s]
        )


def braid(source: TokenSeqDataset | PackedTokenDataset) -> AsyncDataset[Any]:
    return source.braid_shuffle(seed=0, batch_size=BATCH).repeat()


def mixture(caches: Sequence[TokenCache]) -> AsyncDataset[Any]:
    """Caches of one size each, mixed evenly."""
    strands = max(8 * BATCH // len(caches), 1)
    names = [f"{number:03d}" for number in range(len(caches))]
    parts = {
        name: TokenSeqDataset(cache, SEQ_LEN, name=name).braid_shuffle(seed=0, strands=strands)
        for name, cache in zip(names, caches, strict=True)
    }
    return MixtureDataset(parts, dict.fromkeys(names, 1), BATCH)


def split_caches(folder: Path, tokens: np.ndarray, count: int) -> list[TokenCache]:
    """The corpus as so many caches of whole blocks, more or less."""
    size = tokens.size // count // SEQ_LEN * SEQ_LEN
    return [make_cache(folder / f"{k}", tokens[k * size : (k + 1) * size]) for k in range(count)]


def fresh(make: Callable[[TokenCache], AsyncDataset[Any]], path: str) -> AsyncDataset[Any]:
    """A dataset of a cache that this process has not read yet."""
    return make(open_cache(path))


def kept(dataset: AsyncDataset[Any]) -> Make:
    """One dataset for all repetitions: what was checked once is not checked again."""
    return lambda: dataset


def bench_corpus(
    report: Report, folder: Path, dtype: str, rows: int, batches: int, repeats: int
) -> list[list[Any]]:
    """Plain rows of one dtype."""
    tokens = make_tokens(rows, dtype)
    cache = make_cache(folder / "one", tokens)
    floor = Floor(folder / "flat", tokens)
    epoch = rows // BATCH
    quarter = floor.bytes // 4
    whole = 2 * floor.bytes
    bench = Bench(floor, batches, repeats)
    one = braid(TokenSeqDataset(cache, SEQ_LEN))
    loader_speed(one, epoch, 1, prefetch_bytes=quarter)  # checks all blocks
    bench.time("within the budget", kept(one), epoch, prefetch_bytes=whole)
    bench.time("four times the budget", kept(one), 64, prefetch_bytes=quarter)
    full = TokenSeqDataset(cache, SEQ_LEN).shuffle(0).repeat()
    bench.time("full shuffle, within the budget", kept(full), epoch, prefetch_bytes=whole)
    three = mixture(split_caches(folder / "three", tokens, 3))
    loader_speed(three, epoch, 1, prefetch_bytes=whole)
    bench.time("three sources, within the budget", kept(three), epoch, prefetch_bytes=whole)
    make = partial(fresh, lambda opened: braid(TokenSeqDataset(opened, SEQ_LEN)), cache.path)
    bench.batches = min(batches, epoch - 1)
    bench.time("first pass", make, 1, prefetch_bytes=quarter)
    bench.batches = batches
    if dtype == "uint16":
        many = mixture(split_caches(folder / "many", tokens, SOURCES))
        loader_speed(many, epoch, 1, prefetch_bytes=quarter)
        bench.time(
            f"{SOURCES} sources, four times the budget", kept(many), 64, prefetch_bytes=quarter
        )
        report.bar(
            f"{SOURCES} sources, four times the budget",
            bench.share[bench.rows[-1][1]],
            at_least=MANY_SOURCES,
        )
        short = braid(TokenSeqDataset(cache, 128))
        of_short = {"seq_len": 128, "prefetch_bytes": whole}
        bench.time("rows of 128 tokens", kept(short), 64, **of_short)
        name = "rows of 128 tokens, of the floor with jax arrays"
        bench.time(name, kept(short), 64, with_arrays=True, **of_short)
        report.bar("rows of 128 tokens", bench.share["rows of 128 tokens"], at_least=SHORT_ROWS)
    report.bar(
        f"{dtype}, within the budget", bench.share["within the budget"], at_least=WITHIN[dtype]
    )
    report.bar(
        f"{dtype}, four times the budget",
        bench.share["four times the budget"],
        at_least=OVER[dtype],
    )
    report.bar(
        f"{dtype}, four times the budget, first pass",
        bench.share["first pass"],
        at_least=FIRST_PASS,
    )
    report.bar(
        f"{dtype}, core seconds per 1e9", bench.core_s["four times the budget"], at_most=CORE_S
    )
    of_one = bench.share["three sources, within the budget"] / bench.share["within the budget"]
    report.bar(f"{dtype}, three sources: of one", of_one, at_least=THREE_SOURCES)
    return bench.rows


def same(batch: PackedBatch) -> PackedBatch:
    """A function for ``map`` that does nothing."""
    return batch


def bench_kinds(report: Report, folder: Path, rows: int, batches: int, repeats: int) -> None:
    """Masks, packed rows and functions, beside plain rows of the same cache."""
    tokens = make_tokens(rows, "uint16")
    sizes = np.random.default_rng(2).integers(64, 2 * SEQ_LEN, 2 * rows // 2)
    documents = np.split(tokens, np.minimum(np.cumsum(sizes), tokens.size))[:-1]
    documents = [document[:SEQ_LEN] for document in documents if document.size]
    layout = CacheLayout("uint16")
    cache = write_cache(
        folder / "kinds",
        [documents],
        vocab_size=65_536,
        layout=layout,
        mask=lambda ids: ids % 3 > 0,
    )
    plain = braid(TokenSeqDataset(cache, SEQ_LEN, loss_mask="none"))
    cases = {
        "loss masks": braid(TokenSeqDataset(cache, SEQ_LEN)),
        "packed rows": braid(PackedTokenDataset(cache, SEQ_LEN, loss_mask="none")),
        "map()": braid(TokenSeqDataset(cache, SEQ_LEN, loss_mask="none")).map(same),
    }
    budget = {"prefetch_bytes": 8 * cache.num_tokens}
    for dataset in (plain, *cases.values()):
        loader_speed(dataset, min(cache.num_tokens // SEQ_LEN // BATCH, batches), 1, **budget)
    table = []
    for name, dataset in cases.items():
        measurements = []
        for _ in range(repeats):
            before = loader_speed(plain, batches, 64, **budget)[0]
            speed, core_s = loader_speed(dataset, batches, 64, **budget)
            beside = (before + loader_speed(plain, batches, 64, **budget)[0]) / 2
            measurements.append((speed / beside, speed / 1e6, beside / 1e6, core_s))
        table.append(
            [name, *(statistics.median(column) for column in zip(*measurements, strict=True))]
        )
        report.bar(f"{name}: of plain rows", table[-1][1], at_least=OF_PLAIN)
    both = tokens.reshape(-1, SEQ_LEN), (tokens % 3 > 0).astype(np.uint8).reshape(-1, SEQ_LEN)
    share = sorted(take_share(*both, BATCH, batches) for _ in range(repeats))[repeats // 2]
    report.bar(
        "loss masks: that share, of np.take's of tokens and masks", table[0][1] / share, at_least=1
    )
    report.table(
        "2-byte tokens, beside plain rows of the same cache",
        ["case", "of plain rows", "M tokens/s", "plain M tokens/s", "core s per 1e9"],
        table,
    )


def bench_first_pass(report: Report, folder: Path, rows: int, rounds: int) -> None:
    """The first pass beside later ones, of two-byte tokens, with a quarter of the corpus as the
    budget.
    """
    tokens = make_tokens(rows, "uint16")
    documents = np.split(tokens, range(1500, tokens.size, 1500))
    masked = write_cache(
        folder / "masks",
        [documents],
        vocab_size=65_536,
        layout=CacheLayout("uint16"),
        mask=lambda ids: ids % 3 > 0,
    )
    caches = {
        "one source": [make_cache(folder / "one", tokens)],
        "20 sources": split_caches(folder / "many", tokens, 20),
        "loss masks": [masked],
    }
    budget = max(tokens.nbytes // 4, BATCH * 3 * 65_536)  # a chunk for each row of a batch
    table = []
    for name, several in caches.items():
        paths = [cache.path for cache in several]
        batches = rows // BATCH - len(paths)
        run = partial(loader_speed, batches=batches, skip=1, prefetch_bytes=budget)
        later = mixture(several)
        run(later)  # checks all blocks
        firsts = []
        laters = []
        for _ in range(rounds):
            firsts.append(run(mixture([open_cache(path) for path in paths])))
            laters.append(run(later))
        first_speed, later_speed = max(firsts)[0], max(laters)[0]
        core_s = [min(core_s for _, core_s in runs) for runs in (firsts, laters)]
        share = first_speed / later_speed
        table.append([name, share, first_speed / 1e6, later_speed / 1e6, *core_s])
        least = FIRST_OF_LATER[name]
        report.bar(f"{name}, first pass: of later ones", share, at_least=least)
        of_cores = core_s[1] / core_s[0]
        report.bar(f"{name}, first pass: of later ones, by core s", of_cores, at_least=least)
    report.table(
        "The first pass beside later ones, 2-byte tokens",
        ["case", "of later", "M tokens/s", "later M tokens/s", "core s per 1e9", "later core s"],
        table,
    )


def look_at_nothing(batch: PackedBatch) -> Any:
    return batch.token_ids


@jax.jit
def sum_tokens(batch: PackedBatch) -> Any:
    return batch.tokens.sum()


@jax.jit
def sum_all(batch: PackedBatch) -> Any:
    """What a training step reads of a batch."""
    integers = batch.labels + batch.segment_ids + batch.position_ids
    return batch.tokens.sum(), integers.sum(), batch.token_weights.sum()


CONSUMERS = {
    "waits for tokens": look_at_nothing,
    "sums tokens": sum_tokens,
    "sums tokens, labels, segments, positions, weights": sum_all,
}


def consume(
    batches: Iterator[PackedBatch], skip: int, count: int, look: Callable[[PackedBatch], Any]
) -> tuple[float, float]:
    """Tokens a second of a consumer behind the ``skip``-th batch, and processor seconds for a
    billion of them.
    """
    for batch in islice(batches, skip):
        jax.block_until_ready(look(batch))
    started = time.perf_counter()
    spent = time.process_time()
    for batch in islice(batches, count):
        jax.block_until_ready(look(batch))
    tokens = count * BATCH * SEQ_LEN
    return (
        tokens / (time.perf_counter() - started),
        1e9 * (time.process_time() - spent) / tokens,
    )


def bench_consumers(report: Report, folder: Path, rows: int, batches: int, rounds: int) -> None:
    """What is left of loading's speed once somebody looks at the batches."""
    tokens = make_tokens(rows, "uint16")
    documents = np.split(tokens, range(1500, tokens.size, 1500))
    cache = write_cache(folder, [documents], vocab_size=65_536, layout=CacheLayout("uint16"))
    opened = braid(TokenSeqDataset(cache, SEQ_LEN))
    epoch = rows // BATCH
    # A quarter of the corpus, but no less than the blocks that the order keeps open: a smaller
    # budget reads each block many times, which ``config check`` refuses.
    budget = max(tokens.nbytes // 4, LEAST_BUDGET)
    make = partial(fresh, lambda opened: braid(TokenSeqDataset(opened, SEQ_LEN)), cache.path)
    cases = {"first": (make, 1, epoch - 2), "later": (kept(opened), epoch, batches)}
    with DataLoader(opened, BATCH) as loader, loader.iter_from_step(0) as stream:
        ready = list(islice(stream, 8))
    table = []
    for name, look in CONSUMERS.items():
        for case, (make, skip, count) in cases.items():
            runs = []
            for _ in range(rounds):
                of_ready, core_s_of_ready = consume(cycle(ready), 8, count, look)
                with (
                    DataLoader(make(), BATCH, prefetch_bytes=budget) as loader,
                    loader.iter_from_step(0) as stream,
                ):
                    speed, core_s = consume(stream, skip, count, look)
                runs.append((speed / of_ready, speed / 1e6, core_s, core_s - core_s_of_ready))
            share, *figures = (statistics.median(one) for one in zip(*runs, strict=True))
            table.append([name, case, None if look is look_at_nothing else share, *figures])
            report.bar(
                f"{name}, {case} pass: core seconds of loading per 1e9",
                figures[-1],
                at_most=CORE_S,
            )
    report.table(
        f"Consumers: {rows:,} rows of {SEQ_LEN:,} 2-byte tokens, batches of {BATCH}",
        ["consumer", "pass", "of ready batches", "M tokens/s", "core s per 1e9", "of it loading"],
        table,
    )


def forget(paths: Sequence[Path]) -> None:
    """Asks the system to drop files from its page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def sequential_speed(paths: Sequence[Path], piece: int = 4 << 20) -> float:
    """Bytes a second of reading files one after the other."""
    started = time.perf_counter()
    size = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while read := len(file.read(piece)):
                size += read
    return size / (time.perf_counter() - started)


def bench_cold(report: Report, folder: Path, rows: int, repeats: int) -> None:
    """The first pass of a cache that is not in the page cache."""
    cache = make_cache(folder / "cold", make_tokens(rows, "uint16"))
    paths = sorted(path for path in Path(cache.path).rglob("c/*") if path.is_file())
    measurements = []
    for _ in range(repeats):
        forget(paths)
        sequential = sequential_speed(paths) / 2
        forget(paths)
        dataset = TokenSeqDataset(open_cache(cache.path), SEQ_LEN).braid_shuffle(
            batch_size=BATCH, seed=0
        )
        started = time.perf_counter()
        with DataLoader(dataset, batch_size=BATCH) as loader:
            for batch in loader:
                batch.token_ids.block_until_ready()
        speed = cache.num_tokens / (time.perf_counter() - started)
        measurements.append((speed / sequential, speed / 1e6, sequential / 1e6))
    share, speed, sequential = sorted(measurements)[len(measurements) // 2]
    columns = ["M tokens/s, braid", "M tokens/s, files in order", "share"]
    report.table("Cold disk, 2-byte tokens: one epoch", columns, [[speed, sequential, share]])
    report.bar("cold disk: of a sequential reader", share, at_least=COLD)


def measure(args: argparse.Namespace, report: Report) -> None:
    rows, batches, repeats = (QUICK_ROWS, 128, 2) if args.quick else (ROWS, 1024, 7)
    touch_memory()
    if args.consumers:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            bench_consumers(report, Path(folder), rows, batches, min(repeats, 3))
        return
    table: list[list[Any]] = []
    for dtype in ("uint16", "uint32"):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            table += bench_corpus(report, Path(folder), dtype, rows, batches, repeats)
    columns = [
        "dtype",
        "case",
        "share of floor",
        "least",
        "most",
        "M tokens/s",
        "floor M tokens/s",
        "core s per 1e9",
    ]
    report.table(f"Speed: {rows:,} rows of {SEQ_LEN:,} tokens, batches of {BATCH}", columns, table)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        bench_kinds(report, Path(folder), rows // 4, batches, repeats)
        bench_first_pass(report, Path(folder), rows // 2, repeats)
        bench_cold(report, Path(folder), rows // 2, repeats)
    report.note(
        "Shares are medians of runs side by side with the floor; figures in M tokens/s hold for"
        " this run only."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--consumers", action="store_true", help="instead: consumers that look at the batches"
    )


if __name__ == "__main__":
    run_bench("bench_local_speed", __doc__, measure, add_arguments=add_arguments)
