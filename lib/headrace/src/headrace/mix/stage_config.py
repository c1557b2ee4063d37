"""The config of a run's stages and amendments.

One mixture: a weight at each component, or a (nested) blend. Several: ``stages``, each from a step
on or for a number of tokens. A run that changes after it has started: ``amendments``, each from a
step on, which add, drop or reweight sources. Amendments are stages too, so the past does not
change. Impossible numbers are refused when the config is read, under their name there, before any
data is opened. :mod:`headrace.mix.plan` makes the plan of the run from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import ConfigError
from headrace.mix.amendments import check_disjoint, newcomer_name
from headrace.mix.draws import check_skip
from headrace.mix.schedule import MAX_STEP


@dataclass(frozen=True)
class StageConfig:
    """One mixture of a staged run.

    Attributes:
        weights: Blend of this stage, over any of the components.
        name: Name for reports and errors.
        step: Step at which it begins; the first stage begins at 0. Default: where the tokens of the
            previous stage end.
        tokens: Its length in tokens, rounded up to whole steps; optional for the last stage. Those
            of the last stage end the run.
    """

    weights: dict[str, Any]
    name: str = ""
    step: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class AmendmentConfig:
    """A declared change of the mixture of a running run; names refer to entries at any depth of a
    blend.

    Attributes:
        step: First step of the changed mixture, which must not have been trained on yet.
        add: Weights of components that join the mixture, or groups of them: ``{y: {weight: 1,
            blend: {d: 1, e: 1}}}``.
        weights: New weights of existing entries. A group keeps its blend, or with ``{blend: ...}``
            its weight.
        drop: Components, or whole groups, that are no longer drawn.
        caches: Components whose caches are at a later snapshot from now on, each with its number;
            a list for a component of several caches. Documents that were removed by then are no
            longer trained on. Documents that were appended are, for ``caches: {web: 3}``, the
            component ``web@3`` with the settings of ``web``; the two share the weight of ``web`` in
            proportion to their rows.
        skip: Steps whose batches are left out, ``[[1200, 1400]]``: step 1200 has what step 1400
            would have had, and so on; see :mod:`headrace.mix.draws`.
        measured: What was measured and led to the change, by name and source, if a rule made it
            (:class:`~headrace.run.learning.MixtureLearner`). No batch depends on it.
    """

    step: int
    add: dict[str, Any] = field(default_factory=dict[str, Any])
    weights: dict[str, Any] = field(default_factory=dict[str, Any])
    drop: list[str] = field(default_factory=list[str])
    caches: dict[str, int | list[int]] = field(default_factory=dict[str, int | list[int]])
    skip: list[list[int]] = field(default_factory=list[list[int]])
    measured: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

    @property
    def changes_mixture(self) -> bool:
        """Whether it is a new stage, if the caches that it names have gained documents."""
        return bool(self.reweighs or self.caches)

    @property
    def reweighs(self) -> bool:
        """Whether it changes weights."""
        return bool(self.add or self.weights or self.drop)

    @property
    def newcomers(self) -> dict[str, str]:
        """The components of appended documents, by the component whose cache has gained them."""
        return {name: newcomer_name(name, snapshots) for name, snapshots in self.caches.items()}

    def bringing_in(self, components: Collection[str]) -> AmendmentConfig:
        """It with those caches only that bring in one of these components."""
        gained = [name for name, newcomer in self.newcomers.items() if newcomer in components]
        return replace(self, caches={name: self.caches[name] for name in gained})


def with_amendment(
    amendments: Sequence[AmendmentConfig], new: AmendmentConfig
) -> list[AmendmentConfig]:
    """Amendments and a new one. Changes of the mixture stand in the order of their steps. At one
    step, the mixture changes once: two changes of it become one, of which the new one has the last
    word. What the new one skips comes behind earlier skips: it names steps as those leave them.

    Example:
        >>> earlier = [AmendmentConfig(60, weights={"web": 2}, drop=["code"])]
        >>> with_amendment(earlier, AmendmentConfig(60, weights={"web": 3}, add={"code": 1}))
        [AmendmentConfig(step=60, add={}, weights={'web': 3, 'code': 1}, drop=[], caches={},
            skip=[], measured={})]
        >>> [one.step for one in with_amendment(earlier, AmendmentConfig(50, skip=[[50, 55]]))]
        [60, 50]
    """
    amended = list(amendments)
    is_apart = bool(new.skip) and any(one.skip for one in amended)
    mixture = replace(new, skip=[]) if is_apart else new
    if mixture.changes_mixture:
        at_or_after = (
            k for k, one in enumerate(amended) if one.changes_mixture and one.step >= new.step
        )
        number = next(at_or_after, len(amended))
        if amended[number:] and amended[number].step == new.step:
            mixture = _joined(amended.pop(number), mixture)
        amended.insert(number, mixture)
    if new.skip and (is_apart or not mixture.changes_mixture):
        amended.append(AmendmentConfig(new.step, skip=new.skip))
    return amended


def last_change(amendments: Sequence[AmendmentConfig]) -> int:
    """The last step at which the mixture changes; 0: it never does."""
    return max((one.step for one in amendments if one.changes_mixture), default=0)


def _joined(first: AmendmentConfig, then: AmendmentConfig) -> AmendmentConfig:
    """Two changes of the mixture at one step as one."""
    back = {name: weight for name, weight in then.add.items() if name in first.drop}
    added = {**first.add, **{n: w for n, w in then.add.items() if n not in back}}
    weights = {**first.weights, **then.weights, **back}
    return AmendmentConfig(
        first.step,
        add={n: weights.get(n, w) for n, w in added.items() if n not in then.drop},
        weights={n: w for n, w in weights.items() if n not in added and n not in then.drop},
        drop=[n for n in first.drop if n not in back]
        + [n for n in then.drop if n not in first.add],
        caches={**first.caches, **then.caches},
        skip=[*first.skip, *then.skip],  # one of them at most has any
        measured=then.measured or first.measured,
    )


def check_epochs(path: str, value: float | None) -> None:
    """Raises ConfigError unless the number of passes is finite and above 0, or None."""
    if value is not None and (
        isinstance(value, bool | str) or not (math.isfinite(value) and value > 0)
    ):
        cure = "Passes over the source, e.g. 1.5."
        raise ConfigError("must be finite and above 0", field=path, value=value, cure=cure)


def check_tokens(path: str, value: float | None, row_tokens: int | None = None) -> None:
    """Raises ConfigError unless tokens are a whole number of at least 1 (or ``row_tokens``), or
    None.
    """
    if value is None:
        return
    if isinstance(value, bool) or value < 1 or value != int(value):
        raise ConfigError(
            "must be a whole number of at least 1", field=path, value=value, cure="In tokens."
        )
    if row_tokens is not None and value < row_tokens:
        cure = f"Give at least {row_tokens} tokens."
        raise ConfigError(
            f"holds no row of {row_tokens} tokens", field=path, value=value, cure=cure
        )


def check_steps(path: str, value: int | None, least: int = 1) -> None:
    """Raises ConfigError unless a step or a number of steps is between ``least`` and 2**40, or
    None.
    """
    if value is not None and (isinstance(value, bool) or not least <= value <= MAX_STEP):
        problem = f"must be a whole number from {least} to 2**40"
        raise ConfigError(problem, field=path, value=value, cure="Count in steps.")


def check_component_budgets(
    path: str,
    max_epochs: float | None,
    max_tokens: int | None,
    max_share: float | None,
    row_tokens: int,
) -> None:
    """Raises ConfigError for a limit of a component that cannot be met; ``path`` is the
    component's.
    """
    check_epochs(f"{path}.max_epochs", max_epochs)
    check_tokens(f"{path}.max_tokens", max_tokens, row_tokens)
    if max_share is not None and not 0 < max_share <= 1:
        cure = "A part of each batch, e.g. 0.25."
        raise ConfigError(
            "must lie above 0 and be at most 1",
            field=f"{path}.max_share",
            value=max_share,
            cure=cure,
        )


def check_plan(stages: Sequence[StageConfig], amendments: Sequence[AmendmentConfig]) -> None:
    """Checks the steps and tokens of stages and amendments, before anything else is known.

    Raises:
        ConfigError: negative or unsorted steps, tokens below 1; names the field.
    """
    reached = -1
    where = ""
    for number, stage in enumerate(stages):
        path = f"stages[{number}]"
        check_tokens(f"{path}.tokens", stage.tokens)
        check_steps(f"{path}.step", stage.step, 0)
        if number == 0 and stage.step not in (None, 0):
            raise ConfigError(
                "must begin at step 0", field=f"{path}.step", value=stage.step, cure="Leave it out."
            )
        reached, where = _rising(stage.step, f"{path}.step", reached, where)
    reached = max(reached, 0)
    where = where or "the first stage"
    for number, amendment in enumerate(amendments):
        path = f"amendments[{number}].step"
        if amendment.step == 0:
            problem = "is not after step 0, where the mixture before it begins"
            cure = "Amendments cannot change the past: change weights instead."
            raise ConfigError(problem, field=path, value=0, cure=cure)
        check_steps(path, amendment.step)
        check_skip(amendment.skip, amendment.step, f"amendments[{number}].skip")
        if amendment.reweighs or not (amendment.caches or amendment.skip):
            check_disjoint(
                amendment.add, amendment.weights, amendment.drop, f"amendments[{number}]"
            )
        if amendment.changes_mixture:  # one that only skips may stand behind later ones
            reached, where = _rising(amendment.step, path, reached, where)


def _rising(step: int | None, path: str, reached: int, where: str) -> tuple[int, str]:
    if step is None:
        return reached, where
    if step <= reached:
        problem = f"is not after step {reached}, where the mixture before it begins ({where})"
        cure = "Sort by step, and write what begins at one step as one."
        raise ConfigError(problem, field=path, value=step, cure=cure)
    return step, path
