"""The config field ``policy``: how it is checked and resolved, and how the policy is made.

``quota`` (exact shares, schedules, stages, limits) is headrace's own and the default;
``whole_batches`` does the same with batches of one component each. The others reproduce the
sequences of other systems, for runs that must continue as they began: ``swrr`` (nmoe), ``greedy``
and ``exhaustive`` (Megatron-LM), ``least_consumed`` (token-balanced). They accept constant weights
and one stage, except ``swrr``, which accepts nmoe's stages too. ``exhaustive`` ends with its data.
The others are endless unless limits end them: a source of ``least_consumed`` is left out once its
limit is reached (``max_epochs: 1`` gives nanoschnack's order, each row once).

To add a policy, write a file with a :class:`~headrace.mix.policy.MixingPolicy`, and add its
:class:`PolicyKind` and an entry of :data:`POLICIES` here, or, in another package, an entry point
(:mod:`headrace.extensions`).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headrace import extensions
from headrace.errors import ConfigError, check_choice
from headrace.mix.blend import Blend
from headrace.mix.measure import TokenMeasure, TokensInOrder
from headrace.mix.policies.whole_batches import WholeBatches, check_whole
from headrace.mix.policy import MixingPolicy
from headrace.mix.schedule import BatchSchedule, CountedTokens
from headrace.mix.stage_config import MixtureConfig, resolve_stages, run_steps
from headrace.mix.stages import Stage, Stages


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


class ExactQuota(PolicyKind):
    """``policy: quota``."""

    counts_tokens = True

    def make(self, inputs: PolicyInputs) -> Stages:
        return Stages(inputs.names, inputs.stages, inputs.batch, inputs.limits, inputs.planned)


class WholeBatchesKind(PolicyKind):
    """``policy: whole_batches``."""

    def check(self, config: MixtureConfig) -> None:
        check_whole(config.batch, config.max_share)

    def make(self, inputs: PolicyInputs) -> WholeBatches:
        return WholeBatches(
            inputs.names, inputs.stages, inputs.batch, inputs.limits, inputs.planned
        )


POLICIES: dict[str, PolicyKind] = {
    "quota": ExactQuota(),
    "whole_batches": WholeBatchesKind(),
}
"""Policies of the core by name. Other packages bring theirs as entry points: see
:mod:`headrace.extensions`.
"""


def policy_names() -> list[str]:
    """The names that ``policy`` accepts."""
    return [*POLICIES, *extensions.names_of(extensions.POLICIES)]


def policy_kind(name: str) -> PolicyKind:
    """The policy of that name.

    Raises:
        ConfigError: there is none; the package that brings it is not installed.

    Example:
        >>> policy_kind("greedi")
        Traceback (most recent call last):
        headrace.errors.ConfigError: policy = 'greedi': is no policy. Did you mean 'greedy'?
    """
    if isinstance(name, str) and name in POLICIES:
        return POLICIES[name]
    check_choice("policy", name, policy_names(), "is no policy")
    return extensions.load_extension(extensions.POLICIES, name, "policy")()


def check_unit(unit: str, policy: str, counted: CountedTokens | None, phases: int) -> None:
    """Raises ConfigError for a unit that the policy does not support, alone or with several row
    lengths.
    """
    if counted is not None and phases > 1:
        cure = "Use unit: tokens, or keep one seq_len."
        raise ConfigError(
            "does not go with a seq_len that changes", field="unit", value=unit, cure=cure
        )
    if counted is not None and not policy_kind(policy).counts_tokens:
        cure = (
            "Use policy: quota or least_consumed; or unit: tokens, which counts the places of rows."
        )
        raise ConfigError(f"is not known to policy: {policy}", field="unit", value=unit, cure=cure)


def plan_of(
    weights: Mapping[str, object] | Blend | Sequence[Stage] | WeightPlan | MixturePlan,
    policy: str,
    names: Sequence[str],
    batch: BatchSchedule,
) -> MixturePlan:
    """The plan for weights over all components, ``names``: one mixture or stages, from which
    ``policy`` draws, or a plan, which has its own policy.

    Raises:
        ConfigError: there is no such policy; a plan with another policy or other names.
    """
    if isinstance(weights, WeightPlan | MixturePlan):
        if policy != "quota":
            kind = type(weights).__name__
            raise ConfigError(
                "brings its own policy", field="weights", value=kind, cure="Leave out policy."
            )
        return weights if isinstance(weights, MixturePlan) else weights.mixture_plan(names, batch)
    if isinstance(weights, Mapping):
        weights = Blend(weights, may_end=True)
    stages = [Stage(0, weights)] if isinstance(weights, Blend) else weights
    if not all(isinstance(stage, Stage) for stage in stages):
        cure = "Give a weight for each component: {'web': 3, 'code': 1}."
        raise ConfigError(
            "is neither a mapping nor a list of stages", field="weights", value=weights, cure=cure
        )
    return MixturePlan(tuple(stages), policy_kind(policy).make)
