"""The plan of a run: its weights, limits and lengths, as a list of stages; and the policies, by the
names that configs use, that draw rows to meet it.

A plan is made in two places: by ``LmDataConfig.plan``, from the fields of a config and its
amendments (:func:`resolve_plan`), and by ``MixtureDataset``, from its arguments (:func:`plan_of`).
``MixtureDataset`` adds what the rows of its components tell: their sizes, and the limits that
follow.

``quota`` (exact shares, schedules, stages, limits) is headrace's own policy and the default;
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
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from jaxtyping import Int64

from headrace import extensions
from headrace.errors import ConfigError, check_choice, did_you_mean
from headrace.mix.amendments import added_sources, amend, extend, weights_by_place
from headrace.mix.blend import (
    Blend,
    is_size_rule,
    refuse_size_rules,
    weights_of_sizes,
    with_rows,
)
from headrace.mix.draws import NO_SKIPS, Skips
from headrace.mix.policy import MixingPolicy
from headrace.mix.schedule import (
    BatchSchedule,
    CountedTokens,
    step_after_tokens,
    tokens_of_steps,
    weight_from_config,
)
from headrace.mix.stage_config import AmendmentConfig, StageConfig, check_epochs
from headrace.mix.stages import Stage, Stages, check_components, check_first_steps
from headrace.mix.whole_batches import WholeBatches, check_batches


class TokensInOrder(Protocol):
    """Tokens of a component's examples, in the order in which they are drawn."""

    def between(self, first: int, stop: int) -> Int64[np.ndarray, " n"]:
        """Tokens of each of the examples ``first .. stop``."""
        ...

    def count_first(self, examples: int) -> int:
        """Tokens of the first ``examples`` examples together."""
        ...


@dataclass(frozen=True)
class Plan:
    """The weights, limits and lengths of a run, as a list of stages.

    Attributes:
        names: Components, in the order in which they are numbered.
        stages: In the order of their first steps, amendments last.
        batch: Examples per step.
        make: Makes the policy that draws to meet it.
        planned: Number of planned stages; those after them are amendments; None: all.
        phases: First step and row length of each phase; see
            :func:`~headrace.mix.schedule.phase_lengths`. Empty: rows keep the length that
            the components have.
        counted_tokens: The tokens that are counted one by one (:mod:`headrace.data.row_tokens`);
            None: rows are counted.
        stage_tokens: Tokens of each planned stage; None: it lasts until the next begins.
        max_epochs: Most passes over components, one number or by name. An epoch that a change of
            length cuts short counts as one.
        max_rows: Most rows of components in the run, by name.
        max_tokens: Most tokens of components in the run, by name.
        stop_strategy: See :mod:`headrace.mix.draws`; ``restart`` with more than one phase.
        num_steps: Steps, after which the run ends; None: endless.
        sizes: Once rows are known, examples of each component, None for an endless one.
        limits: Likewise, most examples of each component in the run, None for no limit.
        seq_len: Likewise, tokens of an example.
        lengths: Likewise, tokens of the examples of each component, if they are counted and
            differ; None: each has ``seq_len``.
        rows: Likewise, tokens of the stored rows of each component, if they are counted
            (:class:`headrace.data.row_tokens.RowTokens`).
    """

    names: Sequence[str]
    stages: Sequence[Stage]
    batch: BatchSchedule
    make: Callable[[Plan], MixingPolicy]
    planned: int | None = None
    phases: Sequence[tuple[int, int]] = ()
    counted_tokens: CountedTokens | None = None
    stage_tokens: Sequence[int | None] = ()
    max_epochs: float | Mapping[str, float] | None = None
    max_rows: Mapping[str, int] = field(default_factory=dict[str, int])
    max_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    stop_strategy: str = "restart"
    num_steps: int | None = None
    sizes: Sequence[int | None] = ()
    limits: Sequence[int | None] = ()
    seq_len: int = 0
    lengths: Sequence[TokensInOrder] | None = None
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def epochs_of(self, name: str) -> float | None:
        """Most passes over a component."""
        most = self.max_epochs
        return most.get(name) if isinstance(most, Mapping) else most

    def limits_of(self, sizes: Mapping[str, int | None]) -> dict[str, int | None]:
        """Most examples of each component in the run: the smaller of its epochs and its rows; None:
        no limit.

        Args:
            sizes: Examples of each component, None for one without an end.

        Raises:
            ConfigError: a limit of an unknown component; epochs or rows that are negative or not
                finite; epochs of an endless component, or so few that they hold no example.

        Example:
            >>> plan = plan_of({"web": 1, "docs": 1}, "quota", ["web", "docs"], BatchSchedule(8))
            >>> plan = replace(plan, max_epochs={"docs": 2.5}, max_rows={"web": 600})
            >>> plan.limits_of({"web": 1000, "docs": 10})
            {'web': 600, 'docs': 25}
        """
        by_name = self.max_epochs if isinstance(self.max_epochs, Mapping) else {}
        for field_, given in (("max_epochs", by_name), ("max_examples", self.max_rows)):
            for name in given:
                if name not in sizes:
                    cure = did_you_mean(name, sizes)
                    raise ConfigError("names no source", field=f"{field_}.{name}", cure=cure)
        limits: dict[str, int | None] = {}
        for name, size in sizes.items():
            most: list[int] = []
            if (epochs := self.epochs_of(name)) is not None:
                most.append(_rows_of_epochs(name, size, epochs, by_name=name in by_name))
            if (rows := self.max_rows.get(name)) is not None:
                if isinstance(rows, bool | str) or not (math.isfinite(rows) and rows >= 0):
                    problem = "must be finite and not negative"
                    raise ConfigError(problem, field=f"max_examples.{name}", value=rows)
                most.append(math.floor(rows))
            limits[name] = min(most, default=None)
        return limits


