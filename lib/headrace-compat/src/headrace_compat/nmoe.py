"""nmoe's staged plans: stages with token budgets and exact quotas, where the next stage may start
at any example.

A :class:`StagePlan` says how many examples of each source every stage holds (largest remainder).
:class:`StageStream` runs it example by example, as nmoe does: smooth weighted round robin within a
stage, and the next stage at the very example at which all quotas are met, also within a step;
without stages it is :class:`SmoothRoundRobin`. For stages that begin at steps and for weights that
are schedules see :mod:`headrace.mix.stages`.

nmoe's errors are corrected here, and tested: every quota is reached whatever the weights (nmoe
gives up after 2 n draws in vain); the state at any example can be computed in any stage (nmoe
resumes the first stage's shards or fails); a stage's tokens count what an example really uses (nmoe
counts ``seq_len`` and uses ``seq_len + 1``).

Each source has one position in the whole plan: one that occurs in two stages continues in the
second where it stopped in the first. Price: 2 us per example to count up to it once; without
stages, the sequence repeats, so at most one period, about a million examples, is ever counted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError, check_at_least, did_you_mean
from headrace.mix.blend import Blend
from headrace.mix.plan import MixtureConfig, Plan, PolicyKind
from headrace.mix.policy import Watch
from headrace.mix.schedule import BatchSchedule, Weight
from headrace.mix.shares import UNLIMITED, largest_remainder
from headrace.mix.stage_config import StageConfig
from headrace.mix.stages import Stage
from headrace_compat.constant_weights import constant_weights, stage_weights
from headrace_compat.sequence import STRETCH, SequencePolicy

StageState = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class PlannedStage:
    """One mixture of a plan.

    Args:
        name: Its name.
        weights: Constant weights of its sources by name.
        tokens: Its budget; only whole examples are drawn.

    Raises:
        ConfigError: no source, no positive weight, or a budget that is not a non-negative whole
            number.
    """

    name: str
    weights: Mapping[str, float]
    tokens: int

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or self.tokens < 0 or self.tokens != int(self.tokens):
            raise ConfigError(
                "must be a whole number from 0 up",
                field=f"stages.{self.name}.tokens",
                value=self.tokens,
            )
        constant_weights(list(self.weights.values()), "staged")


def scale_stages(stages: Sequence[PlannedStage], total_tokens: int) -> list[PlannedStage]:
    """The same stages with their budgets scaled to a total, rounded down (nmoe's
    ``total_tokens_b``).

    Raises:
        ConfigError: the stages hold no tokens.

    Example:
        >>> [
        ...     s.tokens
        ...     for s in scale_stages(
        ...         [PlannedStage("a", {"x": 1}, 3), PlannedStage("b", {"x": 1}, 1)], 1000
        ...     )
        ... ]
        [750, 250]
    """
    total = sum(s.tokens for s in stages)
    if total == 0:
        raise ConfigError("hold no tokens", field="stages")
    return [PlannedStage(s.name, s.weights, s.tokens * total_tokens // total) for s in stages]


class StagePlan:
    """Stages in their order, in examples.

    Args:
        stages: At least one, names distinct.
        example_tokens: Tokens that one example uses of its source: ``seq_len``, or ``seq_len + 1``
            if windows do not overlap.
        names: All sources, in the order in which they are numbered; None: as they first occur.

    Raises:
        ConfigError: no stage, a name twice, names that are not those of the stages, a stage whose
            budget holds no example, ``example_tokens`` below 1.

    Example:
        >>> first, last = (
        ...     PlannedStage("pretrain", {"web": 3, "code": 1}, 4000),
        ...     PlannedStage("mid", {"code": 1}, 1000),
        ... )
        >>> plan = StagePlan([first, last], 100)
        >>> plan.names, plan.examples, plan.quotas
        (('web', 'code'), (40, 10), ((30, 10), (0, 10)))
    """

    def __init__(
        self,
        stages: Sequence[PlannedStage],
        example_tokens: int,
        names: Sequence[str] | None = None,
    ) -> None:
        if not stages or len({s.name for s in stages}) != len(stages):
            names = [s.name for s in stages]
            raise ConfigError(
                "needs at least one stage, names distinct", field="stages", value=names
            )
        check_at_least("example_tokens", example_tokens)
        self.stages = tuple(stages)
        self.example_tokens = example_tokens
        sources = tuple(dict.fromkeys(name for s in stages for name in s.weights))
        self.names: tuple[str, ...] = sources if names is None else tuple(names)
        """All sources, in the order in which they are numbered."""
        if len(set(self.names)) != len(self.names) or set(sources) != set(self.names):
            cure = f"Give {sources}."
            raise ConfigError(
                "are not those of the stages", field="names", value=list(self.names), cure=cure
            )
        self.examples: tuple[int, ...] = tuple(s.tokens // example_tokens for s in stages)
        """Examples of each stage."""
        for stage, examples in zip(self.stages, self.examples, strict=True):
            if examples == 0:
                problem = f"holds no example of {example_tokens} tokens"
                cure = "Give it more tokens or leave it out."
                raise ConfigError(
                    problem, field=f"stages.{stage.name}.tokens", value=stage.tokens, cure=cure
                )
        self.quotas: tuple[tuple[int, ...], ...] = tuple(
            map(self._quotas, self.stages, self.examples)
        )
        """Examples of each source in each stage, by largest remainder (of equals, the stage's first
        source).
        """

    def _quotas(self, stage: PlannedStage, examples: int) -> tuple[int, ...]:
        counts = largest_remainder(list(stage.weights.values()), examples)
        of = dict(zip(stage.weights, counts, strict=True))
        return tuple(of.get(name, 0) for name in self.names)

    def mixture(self, batch: BatchSchedule) -> Plan:
        """The plan of a run with its stages at the steps that contain their first examples, for
        ``MixtureDataset.of``.
        """
        stages = [
            Stage(step, Blend(dict(stage.weights), f"stages[{k}].weights"), stage.name)
            for k, (stage, step) in enumerate(
                zip(self.stages, StageStream(self, batch).first_steps(), strict=True)
            )
        ]
        return Plan(self.names, stages, batch, self.make)

    def make(self, plan: Plan) -> StageStream:
        """The policy that runs the plan.

        Raises:
            ConfigError: there are limits, which it does not support.
        """
        if any(limit is not None for limit in plan.limits):
            problem = "brings its own policy, and knows no limits"
            raise ConfigError(
                problem, field="weights", value="StagePlan", cure="Use Stage with limits."
            )
        return StageStream(self, plan.batch)

    @property
    def digest(self) -> str:
        """sha256 of the plan: another plan is another run."""
        plan = [[s.name, list(s.weights.items()), s.tokens] for s in self.stages]
        return hashlib.sha256(json.dumps([plan, self.example_tokens]).encode()).hexdigest()


class StageStream(SequencePolicy[StageState]):
    """nmoe's staged stream: equal to its sequence wherever that is complete.

    The state is (stage, credits of the stage's sources, examples drawn of each of the plan's
    sources in this stage).

    Args:
        plan: The stages.
        batch: Examples per step; the last step may hold fewer.

    Example:
        >>> first, last = (
        ...     PlannedStage("a", {"x": 0.5, "y": 0.3, "z": 0.2}, 10),
        ...     PlannedStage("b", {"z": 1}, 3),
        ... )
        >>> StageStream(StagePlan([first, last], 1), BatchSchedule(4)).sequence(0, 99).tolist()
        [0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 2, 2, 2]
    """

    name = "quota"
    follows_sizes = False

    def __init__(self, plan: StagePlan, batch: BatchSchedule) -> None:
        self.plan = plan
        self._ids = [[plan.names.index(name) for name in s.weights] for s in plan.stages]
        self._fp = [fixed_point_weights(list(s.weights.values())) for s in plan.stages]
        super().__init__(len(plan.names), batch, sum(plan.examples))

    def initial_state(self, stage: int = 0) -> StageState:
        return stage, (0,) * len(self._ids[stage]), (0,) * len(self.plan.names)

    def walk(self, state: StageState, first: int, n: int) -> tuple[list[int], StageState]:
        drawn: list[int] = []
        while len(drawn) < n:
            stage, _, emitted = state
            if sum(emitted) == self.plan.examples[stage]:
                state = self.initial_state(stage + 1)
                continue
            ids, state = self._walk_stage(state, n - len(drawn))
            drawn += ids
        return drawn, state

    def _walk_stage(self, state: StageState, n: int) -> tuple[list[int], StageState]:
        """Up to ``n`` examples of the state's stage. A source that has met its quota is charged,
        but skipped.
        """
        stage, start, so_far = state
        ids = self._ids[stage]
        quotas = self.plan.quotas[stage]
        emitted = list(so_far)
        n = min(n, self.plan.examples[stage] - sum(emitted))
        draws: Iterator[tuple[int, list[int]]] = smooth_draws(self._fp[stage], start)
        drawn: list[int] = []
        credit = list(start)
        while len(drawn) < n:
            k, credit = next(draws)
            if emitted[ids[k]] < quotas[ids[k]]:
                emitted[ids[k]] += 1
                drawn.append(ids[k])
        return drawn, (stage, tuple(credit), tuple(emitted))

    def nmoe_state(self, index: int) -> dict[str, object]:
        """The counters of nmoe's ``state_dict`` before example ``index``; its file cursors follow
        from the ordinals.
        """
        stage, credit, emitted = self.state_at(index)
        return {
            "version": 1,
            "current_stage": self.plan.stages[stage].name,
            "stage_index": stage,
            "global_sequence_index": index,
            "accumulators": list(credit),
            "emitted_sequences": {self.plan.names[d]: emitted[d] for d in self._ids[stage]},
        }

    def first_steps(self) -> list[int]:
        """The step that holds the first example of each stage."""
        begins = np.cumsum([0, *self.plan.examples[:-1]])
        return self.batch.step_of(begins).tolist()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "plan": self.plan.digest}


class Swrr(PolicyKind):
    """``policy: swrr``; its stages are a plan of nmoe's, and have tokens instead of steps."""

    def check(self, config: MixtureConfig) -> None:
        if config.stages and len(config.phases) > 1:
            problem = "does not go with a seq_len that changes"
            cure = "Use policy: quota with stages."
            raise ConfigError(problem, field="policy", value="swrr", cure=cure)

    def run_steps(self, config: MixtureConfig) -> int | None:
        """The steps that hold the examples of all stages, of which the next begins
        within a step.
        """
        if not config.stages:
            return super().run_steps(config)
        try:
            examples = sum(
                smooth_plan(config.stages, [*config.components], config.phases[0][1]).examples
            )
        except ConfigError:  # said where the plan is made
            return super().run_steps(replace(config, stages=()))
        end = int(config.batch.step_of(np.array([examples - 1]))[0]) + 1
        if config.num_steps in (None, end):
            return super().run_steps(replace(config, stages=(), num_steps=end))
        return super().run_steps(config)  # stages of whole steps

    def plan(self, config: MixtureConfig) -> Plan:
        if not config.stages:
            return super().plan(config)
        for name, weight in config.components.items():
            for field, value in (("weight", weight), ("max_share", config.max_share.get(name))):
                if value is not None:
                    path = f"components.{name}.{field}"
                    raise ConfigError(
                        "does not go with stages of policy swrr",
                        field=path,
                        cure="Use policy: quota.",
                    )
        if any(amendment.changes_mixture for amendment in config.amendments):
            problem = "do not go with stages of policy swrr"
            cure = "Use policy: quota with stages."
            raise ConfigError(problem, field="amendments", cure=cure)
        plan = smooth_plan(config.stages, [*config.components], config.phases[0][1])
        steps = self.run_steps(config)
        return replace(plan.mixture(config.batch), phases=config.phases, num_steps=steps)

    def make(self, plan: Plan) -> SmoothRoundRobin:
        return SmoothRoundRobin(stage_weights(plan, "swrr"), plan.batch)


