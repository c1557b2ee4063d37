"""How evenly attention's work is spread over the micro-batches and ranks of a step, beside the rules
of WLB-LLM and slime.

    python scripts/bench/bench_balance.py --check --json docs/bench/balance.json

A step has 8 ranks with 4 micro-batches each, and documents that fill 9 tenths of them. The work of
a micro-batch is the sum of the squared lengths of its documents; ``largest`` is that of the one with
most work, over the mean, and ``rank`` the same for the sums of ranks: the worst of 32 steps. No
rule can be better than the longest document by itself: ``least possible``. ``tokens`` is the
largest micro-batch's, over the cap, which memory allows; ``left`` the documents that a rule leaves
for later steps, of all.

Lengths are drawn from the files of Python's standard library, at 4 bytes a token, and from a
log-normal distribution, 600 in the median and a factor of e wide. Longer ones are cut, to an eighth
of the cap, and to all of it, where one document may have more work than the mean.

WLB-LLM (arXiv 2503.17924, section 4) places documents, longest first, where there is least work, or
else where there are fewest tokens, and leaves what has no room to later steps; its queue, which
delays long documents, is left out, as headrace never changes which rows a step has. Slime's
``balance_by_flops`` gives micro-batches equal work whatever their tokens; ours is under the cap.
``--quick`` makes 4 steps.
"""

from __future__ import annotations

import argparse
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace.batch.balance import micro_batches
from headrace_posttrain.ranks.dp_schedule import Balance, dp_schedule

RANKS = 8
EACH = 4
CAP = 65_536
FILL = 0.9
MOST = 1.02

Lengths = Callable[[np.random.Generator, int], np.ndarray]
Bins = list[list[int]]


def library_lengths(sizes: np.ndarray, random: np.random.Generator, count: int) -> np.ndarray:
    """Lengths of files, drawn with replacement."""
    return random.choice(sizes, count)


def log_normal_lengths(random: np.random.Generator, count: int) -> np.ndarray:
    return np.rint(np.exp(random.standard_normal(count)) * 600).astype(np.int64)


def headrace(lengths: np.ndarray, work: np.ndarray) -> Bins:
    ranks = micro_batches(lengths, CAP, ranks=RANKS, costs=work, multiple=EACH)
    return [bin_ for of_rank in ranks for bin_ in of_rank]


def wlb(lengths: np.ndarray, work: np.ndarray) -> Bins:
    """WLB-LLM's packing of varied lengths."""
    bins: Bins = [[] for _ in range(RANKS * EACH)]
    bin_work = np.zeros(len(bins), np.int64)
    bin_tokens = np.zeros(len(bins), np.int64)
    for document in np.argsort(-lengths, kind="stable").tolist():
        for place in (int(bin_work.argmin()), int(bin_tokens.argmin())):
            if bin_tokens[place] + lengths[document] <= CAP:
                bins[place].append(document)
                bin_work[place] += work[document]
                bin_tokens[place] += lengths[document]
                break
    return bins


def slime(lengths: np.ndarray, work: np.ndarray) -> Bins:
    schedule = dp_schedule(
        lengths,
        range(lengths.size),
        batch_size=lengths.size,
        ranks=RANKS,
        max_tokens=CAP,
        balance=Balance(costs=work, ranks=True, micro_batches=True, capped=False),
        multiple=EACH,
    )
    return [
        [samples[at] for at in bin_]
        for samples, bins in zip(schedule.samples, schedule.micro_batches, strict=True)
        for bin_ in bins
    ]


def in_order(lengths: np.ndarray, work: np.ndarray) -> Bins:
    """As documents come, as many as fit."""
    place = np.minimum((np.cumsum(lengths) - 1) // int(CAP * FILL), RANKS * EACH - 1)
    return [np.flatnonzero(place == number).tolist() for number in range(RANKS * EACH)]


RULES = {"headrace": headrace, "WLB-LLM": wlb, "slime": slime, "as they come": in_order}


def figures(draw: Lengths, longest: int, seed: int) -> dict[str, np.ndarray]:
    """Largest work of a micro-batch and of a rank, tokens of the largest micro-batch, what is left,
    and the least possible, for each rule.
    """
    lengths = np.clip(draw(np.random.default_rng(seed), RANKS * EACH * CAP // 100), 1, longest)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), RANKS * EACH * CAP * FILL)]
    work = lengths**2
    least = max(1.0, float(work.max()) / (float(work.sum()) / (RANKS * EACH)))
    found: dict[str, np.ndarray] = {}
    for name, rule in RULES.items():
        bins = rule(lengths, work)
        of_bin = np.array([work[bin_].sum() for bin_ in bins], np.float64)
        of_rank = of_bin.reshape(RANKS, -1).sum(axis=1)
        tokens = max(int(lengths[bin_].sum()) for bin_ in bins) / CAP
        left = 1 - sum(map(len, bins)) / lengths.size
        found[name] = np.array(
            [of_bin.max() / of_bin.mean(), of_rank.max() / of_rank.mean(), tokens, left, least]
        )
    return found


def measure(args: argparse.Namespace, report: Report) -> None:
    files = Path(sysconfig.get_path("stdlib")).rglob("*.py")
    kept = [path for path in files if "site-packages" not in path.parts]
    sizes = np.array(sorted(path.stat().st_size // 4 for path in kept))
    draws: dict[str, Lengths] = {
        "standard library": partial(library_lengths, sizes),
        "log-normal": log_normal_lengths,
    }
    table: list[list[Any]] = []
    for kind, draw in draws.items():
        for longest in (CAP // 8, CAP):
            steps = [figures(draw, longest, seed) for seed in range(4 if args.quick else 32)]
            for name in RULES:
                worst = np.max([step[name] for step in steps], axis=0)
                table.append([kind, longest, name, *worst.tolist()])
                if name == "headrace" and longest < CAP:
                    case = f"{kind}, documents of at most {longest:,} tokens"
                    report.bar(f"{case}: largest micro-batch", worst[0], at_most=MOST)
                    report.bar(f"{case}: largest rank", worst[1], at_most=MOST)
                    report.bar(f"{case}: tokens, of the cap", worst[2], at_most=1)
    report.table(
        f"Work over the mean, {RANKS} ranks with {EACH} micro-batches of {CAP:,} tokens each",
        ["lengths", "longest", "rule", "largest", "rank", "tokens", "left", "least possible"],
        table,
    )


if __name__ == "__main__":
    run_bench("bench_balance", __doc__, measure)
