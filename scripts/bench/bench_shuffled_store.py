"""What a shuffled store costs to read and to train on, with the strands that the hosts ask for.

    python scripts/bench/bench_shuffled_store.py --check --json docs/bench/shuffled_store.json

The first table replays the loaders of 64 hosts (as `headrace config simulate` does) over sources
with Zipf weights, and over those of experiments/nemotron, in plain stores and in shuffled ones with
the default ``max_hosts``, with and without row exchange. The first batch is that of the busiest
host; its share is what a host would read of a batch that is cut from whole blocks, plus one block
for each of its strands.

The second table is of SGD as in bench_order_training.py, with an ICC of .49, over a store whose
documents of some rows are shuffled: with strands as many as the rows of a batch, a sixteenth of
them, and one. Errors are standard errors over seeds of both orders together. With ``--split``,
only this table, of documents that were cut at multiples of a row before they were shuffled.
"""

from __future__ import annotations

import argparse
from typing import Any

import bench_order_training as training
import numpy as np
from _common import Report, run_bench

from headrace import ComponentConfig, LmDataConfig, load_config
from headrace.analysis.check.sizes import planned_caches, virtual_cache
from headrace.analysis.excess import excess_loss, wsd_rates
from headrace.analysis.simulate.replay import Windows, replay
from headrace.data import MixtureDataset
from headrace.order import Order
from headrace.order.braid import BraidShuffle
from headrace.order.compose import Compose
from headrace.order.permutation import Feistel
from headrace.store.layout import CacheLayout

HOSTS = 64
STEPS = 256
SEQ_LEN = 8
BLOCK = 16
NEMOTRON = "experiments/nemotron/pretrain.yaml"
MIB = 1 << 20
ICC = 0.49


def zipf(sources: int, batch: int, shuffled: bool) -> MixtureDataset:
    """Sources of short rows, 16 in a block."""
    weights = {f"source{k}": 1 / (k + 1) for k in range(sources)}
    components = {name: ComponentConfig("-", weight) for name, weight in weights.items()}
    layout = CacheLayout("uint16", chunk_elements=BLOCK * SEQ_LEN)
    caches = {
        name: virtual_cache(name, int(1e9 * weight), layout=layout, shuffled=shuffled)
        for name, weight in weights.items()
    }
    return mixture(LmDataConfig(components, seq_len=SEQ_LEN, batch_size=batch), caches)


def nemotron(shuffled: bool) -> MixtureDataset:
    """The sources of the config, in blocks of 64 rows of 4,096 tokens: 1 MiB."""
    config = load_config(NEMOTRON, ["shuffle={kind: braid}"])
    layout = CacheLayout("uint32", chunk_elements=64 * 4096)
    sizes = planned_caches(config, look=False).caches
    caches = {
        name: virtual_cache(name, cache.num_tokens, layout=layout, shuffled=shuffled)
        for name, cache in sizes.items()
    }
    return mixture(config, caches)


def mixture(config: LmDataConfig, caches: dict[str, Any]) -> MixtureDataset:
    dataset = config.with_caches(caches).dataset()
    assert isinstance(dataset, MixtureDataset)
    return dataset


def read(report: Report) -> None:
    jobs = {
        "20 sources, batch 1,024": lambda shuffled: zipf(20, 1024, shuffled),
        "200 sources, batch 1,024": lambda shuffled: zipf(200, 1024, shuffled),
        "Nemotron, batch 8,192": nemotron,
    }
    rows: list[list[Any]] = []
    for name, make in jobs.items():
        for shuffled in (False, True):
            dataset = make(shuffled)
            windows = Windows(dataset, dataset.batch_schedule, 0, None, "locality")
            alone, exchanged = (
                replay(windows, HOSTS, STEPS, None, HOSTS, exchange=exchange)
                for exchange in (False, True)
            )
            distinct = windows.distinct(STEPS)
            orders = [part.shuffle_order() for part in dataset.components]
            strands = sum(order.strands for order in orders if order)
            size = dataset.batch_schedule.max_size
            block = dataset.components[0].default_io_block_size()
            held = alone.blocks_held * block * dataset.row_bytes / MIB
            share = (size / block + strands) / HOSTS
            mean = float(alone.by_step[0]) / HOSTS
            reads = [float(fetches.by_step.sum()) / distinct for fetches in (alone, exchanged)]
            store = "shuffled" if shuffled else "plain"
            first = windows.cold_start(HOSTS)
            rows.append([name, store, strands, mean, first, alone.blocks_held, held, *reads])
            if not shuffled:
                continue
            report.bar(f"{name}: reads per block, rows exchanged", reads[1], at_most=1.03)
            report.bar(f"{name}: first batch over its share", mean / share, at_most=1.2)
            if dataset.seq_len > SEQ_LEN:
                report.bar(f"{name}: MiB held on a host", held, at_most=32)
                report.bar(f"{name}: reads per block", reads[0], at_most=1.03)
    columns = ["sources", "store", "strands", "blocks of the first batch a host", "busiest host"]
    columns += ["blocks held a host", "MiB", "reads per block", "with exchange"]
    report.table(f"Reads of {HOSTS} hosts", columns, rows)


