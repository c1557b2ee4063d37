"""What users write about the mixtures of a run, and the stages that it stands for.

One mixture: a weight at each component, or a (nested) blend. Several: ``stages``, each from a step on or for a number
of tokens. A run that goes on otherwise than it began: ``amendments``, each from a step on, which add sources, drop them
or weigh them anew; they are stages too, so the past stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.index.amendments import added_sources, amend, check_disjoint
from headrace.index.blend import Blend
from headrace.index.budgets import check_steps, check_tokens, step_after_tokens, tokens_of_steps
from headrace.index.schedule import BatchSchedule
from headrace.index.size_weights import is_size_rule, refuse_size_rules, weights_of_sizes
from headrace.index.stage_plan import PlannedStage, StagePlan, StageStream
from headrace.index.stages import Stage, check_components


@dataclass(frozen=True)
class StageConfig:
    """One mixture of a staged run.

    Attributes:
        weights: Blend of this stage, over any of the components.
        name: For reports and errors.
        step: Step at which it begins; the first stage begins at 0. Left out: where the tokens of the stage before end.
        tokens: How many tokens it lasts, rounded up to whole steps; may be left out for the last stage. Those of the
            last stage end the run.
    """

    weights: dict[str, Any]
    name: str = ""
    step: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class AmendmentConfig:
    """A declared change of the mixture of a run that has begun; names mean what bears them, at any depth of a blend.

    Attributes:
        step: First step of the changed mixture. Must not have been trained on yet.
        add: Weights of components that join the mixture, or groups of them: ``{y: {weight: 1, blend: {d: 1, e: 1}}}``.
        weights: New weights of what is in it. A group of a blend keeps its blend, or with ``{blend: ...}`` its weight.
        drop: Components, or whole groups, that are no longer drawn.
    """

    step: int
    add: dict[str, Any] = field(default_factory=dict[str, Any])
    weights: dict[str, Any] = field(default_factory=dict[str, Any])
    drop: list[str] = field(default_factory=list[str])


def resolve_stages(
    own: Mapping[str, Any],
    weights: Mapping[str, Any] | None,
    stages: Sequence[StageConfig],
    amendments: Sequence[AmendmentConfig],
    *,
    batch: BatchSchedule,
    phases: Sequence[tuple[int, int]],
    max_share: Mapping[str, float],
    sizes: Callable[[], Mapping[str, int]] | None = None,
    num_steps: int | None = None,
) -> list[Stage]:
    """The stages of a run, amendments last.

    Args:
        own: Weight of each component, None where it has none of its own.
        weights: A blend of all components, instead.
        stages: Stages, instead.
        amendments: Changes, in the order of their steps.
        batch: Batch sizes, for budgets in tokens.
        phases: First step and row length of each phase, for budgets in tokens.
        max_share: Largest shares by component.
        sizes: Gives the tokens of each component; asked only where weights follow from sizes.
        num_steps: Steps of the run, if known.

    Raises:
        ConfigError: weights given in two places, an unknown source, steps out of order.

    Example:
        >>> amended = resolve_stages(
        ...     {"web": 3, "code": 1, "math": None}, None, [], [AmendmentConfig(100, add={"math": 2}, drop=["code"])],
        ...     batch=BatchSchedule(8), phases=[(0, 16)], max_share={},
        ... )
        >>> [(stage.first_step, stage.blend.to_config()) for stage in amended]
        [(0, {'web': 3.0, 'code': 1.0}), (100, {'web': 3.0, 'math': 2.0})]
    """
    later = _added_later(amendments)
    given = [name for name, weight in own.items() if weight is not None]
    if given and (weights is not None or stages):
        raise ConfigError(
            f"is given beside {'stages' if stages else 'weights'}",
            field=f"components.{given[0]}.weight",
            value=own[given[0]],
            cure="Say the weights in one place.",
        )
    if weights is not None and stages:
        raise ConfigError("is given beside stages", field="weights", cure="Say the weights in one place.")
    if stages:
        bounds, _ = stage_bounds(stages, batch, phases)
        plan = [
            (step, s.weights, s.name, f"stages[{k}].weights")
            for k, (s, step) in enumerate(zip(stages, bounds, strict=True))
        ]
        budgets = [(f"stages[{k}].tokens", s.tokens) for k, s in enumerate(stages)]
    elif weights is not None:
        plan = [(0, dict(weights), "", "weights")]
        budgets = [("num_steps", None if num_steps is None else tokens_of_steps(num_steps, batch, phases))]
    else:  # a component without a weight counts 1, unless it is an amendment that brings it in
        plain = {n: 1.0 if w is None else w for n, w in own.items() if w is not None or n not in later}
        plan = [(0, plain, "", "components")]
        budgets = [("num_steps", None)]
    plan = [
        (step, _of_sizes(mapping, own, later, sizes, budget, path), name, path)
        for (step, mapping, name, path), budget in zip(plan, budgets, strict=True)
    ]
    for number, amendment in enumerate(amendments):
        plan.append(_amended(plan[-1], amendment, number, own))
    stops = [*(step for step, *_ in plan[1:]), None]
    blends = [
        (step, Blend(mapping, path, num_steps=stop, first_step=step), name)
        for (step, mapping, name, path), stop in zip(plan, stops, strict=True)
    ]
    resolved = [
        Stage(step, blend, name, {n: most for n, most in max_share.items() if n in blend.names})
        for step, blend, name in blends
    ]
    check_components(list(own), resolved)
    return resolved


def _added_later(amendments: Sequence[AmendmentConfig]) -> set[str]:
    """Components that an amendment brings in for the first time."""
    added: set[str] = set()
    dropped: set[str] = set()
    for amendment in amendments:
        dropped |= set(amendment.drop) - added
        added |= added_sources(amendment.add, amendment.weights) - dropped
    return added


def _amended(
    before: tuple[int, dict[str, Any], str, str], amendment: AmendmentConfig, number: int, own: Mapping[str, Any]
) -> tuple[int, dict[str, Any], str, str]:
    path = f"amendments[{number}]"
    step, weights, _, _ = before
    if amendment.step <= step:
        raise ConfigError(
            f"is not after step {step}, where the mixture before it begins",
            field=f"{path}.step",
            value=amendment.step,
            cure="Amendments stand in the order of their steps and cannot change the past.",
        )
    refuse_size_rules(amendment.add, own, f"{path}.add", itself=True)
    refuse_size_rules(amendment.weights, own, f"{path}.weights", itself=True)
    changed = amend(
        weights, add=amendment.add, weights=amendment.weights, drop=amendment.drop, components=own, path=path
    )
    return amendment.step, changed, f"amendment {number}", f"{path}.weights"


def _of_sizes(
    weights: dict[str, Any],
    own: Mapping[str, Any],
    later: set[str],
    sizes: Callable[[], Mapping[str, int]] | None,
    budget: tuple[str, int | None],
    path: str,
) -> dict[str, Any]:
    """Weights, if they are given by a rule those that follow from the sizes of what no amendment brings in."""
    if not is_size_rule(weights, own):
        refuse_size_rules(weights, own, path)
        return weights
    if sizes is None:
        raise ConfigError("follows from sizes, which are not known here", field=path, value=weights)
    known = {n: t for n, t in sizes().items() if n not in later}
    return weights_of_sizes(weights, known, budget[1], path, budget[0])


def check_plan(stages: Sequence[StageConfig], amendments: Sequence[AmendmentConfig]) -> None:
    """Checks the steps and tokens of stages and amendments, before anything else is known.

    Raises:
        ConfigError: negative or unsorted steps, tokens below 1; the field is named.
    """
    reached, where = -1, ""
    for number, stage in enumerate(stages):
        path = f"stages[{number}]"
        check_tokens(f"{path}.tokens", stage.tokens)
        check_steps(f"{path}.step", stage.step, 0)
        if number == 0 and stage.step not in (None, 0):
            raise ConfigError("must begin at step 0", field=f"{path}.step", value=stage.step, cure="Leave it out.")
        reached, where = _rising(stage.step, f"{path}.step", reached, where)
    reached, where = max(reached, 0), where or "the first stage"
    for number, amendment in enumerate(amendments):
        path = f"amendments[{number}].step"
        if amendment.step == 0:
            raise ConfigError(
                "is not after step 0, where the mixture before it begins",
                field=path,
                value=0,
                cure="Amendments cannot change the past: change weights instead.",
            )
        check_steps(path, amendment.step)
        check_disjoint(amendment.add, amendment.weights, amendment.drop, f"amendments[{number}]")
        reached, where = _rising(amendment.step, path, reached, where)


def _rising(step: int | None, path: str, reached: int, where: str) -> tuple[int, str]:
    if step is None:
        return reached, where
    if step <= reached:
        raise ConfigError(
            f"is not after step {reached}, where the mixture before it begins ({where})",
            field=path,
            value=step,
            cure="Sort by step; each needs a step of its own.",
        )
    return step, path


def stage_bounds(
    stages: Sequence[StageConfig], batch: BatchSchedule, phases: Sequence[tuple[int, int]]
) -> tuple[list[int], int | None]:
    """The first step of each stage, from its own or from the tokens of the stages before it; and the end of the run.

    Args:
        stages: At least one.
        batch: Rows of steps.
        phases: First step and row length of each phase.

    Returns:
        First steps; the step at which the last stage's tokens are used up, or None.

    Raises:
        ConfigError: a stage without a beginning, tokens that say another step than the next stage does.

    Example:
        >>> stages = [StageConfig({"a": 1}, tokens=1000), StageConfig({"b": 1}, tokens=300)]
        >>> stage_bounds(stages, BatchSchedule(8), [(0, 16)])
        ([0, 8], 11)
    """
    first: list[int] = []
    reached: int | None = 0
    for number, stage in enumerate(stages):
        path, before = f"stages[{number}]", f"stages[{number - 1}]"
        begin = stage.step if stage.step is not None else reached
        if begin is None:
            raise ConfigError("has no beginning", field=f"{path}.step", cure=f"Give it a step, or {before}.tokens.")
        if number and reached is not None and begin != reached:
            raise ConfigError(
                f"last until step {reached}, but {path} begins at step {begin}",
                field=f"{before}.tokens",
                value=stages[number - 1].tokens,
                cure=f"Leave out {before}.tokens or {path}.step.",
            )
        first.append(begin)
        reached = None if stage.tokens is None else step_after_tokens(begin, stage.tokens, batch, phases)
    return first, reached


def run_steps(
    num_steps: int | None,
    stages: Sequence[StageConfig],
    amendments: Sequence[AmendmentConfig],
    batch: BatchSchedule,
    phases: Sequence[tuple[int, int]],
) -> int | None:
    """Steps of a run: what it says, or the tokens of its last stage; None if neither.

    Raises:
        ConfigError: the two differ, or an amendment, a stage, a length or a batch size begins where the run has ended.
    """
    check_steps("num_steps", num_steps)
    end = stage_bounds(stages, batch, phases)[1] if stages else None
    if None not in (num_steps, end) and num_steps != end:
        raise ConfigError(
            f"end the run after {end} steps, but num_steps is {num_steps}",
            field=f"stages[{len(stages) - 1}].tokens",
            value=stages[-1].tokens,
            cure="Leave out one of the two.",
        )
    end = num_steps if end is None else end
    if end is None:
        return None
    begins = {
        f"stages[{k}].step": step for k, step in enumerate(stage_bounds(stages, batch, phases)[0] if stages else [])
    }
    begins |= {f"amendments[{k}].step": amendment.step for k, amendment in enumerate(amendments)}
    for path, step in begins.items():
        if step >= end:
            raise ConfigError(
                f"is not before step {end}, where the run ends", field=path, value=step, cure="Prolong the run."
            )
    for path, points in (("seq_len", phases), ("batch_size", batch.points)):
        for step, value in points:
            if step >= end:
                raise ConfigError(
                    f"begins at step {step}, and the run ends before step {end}",
                    field=f"{path}[{step}]",
                    value=value,
                    cure="Prolong the run, or leave it out.",
                )
    return end


def smooth_plan(stages: Sequence[StageConfig], names: Sequence[str], example_tokens: int) -> StagePlan:
    """Nmoe's plan of stages, for ``policy: swrr``: the next stage begins at the very example that ends the one before.

    Args:
        stages: Each with tokens and constant weights, without steps.
        names: All components, in their order.
        example_tokens: Tokens of a row.

    Raises:
        ConfigError: a stage with a step, without tokens, or with weights that are no plain numbers.

    Example:
        >>> smooth_plan([StageConfig({"a": 1, "b": 1}, tokens=100)], ["b", "a"], 10).quotas
        ((5, 5),)
    """
    planned: list[PlannedStage] = []
    for number, stage in enumerate(stages):
        path = f"stages[{number}]"
        if stage.step is not None or stage.tokens is None:
            raise ConfigError(
                "must have tokens and no step with policy swrr",
                field=path,
                cure="Give it tokens, or use policy: quota.",
            )
        for name, weight in stage.weights.items():
            if name not in names:
                raise ConfigError("is not a component", field=f"{path}.weights.{name}", cure=did_you_mean(name, names))
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                cure = "Write a number, or use policy: quota."
                raise ConfigError(
                    "must be a plain number with policy swrr", field=f"{path}.weights.{name}", value=weight, cure=cure
                )
        planned.append(PlannedStage(stage.name or str(number), stage.weights, stage.tokens))
    return StagePlan(planned, example_tokens, names)


def stages_of_plan(plan: StagePlan, batch: BatchSchedule) -> list[Stage]:
    """The stages of a plan at the steps that hold their first examples, for what counts in steps."""
    begins = StageStream(plan, batch).first_steps()
    return [
        Stage(step, Blend(dict(stage.weights), f"stages[{k}].weights"), stage.name)
        for k, (stage, step) in enumerate(zip(plan.stages, begins, strict=True))
    ]
