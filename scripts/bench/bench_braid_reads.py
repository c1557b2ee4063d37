"""How often each stored block is read per epoch, by order, number of hosts and number of
components.

    python scripts/bench/bench_braid_reads.py --check --json docs/bench/braid_reads.json

Batch 512, blocks of 256 examples, 512 strands in all, one whole epoch of at least 64 blocks a
strand (24 with --quick, which leaves out the other orders); every row of every step is mapped, and
each host's memory is replayed as its loader runs it: the forecast of `headrace config simulate`. 20
components have Zipf weights and lengths in proportion, and are handed out by quota. A host holds at
most ``2 K / H + 2 x components`` blocks; where no cache is given, it holds as much as it likes.
Burst: most reads in a step over the mean, without the cold start. The last table is of a stretch of
a run that does not end, right at its start and a million steps later: the reads of 64 hosts must
not grow with the age of a run. Hosts that exchange rows: bench_row_exchange.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace import MixtureDataset, TokenSeqDataset
from headrace.analysis.check.sizes import virtual_cache
from headrace.analysis.simulate.replay import Fetches, Windows, replay
from headrace.data import AsyncDataset
from headrace.mix import BatchSchedule
from headrace.mix.blend import Blend
from headrace.mix.draws import Draws
from headrace.mix.schedule import RowOrder
from headrace.mix.stages import Stage, Stages
from headrace.order.shuffle_config import StrandPlan, apportion, resolve_strands
from headrace.store.layout import CacheLayout

BATCH = 512
BLOCK = 256
STRANDS = 512
BLOCKS_A_STRAND = 64
QUICK_BLOCKS_A_STRAND = 24
COLD_STEPS = 64
SEQ_LEN = 8
HOSTS = (1, 8, 64)
AGES = (0, 10_000, 1_000_000)
AGED_STEPS = 2048
BARS = {(1, 1): 1.05, (1, 8): 1.05, (1, 64): 1.05, (20, 8): 1.15, (20, 64): 1.8}
Order = Callable[["Job"], tuple[list[AsyncDataset[Any]], RowOrder]]
"""The components of a job in an order of their own, and the order of the rows within a batch."""


class Job:
    """A mixture of Zipf components that all end their first epoch with the last step.

    Args:
        components: Number of components.
        strands: Strands of all components together.
        block: Examples in a block.
        changing: Weights change in the middle of the run, by up to 30%.
        begin: Instead of a whole epoch: :data:`AGED_STEPS` from this step on, of components that do
            not end.
        blocks_a_strand: Blocks of each strand in an epoch, at least.
    """

    def __init__(
        self,
        components: int,
        strands: int,
        block: int,
        changing: bool = False,
        begin: int | None = None,
        blocks_a_strand: int = BLOCKS_A_STRAND,
    ) -> None:
        first = 1.0 / np.arange(1, components + 1)
        second = (
            first * np.random.default_rng(1).uniform(0.7, 1.3, components) if changing else first
        )
        first = first / first.sum()
        second = second / second.sum()
        largest = np.maximum(first, second)
        self.block = block
        self.plan, self.plan_for_first = (
            resolve_strands(
                np.full(components, 1 << 40),
                largest,
                batch_size=BATCH,
                strands=strands,
                usual_shares=usual,
            )
            for usual in (None, first)
        )
        mean = (first + second) / 2
        total = float((blocks_a_strand * block * self.plan.strands / mean).max())
        self.begin = begin or 0
        self.steps = -(-int(total) // BATCH) if begin is None else AGED_STEPS
        self.names = [f"c{k}" for k in range(components)]
        self.weights = {
            name: {"step": {0: float(a), self.steps // 2: float(b)}}
            for name, a, b in zip(self.names, first, second, strict=True)
        }
        lengths = np.full(components, 1 << 36)
        if begin is None:
            stages = [Stage(0, Blend(self.weights))]
            draws = Draws(Stages(self.names, stages, BatchSchedule(BATCH)))
            lengths = np.maximum(draws.starts_at(self.steps), 1)
        layout = CacheLayout("uint16", chunk_elements=block * SEQ_LEN)
        self.stored = [
            TokenSeqDataset(virtual_cache(name, SEQ_LEN * n, layout=layout), SEQ_LEN, name=name)
            for name, n in zip(self.names, lengths.tolist(), strict=True)
        ]


def braid(
    plan_of: Callable[[Job], StrandPlan] = lambda job: job.plan,
    row_order: RowOrder = "locality",
) -> Order:
    """A braid with the job's own plan or another one."""

    def order(job: Job) -> tuple[list[AsyncDataset[Any]], RowOrder]:
        plan = plan_of(job)
        strands = plan.strands.tolist()
        components = [
            dataset.braid_shuffle(
                seed=c,
                strands=count,
                lap=lap,
                first_strand=first,
                io_block_size=job.block,
            )
            for c, (dataset, count, lap, first) in enumerate(
                zip(
                    job.stored,
                    strands,
                    plan.laps.tolist(),
                    [0, *accumulate(strands[:-1])],
                    strict=True,
                )
            )
        ]
        return components, row_order

    return order