def _rows_of_epochs(name: str, size: int | None, epochs: float, *, by_name: bool) -> int:
    """Examples in a number of passes over a component; ``by_name``: whether the number was given
    for it alone.
    """
    check_epochs(f"max_epochs.{name}" if by_name else "max_epochs", epochs)
    if size is None:
        raise ConfigError(
            "bounds a component without an end", field=f"max_epochs.{name}", cure="Leave it out."
        )
    rows = math.floor(size * epochs)
    if size and rows == 0:
        raise ConfigError(
            f"holds no row: component {name!r} has {size}",
            field=f"components.{name}.max_epochs" if by_name else "max_epochs",
            value=epochs,
            cure=f"Give at least {1.01 / size:.3g}.",
        )
    return rows


@dataclass(frozen=True)
class MixtureConfig:
    """The mixtures of a config.

    Attributes:
        components: Weight of each component, None if it has none of its own.
        batch: Batch sizes, for budgets in tokens.
        phases: First step and row length of each phase, for budgets in tokens.
        weights: A blend of all components, instead of their own weights.
        stages: Stages, instead.
        amendments: Changes, in the order of their steps.
        max_share: Largest shares by component.
        num_steps: Steps of the run, if they are set.
        sizes: Returns the tokens of each component; called only if weights depend on sizes.
        may_end: Whether limits or a stop strategy may end the run, at a step that only the data
            tell.
        counted_tokens: The tokens that are counted individually; steps that depend on tokens are
            then unknown here, and the earliest possible ones are used. None: rows count.
    """

    components: Mapping[str, Any]
    batch: BatchSchedule
    phases: Sequence[tuple[int, int]]
    weights: Mapping[str, Any] | None = None
    stages: Sequence[StageConfig] = ()
    amendments: Sequence[AmendmentConfig] = ()
    max_share: Mapping[str, float] = field(default_factory=dict[str, float])
    num_steps: int | None = None
    sizes: Callable[[], Mapping[str, int]] | None = None
    counted_tokens: CountedTokens | None = None
    may_end: bool = False


