"""How good each order is: the metrics of marin issue 2917 (seed table) and VR_w, all orders side by
side.

    python scripts/bench/bench_permutation_quality.py --json docs/bench/permutation_quality.json \
        --plot docs/bench/permutation_quality.png

Table 1 repeats marin's table (8,192 examples, blocks of 128, 8 seeds). Its
``same_block_transition_rate`` of 0.31 for era and block shuffle is a property of the permutation
used there, not of the orders: rows marked "multiply-add rounds" show it with our own small model of
that permutation, and ``--levanter`` with the package itself. ``--batch-size`` of marin's command
only cuts the work into pieces and changes no metric. The command as marin's plan prints it makes a
table of its own, of the strategies that it names:

    python scripts/bench/bench_permutation_quality.py --n 8192 --repeats 8 --seq-len 2048 \
        --strategies full,era,block --era-length 1024 --window-blocks 8 --batch-size 2048

Table 2 is VR_w over 2**20 examples: the variance of the mean over windows of w examples when 128
neighbouring rows are alike, full shuffle = 1.

The default block is one stored chunk of 65,536 tokens: 16 rows of 4,096, 32 rows of 2,048. Bars
stand for these. With batch 1024, the default budget (8,192 strands) in blocks of 128 has all 2**20
rows open at a time: windows of 8 batches then hold one row of every block, VR_8B is 0, and that
says nothing. Such a row stands in the table without a bar.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, at_least, run_bench
from scipy import stats

from headrace.analysis.icc import variance_ratio
from headrace.order.block_shuffle import BlockShuffle, EraShuffle
from headrace.order.braid import BraidShuffle
from headrace.order.order import Identity
from headrace.order.permutation import Feistel
from headrace.order.shuffle_config import resolve_strands
from headrace.store.layout import CacheLayout

BLOCK = 128
ERA = 1024
WINDOW = 8
MARIN_CHUNK = 256 * 1024
"""Tokens of a chunk of Levanter's caches: a block of marin's plan."""
CHUNK_TOKENS = CacheLayout("uint16").chunk_elements
SEQ_LENS = (4096, 2048)
UNIT = 128
METRICS = (
    "mean_abs_displacement_norm",
    "inversion_fraction",
    "spearman_rho",
    "same_block_transition_rate",
)
MARIN = {  # the table of issue 2917, 2026-02-20
    "full": (0.3325, 0.4997, 0.0010, 0.0107),
    "era 1024": (0.0417, 0.0625, 0.9844, 0.3106),
    "block 128x8": (0.3319, 0.4980, 0.0088, 0.3063),
}
# Per metric: how far a mean over 8 seeds may be from the table's. Wide where 64 blocks are few to
# permute.
TOLERANCE = {
    "full": (0.01, 0.01, 0.02),
    "era 1024": (0.002, 0.002, 0.002),
    "block 128x8": (0.03, 0.03, 0.1),
}
Order = Callable[[int, int], np.ndarray]
"""(n, seed) -> rows in the order seen."""


def braid_budgets(batch: int) -> dict[str, tuple[int, int]]:
    """Three memory budgets of a braid: name -> (strands, lap)."""
    return {f"braid {m}x batch {batch}": (m * batch, batch) for m in (1, 8, 32)}


def orders(batches: Sequence[int]) -> dict[str, Order]:
    """Every order of headrace, by the name in the tables."""

    def of(make: Callable[[int, int], Any]) -> Order:
        return lambda n, seed: make(n, seed)(np.arange(n))

    def block(size: int, window: int) -> Order:
        return of(
            lambda n, seed: BlockShuffle(n, io_block_size=size, window_blocks=window, seed=seed)
        )

    def braid(strands: int, lap: int, size: int = BLOCK) -> Order:
        return of(
            lambda n, seed: BraidShuffle(n, io_block_size=size, strands=strands, lap=lap, seed=seed)
        )

    table: dict[str, Order] = {
        "none": of(lambda n, seed: Identity(n)),
        "full": of(lambda n, seed: Feistel(n, seed)),
        "era 1024": of(lambda n, seed: EraShuffle(n, era_length=ERA, seed=seed)),
    }
    table |= {
        f"block {size}x{window}": block(size, window)
        for size, window in ((BLOCK, WINDOW), (256, 8), (256, 512))
    }
    for batch in batches:
        table |= {
            name: braid(strands, lap) for name, (strands, lap) in braid_budgets(batch).items()
        }
        plan = resolve_strands(
            np.array([1 << 30]), np.ones(1), batch_size=batch
        )  # what a config resolves to
        for seq_len in SEQ_LENS:
            size = CHUNK_TOKENS // seq_len
            name = f"braid default batch {batch}, blocks of {size} (seq_len {seq_len})"
            table[name] = braid(int(plan.strands[0]), int(plan.laps[0]), size)
    return table


def multiply_add_permutation(n: int, rng: np.random.Generator) -> np.ndarray:
    """Five Feistel rounds ``r * 2654435761 + key``, cycle-walked: a model of the permutation behind
    marin's table.
    """
    half = np.uint64(-(-max(n - 1, 1).bit_length() // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = rng.integers(0, int(mask) + 1, 5, dtype=np.uint64)
    out = np.arange(n, dtype=np.uint64)
    walking = np.arange(n)
    while walking.size:
        left = out[walking] >> half
        right = out[walking] & mask
        for key in keys:
            left, right = right, left ^ ((right * np.uint64(2654435761) + key) & mask)
        out[walking] = (left << half) | right
        walking = walking[out[walking] >= n]
    return out.astype(np.int64)


def multiply_add_orders() -> dict[str, Order]:
    """Full, era and block shuffle as in table 1, on :func:`multiply_add_permutation`."""

    def full(n: int, seed: int) -> np.ndarray:
        return multiply_add_permutation(n, np.random.default_rng(seed))

    def windows(n: int, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.concatenate(
            [lo + multiply_add_permutation(min(size, n - lo), rng) for lo in range(0, n, size)]
        )

    def era(n: int, seed: int) -> np.ndarray:
        return windows(n, np.random.default_rng(seed), ERA)

    def block(n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        blocks = multiply_add_permutation(n // BLOCK, rng)
        virtual = windows(n, rng, BLOCK * WINDOW)
        return blocks[virtual // BLOCK] * BLOCK + virtual % BLOCK

    return {"full": full, "era 1024": era, "block 128x8": block}


def levanter_orders() -> dict[str, Order]:
    """The same with Levanter's own classes (era shuffle is gone there: an era was one permutation
    keyed by number).
    """
    import jax
    from levanter.data._prp import FeistelPermutation
    from levanter.data.dataset import ListAsyncDataset

    def full(n: int, seed: int) -> np.ndarray:
        return np.asarray(FeistelPermutation(n, jax.random.PRNGKey(seed))(np.arange(n)))

    def era(n: int, seed: int) -> np.ndarray:
        key = jax.random.PRNGKey(seed)
        pieces = (
            FeistelPermutation(ERA, jax.random.fold_in(key, k))(np.arange(ERA))
            for k in range(n // ERA)
        )
        return np.concatenate([k * ERA + np.asarray(piece) for k, piece in enumerate(pieces)])

    def block(n: int, seed: int) -> np.ndarray:
        dataset = ListAsyncDataset(list(range(n))).block_shuffle(
            io_block_size=BLOCK,
            window_blocks=WINDOW,
            key=jax.random.PRNGKey(seed),
            perm_type="feistel",
        )
        return np.asarray(asyncio.run(dataset.get_batch(list(range(n)))))

    return {"full": full, "era 1024": era, "block 128x8": block}


def mean_metrics(order: Order, n: int, seeds: int, size: int = BLOCK) -> tuple[float, ...]:
    """Means over seeds of the four metrics of marin's table, in blocks of ``size``."""
    return tuple(
        np.mean([measure_order(order(n, seed), size) for seed in range(seeds)], axis=0).tolist()
    )


