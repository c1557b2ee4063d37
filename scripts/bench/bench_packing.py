"""How fast documents are packed, how full the packs are, what a pack reads, and what planning holds
in memory.

    python scripts/bench/bench_packing.py --check --json docs/bench/packing.json

Log-normal lengths, 600 tokens in the median, a factor of e wide, at most 8192; packs of 4096;
blocks of 65,536 tokens. Documents longer than a pack are dropped first, so that fill is that of
documents which fit. Times are the best of two runs (windowed: one); "blocks" are the distinct
stored blocks that a pack's documents lie in, on average; memory is the peak of what planning
allocates, the plan itself included, the given lengths not. Grain packs first-fit as it reads, into
as many open packs as it has bins; ``binpacking`` is what CoordExp and ms-swift call. Both are
measured on fewer documents.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.pack import plan_packs
from headrace.pack.plan import PackPlan
from headrace.pack.spec import Algorithm

CAPACITY = 4096
BLOCK = 65_536
MEDIAN = 600
LONGEST = 8192
ALGORITHMS: tuple[Algorithm, ...] = (
    "bfd",
    "wfd",
    "ffd",
    "bfd_split",
    "windowed",
    "next_fit",
    "wrap",
)


def draw(documents: int) -> np.ndarray:
    drawn = np.exp(np.random.default_rng(0).standard_normal(documents)) * MEDIAN
    return np.clip(np.rint(drawn), 1, LONGEST).astype(np.int64)


def blocks_a_pack(plan: PackPlan, lengths: np.ndarray) -> float:
    start = (np.cumsum(lengths) - lengths)[plan.items.document] + plan.items.offset
    first = start // BLOCK
    last = (start + plan.items.size - 1) // BLOCK
    before = np.concatenate([[-1], last[:-1]])
    before[plan.bounds[:-1]] = -1
    return float((last - np.maximum(first, before + 1) + 1).sum() / len(plan))


def timed(work: Callable[[], Any], runs: int = 2) -> tuple[float, Any]:
    best = float("inf")
    result = None
    for _ in range(runs):
        result = None
        started = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - started)
    return best, result


def peak_bytes(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def with_binpacking(lengths: np.ndarray) -> tuple[float, float]:
    pack = importlib.import_module("binpacking").to_constant_volume
    items = list(enumerate(lengths.tolist()))
    seconds, bins = timed(lambda: pack(items, CAPACITY, weight_pos=1), 1)
    return seconds, float(lengths.sum() / (len(bins) * CAPACITY))


def with_grain(lengths: np.ndarray) -> tuple[float, float]:
    grain = importlib.import_module("grain")
    packing = importlib.import_module("grain.experimental")
    tokens = [{"tokens": np.ones(n, np.int32)} for n in lengths.tolist()]

    def work() -> int:
        dataset = grain.MapDataset.source(tokens).to_iter_dataset()
        packed = packing.FirstFitPackIterDataset(
            dataset, length_struct={"tokens": CAPACITY}, num_packing_bins=64
        )
        return sum(1 for _ in packed)

    seconds, rows = timed(work, 1)
    return seconds, float(lengths.sum() / (rows * CAPACITY))


def measure(args: argparse.Namespace, report: Report) -> None:
    sizes = (250_000,) if args.quick else (1_000_000, 10_000_000)
    rows: list[list[Any]] = []
    found: dict[tuple[str, int], tuple[float, float, float]] = {}
    for documents in sizes:
        lengths = draw(documents)
        lengths = lengths[lengths <= CAPACITY]
        for name in ALGORITHMS:
            runs = 1 if name == "windowed" else 2
            seconds, plan = timed(
                lambda a=name, n=lengths: plan_packs(n, CAPACITY, a, block_tokens=BLOCK), runs
            )
            blocks = blocks_a_pack(plan, lengths)
            fill = plan.fill
            packs = len(plan)
            found[name, documents] = seconds, fill, blocks
            del plan
            traced = (
                name != "windowed" or documents <= 1_000_000
            )  # a traced Python loop takes ten times as long
            memory = (
                peak_bytes(lambda a=name, n=lengths: plan_packs(n, CAPACITY, a, block_tokens=BLOCK))
                / lengths.size
                if traced
                else None
            )
            rows.append(
                [name, documents, packs, seconds, documents / seconds, fill, blocks, memory]
            )
            if memory is not None:
                report.bar(f"{name} of {documents:,}: bytes a document", memory, at_most=64)
    small = draw(8000)
    small = small[small <= CAPACITY]
    for name, package, work in (
        ("binpacking", "binpacking", with_binpacking),
        ("grain first-fit", "grain", with_grain),
    ):
        if importlib.util.find_spec(package) is None:
            rows.append(
                [f"{name}: pip install {package}", small.size, None, None, None, None, None, None]
            )
            report.note(f"{name} was not measured: pip install {package}")
            continue
        seconds, fill = work(small)
        rows.append([name, small.size, None, seconds, small.size / seconds, fill, None, None])
    report.table(
        "Packs of 4096 tokens",
        [
            "algorithm",
            "documents",
            "packs",
            "seconds",
            "documents/s",
            "fill",
            "blocks a pack",
            "bytes a document",
        ],
        rows,
    )
    bars = {1_000_000: 2.0, 10_000_000: 30.0}
    for documents in sizes:
        seconds, fill, _ = found["bfd", documents]
        if documents in bars:
            report.bar(f"bfd of {documents:,}: seconds", seconds, at_most=bars[documents])
        report.bar(f"bfd of {documents:,}: fill", fill, at_least=0.995)
        _, near, blocks = found["windowed", documents]
        report.bar(f"windowed of {documents:,}: fill below bfd's", fill - near, at_most=0.005)
        report.bar(f"windowed of {documents:,}: blocks a pack", blocks, at_most=1.2)


if __name__ == "__main__":
    run_bench("bench_packing", __doc__, measure)