@dataclass(frozen=True)
class _Mixture:
    """One mixture before its blend is made: its first step, its weights, its name, its path in the
    config, and the path and number of its tokens.
    """

    step: int
    weights: dict[str, Any]
    name: str
    path: str
    budget: tuple[str, int | None] = ("num_steps", None)


def resolve_stages(config: MixtureConfig) -> list[Stage]:
    """The stages of a run, amendments last, each from a step of the plan on.

    Raises:
        ConfigError: weights are set in two places, an unknown source, steps out of order.

    Example:
        >>> amended = resolve_stages(
        ...     MixtureConfig(
        ...         {"web": 3, "code": 1, "math": None},
        ...         BatchSchedule(8),
        ...         [(0, 16)],
        ...         amendments=[AmendmentConfig(100, add={"math": 2}, drop=["code"])],
        ...     )
        ... )
        >>> [(stage.first_step, stage.blend.to_config()) for stage in amended]
        [(0, {'web': 3.0, 'code': 1.0}), (100, {'web': 3.0, 'math': 2.0})]
    """
    _check_one_place(config)
    later = added_later(config.amendments)
    mixtures = [_resolve_sizes(mixture, config, later) for mixture in _planned(config)]
    for number, amendment in enumerate(config.amendments):
        if amendment.changes_mixture:
            planned = replace(
                amendment, step=skips_of(config.amendments).planned_step(amendment.step)
            )
            mixtures.append(_amended(mixtures[-1], planned, number, config.components))
    stops = [*(mixture.step for mixture in mixtures[1:]), None]
    resolved: list[Stage] = []
    for mixture, stop in zip(mixtures, stops, strict=True):
        weights = with_rows(mixture.weights, config.sizes or dict, mixture.path)
        blend = Blend(weights, mixture.path, num_steps=stop, first_step=mixture.step, may_end=True)
        max_share = {name: most for name, most in config.max_share.items() if name in blend.names}
        resolved.append(Stage(mixture.step, blend, mixture.name, max_share))
    check_components(list(config.components), resolved)
    end = run_steps(config)
    if end is not None or not config.may_end:
        resolved[-1].blend.check_ends(end)
    return resolved


def skips_of(amendments: Sequence[AmendmentConfig]) -> Skips:
    """The skipped steps of a run."""
    skips = NO_SKIPS
    for amendment in amendments:
        skips = skips.then(amendment.skip)
    return skips


def weights_at_begin(
    components: Mapping[str, Any], amendments: Sequence[AmendmentConfig]
) -> dict[str, Any]:
    """The weights of the components with which a run begins, from their own; None counts 1.

    Components that an amendment brings in are left out. Their own weight may be given, if it is the
    amendment's.

    Raises:
        ConfigError: it is another.

    Example:
        >>> amendments = [AmendmentConfig(60, add={"math": 2})]
        >>> weights_at_begin({"web": 3, "code": None, "math": 2}, amendments)
        {'web': 3, 'code': 1.0}
    """
    later = added_later(amendments)
    # the first amendment that adds a component, and the weight with which it does
    added: dict[str, tuple[str, Any]] = {}
    for number, amendment in enumerate(amendments):
        for path, weight in weights_by_place(amendment.add).items():
            field = f"amendments[{number}].add.{'.blend.'.join(path)}"
            added.setdefault(path[-1], (field, weight))
    begin: dict[str, Any] = {}
    for name, weight in components.items():
        if name not in later:
            begin[name] = 1.0 if weight is None else weight
        elif weight is not None and name not in added:  # in the new blend of a group that has it
            begin[name] = weight
        elif weight is not None and not _is_same_weight(weight, added[name][1]):
            field, new_weight = added[name]
            raise ConfigError(
                f"brings it in with weight {new_weight}, and components.{name} has {weight}, as if"
                " it were in already",
                field=field,
                cure="Use weights for it if it is; if it is new, leave out"
                f" components.{name}.weight.",
            )
    return begin


