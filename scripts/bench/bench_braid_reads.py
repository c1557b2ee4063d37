"""How often each stored block is read per epoch, by order, number of hosts and number of components.

    python scripts/bench/bench_braid_reads.py --check --json docs/bench/braid_reads.json

Batch 512, blocks of 256 examples, 512 strands in all, one whole epoch of at least 64 blocks a strand; every row of
every step is mapped and each host's reads are forecast exactly (headrace.index.reads). 20 components have Zipf weights
and lengths in proportion, and are handed out by quota. A host looks 64 steps ahead and holds at most
``2 K / H + 2 x components`` blocks; where no cache is given, it holds and looks ahead as much as it likes. Burst: most
reads in a step over the mean, without the cold start. The last table is of a stretch of a run that does not end, right
at its start and a million steps later: the reads of 64 hosts must not grow with the age of a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.index.block_shuffle import BlockShuffle
from headrace.index.braid_table import BraidTable
from headrace.index.draws import Draws
from headrace.index.reads import ReadForecast, forecast_reads, in_row_order
from headrace.index.schedule import BatchSchedule, weight_from_config
from headrace.index.strands import StrandPlan, apportion, resolve_strands

BATCH, BLOCK, STRANDS, BLOCKS_A_STRAND = 512, 256, 512, 64
LOOK_AHEAD, COLD_STEPS = 64, 64
HOSTS = (1, 8, 64)
STEPS_A_PASS = 512
AGES, AGED_STEPS = (0, 10_000, 1_000_000), 2048
BARS = {(1, 1): 1.05, (1, 8): 1.05, (1, 64): 1.05, (20, 8): 1.15, (20, 64): 1.8}
Order = Callable[["Job"], tuple[np.ndarray, np.ndarray | None]]
"""Block of every row of every step in stream order, and localities if the order has any."""


class Job:
    """A mixture of Zipf components that all end their first epoch with the last step.

    Args:
        components: Number of components.
        strands: Strands of all components together.
        block: Examples in a block.
        changing: Weights change in the middle of the run, by up to 30%.
        begin: Instead of a whole epoch: :data:`AGED_STEPS` from this step on, of components that do not end.
    """

    def __init__(
        self, components: int, strands: int, block: int, changing: bool = False, begin: int | None = None
    ) -> None:
        first = 1.0 / np.arange(1, components + 1)
        second = first * np.random.default_rng(1).uniform(0.7, 1.3, components) if changing else first
        first, second = first / first.sum(), second / second.sum()
        largest = np.maximum(first, second)
        self.block = block
        self.plan, self.plan_for_first = (
            resolve_strands(
                np.full(components, 1 << 40), largest, batch_size=BATCH, strands=strands, usual_shares=usual
            )
            for usual in (None, first)
        )
        mean = (first + second) / 2
        total = float((BLOCKS_A_STRAND * block * self.plan.strands / mean).max())
        self.steps = -(-int(total) // BATCH) if begin is None else AGED_STEPS
        weights = [{"step": {0: float(a), self.steps // 2: float(b)}} for a, b in zip(first, second, strict=True)]
        draws = Draws([weight_from_config(w) for w in weights], BatchSchedule(BATCH))
        self.component = np.empty((self.steps, BATCH), np.int32)
        self.ordinal = np.empty((self.steps, BATCH), np.int64)
        for step in range(self.steps):
            self.component[step], self.ordinal[step] = draws.step_table(step + (begin or 0))
        self.lengths = np.maximum(draws.starts_at(self.steps), 1) if begin is None else np.full(components, 1 << 40)
        self.first_block = np.cumsum(-(-self.lengths // block)) - -(-self.lengths // block)

    def block_of(self, component: np.ndarray, row: np.ndarray) -> np.ndarray:
        """A number for each block of each component."""
        return self.first_block[component] + row // self.block


def braid(plan_of: Callable[[Job], StrandPlan] = lambda job: job.plan, sort: bool = True) -> Order:
    """A braid with the job's own plan or another one."""

    def order(job: Job) -> tuple[np.ndarray, np.ndarray | None]:
        plan = plan_of(job)
        table = BraidTable(
            job.lengths,
            io_block_size=job.block,
            strands=plan.strands,
            laps=plan.laps,
            seeds=range(len(job.lengths)),
        )
        blocks, locality = np.empty(job.ordinal.shape, np.int64), np.empty(job.ordinal.shape)
        for lo in range(0, job.steps, STEPS_A_PASS):
            part = slice(lo, lo + STEPS_A_PASS)
            component = job.component[part].ravel()
            row, where = table(component, job.ordinal[part].ravel())
            blocks[part] = job.block_of(component, row).reshape(blocks[part].shape)
            locality[part] = where.reshape(blocks[part].shape)
        return blocks, locality if sort else None

    return order