def measure_order(order: np.ndarray, size: int = BLOCK) -> tuple[float, ...]:
    """The four metrics of a permutation of ``range(n)``; 1/3, 1/2, 0 and about block / n for a full
    shuffle.

    The rate is defined as marin's. Its 0.31 for era and block shuffle is not what a good
    permutation of a window of 1,024 rows gives (127/1023 = 0.124): the surplus is a defect of the
    multiply-add Feistel rounds used there, which leave neighbours together; its 0.0107 for full
    shuffle, below the expected 0.0155, is the same.
    """
    place = np.arange(order.size)
    block = order // size
    return (
        float(np.abs(order - place).mean() / (order.size - 1)),
        (1.0 - float(np.asarray(stats.kendalltau(place, order))[0])) / 2.0,
        float(np.asarray(stats.spearmanr(place, order))[0]),
        float((block[1:] == block[:-1]).mean()),
    )


def expected_of_random(n: int, size: int = BLOCK) -> tuple[float, ...]:
    """What a uniformly random permutation of ``range(n)``, a multiple of the block, gives on
    average.
    """
    return (n + 1) / (3 * n), 0.5, 0.0, (size - 1) / (n - 1)


def mean_distinct_blocks(order: np.ndarray, window: int) -> float:
    """Mean number of blocks that a window touches."""
    windows = np.sort(order[: order.size // window * window].reshape(-1, window) // BLOCK, axis=1)
    return float((np.diff(windows, axis=1) != 0).sum(axis=1).mean() + 1)


def marin_table(args: argparse.Namespace, report: Report) -> None:
    n = args.n
    rows = []
    found = {name: mean_metrics(order, n, args.repeats) for name, order in orders((128,)).items()}
    rows += [[name, *values] for name, values in found.items()]
    # Many seeds: the spread of the same-block rate of a single one is 0.08
    model = {
        name: mean_metrics(order, n, 8 * args.repeats)
        for name, order in multiply_add_orders().items()
    }
    rows += [[f"{name}, multiply-add rounds", *values] for name, values in model.items()]
    if args.levanter:
        rows += [
            [f"{name}, Levanter", *mean_metrics(o, n, args.repeats)]
            for name, o in levanter_orders().items()
        ]
    rows += [[f"{name}, marin's table", *values] for name, values in MARIN.items()]
    random = expected_of_random(n)
    rows.append(["expected of random", *random])
    report.table(
        f"1. Seed metrics: n = {n}, blocks of {BLOCK}, era {ERA}, {args.repeats} seeds",
        ["order", *METRICS],
        rows,
    )
    report.note(
        "Same-block rate: plain definition (share of successive rows from one block). A well mixed"
        " window of 8 blocks "
        "of 128 gives 127/1023 = 0.124; marin's 0.31 comes from its multiply-add Feistel rounds,"
        " which leave neighbours together (as 0.0107 < 0.0155 for full shuffle does)."
    )
    for name, values in MARIN.items():
        for k, metric in enumerate(METRICS[:3]):
            report.bar(f"{name}: {metric}", found[name][k], within=(values[k], TOLERANCE[name][k]))
    in_window = (BLOCK - 1) / (BLOCK * WINDOW - 1)
    for name, expected in (
        ("full", random[3]),
        ("era 1024", in_window),
        ("block 128x8", in_window),
    ):
        report.bar(
            f"{name}: {METRICS[3]}, as chance has it",
            found[name][3],
            within=(round(expected, 4), 0.006),
        )
        tolerance = 0.003 if name == "full" else 0.04
        report.bar(
            f"{name}: {METRICS[3]}, multiply-add as marin",
            model[name][3],
            within=(MARIN[name][3], tolerance),
        )


def variance_table(args: argparse.Namespace, report: Report) -> dict[str, dict[int, float]]:
    n = args.vr_n
    batches = (128, 1024)
    windows = sorted({m * batch for batch in batches for m in (1, 8, 64)})
    curve = sorted({*windows, *(1 << k for k in range(4, 18))}) if args.plot else windows
    curves: dict[str, dict[int, float]] = {}
    rows: list[list[Any]] = []
    for name, order in orders(batches).items():
        sums = dict.fromkeys(curve, 0.0)
        distinct = 0.0
        for seed in range(args.vr_seeds):
            seen = order(n, seed)
            for w in curve:
                sums[w] += variance_ratio(seen, w, UNIT) / args.vr_seeds
            distinct += mean_distinct_blocks(seen, 128) / args.vr_seeds
        curves[name] = sums
        rows.append([name, *(sums[w] for w in windows), distinct])
        batch = int(name.split(",")[0].split()[-1]) if name.startswith("braid") else 0
        if name.startswith(("braid default", "braid 8x")) and (
            name.startswith("braid d") or 8 * batch * BLOCK < n
        ):
            report.bar(f"{name}: VR_B", sums[batch], at_most=1.05)
            report.bar(f"{name}: VR_8B", sums[8 * batch], at_most=1.1)
    report.table(
        f"2. VR_w: n = {n}, correlation unit {UNIT}, {args.vr_seeds} seeds",
        ["order", *(f"VR_{w}" for w in windows), "blocks per 128"],
        rows,
    )
    report.note(
        "VR_w: variance of the mean over w consecutive examples, full shuffle = 1. B = 128: w ="
        " 128, 1024, 8192. "
        "B = 1024: w = 1024, 8192, 65536. Braid 8x batch is the default memory budget, in blocks"
        " of 128; braid default "
        "has the blocks that configs give: one chunk of 65,536 tokens. Batch 1024 in blocks of 128"
        " has every row of this corpus open, so its VR_8192 of 0 is no result, and no bar."
    )
    return curves


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """VR_w over w for every order, log-log."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    styles = {"none": "k:", "full": "k-", "era 1024": "C7--"}
    for name, curve in curves.items():
        w = list(curve)
        vr = np.maximum(list(curve.values()), 1e-2)
        style = styles.get(name, "--" if name.startswith("block") else "-")
        axes.plot(
            w, vr, style, label=name, linewidth=2 if name.startswith("braid default") else 1.0
        )
    axes.axhline(1.0, color="0.6", linewidth=0.6)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="window w, consecutive examples",
        ylabel="VR_w (full shuffle = 1; below 0.01 drawn at 0.01)",
        title=f"Variance of a window's mean when {UNIT} neighbouring rows are alike",
    )
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def strategies_of(args: argparse.Namespace, size: int) -> dict[str, Order]:
    """The orders that marin's options name, and the braid; blocks of ``size`` rows."""
    makers: dict[str, Callable[[int, int], Any]] = {
        "full": Feistel,
        "era": lambda n, seed: EraShuffle(n, era_length=args.era_length, seed=seed),
        "block": lambda n, seed: BlockShuffle(
            n, io_block_size=size, window_blocks=args.window_blocks, seed=seed
        ),
        "braid": lambda n, seed: BraidShuffle(
            n, io_block_size=size, strands=8 * args.batch_size, lap=args.batch_size, seed=seed
        ),
    }
    if unknown := set(args.strategies.split(",")) - makers.keys():
        raise SystemExit(
            f"--strategies: {', '.join(sorted(unknown))}: choose from {', '.join(makers)}"
        )
    return {
        name: (lambda n, seed, m=makers[name]: m(n, seed)(np.arange(n)))
        for name in args.strategies.split(",")
    }


def strategy_table(args: argparse.Namespace, report: Report) -> None:
    size = max(MARIN_CHUNK // args.seq_len, 1)
    rows: list[list[Any]] = [
        [name, *mean_metrics(order, args.n, args.repeats, size)]
        for name, order in strategies_of(args, size).items()
    ]
    rows.append(["expected of random", *expected_of_random(args.n, size)])
    report.table(
        f"Seed metrics: n = {args.n}, blocks of {size}, {args.repeats} seeds",
        ["strategy", *METRICS],
        rows,
    )


def measure(args: argparse.Namespace, report: Report) -> None:
    of_strategies = {"seq_len": 2048, "era_length": ERA, "window_blocks": WINDOW, "batch_size": 128}
    given = [name for name in of_strategies if getattr(args, name) is not None]
    if given and not args.strategies:
        raise SystemExit(
            f"--{given[0].replace('_', '-')} goes with --strategies full,era,block,braid"
        )
    for name in of_strategies.keys() - given:
        setattr(args, name, of_strategies[name])
    if args.strategies:
        strategy_table(args, report)
        return
    if args.quick:
        args.vr_seeds = 1
    marin_table(args, report)
    curves = variance_table(args, report)
    if args.plot:
        draw(curves, args.plot)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=at_least(2), default=8192, help="examples of table 1")
    parser.add_argument("--repeats", type=at_least(1), default=8, help="seeds of table 1")
    parser.add_argument("--vr-n", type=at_least(1), default=1 << 20, help="examples of table 2")
    parser.add_argument(
        "--vr-seeds", type=at_least(1), default=3, help="seeds of table 2 (1 with --quick)"
    )
    parser.add_argument(
        "--levanter", action="store_true", help="also run Levanter's permutation (if installed)"
    )
    parser.add_argument(
        "--strategies", metavar="NAMES", help="of full, era, block, braid: a table of these alone"
    )
    parser.add_argument(
        "--seq-len",
        type=at_least(1),
        help="tokens of an example: blocks hold 262,144 of them (2048)",
    )
    parser.add_argument("--era-length", type=at_least(1), help=f"examples of an era ({ERA})")
    parser.add_argument("--window-blocks", type=at_least(1), help=f"blocks of a window ({WINDOW})")
    parser.add_argument(
        "--batch-size", type=at_least(1), help="of braid: strands and laps follow from it (128)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw VR_w over w")


if __name__ == "__main__":
    run_bench("bench_permutation_quality", __doc__, measure, add_arguments=add_arguments)
