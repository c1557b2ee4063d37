"""Rollouts beside training: throughput with stragglers, age of what is trained on, kills, CPU of a
large step.

    python scripts/bench/bench_rollouts.py --check --json docs/bench/rollouts.json
    python scripts/bench/bench_rollouts.py --kills 30 --check

Throughput: samples take .1 s, one prompt in 50 takes 5 s, a training step .5 s and trains on 16
groups. The ideal is a step every .5 s. ``abort``: a bound of 2 versions, calls that are too old are
aborted; ``keep``: a bound of 12, what is late is trained on later; ``wait``: prompts in their
order, sampled within the step.

Kills: a run that samples in the background is killed (SIGKILL) at random moments; then it is
finished, its positions are counted, and all its batches are replayed from the log.

CPU: a step of 1,024 completions of 2,048 tokens (128 groups of 8, with log probabilities) in rows
of 8,192, dealt to 8 ranks by FLOPs: reading the log, advantages, balance, packing, and the step's
record.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, run_bench

from headrace import DataLoader
from headrace.batch import PackedBatch, TransformerCost
from headrace_posttrain import Prompt, RLDataset, RLSettings, RolloutStore, ScoredGroup

SAMPLE_S = 0.1
STRAGGLER_S = 5.0
STEP_S = 0.5
ONE_IN = 50
GROUPS = 16
PROMPTS = [np.array([1, 2 + n]) for n in range(1000)]
ROADS: dict[str, dict[str, Any]] = {
    "abort": {"stragglers": "abort", "max_staleness": 2, "in_flight": 32},
    "keep": {"stragglers": "keep", "max_staleness": 12, "in_flight": 32},
    "wait": {"prompts_at_a_time": GROUPS, "threads": GROUPS},
}


class Sampler:
    """Answers late; says which version of the policy it began with."""

    def __init__(self) -> None:
        self.version = 0

    async def sample_and_score(self, prompt: Prompt) -> ScoredGroup:
        version = self.version
        await asyncio.sleep(STRAGGLER_S if prompt.position % ONE_IN == ONE_IN // 2 else SAMPLE_S)
        tokens = [np.append(prompt.tokens, np.arange(64) + k) for k in range(4)]
        return ScoredGroup(tokens, np.array([0.0, 1.0, 0.0, 1.0]), 2, policy_version=version)


@contextlib.contextmanager
def batches_of(dataset: RLDataset) -> Iterator[Iterator[PackedBatch]]:
    """Through a loader, which packs the next step meanwhile; one without a bound on age is asked
    step by step.
    """
    if dataset.settings.max_staleness is None:
        yield iter(dataset)
        return
    with DataLoader(dataset).iter_from_step(0) as batches:
        yield batches


def measure_throughput(report: Report, steps: int, roads: list[str]) -> None:
    rows: list[list[object]] = []
    for road in roads:
        sampler = Sampler()
        ages = list[int]()
        waits = list[float]()
        count = (
            steps if "in_flight" in ROADS[road] else steps // 3
        )  # which is slow, and held to no bar
        settings = RLSettings(
            seq_len=512, groups_per_batch=GROUPS, seed=0, rows=16, max_segments=8, **ROADS[road]
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            RolloutStore(folder) as store,
            RLDataset(PROMPTS, sampler, settings, store=store) as dataset,
            batches_of(dataset) as batches,
        ):
            next(batches)
            began = time.perf_counter()
            for step in range(1, count + 1):
                time.sleep(STEP_S)  # trains on the step before
                sampler.version = step
                dataset.set_policy_version(step)
                asked = time.perf_counter()
                batch = next(batches)
                waits.append(time.perf_counter() - asked)
                versions = np.asarray(batch.policy_version)
                ages.append(step - int(versions[versions >= 0].min()))
            share = count * STEP_S / (time.perf_counter() - began)
            totals = {name: n for name, n in dataset.totals.items() if n}
        bound = settings.max_staleness
        rows.append(
            [
                road,
                share,
                max(ages),
                "none" if bound is None else bound,
                max(waits),
                json.dumps(totals),
            ]
        )
        if bound is not None:
            report.bar(f"{road}: throughput over the ideal", share, at_least=0.9)
            report.bar(
                f"{road}: versions between policy and oldest token", max(ages), at_most=bound
            )
    report.table(
        f"Throughput of {steps} steps",
        ["stragglers", "of ideal", "oldest", "bound", "longest wait s", "counts"],
        rows,
    )


def measure_cpu(report: Report) -> None:
    model = TransformerCost(1024, 12, 16, 64, 4, 4096, 32000)
    settings = RLSettings(seq_len=8192, groups_per_batch=128, seed=0, ranks=8, costs=model.flops)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, RolloutStore(folder) as store:
        dataset = RLDataset(PROMPTS, Sampler(), settings, store=store)
        for position in range(3 * settings.groups_per_batch):
            tokens = [rng.integers(0, 32000, 2048).astype(np.int32) for _ in range(8)]
            logs = [-rng.random(1984).astype(np.float32) for _ in range(8)]
            store.put_group(position, ScoredGroup(tokens, rng.random(8), 64, logs))
        store.close()
        dataset = RLDataset(
            PROMPTS, Sampler(), settings, store=RolloutStore(folder)
        )  # reads the log
        seconds = list[float]()
        shares = list[float]()
        for step in range(3):
            began = time.process_time()
            batch = dataset.next_batch(step)
            seconds.append(time.process_time() - began)
            assert batch.segment_lengths is not None
            load = batch.segment_lengths.reshape(8, -1).sum(axis=1)
            shares.append(float(load.max() / load.mean()))
        dataset.store.close()
    report.table(
        "CPU of a step", ["step", "seconds"], [[step, s] for step, s in enumerate(seconds)]
    )
    report.bar("CPU seconds of 1,024 completions of 2,048 tokens", min(seconds), at_most=0.5)
    report.bar("tokens of the fullest rank over the mean", max(shares), at_most=1.05)


def kill_settings(stragglers: str) -> RLSettings:
    return RLSettings(
        seq_len=64,
        groups_per_batch=4,
        seed=3,
        max_staleness=3,
        in_flight=8,
        stragglers=stragglers,
        rows=6,
        max_segments=8,
        retries=3,
        ranks=2,
    )


class Flaky:
    """Takes up to 20 ms, fails one time in ten; one group in five teaches nothing."""

    version = 0

    def sample_and_score(self, prompt: Prompt) -> ScoredGroup:
        version = self.version
        time.sleep(random.random() ** 4 * 0.02)
        if random.random() < 0.1:
            raise OSError("the server is gone")
        rewards = np.array([0.0, 1.0, float(prompt.position % 3)]) * (prompt.position % 5 > 0)
        answers = [
            np.append(prompt.tokens, [random.randrange(9), k, prompt.position]) for k in range(3)
        ]
        return ScoredGroup(answers, rewards, 2, policy_version=version)


def digest(batch: PackedBatch) -> str:
    assert batch.segment_lengths is not None
    arrays = (batch.token_ids, batch.token_weights, batch.segment_lengths, batch.policy_version)
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    ).hexdigest()


def train_until_killed(folder: Path, stragglers: str, steps: int) -> None:
    """The process that is killed: notes what it has trained on, and goes on where the notes end."""
    trained = folder / "trained.txt"
    done = trained.read_text().count("\n") if trained.exists() else 0
    sampler = Flaky()
    settings = kill_settings(stragglers)
    with (
        RolloutStore(folder / "rollouts") as store,
        trained.open("a") as notes,
        RLDataset(PROMPTS, sampler, settings, store=store) as dataset,
    ):
        print("ready", flush=True)
        for step in range(done, done + steps):
            sampler.version = step
            batch = dataset.next_batch(step, policy_version=step)
            time.sleep(0.01)
            notes.write(f"{digest(batch)}\n")
            notes.flush()
            os.fsync(notes.fileno())


def start_child(folder: Path, stragglers: str, steps: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        __file__,
        "--child",
        str(folder),
        "--stragglers",
        stragglers,
        "--steps",
        str(steps),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def measure_kills(report: Report, kills: int, seed: int = 0) -> None:
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(kills):
            child = start_child(folder, "keep", 10**6)
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(moments.random() * 0.5)
            child.send_signal(signal.SIGKILL)
            child.wait()
        last = start_child(
            folder, "wait", 12
        )  # steps in the order of positions: what was under way comes first
        assert last.wait(300) == 0
        trained = (folder / "trained.txt").read_text().split()
        store = RolloutStore(folder / "rollouts", follow=True)
        used = sorted(p for r in store.records() for p in (*r.positions, *r.dropped))
        dataset = RLDataset(PROMPTS, None, kill_settings("keep"), store=store)
        other = sum(digest(dataset.next_batch(step)) != seen for step, seen in enumerate(trained))
        facts = store.describe()
    lost = len(set(range(store.next_position)) - set(used))
    rows = [
        [
            kills,
            len(trained),
            len(used),
            lost,
            len(used) - len(set(used)),
            other,
            facts["duplicate_groups"],
        ]
    ]
    columns = [
        "kills",
        "steps",
        "prompts",
        "lost",
        "in two steps",
        "batches that replay otherwise",
        "sampled twice",
    ]
    report.table("Kills at random moments", columns, rows)
    for bar, value in (
        ("prompts lost", lost),
        ("prompts in two steps", rows[0][4]),
        ("batches that differ", other),
    ):
        report.bar(f"{kills} kills: {bar}", float(value), at_most=0)


def measure(args: argparse.Namespace, report: Report) -> None:
    if args.kills:
        measure_kills(report, args.kills)
        return
    measure_cpu(report)
    measure_throughput(
        report, 30 if args.quick else 100, ["abort", "keep"] if args.quick else list(ROADS)
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kills", type=int, default=0, help="only this: so many kills at random moments"
    )


if __name__ == "__main__":
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        train_until_killed(Path(sys.argv[at + 1]), sys.argv[at + 3], int(sys.argv[at + 5]))
    else:
        run_bench("bench_rollouts", __doc__, measure, add_arguments=add_flags)