def smooth_plan(
    stages: Sequence[StageConfig], names: Sequence[str], example_tokens: int
) -> StagePlan:
    """Nmoe's plan of stages over all components, ``names``, for ``policy: swrr``.

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
            cure = "Give it tokens, or use policy: quota, without compat."
            raise ConfigError(
                "must have tokens and no step with policy swrr", field=path, cure=cure
            )
        for name, weight in stage.weights.items():
            if name not in names:
                raise ConfigError(
                    "is not a component",
                    field=f"{path}.weights.{name}",
                    cure=did_you_mean(name, names),
                )
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                cure = "Write a number, or use policy: quota, without compat."
                problem = "must be a plain number with policy swrr"
                raise ConfigError(problem, field=f"{path}.weights.{name}", value=weight, cure=cure)
        planned.append(PlannedStage(stage.name or str(number), stage.weights, stage.tokens))
    for name in names:
        if not any(name in stage.weights for stage in stages):
            cure = "Leave it out, or give it a weight in a stage (0 is one)."
            raise ConfigError("is in no stage", field=f"components.{name}", cure=cure)
    return StagePlan(planned, example_tokens, names)


class SmoothRoundRobin(SequencePolicy[tuple[int, ...]]):
    """``swrr``: each draw credits every component with its weight, selects the richest and charges
    it the sum.

    As in nmoe (and nginx), over constant weights in millionths; weight 0 is never drawn. The state
    consists of the credits. It returns to zero after a period of (sum of the weights / their common
    divisor) examples, which makes random access possible.

    Raises:
        ConfigError: no weights, all zero, or a schedule.

    Example:
        >>> SmoothRoundRobin([0.5, 0.3, 0.2], BatchSchedule(5)).sequence(0, 10)
        array([0, 1, 2, 0, 0, 1, 0, 2, 1, 0], dtype=int32)
    """

    name = "swrr"
    follows_sizes = False

    def __init__(self, weights: Sequence[float | Weight], batch: BatchSchedule) -> None:
        self.weights_fp = fixed_point_weights(constant_weights(weights, "swrr"))
        self.period = sum(self.weights_fp) // math.gcd(*self.weights_fp)
        super().__init__(len(self.weights_fp), batch)

    def initial_state(self) -> tuple[int, ...]:
        return (0,) * len(self.weights_fp)

    def walk(self, state: tuple[int, ...], first: int, n: int) -> tuple[list[int], tuple[int, ...]]:
        draws = smooth_draws(self.weights_fp, state)
        credits_ = state
        drawn: list[int] = []
        for _ in range(n):
            k, credits_ = next(draws)
            drawn.append(k)
        return drawn, tuple(credits_)

    def state_at(self, index: int) -> tuple[int, ...]:
        return super().state_at(index % self.period)

    def sequence(self, first: int, stop: int) -> Int32[np.ndarray, " n"]:
        if stop <= self.period:
            return super().sequence(first, stop)
        if self.period <= STRETCH:
            return super().sequence(0, self.period)[np.arange(first, stop) % self.period]
        parts: list[Int32[np.ndarray, " n"]] = [np.zeros(0, np.int32)]
        while first < stop:
            start = first % self.period
            size = min(stop - first, self.period - start)
            parts.append(super().sequence(start, start + size))
            first += size
        return np.concatenate(parts)

    def counts_before(self, index: int) -> Int64[np.ndarray, " d"]:
        rounds, offset = divmod(self._checked(index), self.period)
        per_period = np.array(self.weights_fp, np.int64) // math.gcd(*self.weights_fp)
        return rounds * per_period + super().counts_before(offset)

    def walk_to(self, step: int, watch: Watch) -> None:
        """Nothing: one period is all that is ever walked."""

    def supply(self) -> Int64[np.ndarray, " d"]:
        return np.where(np.array(self.weights_fp) > 0, UNLIMITED, 0)

    def _anchored(self, index: int) -> int:
        return index % self.period


def smooth_draws(
    weights_fp: Sequence[int], credit: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Endless draws of smooth weighted round robin: (component, credits after it); the list is
    reused.
    """
    total = sum(weights_fp)
    now = list(credit)
    while True:
        now = [c + w for c, w in zip(now, weights_fp, strict=True)]
        k = now.index(max(now))
        now[k] -= total
        yield k, now


def fixed_point_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights in millionths of their sum, rounded, at least 1 for a positive weight.

    Example:
        >>> fixed_point_weights([3, 2, 2])
        (428571, 285714, 285714)
    """
    total = math.fsum(weights)  # sum() rounds differently from Python 3.12 on
    return tuple(max(1, round(w / total * 1_000_000)) if w else 0 for w in weights)
