"""How much the braid changes from epoch to epoch.

    python scripts/bench/bench_epochs.py --check --json docs/bench/epochs.json

Small sources: 200 epochs; how often pairs of rows share a batch (variance over mean; a full shuffle
of the same length beside it), pairs that never do, and how many of the epochs' orders are distinct.
Large sources: neighbouring rows whose distance in the order is the same in two successive epochs.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.order.braid import BraidShuffle
from headrace.order.permutation import Feistel
from headrace.order.shuffle_config import resolve_strands

EPOCHS = 200
SMALL = ((64, 8), (256, 32), (1000, 16))
LARGE = ((1 << 17, 32, 128), (1 << 17, 32, 1024), (100_003, 33, 100), (1 << 18, 256, 128))


def make_braid(n: int, batch: int, block: int) -> BraidShuffle:
    plan = resolve_strands(np.array([n]), np.ones(1), batch_size=batch)
    strands = int(plan.strands[0])
    lap = float(plan.laps[0])
    return BraidShuffle(n, io_block_size=block, strands=strands, lap=lap, seed=0)


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
            ratio, never, distinct = count_pairs(make_braid(n, batch, block), n, batch)
            rows.append([n, batch, block, "braid", ratio, never, distinct])
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
        share = equal_distances(make_braid(n, batch, block))
        rows.append([n, block, batch, share])
        report.bar(
            f"equal neighbour distances: {n} rows, blocks of {block}, {batch} a batch",
            share,
            at_most=0.05,
        )
    report.table(
        "Neighbour distances equal in two epochs",
        ["rows", "block", "a batch", "share"],
        rows,
    )


def measure(args: argparse.Namespace, report: Report) -> None:
    measure_small(report, args.quick)
    measure_large(report)


if __name__ == "__main__":
    run_bench("bench_epochs", __doc__, measure)
