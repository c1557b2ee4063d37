"""The share of each component in a batch over all stages of a plan: the largest ever, and the usual
one.

Strands (order/braid/strands.py) are sized once for all stages, by the largest share; otherwise a
component that grows in a later stage would mix within too small a window. Laps fit the usual share:
that of the longest stretch without changes. Amendments do not affect planned components, because
they must not change the past; components that an amendment adds are sized by the amendment.

The end of a run is deliberately not used: extending a run must not change its order. An endless
last stretch counts as long as everything before it. Price: some 33 evaluations between two break
points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float64

from headrace.errors import ConfigError
from headrace.mix.shares import bound_shares, row_shares
from headrace.mix.stages import Stage

# a normalised share bends between two break points only in nested blends; this many looks are
# plenty
_SAMPLES = 33
_FITTING_SHARE = 0.5  # laps fit the usual share where it is at least this part of the largest


@dataclass(frozen=True)
class PlanShares:
    """Shares of the components of a plan, by name, in the order in which stages first use them."""

    largest: dict[str, float]
    """The largest share of a batch that each ever gets."""
    usual: dict[str, float] | None
    """The share for which its laps should fit, at most the largest; None if no stretch is without
    change.
    """


@dataclass(frozen=True)
class _Stretch:
    """Shares at some steps of ``[first, stop)``, between two break points."""

    first: int
    stop: int | None
    names: tuple[str, ...]
    rows: Float64[np.ndarray, "n d"]

    def constant(self) -> dict[str, float] | None:
        same = bool((np.abs(self.rows - self.rows[0]) < 1e-9).all())
        return dict(zip(self.names, self.rows[0].tolist(), strict=True)) if same else None


def plan_shares(stages: Sequence[Stage]) -> PlanShares:
    """Shares over consecutive stages, of which the last is endless.

    Raises:
        ConfigError: the largest shares leave a part of some batch unfilled.

    Example:
        >>> from headrace.mix import Blend
        >>> plan = plan_shares(
        ...     [Stage(0, Blend({"web": 3, "code": 1})), Stage(50, Blend({"code": 1, "math": 1}))]
        ... )
        >>> plan.largest
        {'web': 0.75, 'code': 0.5, 'math': 0.5}
        >>> plan.usual  # of the first stage, and of the last for what the first does not use
        {'web': 0.75, 'code': 0.25, 'math': 0.5}
    """
    stages = [*stages[:-1], dataclasses.replace(stages[-1], blend=stages[-1].blend.without_end())]
    stops = [*(stage.first_step for stage in stages[1:]), None]
    stretches = [
        s for stage, stop in zip(stages, stops, strict=True) for s in _stretches(stage, stop)
    ]
    largest: dict[str, float] = {}
    for stretch in stretches:
        for name, share in zip(stretch.names, stretch.rows.max(axis=0).tolist(), strict=True):
            largest[name] = max(largest.get(name, 0.0), share)
    usual = _longest(stretches)
    if usual is None:
        return PlanShares(largest, None)
    near = {name: usual.get(name, 0.0) for name in largest}
    fitting = {
        name: share if share >= _FITTING_SHARE * largest[name] else largest[name]
        for name, share in near.items()
    }
    return PlanShares(largest, fitting)


def _stretches(stage: Stage, stop: int | None) -> list[_Stretch]:
    first = stage.first_step
    inside = [b for b in stage.blend.breaks if first < b and (stop is None or b < stop)]
    names = stage.blend.names
    bound = np.array([stage.max_share.get(name, 1.0) for name in stage.blend.names])
    row_tokens = stage.tokens_of_rows
    stretches: list[_Stretch] = []
    for begin, end in pairwise([first, *inside, stop]):
        assert begin is not None  # only the last bound may be missing
        last = begin if end is None else end - 1
        steps = np.unique(np.linspace(begin, last, _SAMPLES).astype(np.int64))
        try:
            rows = stage.blend.at(steps)
        except (
            ConfigError
        ):  # no weight there: the blend was checked for the steps that are run, and this is behind
            continue
        rows = _bounded(rows, bound, steps, names)
        rows = rows if row_tokens is None else row_shares(rows, np.array(row_tokens))
        stretches.append(_Stretch(begin, end, names, rows))
    return stretches


def _bounded(
    rows: np.ndarray, bound: np.ndarray, steps: np.ndarray, names: tuple[str, ...]
) -> np.ndarray:
    if not (bound < 1).any():
        return rows
    try:
        return bound_shares(rows, bound, steps)
    except ConfigError as error:
        bounds = {n: b for n, b in zip(names, bound.tolist(), strict=True) if b < 1}
        raise ConfigError(
            error.problem, field="max_share", value=bounds, cure=error.cure
        ) from error


def _longest(stretches: Sequence[_Stretch]) -> dict[str, float] | None:
    """Shares of the longest stretch without change; the first of equals."""
    best = None
    longest = 0
    begin = 0
    previous = None
    for stretch in stretches:
        shares = stretch.constant()
        if shares is not None and shares != previous:  # neighbours that are alike are one
            begin = stretch.first
        previous = shares
        stop = max(2 * begin, begin + 1) if stretch.stop is None else stretch.stop
        if shares is not None and stop - begin > longest:
            best = shares
            longest = stop - begin
    return best
