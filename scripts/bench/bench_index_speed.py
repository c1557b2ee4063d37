"""What it costs to know which row comes next: component, row and locality order of a batch, all in.

    python scripts/bench/bench_index_speed.py --check --json docs/bench/index_speed.json

20 Zipf components, braided shuffle at the default budget: ``Draws.route``, ``BraidTable``, then the sort by locality.
Batches follow each other, so nothing is mapped twice. The machine may be busy: the fastest of many batches counts, and
flatness is the ratio of two settings measured in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from _common import Report, run_bench

from headrace.index.braid_table import BraidTable
from headrace.index.draws import Draws
from headrace.index.permutation import Feistel
from headrace.index.schedule import BatchSchedule, weight_from_config
from headrace.index.strands import resolve_strands

LENGTHS = (10**6, 10**9, 10**12)
COMPONENTS = 20


def mapping(n: int, batch: int) -> Callable[[int], np.ndarray]:
    """Maps the batch of a step: rows in locality order."""
    shares = 1.0 / np.arange(1, COMPONENTS + 1)
    shares /= shares.sum()
    lengths = np.maximum((n * shares).astype(np.int64), 1)
    plan = resolve_strands(lengths, shares, batch_size=batch, strands=min(8 * batch, n // 8))
    table = BraidTable(lengths, io_block_size=32, strands=plan.strands, laps=plan.laps, seeds=range(COMPONENTS))
    draws = Draws([weight_from_config(float(s)) for s in shares], BatchSchedule(batch))

    def batch_at(step: int) -> np.ndarray:
        component, ordinal = draws.route(np.arange(step * batch, (step + 1) * batch))
        rows, locality = table(component, ordinal)
        return rows[np.argsort(locality, kind="stable")]

    return batch_at


def best_us(maps: list[Callable[[int], np.ndarray]], batch: int, rounds: int) -> list[float]:
    """Fastest microseconds an index of each mapping, measured in turns."""
    best = [float("inf")] * len(maps)
    for step in range(rounds):
        for k, batch_at in enumerate(maps):
            started = time.perf_counter()
            batch_at(1000 + step)
            best[k] = min(best[k], (time.perf_counter() - started) / batch * 1e6)
    return best


def measure(args: argparse.Namespace, report: Report) -> None:
    rounds = 40 if args.quick else 200
    rows = []
    for batch in (256, 1024, 4096, 16384):
        best = best_us([mapping(n, batch) for n in LENGTHS], batch, rounds)
        rows.append([batch, *best])
        if batch >= 1024:
            report.bar(f"batch {batch}: microseconds an index, any length", max(best), at_most=1.0)
        if batch == 1024:
            report.bar("n = 1e12 over n = 1e6, batch 1024", best[2] / best[0], at_most=1.25)
    report.table(
        f"Microseconds an index: {COMPONENTS} components, braid, locality order",
        ["batch", *(f"n = {n:.0e}" for n in LENGTHS)],
        rows,
    )
    i = np.arange(10**6)
    full = Feistel(10**9, seed=0)
    seconds = min(_seconds(lambda: full(i)) for _ in range(3))
    report.number("seconds for a million indices of a full shuffle", seconds)
    report.bar("a million indices of a full shuffle, seconds", seconds, at_most=1.0)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    run_bench("bench_index_speed", __doc__, measure)
