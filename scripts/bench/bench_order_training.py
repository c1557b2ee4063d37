"""What training makes of an order: excess loss of SGD, measured and predicted, for every order.

    python scripts/bench/bench_order_training.py --check --json docs/bench/order_training.json

One pass of SGD over a linear regression, in batches of 128, with a learning rate that is constant
and then falls to 0, and curvatures that differ a thousandfold. Rows lie in units of 256 (a book,
say): of the variance of inputs and of targets' noise, a part ``sqrt(icc)`` is the unit's, so that
the intraclass correlation of gradients, and of losses, is ``icc``. Training begins at the minimum:
its loss at the end is what the noise of batches costs (the way to the minimum is the same for every
order). A seed draws data and order afresh; within one, many regressions, each with targets of its
own, are trained on the same inputs, so that its loss is known well. Errors are standard errors over
seeds; those of ratios are of pairs of one seed. `--only shuffled --seeds 16` looks closely at a
shuffled store.

Predictions know the order, the learning rates, the curvatures, and the share of the losses'
variance between units that `headrace.analysis.nested_shares` measures in the data, as `headrace
icc` does: nothing of the training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.analysis.excess import excess_loss, wsd_rates
from headrace.analysis.icc import nested_shares
from headrace.order import Order
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.compose import Compose
from headrace.order.permutation import Feistel

BATCH = 128
UNIT = 256
PEAK = 0.1
ICCS = (0.49, 0.10, 0.02)
CURVATURES = np.logspace(0, -3, 16)
NOISE_REPLICAS = 32
FULL = "full shuffle"
SHUFFLED = "braid on a shuffled store"
CHUNK = 32
"""Steps whose rows are gathered at once."""


def orders() -> dict[str, Callable[[int, int], Order]]:
    """Every order, by name, of n rows and a seed; braids of 1,024 strands."""

    def braid(n: int, seed: int, block: int = 32) -> Order:
        return BraidShuffle(n, io_block_size=block, strands=8 * BATCH, lap=BATCH, seed=seed)

    return {
        FULL: lambda n, seed: Feistel(n, seed),
        SHUFFLED: lambda n, seed: Compose(Feistel(n, seed + 1000), braid(n, seed)),
        "braid": braid,
        "braid, blocks of 256": lambda n, seed: braid(n, seed, 256),
        "block, 1024 blocks of 32": lambda n, seed: BlockShuffle(
            n, io_block_size=32, window_blocks=1024, seed=seed
        ),
        "Marin's window, 512 blocks of 256": lambda n, seed: BlockShuffle(
            n, io_block_size=256, window_blocks=512, seed=seed
        ),
        "era of 32768": lambda n, seed: EraShuffle(n, era_length=32768, seed=seed),
    }


class Data:
    """Inputs and noises of a seed, as parts of units and of rows that each correlation puts
    together.
    """

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        columns = CURVATURES.size + NOISE_REPLICAS
        self.of_row = rng.standard_normal((n, columns), np.float32)
        self.of_unit = rng.standard_normal((n // UNIT, columns), np.float32)
        part = np.sqrt(np.asarray(ICCS))[:, None, None]
        self._unit_scale = np.sqrt(part, dtype=np.float32)
        self._row_scale = np.sqrt(1 - part, dtype=np.float32)

    def at(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs ``[icc, rows, curvature]`` and noises ``[icc, rows, replica]``."""
        values = self._unit_scale * self.of_unit[rows // UNIT] + self._row_scale * self.of_row[rows]
        inputs, noises = np.split(values, [CURVATURES.size], axis=-1)
        return inputs * np.sqrt(CURVATURES, dtype=np.float32), noises

    def shares(self) -> list[dict[int, float]]:
        """Share of the variance of losses at the minimum that units have, for each correlation."""
        rows = np.arange(min(len(self.of_row), 1 << 17))
        losses = np.square(self.at(rows)[1]).transpose(0, 2, 1)
        return [
            {UNIT: float(np.mean([nested_shares(one, (UNIT,))[UNIT] for one in icc[:8]]))}
            for icc in losses
        ]


def train(data: Data, order: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Excess loss, ``[icc]``, of one pass of SGD from the minimum."""
    distance = np.zeros((len(ICCS), CURVATURES.size, NOISE_REPLICAS), np.float32)
    for first in range(0, rates.size, CHUNK):
        rows = order[first * BATCH : (first + CHUNK) * BATCH]
        inputs, noises = data.at(rows)
        for step in range(rows.size // BATCH):
            x, noise = (values[:, step * BATCH : (step + 1) * BATCH] for values in (inputs, noises))
            errors = x @ distance - noise
            distance -= np.float32(PEAK * rates[first + step] / BATCH) * (
                x.transpose(0, 2, 1) @ errors
            )
    return 0.5 * (CURVATURES[:, None] * np.square(distance)).sum(axis=1).mean(axis=1)


def measure(args: argparse.Namespace, report: Report) -> None:
    n = 1 << (18 if args.quick else 21) if args.n is None else args.n
    rates = wsd_rates(n // BATCH)
    makers = {name: make for name, make in orders().items() if name == FULL or args.only in name}
    measured = np.zeros((len(makers), args.seeds, len(ICCS)))
    predicted = np.zeros_like(measured)
    shares: list[list[dict[int, float]]] = []
    for seed in range(args.seeds):
        data = Data(n, seed)
        shares.append(data.shares())
        for k, make in enumerate(makers.values()):
            order = make(n, seed)
            measured[k, seed] = train(data, order(np.arange(n)), rates)
            predicted[k, seed] = [
                excess_loss(order, BATCH, share, rates=rates, curvatures=PEAK * CURVATURES)
                for share in shares[-1]
            ]
    for i, icc in enumerate(ICCS):
        seen = float(np.mean([share[i][UNIT] for share in shares]))
        _table(report, list(makers), icc, seen, measured[:, :, i], predicted[:, :, i])
    report.number("rows", n)
    report.number("seeds", args.seeds)


def _table(
    report: Report,
    names: list[str],
    icc: float,
    seen: float,
    measured: np.ndarray,
    predicted: np.ndarray,
) -> None:
    """The table of one correlation, and its bars; both arrays ``[order, seed]``."""
    mean = measured.mean(axis=1)
    full = measured[0].mean()
    error = measured.std(axis=1, ddof=1) / np.sqrt(measured.shape[1])
    forecast = predicted.mean(axis=1)
    rows: list[list[Any]] = []
    for k, name in enumerate(names):
        ratio = mean[k] / full
        spread = (measured[k] - ratio * measured[0]).std(ddof=1) / np.sqrt(measured.shape[1]) / full
        off = forecast[k] / ratio - 1
        rows.append(
            [name, 1e4 * mean[k], 1e4 * error[k], ratio, spread, forecast[k], f"{off:+.1%}"]
        )
        if name != FULL:
            report.bar(
                f"ICC {icc}: {name}: predicted / measured", forecast[k] / ratio, within=(1.0, 0.25)
            )
    if SHUFFLED in names:
        both = names.index(SHUFFLED)
        apart = (measured[both] - measured[0]).mean() / np.hypot(error[0], error[both])
        report.bar(f"ICC {icc}: {SHUFFLED} - {FULL}, standard errors", apart, within=(0.0, 2.0))
    columns = ["order", "excess loss x 1e4", "+-", "over full shuffle", "+-", "predicted", "off by"]
    report.table(f"Gradient ICC {icc} (measured from losses: {seen:.3f})", columns, rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, help="rows, a multiple of 32768")
    parser.add_argument("--seeds", type=int, default=4, help="seeds of data and order, 2 at least")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="train in orders with this in their names"
    )


if __name__ == "__main__":
    run_bench("bench_order_training", __doc__, measure, add_arguments=add_arguments)