def _is_same_weight(one: Any, other: Any) -> bool:
    """Whether two weights, as configs give them, are equal."""
    try:
        return weight_from_config(one) == weight_from_config(other)
    except ConfigError:  # of a group, or a rule
        return one == other


def added_later(amendments: Sequence[AmendmentConfig]) -> set[str]:
    """Components that an amendment brings in for the first time."""
    added: set[str] = set()
    dropped: set[str] = set()
    for amendment in amendments:
        dropped |= set(amendment.drop) - added
        added |= {
            *added_sources(amendment.add, amendment.weights),
            *amendment.newcomers.values(),
        } - dropped
    return added


def _check_one_place(config: MixtureConfig) -> None:
    weighted = [name for name, weight in config.components.items() if weight is not None]
    if weighted and (config.weights is not None or config.stages):
        raise ConfigError(
            f"is given beside {'stages' if config.stages else 'weights'}",
            field=f"components.{weighted[0]}.weight",
            value=config.components[weighted[0]],
            cure="Say the weights in one place.",
        )
    if config.weights is not None and config.stages:
        raise ConfigError(
            "is given beside stages", field="weights", cure="Say the weights in one place."
        )


def _planned(config: MixtureConfig) -> list[_Mixture]:
    """The mixtures without the amendments."""
    batch = config.batch
    phases = config.phases
    if config.stages:
        bounds, _ = stage_bounds(config.stages, batch, phases)
        return [
            _Mixture(
                step,
                stage.weights,
                stage.name,
                f"stages[{k}].weights",
                (f"stages[{k}].tokens", stage.tokens),
            )
            for k, (stage, step) in enumerate(zip(config.stages, bounds, strict=True))
        ]
    if config.weights is not None:
        tokens = (
            None if config.num_steps is None else tokens_of_steps(config.num_steps, batch, phases)
        )
        return [_Mixture(0, dict(config.weights), "", "weights", ("num_steps", tokens))]
    plain = weights_at_begin(config.components, config.amendments)
    return [_Mixture(0, plain, "", "components")]


def _amended(
    previous: _Mixture, amendment: AmendmentConfig, number: int, components: Mapping[str, Any]
) -> _Mixture:
    path = f"amendments[{number}]"
    if amendment.step <= previous.step:
        problem = f"is not after step {previous.step}, where the mixture before it begins"
        cure = "Amendments stand in the order of their steps and cannot change the past."
        raise ConfigError(problem, field=f"{path}.step", value=amendment.step, cure=cure)
    refuse_size_rules(amendment.add, components, f"{path}.add", itself=True)
    refuse_size_rules(amendment.weights, components, f"{path}.weights", itself=True)
    add = amendment.add
    weights = amendment.weights
    drop = amendment.drop
    mixture = extend(previous.weights, amendment.newcomers, components, path)
    if amendment.reweighs:
        mixture = amend(
            mixture, add=add, weights=weights, drop=drop, components=components, path=path
        )
    return _Mixture(amendment.step, mixture, f"amendment {number}", f"{path}.weights")


def _resolve_sizes(mixture: _Mixture, config: MixtureConfig, later: set[str]) -> _Mixture:
    """The mixture with plain weights instead of a rule; components that an amendment adds do not
    count.
    """
    weights = mixture.weights
    path = mixture.path
    if not is_size_rule(weights, config.components):
        refuse_size_rules(weights, config.components, path)
        return mixture
    if config.sizes is None:
        raise ConfigError("follows from sizes, which are not known here", field=path, value=weights)
    sizes = {name: tokens for name, tokens in config.sizes().items() if name not in later}
    field_, tokens = mixture.budget
    if config.counted_tokens and field_ == "num_steps":
        total = sum(sizes.values())
        _check_tokens_written(
            weights, f"{path}.unimax", total if tokens is None else min(tokens, total)
        )
    return replace(mixture, weights=weights_of_sizes(weights, sizes, tokens, path, field_))


