"""A sweep: short runs with random mixtures, in which each source is repeated as often as in the
full run.

An arm reads a fraction f of the full run's rows. If it drew from whole sources it would hardly
repeat any, and mixtures that are best without repetition are not best with it (arXiv 2606.07597).
So its sources are cut to the same fraction (``subset``): a source of n rows and share w is then
repeated ``w f N / (f n) = w N / n`` times, as often as the full run of N rows with these shares
would. What rounds it is the whole number of rows in the subset.

The first arm has the shares of the run itself. Those of the others are drawn around them, from a
Dirichlet distribution, or uniformly from all mixtures. Least shares bound all arms, and so do
``max_share`` and ``max_epochs`` of the config.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import yaml
from jaxtyping import Float64

from headrace.analysis.resolved import ResolvedRun
from headrace.config.lm_data import LmDataConfig
from headrace.config.writing import given_fields
from headrace.errors import ConfigError, check_at_least, check_choice
from headrace.mix.bounds import bounded_shares
from headrace.order.seeds import derive
from headrace.order.subset import SubsetConfig

Draw: TypeAlias = Literal["dirichlet", "uniform"]
TABLE = "results.csv"
SHARE = "share:"
"""Begins the column of a source in the table."""
LOSS = "loss"
MATCHED = 0.01
"""Repetition that differs by no more than this counts as that of the full run."""
_DEFAULT_PART = 20
_DECIMALS = 6
_LEAST_OF_EVEN = 1e-3
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster, where it was built


@dataclass(frozen=True)
class Sweep:
    """The arms of a sweep.

    Attributes:
        run: The config of the full run.
        rows: Rows of a pass over each source in the full run, by name.
        shares: Shares of each arm, ``[arms, sources]``; a row sums to 1 up to rounding.
        steps: Steps of an arm.
        fraction: Rows of an arm over those of the full run.
    """

    run: LmDataConfig
    rows: Mapping[str, int]
    shares: Float64[np.ndarray, "arms sources"]
    steps: int
    fraction: float

    @property
    def unmatched(self) -> list[str]:
        """Sources of which an arm has so few rows that it does not repeat them as often as the full
        run, within 1 %.
        """
        parts = {name: rows * self.fraction for name, rows in self.rows.items()}
        return [name for name, part in parts.items() if part > (1 + MATCHED) * int(part)]

    @property
    def matched_steps(self) -> int:
        """Steps of arms from which on every source is repeated as often as in the full run."""
        least_fraction = min(1 / (MATCHED * min(self.rows.values())), 1)
        return math.ceil(self.steps * least_fraction / self.fraction)

    @property
    def arms(self) -> list[str]:
        """Names of the arms; the first has the shares of the run."""
        digits = max(len(str(len(self.shares) - 1)), 2)
        return [f"arm_{number:0{digits}}" for number in range(len(self.shares))]

    def config(self, arm: int) -> LmDataConfig:
        """The config of an arm."""
        cut = {
            name: replace(
                one,
                weight=None,
                subset=None if one.subset is None else _cut(one.subset, self.fraction),
                max_tokens=one.max_tokens and max(int(one.max_tokens * self.fraction), 1),
            )
            for name, one in self.run.components.items()
        }
        return replace(
            self.run,
            components=cut,
            weights=dict(zip(self.rows, self.shares[arm].tolist(), strict=True)),
            stages=[],
            subset=_cut(self.run.subset or SubsetConfig(fraction=1), self.fraction),
            num_steps=self.steps,
        )

    def files(self) -> dict[str, str]:
        """What a sweep writes, by name: a config for each arm, and the table to fill in."""
        table = io.StringIO()
        lines = csv.writer(table, lineterminator="\n")
        lines.writerow(["arm", *(f"{SHARE}{name}" for name in self.rows), LOSS])
        for name, shares in zip(self.arms, self.shares.tolist(), strict=True):
            lines.writerow([name, *shares, ""])
        texts = {
            f"{name}.yaml": yaml.dump(
                given_fields(self.config(number)), Dumper=_DUMPER, sort_keys=False
            )
            for number, name in enumerate(self.arms)
        }
        return {**texts, TABLE: table.getvalue()}


def plan_sweep(
    run: ResolvedRun,
    arms: int,
    *,
    draw: Draw = "dirichlet",
    seed: int = 0,
    steps: int | None = None,
    least: Mapping[str, float] | None = None,
) -> Sweep:
    """The arms of a sweep for a run.

    Args:
        run: The full run.
        arms: Number of arms, at least 2.
        draw: ``dirichlet``: around the shares of the run; ``uniform``: from all mixtures.
        seed: Seed of the shares.
        steps: Steps of an arm; None: a twentieth of those of the run.
        least: Least share by source, in all arms; 0 for others.

    Raises:
        ConfigError: the run has no known end or is amended; an arm would not be shorter than the
            run, or would have no row of a source; no mixture is within the bounds.

    Example:
        >>> from headrace import ComponentConfig
        >>> web = ComponentConfig("caches/web", expected_tokens=4e7, weight=3)
        >>> code = ComponentConfig("caches/code", expected_tokens=1e7)
        >>> config = LmDataConfig({"web": web, "code": code}, num_steps=1000)
        >>> sweep = plan_sweep(ResolvedRun.of(config), 3)
        >>> sweep.steps, sweep.shares[0].tolist(), sweep.config(1).subset.fraction
        (50, [0.75, 0.25], 0.05)
    """
    check_at_least("--arms", arms, 2, "A fit needs more arms than sources: --arms 64.")
    check_choice("--from", draw, get_args(Draw))
    config = run.config
    full_steps = run.steps
    if full_steps is None:
        cure = "Say how long the full run is: num_steps=100000."
        raise ConfigError("is missing: the run has no known end", field="num_steps", cure=cure)
    if config.amendments:
        cure = "Sweep the config without them."
        raise ConfigError("are not swept", field="amendments", cure=cure)
    steps = max(full_steps // _DEFAULT_PART, 1) if steps is None else steps
    if not 1 <= steps < full_steps:
        problem = f"must be at least 1 and less than the {full_steps} steps of the run"
        cure = f"Arms are short runs: --steps {max(full_steps // _DEFAULT_PART, 1)}."
        raise ConfigError(problem, field="--steps", value=steps, cure=cure)
    full_rows, _ = run.dataset.batch_schedule.rows_at(full_steps)
    arm_rows, _ = run.dataset.batch_schedule.rows_at(steps)
    rows = {name: len(run.trained[name]) for name in run.first.names}
    planned = np.array([run.drawn[name].share for name in rows])
    lows, highs = _bounds(run, rows, full_rows, least or {})
    drawn = np.vstack([planned, _drawn(planned, arms - 1, draw, seed)])
    try:
        shares = bounded_shares(drawn, lows, highs)
    except ConfigError as error:
        cure = f"{error.cure} The greatest are max_share and max_epochs of the config."
        field = "--least" if error.field == "least" else "components"
        raise error.but(field=field, cure=cure) from error
    sweep = Sweep(run.original, rows, shares.round(_DECIMALS), steps, arm_rows / full_rows)
    empty = [name for name, count in rows.items() if count * sweep.fraction < 1]
    if empty:
        problem = f"leaves no row of component {empty[0]!r}, which has {rows[empty[0]]}"
        cure = f"All sources are repeated as in the run with --steps {sweep.matched_steps}."
        if sweep.matched_steps >= full_steps:
            cure = f"Leave {empty[0]} out of the config: it is too small for shorter runs."
        raise ConfigError(problem, field="--steps", value=steps, cure=cure)
    return sweep


def _drawn(
    planned: Float64[np.ndarray, " d"], arms: int, draw: Draw, seed: int
) -> Float64[np.ndarray, "arms d"]:
    """Random shares. Each arm has a concentration of its own, so that some arms are near the plan
    and others far from it.
    """
    random = np.random.default_rng(derive(seed, "sweep"))
    sources = len(planned)
    if draw == "uniform":
        return random.dirichlet(np.ones(sources), arms)
    # so that a source that the run does not draw may occur
    center = np.maximum(planned, _LEAST_OF_EVEN / sources)
    concentration = sources * 3 ** random.uniform(-1, 1, arms)
    return np.stack([random.dirichlet(center * one) for one in concentration])


def _bounds(
    run: ResolvedRun,
    rows: Mapping[str, int],
    full_rows: int,
    least: Mapping[str, float],
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
    """The least share of each source, by what was asked for, and the greatest, by the config."""
    for name in least:
        check_choice("--least", name, rows, "is no source of the run")
    greatest = dict.fromkeys(rows, 1.0)
    for name, one in run.config.components.items():
        passes = run.config.max_epochs if one.max_epochs is None else one.max_epochs
        if passes is not None:
            greatest[name] = min(greatest[name], passes * rows[name] / full_rows)
        if one.max_share is not None:
            greatest[name] = min(greatest[name], one.max_share)
    lows = np.array([least.get(name, 0.0) for name in rows])
    return lows, np.array([greatest[name] for name in rows])


def _cut(subset: SubsetConfig, fraction: float) -> SubsetConfig:
    """A subset that is a fraction of another one."""
    if subset.rows is not None:
        return replace(subset, rows=max(int(subset.rows * fraction), 1))
    return replace(subset, fraction=(subset.fraction or 1) * fraction)
