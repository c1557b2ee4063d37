"""Limits on epochs, tokens, shares and steps, and where they end a mixture.

Impossible values are refused when the config is read, under their name there, before any data is
opened. A source is limited by ``max_epochs`` (passes over it) and by a budget in examples; the
others share exactly what it cannot supply. A largest share limits it at each step
(:mod:`headrace.mix.shares`). A stop strategy says what the end of a source means for the mixture,
with the names of ``datasets`` and Levanter:

* ``restart``: nothing, sources start over in a new order; the mixture ends only if limits end it;
* ``first_exhausted``: the mixture ends before the first example that some source does not have;
* ``all_exhausted``: it ends once every source was used up at least once; smaller ones start over
  until then.

A source is used up after one pass, or at its limit if that comes first: limits never make a source
last longer. ``all_exhausted`` does not wait for a source that is no longer drawn because its weight
is 0 from some step on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.errors import ConfigError, check_choice
from headrace.mix.draws import Draws
from headrace.mix.schedule import MAX_STEP
from headrace.mix.shares import UNLIMITED

STOP_STRATEGIES = ("restart", "first_exhausted", "all_exhausted")


def check_epochs(path: str, value: float | None) -> None:
    """Raises ConfigError unless the number of passes is finite and above 0, or None."""
    if value is not None and (
        isinstance(value, bool | str) or not (math.isfinite(value) and value > 0)
    ):
        cure = "Passes over the source, e.g. 1.5."
        raise ConfigError("must be finite and above 0", field=path, value=value, cure=cure)


def check_tokens(path: str, value: float | None, row_tokens: int | None = None) -> None:
    """Raises ConfigError unless tokens are a whole number of at least 1 (or ``row_tokens``), or
    None.
    """
    if value is None:
        return
    if isinstance(value, bool) or value < 1 or value != int(value):
        raise ConfigError(
            "must be a whole number of at least 1", field=path, value=value, cure="In tokens."
        )
    if row_tokens is not None and value < row_tokens:
        cure = f"Give at least {row_tokens} tokens."
        raise ConfigError(
            f"holds no row of {row_tokens} tokens", field=path, value=value, cure=cure
        )


def check_steps(path: str, value: int | None, least: int = 1) -> None:
    """Raises ConfigError unless a step or a number of steps is between ``least`` and 2**40, or
    None.
    """
    if value is not None and (isinstance(value, bool) or not least <= value <= MAX_STEP):
        problem = f"must be a whole number from {least} to 2**40"
        raise ConfigError(problem, field=path, value=value, cure="Count in steps.")


def check_component_budgets(
    path: str,
    max_epochs: float | None,
    max_tokens: int | None,
    max_share: float | None,
    row_tokens: int,
) -> None:
    """Raises ConfigError for a limit of a component that cannot be met; ``path`` is the
    component's.
    """
    check_epochs(f"{path}.max_epochs", max_epochs)
    check_tokens(f"{path}.max_tokens", max_tokens, row_tokens)
    if max_share is not None and not 0 < max_share <= 1:
        cure = "A part of each batch, e.g. 0.25."
        raise ConfigError(
            "must lie above 0 and be at most 1",
            field=f"{path}.max_share",
            value=max_share,
            cure=cure,
        )


def mixture_length(
    draws: Draws, sizes: Sequence[int | None], stop: str, limits: Sequence[int | None] | None = None
) -> int | None:
    """Examples of a mixture under one of the ``STOP_STRATEGIES``; None if there is no end.

    Args:
        draws: The mixture.
        sizes: Examples of each component, None for an endless one.
        stop: The strategy.
        limits: Most examples of each component, as ``draws`` has them; None: no limits.

    Raises:
        ConfigError: unknown strategy; not one size a component.

    Example:
        >>> from headrace.mix import BatchSchedule, Blend, Stage
        >>> from headrace.mix.stages import Stages
        >>> stages = [Stage(0, Blend({"a": 3, "b": 1}))]  # a a b a | a a b a | ...
        >>> d = Draws(Stages("ab", stages, BatchSchedule(4)))
        >>> [mixture_length(d, [10, 4], s) for s in STOP_STRATEGIES]
        [None, 13, 15]
    """
    check_choice("stop", stop, STOP_STRATEGIES, "is no stop strategy")
    if len(sizes) != draws.components:
        raise ConfigError(
            f"needs one entry for each of {draws.components} components", field="sizes", value=sizes
        )
    supply = draws.policy.supply()
    ends: list[int | None] = [] if supply.max() >= UNLIMITED else [int(supply.sum())]
    if stop == "first_exhausted":
        for d, (size, limit) in enumerate(zip(sizes, limits or [None] * len(sizes), strict=True)):
            if limit is not None and (size is None or limit < size):
                ends.append(
                    _end_of(draws, d, limit)
                )  # it is skipped from then on: there are no further examples
            elif size is not None:
                ends.append(draws.index_of(d, size))
    elif stop == "all_exhausted":
        drawn = [None if rows >= UNLIMITED else int(rows) for rows in supply]
        most = [[n for n in pair if n is not None] for pair in zip(sizes, drawn, strict=True)]
        used_up = [_end_of(draws, d, min(rows)) if rows else None for d, rows in enumerate(most)]
        if None not in used_up:
            ends.append(max(filter(None, used_up), default=0))
    return min((end for end in ends if end is not None), default=None)


def _end_of(draws: Draws, component: int, size: int) -> int | None:
    """Examples of the mixture up to the last of a component's first ``size``; None if it never has
    that many.
    """
    if size == 0:
        return 0
    last = draws.index_of(component, size - 1)
    return None if last is None else last + 1
