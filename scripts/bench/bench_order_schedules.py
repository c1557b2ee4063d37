"""What a forecast of the excess loss makes of the optimizer, learning rates and batches of a run.

    python scripts/bench/bench_order_schedules.py --check --json docs/bench/order_schedules.json

The regressions of bench_order_training.py, in the order of a braid of 1,024 strands over a store
that is not shuffled, with an ICC of .49: with SGD or Adam, rates that are constant and then fall,
or fall by a cosine, and batches of 128 rows or batches that grow from 32 to 512. The forecast knows
the optimizer, the rates, the rows of each step and the order. Errors are standard errors of pairs
of one seed.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import bench_order_training as training
import numpy as np
from _common import Report, run_bench

from headrace.analysis.excess import OPTIMIZERS, SCHEDULES, excess_loss
from headrace.order.braid import BraidShuffle
from headrace.order.permutation import Feistel

ICC = 0.49
RAMP = (32, 64, 128, 256, 512)


def batches(n: int) -> dict[str, np.ndarray]:
    """Rows of each step of a pass over n rows, by name."""
    constant = np.full(n // training.BATCH, training.BATCH)
    grows = np.repeat(RAMP, [n // len(RAMP) // rows for rows in RAMP])
    return {"constant": constant, "grows": grows}


def train(
    data: training.Data,
    order: np.ndarray,
    rates: np.ndarray,
    sizes: np.ndarray,
    optimizer: str,
) -> float:
    """Excess loss of one pass from the minimum."""
    distance = np.zeros((1, training.CURVATURES.size, training.NOISE_REPLICAS), np.float32)
    update = Adam(distance, sizes.max()) if optimizer == "adam" else np.asarray
    for rate, end, size in zip(rates, np.cumsum(sizes), sizes, strict=True):
        inputs, noise = data.at(order[end - size : end])
        errors = inputs @ distance - noise
        gradient = inputs.transpose(0, 2, 1) @ errors / np.float32(size)
        distance -= np.float32(training.PEAK * rate) * update(gradient)
    squares = training.CURVATURES[:, None] * np.square(distance)
    return float(0.5 * squares.sum(axis=1).mean())


class Adam:
    """The update of Adam (Kingma and Ba 2015), times the root of the noise of the largest
    curvature at the largest batch, so that it is as large there as that of SGD.
    """

    def __init__(
        self,
        like: np.ndarray,
        largest_batch: int,
        mean_decay: float = 0.9,
        square_decay: float = 0.95,
    ) -> None:
        self._mean = np.zeros_like(like)
        self._square = np.zeros_like(like)
        self._decays = (mean_decay, square_decay)
        self._updates = 0
        self._scale = np.float32(np.sqrt(training.CURVATURES.max() / largest_batch))

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        mean_decay, square_decay = self._decays
        self._updates += 1
        self._mean += np.float32(1 - mean_decay) * (gradient - self._mean)
        self._square += np.float32(1 - square_decay) * (np.square(gradient) - self._square)
        mean = self._mean / np.float32(1 - mean_decay**self._updates)
        square = self._square / np.float32(1 - square_decay**self._updates)
        return self._scale * mean / np.sqrt(square)


def measure(args: argparse.Namespace, report: Report) -> None:
    training.ICCS = (ICC,)
    n = 1 << (16 if args.quick else 19)
    rows: list[list[Any]] = []
    for optimizer, schedule in itertools.product(OPTIMIZERS, ("wsd", "cosine")):
        for batch, sizes in batches(n).items():
            rates = SCHEDULES[schedule](sizes.size)
            losses = np.zeros((args.seeds, 2))
            forecasts = np.zeros(args.seeds)
            for seed in range(args.seeds):
                data = training.Data(n, seed)
                braid = BraidShuffle(n, io_block_size=32, strands=1024, lap=128, seed=seed)
                for k, order in enumerate((Feistel(n, seed), braid)):
                    losses[seed, k] = train(data, order(np.arange(n)), rates, sizes, optimizer)
                forecasts[seed] = excess_loss(
                    braid,
                    sizes.astype(float),
                    {training.UNIT: ICC},
                    rates=rates,
                    curvatures=training.PEAK * training.CURVATURES,
                    optimizer=optimizer,
                )
            full, own = losses.T
            ratio = own.mean() / full.mean()
            spread = (own - ratio * full).std(ddof=1) / np.sqrt(args.seeds) / full.mean()
            forecast = forecasts.mean()
            off = f"{forecast / ratio - 1:+.1%}"
            rows.append([optimizer, schedule, batch, ratio, spread, forecast, off])
            name = f"{optimizer}, rates {schedule}, batch {batch}: predicted / measured"
            report.bar(name, forecast / ratio, within=(1.0, 0.1))
    columns = ["optimizer", "rates", "batch", "over full shuffle", "+-", "predicted", "off by"]
    report.table(f"Braid, gradient ICC {ICC}", columns, rows)
    report.number("rows", n)
    report.number("seeds", args.seeds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=6, help="seeds of data and order, 2 at least")


if __name__ == "__main__":
    run_bench("bench_order_schedules", __doc__, measure, add_arguments=add_arguments)
