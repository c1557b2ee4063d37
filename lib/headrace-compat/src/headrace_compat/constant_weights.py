"""The weights of policies of other systems, which know constant ones only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headrace.errors import ConfigError
from headrace.mix.plan import Plan
from headrace.mix.schedule import Weight


def stage_weights(plan: Plan, policy: str, *, limits: bool = False) -> list[float]:
    """Weights of the components, for a policy that supports one stage of constant weights; and
    limits, if allowed.
    """
    blend = plan.stages[0].blend
    unknown = {
        "stages": len(plan.stages) > 1,
        "limits": not limits and any(limit is not None for limit in plan.limits),
        "largest shares": bool(plan.stages[0].max_share),
    }
    for what, setting in unknown.items():
        if setting:
            raise ConfigError(
                f"knows no {what}", field="policy", value=policy, cure="Use policy: quota."
            )
    if not blend.is_constant:
        problem = "knows constant weights only, and these change with the step"
        raise ConfigError(problem, field="policy", value=policy, cure="Use policy: quota.")
    # As written: the originals normalise themselves, and twice is not the same to the bit
    if blend.flat is not None:
        weights = [w.points[0][1] * w.scale for w in blend.flat]
    else:
        weights = blend.at(np.zeros(1, np.int64))[0].tolist()
    # The blend may list its leaves in another order
    by_name = dict(zip(blend.names, weights, strict=True))
    return [by_name.get(name, 0.0) for name in plan.names]


def equal_weights(plan: Plan, policy: str, *, limits: bool = False) -> None:
    """Raises ConfigError for what :func:`stage_weights` refuses, or for weights that differ."""
    if len(set(stage_weights(plan, policy, limits=limits))) > 1:
        cure = "Give equal weights, or none."
        raise ConfigError(
            "takes no weights: sizes or tokens decide", field="policy", value=policy, cure=cure
        )


def constant_weights(weights: Sequence[float | Weight], policy: str) -> list[float]:
    """Plain values of constant weights; raises ConfigError for others, or if none is positive."""
    values: list[float] = []
    for i, weight in enumerate(weights):
        if isinstance(weight, Weight):
            if weight.is_scheduled:
                problem = f"the policy {policy} has constant weights only"
                cure = "Write a number, or use policy: quota."
                raise ConfigError(problem, field=weight.path, value=weight.to_config(), cure=cure)
            values.append(weight.points[0][1] * weight.scale)
        elif not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(
                "must be finite and not negative", field=f"weights[{i}]", value=weight
            )
        else:
            values.append(float(weight))
    if not any(values):
        raise ConfigError("needs a positive weight", field="weights", value=values)
    return values
