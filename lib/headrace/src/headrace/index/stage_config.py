"""What users write about the mixtures of a run, and the stages that it stands for.

One mixture: a weight at each component, or a (nested) blend. Several: ``stages``, each from a step on or for a number
of tokens. A run that goes on otherwise than it began: ``amendments``, each from a step on, which add sources, drop them
or weigh them anew; they are stages too, so the past stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.errors import ConfigError, did_you_mean
from headrace.index.blend import Blend
from headrace.index.schedule import BatchSchedule
from headrace.index.stages import Stage


@dataclass(frozen=True)
class StageConfig:
    """One mixture of a staged run.

    Attributes:
        weights: Blend of this stage, over any of the components.
        name: For reports and errors.
        step: Step at which it begins; the first stage begins at 0. Left out: where the tokens of the stage before end.
        tokens: How many tokens it lasts, rounded up to whole steps; may be left out for the last stage.
    """

    weights: dict[str, Any]
    name: str = ""
    step: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class AmendmentConfig:
    """A declared change of the mixture of a run that has begun.

    Attributes:
        step: First step of the changed mixture. Must not have been trained on yet.
        add: Weights of components that join the mixture.
        weights: New weights of components that are in it.
        drop: Components that are no longer drawn.
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
    seq_len: int,
    max_share: Mapping[str, float],
) -> list[Stage]:
    """The stages of a run, amendments last.

    Args:
        own: Weight of each component, None where it has none of its own.
        weights: A blend of all components, instead.
        stages: Stages, instead.
        amendments: Changes, in the order of their steps.
        batch: Batch sizes, for budgets in tokens.
        seq_len: Tokens of a row.
        max_share: Largest shares by component.

    Raises:
        ConfigError: weights given in two places, an unknown source, steps out of order.

    Example:
        >>> amended = resolve_stages(
        ...     {"web": 3, "code": 1, "math": None}, None, [], [AmendmentConfig(100, add={"math": 2}, drop=["code"])],
        ...     batch=BatchSchedule(8), seq_len=16, max_share={},
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
        bounds = _first_steps(stages, batch, seq_len)
        plan = [
            (step, s.weights, s.name, f"stages[{k}].weights")
            for k, (s, step) in enumerate(zip(stages, bounds, strict=True))
        ]
    elif weights is not None:
        plan = [(0, dict(weights), "", "weights")]
    else:  # a component without a weight counts 1, unless it is an amendment that brings it in
        plain = {n: 1.0 if w is None else w for n, w in own.items() if w is not None or n not in later}
        plan = [(0, plain, "", "components")]
    for number, amendment in enumerate(amendments):
        plan.append(_amended(plan[-1], amendment, number, own))
    blends = [(step, Blend(mapping, path), name, path) for step, mapping, name, path in plan]
    _check_components(own, [(blend, path) for _, blend, _, path in blends])
    return [
        Stage(step, blend, name, {n: most for n, most in max_share.items() if n in blend.names})
        for step, blend, name, _ in blends
    ]


def _added_later(amendments: Sequence[AmendmentConfig]) -> set[str]:
    """Components that an amendment brings in for the first time."""
    added: set[str] = set()
    dropped: set[str] = set()
    for amendment in amendments:
        added |= set(amendment.add) - dropped
        dropped |= set(amendment.drop) - added
    return added


def _check_components(own: Mapping[str, Any], blends: Sequence[tuple[Blend, str]]) -> None:
    used: set[str] = set()
    for blend, path in blends:
        for name in blend.names:
            if name not in own:
                raise ConfigError("is not a component", field=f"{path}.{name}", cure=did_you_mean(name, own))
        used |= set(blend.names)
    for name in own:
        if name not in used:
            raise ConfigError(
                "has no weight anywhere",
                field=f"components.{name}",
                cure="Give it a weight (0 is one) in weights, stages or an amendment's add.",
            )


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
    for name in amendment.add:
        if name not in own:
            raise ConfigError("is not a component", field=f"{path}.add.{name}", cure=did_you_mean(name, own))
        if name in weights:
            raise ConfigError("is in the mixture already", field=f"{path}.add.{name}", cure="Use weights for it.")
    for name in amendment.weights:
        if name not in weights:
            raise ConfigError(
                "is not in the mixture",
                field=f"{path}.weights.{name}",
                cure=f"Use add for it. {did_you_mean(name, weights)}" if name in own else did_you_mean(name, weights),
            )
    for name in amendment.drop:
        if name not in weights:
            raise ConfigError(
                "is not in the mixture", field=f"{path}.drop", value=name, cure=did_you_mean(name, weights)
            )
    merged = {**weights, **amendment.weights, **amendment.add}
    changed = {name: weight for name, weight in merged.items() if name not in amendment.drop}
    return amendment.step, changed, f"amendment {number}", f"{path}.weights"


def _first_steps(stages: Sequence[StageConfig], batch: BatchSchedule, seq_len: int) -> list[int]:
    """The first step of each stage, from its own or from the tokens of the stages before it."""
    first: list[int] = []
    for number, stage in enumerate(stages):
        path = f"stages[{number}]"
        if stage.step is not None:
            first.append(stage.step)
        elif number == 0:
            first.append(0)
        else:
            tokens = stages[number - 1].tokens
            if tokens is None:
                raise ConfigError(
                    "has no beginning",
                    field=f"{path}.step",
                    cure=f"Give it a step, or {path.replace(str(number), str(number - 1))}.tokens.",
                )
            examples = batch.rows_at(first[-1])[0] + -(-tokens // seq_len)
            first.append(int(batch.step_of(np.asarray([examples - 1]))[0]) + 1)
    return first