def _check_tokens_written(rule: Mapping[str, Any], path: str, example: int) -> None:
    """Raises ConfigError if a rule needs the tokens of the run, which depend on its weights."""
    value = rule.get("unimax")
    if value is None or (isinstance(value, Mapping) and "tokens" in value):
        return
    epochs: object = (
        cast("Mapping[str, object]", value).get("max_epochs")
        if isinstance(value, Mapping)
        else value
    )
    raise ConfigError(
        "needs to know how many tokens the run has, and they follow from num_steps only where all"
        " rows hold as many",
        field=path,
        value=value,
        cure=f"Write unimax: {{max_epochs: {epochs}, tokens: {example}}}, with the tokens of your"
        " run.",
    )


def _check_counted(config: MixtureConfig) -> None:
    """Raises ConfigError for a step that is set in addition to the tokens that determine it once
    they are counted.
    """
    last = len(config.stages) - 1
    for number, stage in enumerate(config.stages):
        following = config.num_steps if number == last else config.stages[number + 1].step
        if config.counted_tokens and stage.tokens is not None and following is not None:
            raise ConfigError(
                f"is given beside stages[{number}].tokens, from which it follows once the tokens"
                " of rows are counted",
                field="num_steps" if number == last else f"stages[{number + 1}].step",
                value=following,
                cure="Leave out one of the two.",
            )


def stage_bounds(
    stages: Sequence[StageConfig], batch: BatchSchedule, phases: Sequence[tuple[int, int]]
) -> tuple[list[int], int | None]:
    """The first step of each stage, from its own or from the tokens of the stages before it; and
    the step at which the last stage's tokens are used up, or None.

    Raises:
        ConfigError: a stage without a first step, or tokens that contradict the step of the next
            stage.

    Example:
        >>> stages = [StageConfig({"a": 1}, tokens=1000), StageConfig({"b": 1}, tokens=300)]
        >>> stage_bounds(stages, BatchSchedule(8), [(0, 16)])
        ([0, 8], 11)
    """
    first: list[int] = []
    reached: int | None = 0
    for number, stage in enumerate(stages):
        path = f"stages[{number}]"
        previous_path = f"stages[{number - 1}]"
        begin = stage.step if stage.step is not None else reached
        if begin is None:
            raise ConfigError(
                "has no beginning",
                field=f"{path}.step",
                cure=f"Give it a step, or {previous_path}.tokens.",
            )
        if number and reached is not None and begin != reached:
            problem = f"last until step {reached}, but {path} begins at step {begin}"
            cure = f"Leave out {previous_path}.tokens or {path}.step."
            raise ConfigError(
                problem, field=f"{previous_path}.tokens", value=stages[number - 1].tokens, cure=cure
            )
        first.append(begin)
        reached = (
            None if stage.tokens is None else step_after_tokens(begin, stage.tokens, batch, phases)
        )
    return first, reached


def run_steps(config: MixtureConfig) -> int | None:
    """Steps of a run's plan: ``num_steps`` and those that are skipped, or the tokens of its last
    stage; None if neither, or if tokens have to be counted.

    Raises:
        ConfigError: the two differ, or an amendment, a stage, a length or a batch size begins where
            the run has ended.
    """
    stages = config.stages
    num_steps = config.num_steps
    _check_counted(config)
    first_steps, end = stage_bounds(stages, config.batch, config.phases) if stages else ([], None)
    if config.counted_tokens:
        end = None
    if None not in (num_steps, end) and num_steps != end:
        problem = f"end the run after {end} steps, but num_steps is {num_steps}"
        cure = "Leave out one of the two."
        raise ConfigError(
            problem, field=f"stages[{len(stages) - 1}].tokens", value=stages[-1].tokens, cure=cure
        )
    skips = skips_of(config.amendments)
    end = num_steps + skips.total if end is None and num_steps is not None else end
    if end is None:
        return None
    last = skips.step_of(end) if num_steps is None else num_steps
    begins = {f"stages[{k}].step": step for k, step in enumerate(first_steps)}
    begins |= {
        f"amendments[{k}].step": amendment.step for k, amendment in enumerate(config.amendments)
    }
    begins |= {
        f"amendments[{k}].skip[{j}][0]": first
        for k, amendment in enumerate(config.amendments)
        for j, (first, _) in enumerate(amendment.skip)
    }
    for path, step in begins.items():
        if step >= last:
            problem = f"is not before step {last}, where the run ends"
            cure = f"Give a step below {last}, or prolong the run (num_steps)."
            raise ConfigError(problem, field=path, value=step, cure=cure)
    for path, points in (("seq_len", config.phases), ("batch_size", config.batch.points)):
        for step, value in points:
            if step >= end:
                problem = f"begins at step {step}, and the run ends with step {end - 1}"
                cure = "Prolong the run (num_steps), or leave it out."
                raise ConfigError(problem, field=f"{path}[{step}]", value=value, cure=cure)
    return end


