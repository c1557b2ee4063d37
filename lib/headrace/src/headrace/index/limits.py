"""Where a mixture ends and how much it may take: epochs, budgets, largest shares, stop strategies.

A source is bounded by ``max_epochs`` (passes over it) and by a budget in examples; what it cannot give is shared by the
others exactly, and a largest share bounds it at each step (:mod:`headrace.index.shares`). A stop strategy
says what the end of a source means for the mixture, in the words that ``datasets`` and Levanter use:

* ``restart``: nothing, sources start over in a new order; the mixture ends only if limits end it;
* ``first_exhausted``: the mixture ends before the first example that some source does not have;
* ``all_exhausted``: it ends once every source was used up at least once; smaller ones start over until then.

A source is used up after one pass, or at its limit if that comes before: limits make no source last longer. One that is
not drawn any more, since its weight is 0 from some step on, is not waited for by ``all_exhausted``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace.errors import ConfigError, did_you_mean
from headrace.index.draws import Draws
from headrace.index.shares import UNLIMITED

STOP_STRATEGIES = ("restart", "first_exhausted", "all_exhausted")


def example_limits(
    sizes: Mapping[str, int],
    max_epochs: float | Mapping[str, float] | None = None,
    budgets: Mapping[str, int] | None = None,
) -> dict[str, int | None]:
    """Most examples of each source in the whole run: the smaller of its epochs and its budget.

    Args:
        sizes: Examples of each source.
        max_epochs: Passes over each source, one number for all or by name; may be a fraction. None: no bound.
        budgets: Examples of each source, by name.

    Returns:
        Limits in the order of ``sizes``, None where there is no bound; for ``Draws(..., limits=[*limits.values()])``.

    Raises:
        ConfigError: a name that is no source; an epoch count or budget that is negative or not finite.

    Example:
        >>> example_limits({"web": 1000, "docs": 10}, max_epochs={"docs": 2.5}, budgets={"web": 600})
        {'web': 600, 'docs': 25}
    """
    epochs = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(sizes, max_epochs)
    limits: dict[str, int | None] = dict.fromkeys(sizes)
    for field, given in (("max_epochs", epochs), ("budgets", budgets or {})):
        for name, value in given.items():
            if name not in sizes:
                raise ConfigError("names no source", field=f"{field}.{name}", cure=did_you_mean(name, sizes))
            if value is None:
                continue
            if isinstance(value, bool) or not (math.isfinite(value) and value >= 0):
                raise ConfigError("must be finite and not negative", field=f"{field}.{name}", value=value)
            bound = math.floor(sizes[name] * value) if field == "max_epochs" else math.floor(value)
            known = limits[name]
            limits[name] = bound if known is None else min(known, bound)
    return limits


def mixture_length(
    draws: Draws, sizes: Sequence[int | None], stop: str, limits: Sequence[int | None] | None = None
) -> int | None:
    """Examples of a mixture under a stop strategy.

    Args:
        draws: The mixture.
        sizes: Examples of each component, None for an endless one.
        stop: One of ``STOP_STRATEGIES``.
        limits: Most examples of each component, as ``draws`` has them; None: no limits.

    Returns:
        The number of examples, or None if there is no end.

    Raises:
        ConfigError: unknown strategy; not one size a component.

    Example:
        >>> from headrace.index.schedule import BatchSchedule
        >>> d = Draws({"a": 3, "b": 1}, BatchSchedule(4))  # a a b a | a a b a | ...
        >>> [mixture_length(d, [10, 4], s) for s in STOP_STRATEGIES]
        [None, 13, 15]
    """
    if stop not in STOP_STRATEGIES:
        raise ConfigError("is no stop strategy", field="stop", value=stop, cure=did_you_mean(stop, STOP_STRATEGIES))
    if len(sizes) != draws.components:
        raise ConfigError(f"needs one entry for each of {draws.components} components", field="sizes", value=sizes)
    supply = draws.policy.supply()
    ends: list[int | None] = [] if supply.max() >= UNLIMITED else [int(supply.sum())]
    if stop == "first_exhausted":
        for d, (size, limit) in enumerate(zip(sizes, limits or [None] * len(sizes), strict=True)):
            if limit is not None and (size is None or limit < size):
                ends.append(_end_of(draws, d, limit))  # it is passed over from then on: there is no example beyond
            elif size is not None:
                ends.append(draws.index_of(d, size))
    elif stop == "all_exhausted":
        drawn = [None if given >= UNLIMITED else int(given) for given in supply]
        most = [[n for n in pair if n is not None] for pair in zip(sizes, drawn, strict=True)]
        used_up = [_end_of(draws, d, min(given)) if given else None for d, given in enumerate(most)]
        if None not in used_up:
            ends.append(max(filter(None, used_up), default=0))
    return min((end for end in ends if end is not None), default=None)


def _end_of(draws: Draws, component: int, size: int) -> int | None:
    """Examples of the mixture up to the last of a component's first ``size``; None if it never has so many."""
    if size == 0:
        return 0
    last = draws.index_of(component, size - 1)
    return None if last is None else last + 1
