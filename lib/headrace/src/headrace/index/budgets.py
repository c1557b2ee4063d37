"""Checks of what users write about amounts: epochs, tokens, shares, the length of a run. Numbers only, no data needed.

Each is refused when it is written, under the name that it has in the config.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from headrace.errors import ConfigError
from headrace.index.schedule import MAX_STEP, BatchSchedule


def check_epochs(path: str, value: float | None) -> None:
    """Raises ConfigError unless passes are a finite number above 0, or None."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ConfigError(
            "must be finite and above 0", field=path, value=value, cure="Passes over the source, e.g. 1.5."
        )


def check_tokens(path: str, value: float | None, row_tokens: int | None = None) -> None:
    """Raises ConfigError unless tokens are a whole number from 1 up (from ``row_tokens`` up), or None."""
    if value is None:
        return
    if isinstance(value, bool) or value < 1 or value != int(value):
        raise ConfigError("must be a whole number of at least 1", field=path, value=value, cure="In tokens.")
    if row_tokens is not None and value < row_tokens:
        raise ConfigError(
            f"holds no row of {row_tokens} tokens", field=path, value=value, cure=f"Give at least {row_tokens} tokens."
        )


def check_whole(path: str, value: object) -> None:
    """Raises ConfigError unless a number of something is an integer, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        raise ConfigError("must be a whole number", field=path, value=value, cure="Give an int.")


def check_share(path: str, value: float | None) -> None:
    """Raises ConfigError unless a share lies above 0 and is at most 1, or None."""
    if value is not None and not 0 < value <= 1:
        raise ConfigError(
            "must lie above 0 and be at most 1", field=path, value=value, cure="A part of each batch, e.g. 0.25."
        )


def check_steps(path: str, value: int | None, least: int = 1) -> None:
    """Raises ConfigError unless a step, or a number of steps, lies in ``least`` to 2**40, or is None."""
    if value is not None and (isinstance(value, bool) or not least <= value <= MAX_STEP):
        raise ConfigError(
            f"must be a whole number from {least} to 2**40", field=path, value=value, cure="Count in steps."
        )


def step_after_tokens(first: int, tokens: int, batch: BatchSchedule, phases: Sequence[tuple[int, int]]) -> int:
    """The step before which so many tokens were delivered since the step ``first``, in whole steps, rounded up.

    Args:
        first: A step.
        tokens: At least 1.
        batch: Rows of steps.
        phases: First step and row length of each phase.

    Example:
        >>> step_after_tokens(0, 1000, BatchSchedule(8), [(0, 16)])  # 7.8 steps of 128 tokens
        8
        >>> step_after_tokens(0, 1000, BatchSchedule(8), [(0, 16), (5, 32)])  # 5 of 128 tokens, 1.4 of 256
        7
    """
    left = tokens
    ends = [*(begin for begin, _ in phases[1:]), None]
    for (begin, length), end in zip(phases, ends, strict=True):
        start = max(first, begin)
        if end is not None and end <= start:
            continue
        before = batch.rows_at(start)[0]
        after = int(batch.step_of(np.asarray([before - (-left // length) - 1]))[0]) + 1
        if end is None or after <= end:
            return after
        left -= (batch.rows_at(end)[0] - before) * length
    raise AssertionError("the last phase has no end")


def tokens_of_steps(steps: int, batch: BatchSchedule, phases: Sequence[tuple[int, int]]) -> int:
    """Tokens of the first ``steps`` steps.

    Example:
        >>> tokens_of_steps(7, BatchSchedule(8), [(0, 16), (5, 32)])
        1152
    """
    bounds = [*(min(begin, steps) for begin, _ in phases), steps]
    rows = [batch.rows_at(step)[0] for step in bounds]
    return sum((after - before) * length for (before, after), (_, length) in zip(pairwise(rows), phases, strict=True))


def check_component_budgets(
    path: str, max_epochs: float | None, max_tokens: int | None, max_share: float | None, row_tokens: int
) -> None:
    """Raises ConfigError for a bound of a component that nothing can meet; ``path`` is the component's."""
    check_epochs(f"{path}.max_epochs", max_epochs)
    check_tokens(f"{path}.max_tokens", max_tokens, row_tokens)
    check_share(f"{path}.max_share", max_share)


def tightest_bounds(
    epochs: Mapping[str, float], tokens: Mapping[str, int], sizes: Mapping[str, int]
) -> dict[str, tuple[str, float]]:
    """Which of its bounds, and how much, holds for each component that has one.

    Args:
        epochs: Most passes by component.
        tokens: Most tokens by component.
        sizes: Tokens of each component.

    Example:
        >>> tightest_bounds({"a": 2, "b": 3}, {"b": 100}, {"a": 50, "b": 50})
        {'a': ('max_epochs', 2), 'b': ('max_tokens', 100)}
    """
    found: dict[str, tuple[str, float]] = {name: ("max_epochs", most) for name, most in epochs.items()}
    for name, most in tokens.items():
        if name not in epochs or most < epochs[name] * sizes[name]:
            found[name] = ("max_tokens", most)
    return found
