"""nmoe's staged plans: stages with token budgets, each source's quota met exactly, the next stage at any example.

A :class:`StagePlan` says how many examples of each source every stage holds (largest remainder). :class:`StageStream`
runs it example by example, as nmoe does: smooth weighted round robin within a stage, and the next stage at the very
example at which all quotas are met, also within a step. For stages that begin at steps and for weights that are
schedules see :mod:`headrace.index.stages`.

What nmoe gets wrong is right here, and tested: every quota is reached whatever the weights are (nmoe gives up after
2 n draws in vain); the state at any example is found in any stage (nmoe resumes the first stage's shards or fails); a
stage's tokens count what an example really takes (nmoe counts ``seq_len`` and takes ``seq_len + 1``).

Sources have one place each in the whole plan: one that occurs in two stages goes on in the second where it stopped in
the first. Price: 2 us an example to walk there once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.apportion import largest_remainder
from headrace.index.interleave import SequencePolicy, constant_weights, fixed_point_weights, smooth_draws
from headrace.index.schedule import BatchSchedule

StageState = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class PlannedStage:
    """One mixture of a plan.

    Args:
        name: Its name.
        weights: Constant weights of its sources by name.
        tokens: Its budget; only whole examples are drawn of it.

    Raises:
        ConfigError: no source, no positive weight, or a budget that is no whole number from 0 up.
    """

    name: str
    weights: Mapping[str, float]
    tokens: int

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or self.tokens < 0 or self.tokens != int(self.tokens):
            raise ConfigError("must be a whole number from 0 up", field=f"stages.{self.name}.tokens", value=self.tokens)
        constant_weights(list(self.weights.values()), "staged")


def scale_stages(stages: Sequence[PlannedStage], total_tokens: int) -> list[PlannedStage]:
    """The same stages with their budgets scaled to a total, rounded down (nmoe's ``total_tokens_b``).

    Raises:
        ConfigError: the stages hold no tokens.

    Example:
        >>> [s.tokens for s in scale_stages([PlannedStage("a", {"x": 1}, 3), PlannedStage("b", {"x": 1}, 1)], 1000)]
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
        example_tokens: Tokens that one example takes from its source: ``seq_len``, or ``seq_len + 1`` where windows do
            not overlap.
        names: All sources, in the order in which they are numbered; None: as they first occur.

    Raises:
        ConfigError: no stage, a name twice, names that are not those of the stages, a stage whose budget holds no
            example, ``example_tokens`` below 1.

    Example:
        >>> first, last = PlannedStage("pretrain", {"web": 3, "code": 1}, 4000), PlannedStage("mid", {"code": 1}, 1000)
        >>> plan = StagePlan([first, last], 100)
        >>> plan.names, plan.examples, plan.quotas
        (('web', 'code'), (40, 10), ((30, 10), (0, 10)))
    """

    def __init__(self, stages: Sequence[PlannedStage], example_tokens: int, names: Sequence[str] | None = None) -> None:
        if not stages or len({s.name for s in stages}) != len(stages):
            names = [s.name for s in stages]
            raise ConfigError("needs at least one stage, names distinct", field="stages", value=names)
        if example_tokens < 1:
            raise ConfigError("must be at least 1", field="example_tokens", value=example_tokens)
        self.stages, self.example_tokens = tuple(stages), example_tokens
        found = tuple(dict.fromkeys(name for s in stages for name in s.weights))
        self.names: tuple[str, ...] = found if names is None else tuple(names)
        """All sources, in the order in which they are numbered."""
        if len(set(self.names)) != len(self.names) or set(found) != set(self.names):
            raise ConfigError(
                "are not those of the stages", field="names", value=list(self.names), cure=f"Give {found}."
            )
        self.examples: tuple[int, ...] = tuple(s.tokens // example_tokens for s in stages)
        """Examples of each stage."""
        for stage, examples in zip(self.stages, self.examples, strict=True):
            if examples == 0:
                raise ConfigError(
                    f"holds no example of {example_tokens} tokens",
                    field=f"stages.{stage.name}.tokens",
                    value=stage.tokens,
                    cure="Give it more tokens or leave it out.",
                )
        self.quotas: tuple[tuple[int, ...], ...] = tuple(map(self._quotas, self.stages, self.examples))
        """Examples of each source in each stage, by largest remainder (of equals, the stage's first source)."""

    def _quotas(self, stage: PlannedStage, examples: int) -> tuple[int, ...]:
        counts = largest_remainder(list(stage.weights.values()), examples)
        of = dict(zip(stage.weights, counts, strict=True))
        return tuple(of.get(name, 0) for name in self.names)

    @property
    def digest(self) -> str:
        """sha256 of the plan: another plan is another run."""
        plan = [[s.name, list(s.weights.items()), s.tokens] for s in self.stages]
        return hashlib.sha256(json.dumps([plan, self.example_tokens]).encode()).hexdigest()


class StageStream(SequencePolicy[StageState]):
    """nmoe's staged stream: equal to its sequence wherever that does not stop short.

    The state is (stage, credits of the stage's sources, examples drawn of each of the plan's sources in this stage).

    Args:
        plan: The stages.
        batch: Examples per step; the last step may hold fewer.

    Example:
        >>> first, last = PlannedStage("a", {"x": 0.5, "y": 0.3, "z": 0.2}, 10), PlannedStage("b", {"z": 1}, 3)
        >>> StageStream(StagePlan([first, last], 1), BatchSchedule(4)).sequence(0, 99).tolist()
        [0, 1, 2, 0, 0, 1, 0, 2, 1, 0, 2, 2, 2]
    """

    def __init__(self, plan: StagePlan, batch: BatchSchedule) -> None:
        self.plan = plan
        self._ids = [[plan.names.index(name) for name in s.weights] for s in plan.stages]
        self._fp = [fixed_point_weights(list(s.weights.values())) for s in plan.stages]
        super().__init__(len(plan.names), batch, sum(plan.examples))

    def initial_state(self) -> StageState:
        return self._enter(0)

    def _enter(self, stage: int) -> StageState:
        return stage, (0,) * len(self._ids[stage]), (0,) * len(self.plan.names)

    def walk(self, state: StageState, first: int, n: int) -> tuple[list[int], StageState]:
        drawn: list[int] = []
        while len(drawn) < n:
            stage, _, emitted = state
            if sum(emitted) == self.plan.examples[stage]:
                state = self._enter(stage + 1)
                continue
            ids, state = self._walk_stage(state, n - len(drawn))
            drawn += ids
        return drawn, state

    def _walk_stage(self, state: StageState, n: int) -> tuple[list[int], StageState]:
        """Up to ``n`` examples of the state's stage. Who has met its quota is drawn and charged, but passed over."""
        stage, start, so_far = state
        ids, quotas, emitted = self._ids[stage], self.plan.quotas[stage], list(so_far)
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
        """The counters of nmoe's ``state_dict`` before example ``index``; its file cursors follow from the ordinals."""
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

    def stage_of(self, index: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Stage of each global example index."""
        return np.searchsorted(np.cumsum(self.plan.examples), np.asarray(index, np.int64), side="right")
