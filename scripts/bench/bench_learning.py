"""What a mixture that learns costs: the rules and their bounds a step, and a decision in the lock.

    python scripts/bench/bench_learning.py --check --json docs/bench/learning.json

200 sources. A rule that is asked at every one of 10,000 steps, with bounds and rounding, in
processor time a step. Then whole decisions of a run with 200 caches: they open its dataset anew and
write its lock, so the bar is for a decision every 1,000 steps, spread over these.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
from _common import Report, run_bench

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.batch import SourceLosses
from headrace.mix import AdaptiveMixture, BanditMixture, Measured, OnlineMixture
from headrace.mix.online import exact_fractions
from headrace.run import MixtureLearner, ShareBounds
from headrace.testing import write_cache

SOURCES = 200
STEPS = 10_000
EVERY = 1_000
RULES: dict[str, OnlineMixture] = {"ADO": AdaptiveMixture(), "EXP3": BanditMixture()}


def ms_of_a_step(rule: OnlineMixture, steps: int) -> float:
    """Processor milliseconds a step if the rule decides at each."""
    random = np.random.default_rng(0)
    bounds = ShareBounds(least=1e-4, most_change=0.01)
    shares = exact_fractions(np.full(SOURCES, 1 / SOURCES))
    none_left = np.ones(SOURCES)
    state = rule.begin(shares)
    losses = random.uniform(1, 3, (steps, SOURCES)) + 5 * np.arange(1, steps + 1)[:, None] ** -0.3
    counts = random.uniform(100, 9000, SOURCES)
    began = time.process_time()
    for step in range(steps):
        state, wanted = rule.update(state, shares, Measured(step + 1, losses[step], counts))
        shares = exact_fractions(bounds.applied(wanted, shares, none_left))
    return (time.process_time() - began) / steps * 1e3


def ms_of_a_decision(decisions: int) -> float:
    """Processor milliseconds of a decision of a run, with its amendment."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        components: dict[str, ComponentConfig] = {}
        for number in range(SOURCES):
            path = f"{folder}/s{number}"
            write_cache(path, [[random.integers(0, 256, 4096).astype(np.uint8)]])
            components[f"s{number}"] = ComponentConfig(path)
        config = LmDataConfig(components, seq_len=16, batch_size=64, num_steps=10**6)
        learner = MixtureLearner(open_run(f"{folder}/run", config), BanditMixture(), every=EVERY)
        losses = SourceLosses(random.uniform(1, 3, SOURCES), np.ones(SOURCES))
        learner.observe(EVERY, losses)  # loads what only an amendment needs
        began = time.process_time()
        for number in range(2, decisions + 2):
            learner.observe(number * EVERY, losses)
        return (time.process_time() - began) / decisions * 1e3


def measure(args: argparse.Namespace, report: Report) -> None:
    steps = STEPS // 20 if args.quick else STEPS
    rows = []
    decision = ms_of_a_decision(2 if args.quick else 10)
    for name, rule in RULES.items():
        taken = ms_of_a_step(rule, steps)
        rows.append([name, taken, decision, decision / EVERY + taken])
        report.bar(f"{name}: ms a step, deciding at each", taken, at_most=1.0)
    report.bar(f"ms a step of recording a decision every {EVERY}", decision / EVERY, at_most=1.0)
    columns = ["rule", "ms a step", "ms a recorded decision", f"ms a step, every {EVERY}"]
    report.table(f"Processor time, {SOURCES} sources, {steps:,} steps", columns, rows)


if __name__ == "__main__":
    run_bench("bench_learning", __doc__, measure)
