"""What a forecast of the excess loss makes of learning rates and batches that change.

    python scripts/bench/bench_order_schedules.py --check --json docs/bench/order_schedules.json

SGD as in bench_order_training.py, in the order of a braid of 1,024 strands over a store that is not
shuffled, with an ICC of .49: with rates that are constant and then fall, or fall by a cosine, and
with batches of 128 rows or batches that grow from 32 to 512. The forecast knows the rates, the rows
of each step and the order. Errors are standard errors of pairs of one seed.
"""

from __future__ import annotations

import argparse
from typing import Any

import bench_order_training as training
import numpy as np
from _common import Report, run_bench

from headrace.analysis import excess_loss
from headrace.analysis.excess import SCHEDULES
from headrace.order import BraidShuffle, Feistel

ICC = 0.49
RAMP = (32, 64, 128, 256, 512)


def batches(n: int) -> dict[str, np.ndarray]:
    """Rows of each step of a pass over n rows, by name."""
    constant = np.full(n // training.BATCH, training.BATCH)
    grows = np.repeat(RAMP, [n // len(RAMP) // rows for rows in RAMP])
    return {"constant": constant, "grows": grows}


def train(data: training.Data, order: np.ndarray, rates: np.ndarray, sizes: np.ndarray) -> float:
    """Excess loss of one pass of SGD from the minimum."""
    distance = np.zeros((1, training.CURVATURES.size, training.NOISE_REPLICAS), np.float32)
    for rate, end, size in zip(rates, np.cumsum(sizes), sizes, strict=True):
        inputs, noise = data.at(order[end - size : end])
        errors = inputs @ distance - noise
        step = np.float32(training.PEAK * rate / size)
        distance -= step * (inputs.transpose(0, 2, 1) @ errors)
    squares = training.CURVATURES[:, None] * np.square(distance)
    return float(0.5 * squares.sum(axis=1).mean())


def measure(args: argparse.Namespace, report: Report) -> None:
    training.ICCS = (ICC,)
    n = 1 << (17 if args.quick else 19)
    rows: list[list[Any]] = []
    for schedule in ("wsd", "cosine"):
        for batch, sizes in batches(n).items():
            rates = SCHEDULES[schedule](sizes.size)
            losses = np.zeros((args.seeds, 2))
            forecasts = np.zeros(args.seeds)
            for seed in range(args.seeds):
                data = training.Data(n, seed)
                braid = BraidShuffle(n, io_block_size=32, strands=1024, lap=128, seed=seed)
                orders = (Feistel(n, seed), braid)
                losses[seed] = [train(data, o(np.arange(n)), rates, sizes) for o in orders]
                forecasts[seed] = excess_loss(
                    braid,
                    sizes.astype(float),
                    {training.UNIT: ICC},
                    rates=rates,
                    curvatures=training.PEAK * training.CURVATURES,
                )
            full, own = losses.T
            ratio = own.mean() / full.mean()
            spread = (own - ratio * full).std(ddof=1) / np.sqrt(args.seeds) / full.mean()
            forecast = forecasts.mean()
            rows.append([schedule, batch, ratio, spread, forecast, f"{forecast / ratio - 1:+.1%}"])
            name = f"rates {schedule}, batch {batch}: predicted / measured"
            report.bar(name, forecast / ratio, within=(1.0, 0.1))
    columns = ["learning rates", "batch", "over full shuffle", "+-", "predicted", "off by"]
    report.table(f"Braid, gradient ICC {ICC}", columns, rows)
    report.number("rows", n)
    report.number("seeds", args.seeds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=6, help="seeds of data and order, 2 at least")


if __name__ == "__main__":
    run_bench("bench_order_schedules", __doc__, measure, add_arguments=add_arguments)
