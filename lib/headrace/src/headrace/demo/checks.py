"""The claims of the demo, one function each, which checks what really happened and returns a
figure.

The batches that were trained on are compared by digest with those of a loader that never stopped,
the delivered rows with the target, and a config with another order with the checkpoint of this run.
A picture shows the loss over the steps, and the target mixture and the delivered one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headrace.batch.packed_batch import PackedBatch
from headrace.config.lm_data import LmDataConfig
from headrace.demo.screen import Check, StepLog
from headrace.errors import PlanMismatchError
from headrace.run.lock import RunLock
from headrace.run.state import LoaderState

_COLORS = ("#4477aa", "#88ccee", "#ddaa33", "#aa4499", "#44aa77")
_INK, _FAINT = "#222222", "#bbbbbb"
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


def draw_picture(
    path: Path,
    loss: Float64[np.ndarray, " steps"],
    rows: Int64[np.ndarray, "steps sources"],
    wanted: Float64[np.ndarray, "steps sources"],
    names: Sequence[str],
    *,
    stop: int,
    stop_label: str,
) -> None:
    """Writes the picture as a PNG; ``stop`` is the first step after the stop, ``wanted`` are shares
    from 0 to 1.
    """
    figure = Figure(figsize=(8, 6.4), dpi=120, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _draw_loss(axes[0], loss)
    _draw_mixture(axes[1], rows, wanted, names)
    for ax in axes:
        ax.axvline(stop - 0.5, color=_INK, linewidth=1, linestyle=":")
        ax.set_xlim(0, max(len(loss) - 1, 1))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].text(
        stop + 0.01 * len(loss), 0.97, stop_label, va="top", transform=axes[0].get_xaxis_transform()
    )
    axes[1].set_xlabel("step")
    figure.suptitle(
        "headrace demo: a language model trained on Python's standard library", x=0.01, ha="left"
    )
    figure.savefig(path)


def rolling_mean(values: Float64[np.ndarray, " n"], width: int) -> Float64[np.ndarray, " n"]:
    """Mean of the values at most ``width // 2`` places away; near the ends of those that are there.

    Example:
        >>> rolling_mean(np.array([0.0, 3.0, 6.0, 9.0]), 3)
        array([1.5, 3. , 6. , 7.5])
    """
    half = width // 2
    index = np.arange(len(values))
    sums = np.concatenate([np.zeros(1), np.cumsum(values)])
    stop = np.minimum(index + half + 1, len(values))
    start = np.maximum(index - half, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def _draw_loss(ax: Axes, loss: Float64[np.ndarray, " steps"]) -> None:
    smooth = rolling_mean(loss, 1 + len(loss) // 20)
    ax.plot(loss, color=_FAINT, linewidth=0.8, label="each step")
    ax.plot(smooth, color=_COLORS[0], linewidth=2, label="smoothed")
    ax.set_ylabel("training loss (nats a token)")
    ax.legend(frameon=False, loc="lower left")
    ax.annotate(
        f"{smooth[-1]:.2f}",
        (len(loss) - 1, smooth[-1]),
        xytext=(0, 8),
        textcoords="offset points",
        ha="right",
    )


def _draw_mixture(ax: Axes, rows: np.ndarray, wanted: np.ndarray, names: Sequence[str]) -> None:
    steps = np.arange(len(rows))
    shares = 100 * rows / rows.sum(axis=1, keepdims=True)
    borders = 100 * np.cumsum(wanted, axis=1)
    ax.stackplot(steps, shares.T, colors=_COLORS, step="mid", alpha=0.85)
    lines = ax.plot(steps, borders[:, :-1], color=_INK, linewidth=1.2)
    ax.set_ylim(0, 100)
    ax.set_ylabel("rows of each batch (%)")
    for name, low, high in zip(names, [0.0, *borders[-1, :-1]], borders[-1], strict=True):
        ax.annotate(
            name,
            (steps[-1], (low + high) / 2),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
        )
    ax.legend(lines[:1], ["wanted"], framealpha=0.9, loc="lower left")
