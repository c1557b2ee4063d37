"""Draw policies by the names that configs use.

``quota`` (exact shares, schedules, stages, limits) is headrace's own and the default. The others give the sequences of
the systems that users come from, for runs that must go on as they began: ``swrr`` (nmoe), ``greedy`` and ``exhaustive``
(Megatron-LM), ``least_consumed`` (token-balanced). They take constant weights and one stage.

``exhaustive`` ends with its data. The others go on for ever, unless limits end them: a source of ``least_consumed`` is
left out once its limit is reached (``max_epochs: 1`` gives nanoschnack's order, each row once).

What a far step costs a process that has no anchor for it (:mod:`headrace.index.anchors`): nothing to speak of for
``quota`` where weights are constant, 2 us a step elsewhere; one period at most for ``swrr``; 2 to 4 us an example for
the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.errors import ConfigError, did_you_mean
from headrace.index.blend import Blend
from headrace.index.draws import DrawPolicy
from headrace.index.interleave import ExhaustiveBlend, GreedyBlend, SmoothRoundRobin
from headrace.index.least_consumed import Equal, LeastConsumedPlan
from headrace.index.schedule import BatchSchedule
from headrace.index.stages import Stage, Stages

POLICIES = ("quota", "swrr", "greedy", "exhaustive", "least_consumed")


def make_policy(
    policy: str,
    names: Sequence[str],
    stages: Sequence[Stage],
    batch: BatchSchedule,
    *,
    sizes: Sequence[int | None],
    limits: Sequence[int | None],
    tokens: int,
) -> DrawPolicy:
    """The policy of that name over the components ``names``.

    Args:
        policy: One of ``POLICIES``.
        names: Components, in the order in which they are numbered.
        stages: Weights; only ``quota`` takes more than one stage.
        batch: Examples per step.
        sizes: Examples of each component, None for an endless one.
        limits: Most examples of each component in the run; only ``quota`` and ``least_consumed`` take any.
        tokens: Tokens of an example, for ``least_consumed``.

    Raises:
        ConfigError: unknown name, or something that the policy does not know.
    """
    if policy not in POLICIES:
        raise ConfigError("is no policy", field="policy", value=policy, cure=did_you_mean(policy, POLICIES))
    if policy == "quota":
        return Stages(names, stages, batch, limits)
    unknown = {
        "stages": len(stages) > 1,
        "limits": policy != "least_consumed" and any(limit is not None for limit in limits),
        "largest shares": bool(stages[0].max_share),
    }
    for what, given in unknown.items():
        if given:
            raise ConfigError(f"knows no {what}", field="policy", value=policy, cure="Use policy: quota.")
    weights = _constant_weights(stages[0].blend, policy, names)
    if policy == "swrr":
        return SmoothRoundRobin(weights, batch)
    if policy == "greedy":
        return GreedyBlend(weights, batch)
    if len(set(weights)) > 1:
        raise ConfigError(
            "takes no weights: sizes or tokens decide",
            field="policy",
            value=policy,
            cure="Give equal weights, or none.",
        )
    if policy == "least_consumed":
        return LeastConsumedPlan([Equal(tokens, limit) for limit in limits], batch)
    finite = [size for size in sizes if size is not None]
    if len(finite) < len(sizes):
        raise ConfigError("needs components with an end", field="policy", value=policy, cure="Leave out repeat().")
    return ExhaustiveBlend(finite, batch)


def _constant_weights(blend: Blend, policy: str, names: Sequence[str]) -> list[float]:
    """Weights in the order of ``names``; the blend may list its leaves in another."""
    if not blend.is_constant:
        raise ConfigError(
            "knows constant weights only, and these change with the step",
            field="policy",
            value=policy,
            cure="Use policy: quota.",
        )
    if blend.flat is not None:  # as written: the originals normalise themselves, and twice is not the same to the bit
        weights = [w.points[0][1] * w.scale for w in blend.flat]
    else:
        weights = blend.at(np.zeros(1, np.int64))[0].tolist()
    of = dict(zip(blend.names, weights, strict=True))
    return [of.get(name, 0.0) for name in names]
