"""What a mixture that learns costs: the rules and their bounds, and a run that goes by them.

    python scripts/bench/bench_learning.py --check --json docs/bench/learning.json

200 sources, 10,000 steps, processor time a step. First a rule that is asked at every step, with
bounds and rounding. Then a run with 200 caches and a decision every 100 steps, with all that it
takes: sums of losses, the rule, the lock, a new loader and the place of its first batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
from _common import Report, run_bench

from headrace import ComponentConfig, LmDataConfig, open_run
from headrace.batch.loss import SourceLosses
from headrace.data import MixtureDataset
from headrace.mix import AdaptiveMixture, BanditMixture, OnlineMixture
from headrace.mix.online import Measured, exact_fractions
from headrace.run import MixtureLearner, ShareBounds
from headrace.testing import write_cache

SOURCES = 200
STEPS = 10_000
EVERY = 100
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


def ms_of_learning(rule: OnlineMixture, steps: int) -> float:
    """Processor milliseconds a step of a run that learns: decisions in its lock, new loaders."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        components: dict[str, ComponentConfig] = {}
        for number in range(SOURCES):
            path = f"{folder}/s{number}"
            write_cache(path, [[random.integers(0, 256, 4096).astype(np.uint8)]])
            components[f"s{number}"] = ComponentConfig(path)
        config = LmDataConfig(components, seq_len=16, batch_size=64, num_steps=10**6)
        learner = MixtureLearner(open_run(f"{folder}/run", config), rule, every=EVERY)
        learner.run.loader()  # starts JAX
        losses = random.uniform(1, 3, (steps, SOURCES))
        counts = random.uniform(100, 9000, SOURCES)
        began = time.process_time()
        for step in range(1, steps + 1):
            if learner.observe(step, SourceLosses(losses[step - 1] * counts, counts)):
                loader = learner.run.loader()
                mixture = loader.dataset
                assert isinstance(mixture, MixtureDataset)
                mixture.draws.starts_at(step)  # where its first batch begins
        return (time.process_time() - began) / steps * 1e3


def measure(args: argparse.Namespace, report: Report) -> None:
    steps = STEPS // 20 if args.quick else STEPS
    rows = []
    for name, rule in RULES.items():
        asked = ms_of_a_step(rule, steps)
        learning = ms_of_learning(rule, steps)
        rows.append([name, asked, learning])
        report.bar(f"{name}: ms a step, deciding at each", asked, at_most=1.0)
        report.bar(f"{name}: ms a step of a run that decides every {EVERY}", learning, at_most=1.0)
    columns = ["rule", "ms a step, the rule at each", f"ms a step, a run, every {EVERY}"]
    report.table(f"Processor time, {SOURCES} sources, {steps:,} steps", columns, rows)


if __name__ == "__main__":
    run_bench("bench_learning", __doc__, measure)
