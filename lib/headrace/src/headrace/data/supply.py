"""Whether a mixture's budgets hold a run of a known length; if not, which source is short, and of how much.

Limits free a share that the other sources take (index/shares.py), so a run is short only once all sources that have
weight are used up, or are at the largest share that they may have. That is found by walking to the end of the run: 2 us
a step.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping

import numpy as np

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError, IndexOutOfRangeError

_CHUNK = 4096
Bounds = Mapping[str, tuple[str, float]]
"""By component: the config field of the bound that holds for it, and its value."""


def require_steps(dataset: PlannedDataset, num_steps: int, bounds: Bounds | None = None) -> None:
    """Checks that a mixture, phased or not, can fill so many steps.

    Args:
        dataset: A mixture; other datasets pass.
        num_steps: Steps of the run.
        bounds: What bounds the components, for the error.

    Raises:
        ConfigError: it cannot; component, what there is, what is needed and the cure are named.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(), seq_len=8)
        >>> mixture = MixtureDataset({"a": dataset}, {"a": 1}, batch_size=4, max_examples={"a": 10})
        >>> require_steps(mixture, 2)
        >>> try:
        ...     require_steps(mixture, 5, {"a": ("components.a.max_tokens", 80)})
        ... except ConfigError as error:
        ...     print(error.field, error.cure)
        components.a.max_tokens Raise it to 160 or more, or lower num_steps to 2.
    """
    if isinstance(dataset, PhasedDataset):
        for step, phase in dataset.phases:
            until = dataset.phase_at(step)[1]
            require_steps(phase, num_steps if until is None else min(until, num_steps), bounds)
    elif isinstance(dataset, MixtureDataset):
        _require(dataset, num_steps, bounds or {})


def _require(mixture: MixtureDataset, steps: int, bounds: Bounds) -> None:
    bounded = any(limit is not None for limit in mixture.limits.values())
    if not bounded and not any(stage.max_share for stage in mixture.stages):
        return
    try:
        mixture.draws.starts_at(steps)
    except IndexOutOfRangeError:
        whole = bisect.bisect_left(range(1, steps + 1), True, key=lambda step: _ends_before(mixture, step))
        raise _too_small(mixture, whole, steps) or _short(mixture, whole, steps, bounds) from None


def _too_small(mixture: MixtureDataset, whole: int, steps: int) -> ConfigError | None:
    """What to say of largest shares that leave a rest of step ``whole`` though no limit is reached in it or before."""
    drawn, size = mixture.draws.starts_at(whole).tolist(), mixture.batch_schedule.rows_at(whole)[1]
    limits = mixture.limits.values()
    shares = _shares_at(mixture, whole)
    if not shares or any(limit is not None and n + size >= limit for n, limit in zip(drawn, limits, strict=True)):
        return None
    return ConfigError(
        f"cannot be met: at step {whole} all sources with weight are at their largest share and leave a rest, and the"
        f" run has {steps} steps",
        field="components.*.max_share",
        value=shares,
        cure="Raise one of these shares, or give another source weight.",
    )


def _shares_at(mixture: MixtureDataset, step: int) -> dict[str, float]:
    return dict([stage for stage in mixture.stages if stage.first_step <= step][-1].max_share)


def _short(mixture: MixtureDataset, whole: int, steps: int, bounds: Bounds) -> ConfigError:
    drawn = mixture.draws.starts_at(whole)
    have = int(drawn.sum())
    needed = mixture.batch_schedule.rows_at(steps)[0]
    wanted = _wanted(mixture, steps)
    short = {n: wanted[n] - limit for n, limit in mixture.limits.items() if limit is not None and wanted[n] > 0}
    name = max(short, key=lambda n: short[n])
    limit = mixture.limits[name]
    assert limit is not None  # only those are in `short`
    field, value = bounds.get(name, (f"max_examples.{name}", float(limit)))
    rows = int(drawn[mixture.names.index(name)]) + needed - have
    enough = _enough(field, value, limit, rows, mixture.seq_len)
    shares = _shares_at(mixture, whole)
    bounded = f", and the largest shares of a batch are {shares}" if shares else ""
    return ConfigError(
        f"cannot be met: {steps} steps need {needed} rows, and the limits leave {have};"
        f" component {name!r} has {limit} of the {math.ceil(wanted[name])} that its weight asks for{bounded}",
        field=field,
        value=value,
        cure=f"Raise it to {enough} or more, or lower num_steps to {whole}.",
    )


def _ends_before(mixture: MixtureDataset, step: int) -> bool:
    try:
        mixture.draws.starts_at(step)
    except IndexOutOfRangeError:
        return True
    return False


def _enough(field: str, value: float, limit: int, rows: int, seq_len: int) -> str:
    """A bound that leaves so many rows."""
    if field.endswith("max_epochs"):
        return f"{math.ceil(value * (rows + 1) / max(limit, 1) * 1000) / 1000:g}"
    return str(rows * seq_len if field.endswith("max_tokens") else rows)


def _wanted(mixture: MixtureDataset, steps: int) -> dict[str, float]:
    """Rows that each component would have in so many steps without limits."""
    total = np.zeros(len(mixture.names))
    for first in range(0, steps, _CHUNK):
        at = np.arange(first, min(first + _CHUNK, steps))
        total += (mixture.weights_at(at) * mixture.batch_schedule.size_at(at)[:, None]).sum(axis=0)
    return dict(zip(mixture.names, total.tolist(), strict=True))