def whole_laps(job: Job) -> StrandPlan:
    """Laps rounded to whole rows, as for weights that change."""
    laps = np.maximum(apportion(job.plan.laps / BATCH, min(BATCH, int(job.plan.strands.sum()))), 1)
    return StrandPlan(laps * np.maximum(job.plan.strands // laps, 1), laps.astype(float))


def no_laps(job: Job) -> StrandPlan:
    """One lap over all strands."""
    return StrandPlan(job.plan.strands, job.plan.strands.astype(float))


def block_shuffle(job: Job) -> tuple[np.ndarray, np.ndarray | None]:
    """Block shuffle with as many blocks open as the braid has strands; rows in stream order."""
    out = np.empty(job.ordinal.shape, np.int64)
    for c, (n, strands) in enumerate(zip(job.lengths.tolist(), job.plan.strands.tolist(), strict=True)):
        order = BlockShuffle(n, io_block_size=job.block, window_blocks=strands, seed=c)
        mine = job.component == c
        i = job.ordinal[mine]
        out[mine] = job.block_of(np.full(i.size, c), order.at(i, np.zeros_like(i)))
    return out, None


COLUMNS = ["order", "components", "hosts", "reads per block", "blocks held", "of cache", "burst", "busiest host / mean"]


def table_row(name: str, job: Job, f: ReadForecast, cache: int | None) -> list[Any]:
    return [
        name,
        len(job.lengths),
        len(f.reads_by_host),
        f.reads_per_block(job.block),
        int(f.peak_blocks.max()),
        cache,
        f.burst(skip=COLD_STEPS),
        float(f.reads_by_host.max() / f.reads_by_host.mean()),
    ]


def forecasts(name: str, order: Order, job: Job, caches: tuple[bool, ...] = (True,)) -> dict[int, list[list[Any]]]:
    """Rows of the table by hosts, with the bounded cache and (or) any cache."""
    blocks, locality = order(job)
    if locality is not None:
        blocks = in_row_order(blocks, locality)
    rows: dict[int, list[list[Any]]] = {}
    for hosts in HOSTS:
        for bounded in caches:
            cache = 2 * int(job.plan.strands.sum()) // hosts + 2 * len(job.lengths) if bounded else None
            f = forecast_reads(blocks, hosts, cache, LOOK_AHEAD if bounded else None)
            rows.setdefault(hosts, []).append(table_row(name, job, f, cache))
    return rows


def compare(
    report: Report, title: str, job: Job, orders: dict[str, Order], caches: dict[str, tuple[bool, ...]]
) -> dict[int, list[list[Any]]]:
    found = [forecasts(name, order, job, caches.get(name, (True,))) for name, order in orders.items()]
    report.table(title, COLUMNS, [row for hosts in HOSTS for rows in found for row in rows[hosts]])
    report.number(f"steps: {title}", job.steps)
    return found[0]


def measure_ages(report: Report) -> None:
    """200 sources on 64 hosts: rows that drift over the border of two batches move over the borders of hosts."""
    rows = [[age, *forecasts("braid", braid(), Job(200, 8 * BATCH, 32, begin=age))[64][0][1:]] for age in AGES]
    report.table(f"{AGED_STEPS} steps from a step on", ["from step", *COLUMNS[1:]], rows)
    for age, *_, reads, _, _, _, _ in rows[1:]:
        report.bar(f"reads at step {age:,} over those at the start", reads / rows[0][3], at_most=1.05)


def measure(args: argparse.Namespace, report: Report) -> None:
    orders: dict[str, Order] = {"braid": braid(), "block shuffle": block_shuffle}
    caches = {"braid, stream order": (False,), "block shuffle": (False,) if args.quick else (True, False)}
    if not args.quick:
        orders["braid, stream order"] = braid(sort=False)
    for components in (1, 20):
        title = f"Batch {BATCH}, {components} component(s), blocks of {BLOCK}, {STRANDS} strands"
        rows = compare(report, title, Job(components, STRANDS, BLOCK), orders, caches)
        for hosts in HOSTS:
            _, _, _, reads, held, cache, burst, _ = rows[hosts][0]
            if (components, hosts) in BARS:
                where = f"braid, components {components}, hosts {hosts}"
                report.bar(f"{where}: reads per block per epoch", reads, at_most=BARS[components, hosts])
                report.bar(f"{where}: blocks held a host", held, at_most=cache)
                report.bar(f"{where}: largest burst / mean", burst, at_most=4.0)
    if args.quick:
        return
    measure_ages(report)
    variants = {"braid": braid(), "braid, whole laps": braid(whole_laps), "braid, no laps": braid(no_laps)}
    for strands, block in ((STRANDS, BLOCK), (8 * BATCH, 32)):
        title = f"Batch {BATCH}, 20 components, blocks of {block}, {strands} strands"
        compare(report, f"{title}: laps", Job(20, strands, block), variants, caches)
        changing = {"braid": braid(), "braid, laps fit the first half": braid(lambda job: job.plan_for_first)}
        compare(report, f"{title}: weights change midway", Job(20, strands, block, changing=True), changing, caches)


if __name__ == "__main__":
    run_bench("bench_braid_reads", __doc__, measure)
