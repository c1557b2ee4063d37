"""Policies by the names that configs use.

``quota`` (exact shares, schedules, stages, limits) is headrace's own and the default;
``whole_batches`` does the same with batches of one component each. The others reproduce the
sequences of other systems, for runs that must continue as they began: ``swrr`` (nmoe), ``greedy``
and ``exhaustive`` (Megatron-LM), ``least_consumed`` (token-balanced). They accept constant weights
and one stage, except ``swrr``, which accepts nmoe's stages too. ``exhaustive`` ends with its data.
The others are endless unless limits end them: a source of ``least_consumed`` is left out once its
limit is reached (``max_epochs: 1`` gives nanoschnack's order, each row once).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace import extensions
from headrace.errors import ConfigError, check_choice
from headrace.mix.blend import Blend
from headrace.mix.policies.kind import MixturePlan, PolicyInputs, PolicyKind, WeightPlan
from headrace.mix.policies.whole_batches import WholeBatchesKind
from headrace.mix.schedule import BatchSchedule, CountedTokens
from headrace.mix.stages import Stage, Stages


class ExactQuota(PolicyKind):
    """``policy: quota``."""

    counts_tokens = True

    def make(self, inputs: PolicyInputs) -> Stages:
        return Stages(inputs.names, inputs.stages, inputs.batch, inputs.limits, inputs.planned)


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
    check_choice("policy", name, policy_names(), "is no policy")
    if name in POLICIES:
        return POLICIES[name]
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
