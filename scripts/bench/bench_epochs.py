"""How much the braid changes from epoch to epoch, what that costs in time and reads: version 2
beside version 1.

    python scripts/bench/bench_epochs.py --check --json docs/bench/epochs.json

Small sources: 200 epochs; how often pairs of rows share a batch (variance over mean; a full shuffle
of the same length beside it), pairs that never do, and how many of the epochs' orders are distinct.
Large sources: neighbouring rows whose distance in the order is the same in two successive epochs.
Time: an index in batches of 1,024 rows and in windows of 64 batches, both versions in turn. Reads:
20 Zipf components on 1, 8 and 64 hosts, as bench_braid_reads.py counts them.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from typing import Any

import numpy as np
from _common import Report, run_bench
from bench_braid_reads import BATCH, Job, braid, forecasts

from headrace.order import BraidShuffle, Feistel
from headrace.order.braid.strands import resolve_strands
from headrace.order.braid.table import BraidTable

EPOCHS = 200
SMALL = ((64, 8), (256, 32), (1000, 16))
LARGE = ((1 << 17, 32, 128), (1 << 17, 32, 1024), (100_003, 33, 100), (1 << 18, 256, 128))
COMPONENTS = (1, 20, 200)
SIZES = (1024, 64 * 1024)


def make_braid(n: int, batch: int, block: int, version: int) -> BraidShuffle:
    plan = resolve_strands(np.array([n]), np.ones(1), batch_size=batch)
    strands = int(plan.strands[0])
    lap = float(plan.laps[0])
    return BraidShuffle(n, io_block_size=block, strands=strands, lap=lap, seed=0, version=version)


def count_pairs(order: Any, n: int, batch: int) -> tuple[float, float, int]:
    """Variance over mean of how often pairs share a batch, the share of those that never do,
    distinct epochs.
    """
    epochs = [order.at(np.arange(n), np.full(n, epoch)) for epoch in range(EPOCHS)]
    rows = np.concatenate(epochs)
    meetings = np.zeros((n, n), np.int32)
    for batch_rows in rows[: rows.size // batch * batch].reshape(-1, batch):
        meetings[np.ix_(batch_rows, batch_rows)] += 1
    pairs = meetings[np.triu_indices(n, 1)]
    return (
        float(pairs.var() / pairs.mean()),
        float((pairs == 0).mean()),
        len({epoch.tobytes() for epoch in epochs}),
    )


def equal_distances(order: BraidShuffle) -> float:
    """Share of neighbours that are as far apart in an epoch as in the next; the largest of three
    pairs of epochs.
    """
    n = len(order)
    distances = []
    for epoch in range(4):
        position = np.empty(n, np.int64)
        position[order.at(np.arange(n), np.full(n, epoch))] = np.arange(n)
        distances.append(np.abs(np.diff(position)))
    return max(float((a == b).mean()) for a, b in pairwise(distances))


def measure_small(report: Report, quick: bool) -> None:
    rows = []
    for n, batch in SMALL:
        full = count_pairs(Feistel(n, 0), n, batch)
        rows.append([n, batch, None, "full", *full])
        for block in (8, 32) if quick else (8, 16, 32):
            for version in (1, 2):
                ratio, never, distinct = count_pairs(make_braid(n, batch, block, version), n, batch)
                rows.append([n, batch, block, f"braid {version}", ratio, never, distinct])
                if version == 2:
                    where = f"{n} rows, {batch} a batch, blocks of {block}"
                    report.bar(f"variance / mean of pair counts: {where}", ratio, at_most=1.3)
                    report.bar(f"pairs that never meet: {where}", never, at_most=1.5 * full[1])
                    report.bar(f"distinct epochs: {where}", distinct, at_least=EPOCHS)
    columns = [
        "rows",
        "a batch",
        "block",
        "order",
        "variance / mean",
        "never meet",
        "distinct epochs",
    ]
    report.table(f"Small sources, {EPOCHS} epochs", columns, rows)


def measure_large(report: Report) -> None:
    rows = []
    for n, block, batch in LARGE:
        shares = [equal_distances(make_braid(n, batch, block, version)) for version in (1, 2)]
        rows.append([n, block, batch, *shares])
        report.bar(
            f"equal neighbour distances: {n} rows, blocks of {block}, {batch} a batch",
            shares[1],
            at_most=0.05,
        )
    report.table(
        "Neighbour distances equal in two epochs",
        ["rows", "block", "a batch", "braid 1", "braid 2"],
        rows,
    )


def measure_time(report: Report, repeats: int) -> None:
    rows = []
    for components in COMPONENTS:
        weights = 1.0 / np.arange(1, components + 1)
        lengths = np.maximum((10**9 * weights / weights.sum()).astype(np.int64), 1)
        plan = resolve_strands(lengths, weights / weights.sum(), batch_size=1024)
        tables = [
            BraidTable(
                lengths,
                io_block_size=32,
                strands=plan.strands,
                laps=plan.laps,
                seeds=range(components),
                versions=np.full(components, version),
            )
            for version in (1, 2)
        ]
        rng = np.random.default_rng(0)
        for size in SIZES:
            component = rng.choice(components, size, p=weights / weights.sum()).astype(np.int32)
            ordinal = np.arange(size) + 10**6
            best = [float("inf")] * 2
            for _ in range(repeats):
                for number, table in enumerate(tables):
                    start = time.process_time()
                    table(component, ordinal)
                    best[number] = min(best[number], time.process_time() - start)
            ratio = best[1] / best[0]
            rows.append([components, size, *(1e6 * seconds / size for seconds in best), ratio])
            report.bar(
                f"time of version 2 over 1: {components} components, {size} rows",
                ratio,
                at_most=1.2,
            )
    report.table(
        "Time", ["components", "rows a call", "us an index, 1", "us an index, 2", "ratio"], rows
    )


def measure_reads(report: Report, quick: bool) -> None:
    job = Job(20, 8 * BATCH, 32, blocks_a_strand=4 if quick else 64)
    reads = [forecasts(f"braid {version}", braid(version=version), job) for version in (1, 2)]
    rows = []
    for hosts in reads[0]:
        counts = [float(forecast[hosts][0][3]) for forecast in reads]
        rows.append([hosts, *counts])
        report.bar(
            f"reads a block of version 2 over 1: {hosts} hosts", counts[1] / counts[0], at_most=1.02
        )
    report.table("Reads per block per epoch, 20 components", ["hosts", "braid 1", "braid 2"], rows)


def measure(args: argparse.Namespace, report: Report) -> None:
    measure_small(report, args.quick)
    measure_large(report)
    measure_time(report, 15 if args.quick else 60)
    measure_reads(report, args.quick)


if __name__ == "__main__":
    run_bench("bench_epochs", __doc__, measure)
