"""The config field ``policy``: how it is checked and resolved, and how the policy is made.

To add a policy, write a file with a :class:`~headrace.mix.policy.MixingPolicy` and a
:class:`PolicyKind`, and add one entry to :mod:`headrace.mix.policies.registry`, or, in another
package, an entry point (:mod:`headrace.extensions`).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.errors import ConfigError
from headrace.mix.measure import TokenMeasure, TokensInOrder
from headrace.mix.policy import MixingPolicy
from headrace.mix.schedule import BatchSchedule, Weight
from headrace.mix.stage_config import MixtureConfig, resolve_stages, run_steps
from headrace.mix.stages import Stage


@dataclass(frozen=True)
class PolicyInputs:
    """What a policy is made from.

    Attributes:
        names: Components, in the order in which they are numbered.
        stages: Weights.
        batch: Examples per step.
        sizes: Examples of each component, None for an endless one.
        limits: Most examples of each component in the run, None for no limit.
        tokens: Tokens of an example.
        planned: Number of planned stages; those after them are amendments; None: all.
        lengths: Tokens of the examples of each component, if the run counts individual tokens;
            None: each has ``tokens``.
    """

    names: Sequence[str]
    stages: Sequence[Stage]
    batch: BatchSchedule
    sizes: Sequence[int | None]
    limits: Sequence[int | None]
    tokens: int
    planned: int | None = None
    lengths: Sequence[TokensInOrder] | None = None


@dataclass(frozen=True)
class MixturePlan:
    """The mixtures of a run, and the policy that draws from them.

    Attributes:
        stages: In order, amendments last.
        make: Makes the policy.
        planned: Number of planned stages; those after them are amendments; None: all.
        measure: What it counts in individual tokens; None: it counts rows.
    """

    stages: tuple[Stage, ...]
    make: Callable[[PolicyInputs], MixingPolicy]
    planned: int | None = None
    measure: TokenMeasure | None = None

    def drawn_by(self, policy: MixingPolicy) -> MixturePlan:
        """The same mixtures with an existing policy, whose counts are shared."""
        return dataclasses.replace(self, make=lambda inputs: policy)


class WeightPlan(abc.ABC):
    """Weights of a run as another system plans them, which bring the policy that draws them."""

    @abc.abstractmethod
    def mixture_plan(self, names: Sequence[str], batch: BatchSchedule) -> MixturePlan:
        """The plan over the components ``names``, in this order; raises ConfigError for other
        names.
        """


class PolicyKind(abc.ABC):
    """A policy as configs name it.

    Attributes:
        example_s: Approximate seconds per example to reach a far step without an anchor; 0: any
            step is reached at once, or step by step.
        counts_tokens: Whether it supports units that count individual tokens; see
            :mod:`headrace.mix.measure`.
    """

    example_s: ClassVar[float] = 0.0
    counts_tokens: ClassVar[bool] = False

    def check(self, config: MixtureConfig) -> None:
        """Raises ConfigError, before anything is opened, if the policy does not
        support a setting.
        """
        return

    def run_steps(self, config: MixtureConfig) -> int | None:
        """Steps of a run; see :func:`~headrace.mix.stage_config.run_steps`, which raises what this
        does.
        """
        return run_steps(config)

    def plan(self, config: MixtureConfig) -> MixturePlan:
        """The mixtures of a config, and how the policy over them is made."""
        stages = resolve_stages(config)
        planned = len(stages) - sum(amendment.changes_mixture for amendment in config.amendments)
        budgets = [stage.tokens for stage in config.stages] or [None] * planned
        measure = None if config.counted is None else TokenMeasure(config.counted, budgets)
        return MixturePlan(tuple(stages), self.make, planned, measure)

    @abc.abstractmethod
    def make(self, inputs: PolicyInputs) -> MixingPolicy:
        """The policy over components whose sizes and limits are known; raises ConfigError as
        ``check`` does.
        """


def stage_weights(inputs: PolicyInputs, policy: str, *, limits: bool = False) -> list[float]:
    """Weights of the components, for a policy that supports one stage of constant weights; and
    limits, if allowed.
    """
    blend = inputs.stages[0].blend
    unknown = {
        "stages": len(inputs.stages) > 1,
        "limits": not limits and any(limit is not None for limit in inputs.limits),
        "largest shares": bool(inputs.stages[0].max_share),
    }
    for what, setting in unknown.items():
        if setting:
            raise ConfigError(
                f"knows no {what}", field="policy", value=policy, cure="Use policy: quota."
            )
    if not blend.is_constant:
        problem = "knows constant weights only, and these change with the step"
        raise ConfigError(problem, field="policy", value=policy, cure="Use policy: quota.")
    if (
        blend.flat is not None
    ):  # as written: the originals normalise themselves, and twice is not the same to the bit
        weights = [w.points[0][1] * w.scale for w in blend.flat]
    else:
        weights = blend.at(np.zeros(1, np.int64))[0].tolist()
    by_name = dict(
        zip(blend.names, weights, strict=True)
    )  # the blend may list its leaves in another order
    return [by_name.get(name, 0.0) for name in inputs.names]


def equal_weights(inputs: PolicyInputs, policy: str, *, limits: bool = False) -> None:
    """Raises ConfigError for what :func:`stage_weights` refuses, or for weights that differ."""
    if len(set(stage_weights(inputs, policy, limits=limits))) > 1:
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