class PolicyKind(abc.ABC):
    """A policy as configs name it.

    Attributes:
        counts_tokens: Whether it supports units that count individual tokens; see
            :mod:`headrace.data.row_tokens`.
        ends_with_data: Whether it may end the run itself, at a step that only the data tell.
    """

    counts_tokens: ClassVar[bool] = False
    ends_with_data: ClassVar[bool] = False

    def check(self, config: MixtureConfig) -> None:
        """Raises ConfigError, before anything is opened, if the policy does not
        support a setting.
        """
        return

    def run_steps(self, config: MixtureConfig) -> int | None:
        """Steps of a run; see :func:`run_steps`, which raises what this does."""
        return run_steps(config)

    def plan(self, config: MixtureConfig) -> Plan:
        """The plan of a config."""
        stages = resolve_stages(config)
        planned = len(stages) - sum(amendment.changes_mixture for amendment in config.amendments)
        return Plan(
            [*config.components],
            stages,
            config.batch,
            self.make,
            planned,
            config.phases,
            counted_tokens=config.counted_tokens,
            stage_tokens=[stage.tokens for stage in config.stages] or [None] * planned,
            num_steps=self.run_steps(config),
        )

    @abc.abstractmethod
    def make(self, plan: Plan) -> MixingPolicy:
        """The policy that draws to meet a plan, with its sizes and limits; raises ConfigError as
        ``check`` does.
        """


class ExactQuota(PolicyKind):
    """``policy: quota``."""

    counts_tokens = True

    def make(self, plan: Plan) -> Stages:
        return Stages(plan.names, plan.stages, plan.batch, plan.limits, plan.planned)


class WholeBatchesKind(PolicyKind):
    """``policy: whole_batches``."""

    def check(self, config: MixtureConfig) -> None:
        check_batches(config.batch, config.max_share)

    def make(self, plan: Plan) -> WholeBatches:
        return WholeBatches(plan.names, plan.stages, plan.batch, plan.limits, plan.planned)


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
            "Use policy: quota (or least_consumed, of headrace-compat); or unit: tokens, which"
            " counts the places of rows."
        )
        raise ConfigError(f"is not known to policy: {policy}", field="unit", value=unit, cure=cure)


def plan_of(
    weights: Mapping[str, object] | Blend | Sequence[Stage],
    policy: str,
    names: Sequence[str],
    batch: BatchSchedule,
) -> Plan:
    """The plan of weights over all components, ``names``: one mixture or stages, from which
    ``policy`` draws.

    Raises:
        ConfigError: there is no such policy; it is neither a mixture nor stages.
    """
    if isinstance(weights, Mapping):
        weights = Blend(weights, may_end=True)
    stages = [Stage(0, weights)] if isinstance(weights, Blend) else weights
    if not all(isinstance(stage, Stage) for stage in stages):
        cure = "Give a weight for each component: {'web': 3, 'code': 1}."
        raise ConfigError(
            "is neither a mapping nor a list of stages", field="weights", value=weights, cure=cure
        )
    check_first_steps(stages)
    return Plan(names, stages, batch, policy_kind(policy).make)
