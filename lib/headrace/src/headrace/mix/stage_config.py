"""The config of a run's mixtures, and the stages that it resolves to.

One mixture: a weight at each component, or a (nested) blend. Several: ``stages``, each from a step
on or for a number of tokens. A run that changes after it has started: ``amendments``, each from a
step on, which add, drop or reweight sources. Amendments are stages too, so the past does not
change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headrace.errors import ConfigError
from headrace.mix.amendments import (
    added_sources,
    amend,
    check_disjoint,
    extend,
    newcomer_name,
    weights_by_place,
)
from headrace.mix.blend import Blend, is_size_rule, refuse_size_rules, weights_of_sizes
from headrace.mix.draws import NO_SKIPS, Skips, check_skip
from headrace.mix.limits import check_steps, check_tokens, step_after_tokens, tokens_of_steps
from headrace.mix.repeats import with_rows
from headrace.mix.schedule import BatchSchedule, CountedTokens, weight_from_config
from headrace.mix.stages import Stage, check_components


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
    """Amendments and a new one, in the order of their steps. At one step, the mixture changes once:
    two changes of it become one, of which the new one has the last word.

    Example:
        >>> earlier = [AmendmentConfig(60, weights={"web": 2}, drop=["code"])]
        >>> with_amendment(earlier, AmendmentConfig(60, weights={"web": 3}, add={"code": 1}))
        [AmendmentConfig(step=60, add={}, weights={'web': 3, 'code': 1}, drop=[], caches={},
            skip=[], measured={})]
    """
    kept = list(amendments)
    same = [one for one in kept if one.step == new.step and one.changes_mixture]
    if same and new.changes_mixture:
        kept.remove(same[0])
        if new.skip:  # counted in what the earlier one leaves
            kept.append(AmendmentConfig(new.step, skip=new.skip))
        new = _joined(same[0], new)
    if new.changes_mixture or new.skip:
        kept.append(new)
    return sorted(kept, key=lambda one: (one.step, not one.changes_mixture))


def last_change(amendments: Sequence[AmendmentConfig]) -> int:
    """The last step at which the mixture changes; 0: it never does."""
    return max((one.step for one in amendments if one.changes_mixture), default=0)


def _joined(first: AmendmentConfig, then: AmendmentConfig) -> AmendmentConfig:
    """Two changes of the mixture at one step as one; without what ``then`` skips."""
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
        skip=first.skip,
        measured=then.measured or first.measured,
    )


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
        counted: The tokens that are counted individually; steps that depend on tokens are then
            unknown here, and the earliest possible ones are used. None: rows count.
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
    counted: CountedTokens | None = None
    may_end: bool = False

    @property
    def skips(self) -> Skips:
        """The skipped steps of the run."""
        return skips_of(self.amendments)


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


def skips_of(amendments: Sequence[AmendmentConfig]) -> Skips:
    """The skipped steps of a run."""
    skips = NO_SKIPS
    for amendment in amendments:
        skips = skips.then(amendment.skip)
    return skips


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
            planned = replace(amendment, step=config.skips.planned_step(amendment.step))
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
        elif weight is not None and not is_same_weight(weight, added[name][1]):
            field, new_weight = added[name]
            raise ConfigError(
                f"brings it in with weight {new_weight}, and components.{name} has {weight}, as if"
                " it were in already",
                field=field,
                cure="Use weights for it if it is; if it is new, leave out"
                f" components.{name}.weight.",
            )
    return begin


def is_same_weight(one: Any, other: Any) -> bool:
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
    if config.counted and field_ == "num_steps":
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
        if config.counted and stage.tokens is not None and following is not None:
            raise ConfigError(
                f"is given beside stages[{number}].tokens, from which it follows once the tokens"
                " of rows are counted",
                field="num_steps" if number == last else f"stages[{number + 1}].step",
                value=following,
                cure="Leave out one of the two.",
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
        # one that only skips is no mixture of its own: it may begin where another does
        least = reached if amendment.changes_mixture else reached - 1
        reached, where = _rising(amendment.step, path, least, where)


def _rising(step: int | None, path: str, reached: int, where: str) -> tuple[int, str]:
    if step is None:
        return reached, where
    if step <= reached:
        problem = f"is not after step {reached}, where the mixture before it begins ({where})"
        cure = "Sort by step, and write what begins at one step as one."
        raise ConfigError(problem, field=path, value=step, cure=cure)
    return step, path


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
    check_steps("num_steps", num_steps)
    _check_counted(config)
    first_steps, end = stage_bounds(stages, config.batch, config.phases) if stages else ([], None)
    if config.counted:
        end = None
    if None not in (num_steps, end) and num_steps != end:
        problem = f"end the run after {end} steps, but num_steps is {num_steps}"
        cure = "Leave out one of the two."
        raise ConfigError(
            problem, field=f"stages[{len(stages) - 1}].tokens", value=stages[-1].tokens, cure=cure
        )
    skips = config.skips
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
            cure = f"Give a step below {last}, or prolong the run."
            raise ConfigError(problem, field=path, value=step, cure=cure)
    for path, points in (("seq_len", config.phases), ("batch_size", config.batch.points)):
        for step, value in points:
            if step >= end:
                problem = f"begins at step {step}, and the run ends with step {end - 1}"
                cure = "Prolong the run (num_steps), or leave it out."
                raise ConfigError(problem, field=f"{path}[{step}]", value=value, cure=cure)
    return end