class Documents(Order):
    """Documents of some rows in an order, each with its rows in turn."""

    bijective = reorders = True

    def __init__(self, documents: Order, rows: int) -> None:
        super().__init__(len(documents) * rows, documents.rows * rows)
        self.documents = documents
        self.size = rows

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        first = self.documents.at(i // self.size, np.zeros_like(epoch))  # as it was written
        return first * self.size + i % self.size


def train(args: argparse.Namespace, report: Report) -> None:
    training.ICCS = (ICC,)
    batch = training.BATCH
    n = 1 << (15 if args.quick else 17)
    seeds = 4 if args.quick else args.seeds
    cases = {1: (batch, batch // 16, 1), 4: (batch // 16,), 16: (batch // 16,)}
    if args.split:
        cases = dict.fromkeys((1, 4, 16, 64), (batch // 16,))
    table: list[list[Any]] = []
    for epochs in (1, 4):
        rates = wsd_rates(n // batch * epochs)
        at = np.arange(n * epochs)
        for rows, several in cases.items():
            training.UNIT = rows if rows > 1 else 256  # rows alone have no neighbours there
            losses = np.zeros((seeds, 1 + len(several)))
            forecasts = np.ones(len(several))
            for seed in range(seeds):
                data = training.Data(n, seed)
                piece = 1 if args.split else rows
                stored = Documents(Feistel(n // piece, seed + 1000), piece)
                orders = [Feistel(n, seed), *(stored_braid(stored, k, seed) for k in several)]
                losses[seed] = [
                    training.train(data, order.at(at % n, at // n), rates)[0] for order in orders
                ]
                forecasts = [
                    excess_loss(
                        order,
                        batch,
                        {} if args.split else {training.UNIT: ICC},
                        rates=rates,
                        curvatures=training.PEAK * training.CURVATURES,
                    )
                    for order in orders[1:]
                ]
            mean = losses.mean(axis=0)
            error = losses.std(axis=0, ddof=1) / np.sqrt(seeds)
            for k, (strands, forecast) in enumerate(zip(several, forecasts, strict=True), start=1):
                spread = np.hypot(error[0], error[k])
                table.append([epochs, rows, strands, mean[k] / mean[0], spread / mean[0], forecast])
                if args.split or rows == 1:
                    apart = (mean[k] - mean[0]) / spread
                    of = f"documents of {rows} rows" if args.split else f"strands {strands}"
                    name = f"epochs {epochs}, {of}: over full, standard errors"
                    report.bar(name, float(apart), at_most=2.0)
    columns = ["epochs", "rows of a document", "strands", "excess over full shuffle", "+-"]
    report.table("Training on a shuffled store", [*columns, "forecast"], table)
    report.number("rows", n)
    report.number("seeds", seeds)


def stored_braid(stored: Order, strands: int, seed: int) -> Order:
    """A braid over rows as they are stored."""
    return Compose(stored, BraidShuffle(len(stored), io_block_size=32, strands=strands, seed=seed))


def measure(args: argparse.Namespace, report: Report) -> None:
    if not args.split:
        read(report)
    train(args, report)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=24, help="seeds of data and order")
    parser.add_argument("--split", action="store_true", help="cut documents at rows")


if __name__ == "__main__":
    run_bench("bench_shuffled_store", __doc__, measure, add_arguments=add_arguments)
