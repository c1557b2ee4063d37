"""The demo's picture: the loss over the steps, and below it the mixture that was wanted and the one that came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLORS = ("#4477aa", "#88ccee", "#ddaa33", "#aa4499", "#44aa77")
_INK, _FAINT = "#222222", "#bbbbbb"


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
    """Writes the picture as a PNG.

    Args:
        path: The file.
        loss: Training loss of each step, in nats a token.
        rows: Rows that each step took from each source.
        wanted: Share that each source should have had, 0 to 1.
        names: Names of the sources.
        stop: The first step after the stop.
        stop_label: What happened there.
    """
    figure = Figure(figsize=(8, 6.4), dpi=120, layout="constrained")
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _draw_loss(axes[0], loss)
    _draw_mixture(axes[1], rows, wanted, names)
    for ax in axes:
        ax.axvline(stop - 0.5, color=_INK, linewidth=1, linestyle=":")
        ax.set_xlim(0, max(len(loss) - 1, 1))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].text(stop + 0.01 * len(loss), 0.97, stop_label, va="top", transform=axes[0].get_xaxis_transform())
    axes[1].set_xlabel("step")
    figure.suptitle("headrace demo: a language model trained on Python's standard library", x=0.01, ha="left")
    figure.savefig(path)


def rolling_mean(values: Float64[np.ndarray, " n"], width: int) -> Float64[np.ndarray, " n"]:
    """Mean of the values at most ``width // 2`` places away; near the ends of those that are there.

    Example:
        >>> rolling_mean(np.array([0.0, 3.0, 6.0, 9.0]), 3)
        array([1.5, 3. , 6. , 7.5])
    """
    half = width // 2
    sums = np.concatenate([np.zeros(1), np.cumsum(values)])
    stop = np.minimum(np.arange(len(values)) + half + 1, len(values))
    start = np.maximum(np.arange(len(values)) - half, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def _draw_loss(ax: Axes, loss: Float64[np.ndarray, " steps"]) -> None:
    smooth = rolling_mean(loss, 1 + len(loss) // 20)
    ax.plot(loss, color=_FAINT, linewidth=0.8, label="each step")
    ax.plot(smooth, color=_COLORS[0], linewidth=2, label="smoothed")
    ax.set_ylabel("training loss (nats a token)")
    ax.legend(frameon=False, loc="lower left")
    ax.annotate(f"{smooth[-1]:.2f}", (len(loss) - 1, smooth[-1]), xytext=(0, 8), textcoords="offset points", ha="right")


def _draw_mixture(
    ax: Axes,
    rows: Int64[np.ndarray, "steps sources"],
    wanted: Float64[np.ndarray, "steps sources"],
    names: Sequence[str],
) -> None:
    steps = np.arange(len(rows))
    shares = 100 * rows / rows.sum(axis=1, keepdims=True)
    borders = 100 * np.cumsum(wanted, axis=1)
    ax.stackplot(steps, shares.T, colors=_COLORS, step="mid", alpha=0.85)
    lines = ax.plot(steps, borders[:, :-1], color=_INK, linewidth=1.2)
    ax.set_ylim(0, 100)
    ax.set_ylabel("rows of each batch (%)")
    for name, low, high in zip(names, [0.0, *borders[-1, :-1]], borders[-1], strict=True):
        ax.annotate(name, (steps[-1], (low + high) / 2), xytext=(5, 0), textcoords="offset points", va="center")
    ax.legend(lines[:1], ["wanted"], framealpha=0.9, loc="lower left")
