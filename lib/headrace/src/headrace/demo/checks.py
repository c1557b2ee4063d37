"""The claims of the demo, one function each, which checks what really happened and returns a
figure.

The batches that were trained on are compared by digest with those of a loader that never stopped,
the delivered rows with the target, and a config with another order with the checkpoint of this run.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import numpy as np
from jax.sharding import Mesh

from headrace.batch.packed_batch import PackedBatch
from headrace.config.lm_data import LmDataConfig
from headrace.demo.screen import Check, StepLog
from headrace.errors import PlanMismatchError
from headrace.run.lock import RunLock
from headrace.run.state import LoaderState

_WAITING_BAR = 0.05  # above this share of the time, data delays training


def digest(batch: PackedBatch) -> str:
    """Names the tokens of a batch, wherever they are: equal digests, equal batches."""
    return hashlib.sha256(np.asarray(batch.token_ids).astype("<i4").tobytes()).hexdigest()[:16]


def data_alone(config: LmDataConfig, mesh: Mesh, steps: int) -> tuple[list[str], float]:
    """Loads the steps of a run without training and without a stop: (digests of the batches, tokens
    per second).
    """
    started = time.perf_counter()
    with config.loader(mesh) as loader, loader.iter_from_step(0) as batches:
        digests = [digest(next(batches)) for _ in range(steps)]
        tokens = int(loader.schedule.offset_at(np.array([steps]))[0]) * config.phases[0][1]
    return digests, tokens / (time.perf_counter() - started)


def loss_falls(log: StepLog) -> Check:
    """The mean loss of the last tenth of the steps is below that of the first tenth."""
    losses = log.losses
    tenth = len(losses) // 10
    first = float(losses[:tenth].mean())
    last = float(losses[-tenth:].mean())
    return Check(
        "loss falls",
        f"{losses[0]:.2f} at first, {last:.2f} over the last {tenth} steps",
        last < first,
    )


def same_batches(log: StepLog, digests: list[str]) -> Check:
    """The batches that were trained on are, step by step and bit by bit, those of a loader that
    never stopped.
    """
    equal = sum(a == b for a, b in zip(log.digests, digests, strict=True))
    first_devices = log.records[0].devices
    last_devices = log.records[-1].devices
    figure = (
        f"{equal} of {len(digests)} bit-identical: on {first_devices}, then {last_devices}"
        " devices, and unstopped on 1"
    )
    return Check("same batches", figure, equal == len(digests))


def exact_mixture(log: StepLog) -> Check:
    """At every step, every source is within one row of its schedule."""
    worst = log.worst_deviation
    return Check("exact mixture", f"never more than {worst:.2f} rows from its schedule", worst < 1)


def never_waits(log: StepLog, data_tokens_per_s: float) -> Check:
    """Training waits for data for less than a twentieth of its time."""
    share = log.waiting_share
    figure = (
        f"{share:.1%} of the time; the data alone are {data_tokens_per_s / log.tokens_per_s:,.0f}"
        " x faster"
    )
    return Check("no waiting for data", figure, share < _WAITING_BAR, decides=False)


def refuses_another_order(config: LmDataConfig, mesh: Mesh, state: LoaderState) -> Check:
    """A config with another seed is refused: the state belongs to another run."""
    with replace(config, seed=config.seed + 1).loader(mesh) as loader:
        try:
            RunLock.of(loader).check(state)
        except PlanMismatchError:
            return Check(
                "another order refused", f"seed {config.seed + 1} cannot resume this run", True
            )
    return Check("another order refused", f"seed {config.seed + 1} was let in", False)