def whole_laps(job: Job) -> StrandPlan:
    """Laps rounded to whole rows, as for weights that change."""
    laps = np.maximum(apportion(job.plan.laps / BATCH, min(BATCH, int(job.plan.strands.sum()))), 1)
    return StrandPlan(laps * np.maximum(job.plan.strands // laps, 1), laps.astype(float))


def no_laps(job: Job) -> StrandPlan:
    """One lap over all strands."""
    return StrandPlan(job.plan.strands, job.plan.strands.astype(float))


def block_shuffle(job: Job) -> tuple[list[AsyncDataset[Any]], RowOrder]:
    """Block shuffle with as many blocks open as the braid has strands; rows in stream order."""
    return [
        dataset.block_shuffle(io_block_size=job.block, window_blocks=strands, seed=c)
        for c, (dataset, strands) in enumerate(
            zip(job.stored, job.plan.strands.tolist(), strict=True)
        )
    ], "stream"


COLUMNS = [
    "order",
    "components",
    "hosts",
    "reads per block",
    "blocks held",
    "of cache",
    "burst",
    "busiest host / mean",
]


def table_row(name: str, job: Job, fetches: Fetches, cache: int | None) -> list[Any]:
    warm = fetches.by_step[COLD_STEPS:]
    return [
        name,
        len(job.names),
        fetches.by_host.size,
        float(fetches.by_step.sum()) * job.block / (job.steps * BATCH),
        fetches.blocks_held,
        cache,
        float(warm.max() / warm.mean()) if warm.any() else 0.0,
        float(fetches.by_host.max() / fetches.by_host.mean()),
    ]


def forecasts(
    name: str, order: Order, job: Job, caches: tuple[bool, ...] = (True,)
) -> dict[int, list[list[Any]]]:
    """Rows of the table by hosts, with the bounded cache and (or) any cache."""
    components, row_order = order(job)
    mixture = MixtureDataset(
        dict(zip(job.names, components, strict=True)), job.weights, batch_size=BATCH
    )
    windows = Windows(mixture, mixture.batch_schedule, job.begin, None, row_order)
    rows: dict[int, list[list[Any]]] = {}
    for hosts in HOSTS:
        for bounded in caches:
            cache = (
                2 * int(job.plan.strands.sum()) // hosts + 2 * len(job.names) if bounded else None
            )
            fetches = replay(windows, hosts, job.steps, cache, hosts)
            rows.setdefault(hosts, []).append(table_row(name, job, fetches, cache))
    return rows


def compare(
    report: Report,
    title: str,
    job: Job,
    orders: dict[str, Order],
    caches: dict[str, tuple[bool, ...]],
) -> dict[int, list[list[Any]]]:
    found = [
        forecasts(name, order, job, caches.get(name, (True,))) for name, order in orders.items()
    ]
    report.table(title, COLUMNS, [row for hosts in HOSTS for rows in found for row in rows[hosts]])
    report.number(f"steps: {title}", job.steps)
    return found[0]


def measure_ages(report: Report) -> None:
    """200 sources on 64 hosts: rows that drift over the border of two batches move over the borders
    of hosts.
    """
    rows = [
        [age, *forecasts("braid", braid(), Job(200, 8 * BATCH, 32, begin=age))[64][0][1:]]
        for age in AGES
    ]
    report.table(f"{AGED_STEPS} steps from a step on", ["from step", *COLUMNS[1:]], rows)
    for age, *_, reads, _, _, _, _ in rows[1:]:
        report.bar(
            f"reads at step {age:,} over those at the start", reads / rows[0][3], at_most=1.05
        )


def measure(args: argparse.Namespace, report: Report) -> None:
    orders: dict[str, Order] = {"braid": braid()}
    caches = {"braid, stream order": (False,), "block shuffle": (True, False)}
    if not args.quick:
        orders |= {"block shuffle": block_shuffle, "braid, stream order": braid(row_order="stream")}
    length = QUICK_BLOCKS_A_STRAND if args.quick else BLOCKS_A_STRAND
    for components in (1, 20):
        title = f"Batch {BATCH}, {components} component(s), blocks of {BLOCK}, {STRANDS} strands"
        rows = compare(
            report, title, Job(components, STRANDS, BLOCK, blocks_a_strand=length), orders, caches
        )
        for hosts in HOSTS:
            _, _, _, reads, held, cache, burst, _ = rows[hosts][0]
            if (components, hosts) in BARS:
                where = f"braid, components {components}, hosts {hosts}"
                report.bar(
                    f"{where}: reads per block per epoch", reads, at_most=BARS[components, hosts]
                )
                report.bar(f"{where}: blocks held a host", held, at_most=cache)
                report.bar(f"{where}: largest burst / mean", burst, at_most=4.0)
    if args.quick:
        return
    measure_ages(report)
    variants = {
        "braid": braid(),
        "braid, whole laps": braid(whole_laps),
        "braid, no laps": braid(no_laps),
    }
    for strands, block in ((STRANDS, BLOCK), (8 * BATCH, 32)):
        title = f"Batch {BATCH}, 20 components, blocks of {block}, {strands} strands"
        compare(report, f"{title}: laps", Job(20, strands, block), variants, caches)
        changing = {
            "braid": braid(),
            "braid, laps fit the first half": braid(lambda job: job.plan_for_first),
        }
        compare(
            report,
            f"{title}: weights change midway",
            Job(20, strands, block, changing=True),
            changing,
            caches,
        )


if __name__ == "__main__":
    run_bench("bench_braid_reads", __doc__, measure)
