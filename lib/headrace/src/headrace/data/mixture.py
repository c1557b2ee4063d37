"""``MixtureDataset``: several sources in exact, scheduled proportions.

Step s holds ``n_d(s)`` rows of source d with ``sum_d n_d(s)`` equal to the batch size and cumulative counts never a
whole example off the wanted share (index/quota.py). Which rows: source d's examples in its own order, from where the
step before left off; a source that is exhausted starts again in a new order. So every row of every step is a pure
function of (config, seed, step).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.braids import Braids
from headrace.data.dataset import AsyncDataset, PlannedDataset
from headrace.data.rows import Rows, RowSource
from headrace.errors import ConfigError, IndexOutOfRangeError, did_you_mean
from headrace.index.anchors import Anchor
from headrace.index.blend import Blend
from headrace.index.draws import Draws
from headrace.index.limits import STOP_STRATEGIES, example_limits, mixture_length
from headrace.index.policies import make_policy
from headrace.index.remap import IndexMap
from headrace.index.schedule import BatchSchedule
from headrace.index.shares import UNLIMITED
from headrace.index.stage_config import stages_of_plan
from headrace.index.stage_plan import StagePlan, StageStream
from headrace.index.stages import Stage, check_components
from headrace.metrics import ReadStats


class MixtureDataset(PlannedDataset):
    """Mixes datasets by weights that may change with the step.

    Args:
        components: Datasets by name, each with its shuffle applied. Finite ones start over, re-keyed, as long as limits
            and ``stop_strategy`` let them.
        weights: A weight for each component: a number, ``{"step": {step: w}}`` or ``{"linear": {step: w}}``; or a
            nested :class:`~headrace.index.blend.Blend` with the components as leaves (normalised at each step and
            node); or several :class:`~headrace.index.stages.Stage`, each over any of the components; or nmoe's
            :class:`~headrace.index.stage_plan.StagePlan`.
        batch_size: Rows in a step, an int or a :class:`~headrace.index.schedule.BatchSchedule`.
        max_epochs: Most passes over the components, one number or by name, fractions allowed. What a used-up component
            leaves goes to the others in proportion to their weights.
        max_examples: Most rows of components in the whole run, by name.
        stop_strategy: ``restart`` (go on for ever), ``first_exhausted`` or ``all_exhausted``.
        policy: Which rows come when; see :mod:`headrace.index.policies`.
        num_steps: Steps of the run, after which the mixture ends, if limits do not end it before; None: it has no end
            of its own. Changes no step.
        draws: Of a mixture with the same names, weights, batch sizes, limits and policy: its walk is shared.

    Raises:
        ConfigError: names differ, rows of different length, all weights zero at some step, a component that does not
            lie in stores, a limit or policy that does not fit.

    Example:
        >>> import headrace.testing
        >>> from headrace.data.token_seq import TokenSeqDataset
        >>> a, b = (TokenSeqDataset(headrace.testing.tiny_cache(seed=s), seq_len=8, name="ab"[s]) for s in (0, 1))
        >>> mixture = MixtureDataset({"a": a, "b": b}, {"a": 3, "b": {"linear": {0: 0, 100: 3}}}, batch_size=4)
        >>> mixture.draws.counts_at(0).tolist(), mixture.draws.counts_at(200).tolist()
        ([4, 0], [2, 2])
    """

    def __init__(
        self,
        components: Mapping[str, AsyncDataset[Any]],
        weights: Mapping[str, object] | Blend | Sequence[Stage] | StagePlan,
        batch_size: int | Mapping[int, int] | BatchSchedule,
        *,
        max_epochs: float | Mapping[str, float] | None = None,
        max_examples: Mapping[str, int] | None = None,
        stop_strategy: str = "restart",
        policy: str = "quota",
        num_steps: int | None = None,
        draws: Draws | None = None,
    ) -> None:
        if not components:
            raise ConfigError("has no components", field="components", cure="Give at least one dataset.")
        if stop_strategy not in STOP_STRATEGIES:
            cure = did_you_mean(str(stop_strategy), STOP_STRATEGIES)
            raise ConfigError("is no stop strategy", field="stop_strategy", value=stop_strategy, cure=cure)
        self.names = tuple(components)
        self.batch_schedule = batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule(batch_size)
        self.plan = _plan(weights, self.names) if isinstance(weights, StagePlan) else None
        self.stages = _stages(weights, self.batch_schedule)
        check_components(self.names, self.stages)
        sizes = {name: dataset.length for name, dataset in components.items()}
        self.components = tuple(_repeated(name, dataset) for name, dataset in components.items())
        self._check_rows()
        self.limits = _limits(sizes, max_epochs, max_examples)
        self.policy, self.stop_strategy = policy, stop_strategy
        self.draws = self._draws([*sizes.values()]) if draws is None else draws
        self._length = self._end([*sizes.values()], num_steps)
        self._braids = Braids(self.components)
        self._sources = tuple(source for component in self.components for source in component.sources)
        self._first_source = np.cumsum([0] + [len(c.sources) for c in self.components])
        self._stats = ReadStats()

    def _draws(self, sizes: list[int | None]) -> Draws:
        limits = [*self.limits.values()]
        if self.plan is not None:
            if any(limit is not None for limit in limits) or self.policy != "quota":
                problem = "brings its own policy, and knows no limits"
                raise ConfigError(problem, field="weights", value="StagePlan", cure="Use Stage with limits.")
            return Draws(StageStream(self.plan, self.batch_schedule))
        return Draws(
            make_policy(
                self.policy,
                self.names,
                self.stages,
                self.batch_schedule,
                sizes=sizes,
                limits=limits,
                tokens=self.seq_len,
            )
        )

    def _end(self, sizes: list[int | None], num_steps: int | None) -> int | None:
        """Examples until limits, sources, a plan or the run's length end the mixture."""
        end = None if num_steps is None else self.batch_schedule.rows_at(num_steps)[0]
        if self.stop_strategy == "restart" and self.plan is None:
            if self.policy != "exhaustive" and not any(limit is not None for limit in self.limits.values()):
                return end
            if num_steps is not None:
                try:  # to the end of the run, which may be long before that of the limits
                    self.draws.starts_at(num_steps)
                except IndexOutOfRangeError:
                    pass
                else:
                    return end
        self._check_reached()
        length = mixture_length(self.draws, sizes, self.stop_strategy, [*self.limits.values()])
        return length if end is None or (length is not None and length < end) else end

    def _check_reached(self) -> None:
        """Raises ConfigError if limits end the mixture before a stage of it begins."""
        for number, stage in enumerate(self.stages[1:] if self.plan is None else (), start=1):
            try:
                self.draws.starts_at(stage.first_step)
            except IndexOutOfRangeError as error:
                place, _, last = stage.blend.path.rpartition(".")
                raise ConfigError(
                    "is never reached: the limits end the mixture before",
                    field=f"{place if place and last == 'weights' else f'stages[{number}]'}.step",
                    value=stage.first_step,
                    cure="Raise max_epochs, max_tokens or max_share, add a source before, or begin the stage earlier.",
                ) from error

    @property
    def length(self) -> int | None:
        return self._length

    def describe(self) -> dict[str, Any]:
        return {
            "names": list(self.names),  # sources are numbered in this order
            "components": {n: c.describe() for n, c in zip(self.names, self.components, strict=True)},
            "stages": [
                {
                    "step": stage.first_step,
                    "name": stage.name,
                    "components": list(stage.blend.names),  # their order breaks ties, and JSON objects have none
                    "weights": stage.blend.to_config(),
                    "max_share": dict(stage.max_share),
                }
                for stage in self.stages
            ],
            "batch_size": self.batch_schedule.to_config(),
            "limits": {name: limit for name, limit in self.limits.items() if limit is not None},
            "stop_strategy": self.stop_strategy,
            "policy": self.policy,
            **({} if self.plan is None else {"plan": self.plan.digest}),
        }

    def anchor_at(self, step: int) -> Anchor | None:
        """The state of the draws near ``step``, see :meth:`Draws.anchor_at`; :mod:`headrace.state` keeps it."""
        return self.draws.anchor_at(step)

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """See :meth:`Draws.use_anchor`."""
        self.draws.use_anchor(anchor)

    def weights_at(self, steps: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n d"]:
        """Wanted shares of the components at ``steps``, as the stages say, before limits."""
        shares = np.zeros((len(steps), len(self.names)))
        first = np.asarray([stage.first_step for stage in self.stages])
        stage_of = np.searchsorted(first, steps, side="right") - 1
        for number in np.unique(stage_of).tolist():
            stage, here = self.stages[number], stage_of == number
            columns = [self.names.index(name) for name in stage.blend.names]
            shares[np.ix_(here, columns)] = stage.blend.at(steps[here])
        return shares

    @property
    def sources(self) -> Sequence[RowSource]:
        return self._sources

    @property
    def seq_len(self) -> int:
        return self.components[0].seq_len

    @property
    def eos_id(self) -> int | None:
        return self.components[0].eos_id

    @property
    def pairs(self) -> bool:
        return self.components[0].pairs

    @property
    def read_stats(self) -> ReadStats:
        return self._stats

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        component, ordinal = self.draws.route(indices)
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        part = self._braids.part_of(component, ordinal)
        braided = self._braids.held[component]
        if braided.all():
            ordinal, located.locality[:] = self._braids.resolve(part, ordinal)
        elif braided.any():
            ordinal = ordinal.copy()  # a table that others share
            ordinal[braided], located.locality[braided] = self._braids.resolve(part[braided], ordinal[braided])
        for number in np.flatnonzero(np.bincount(part)).tolist():
            here = np.flatnonzero(part == number)
            d = int(component[here[0]])
            rows = self._braids.below[number].locate(ordinal[here])
            located.source[here] = rows.source + self._first_source[d]
            located.row[here] = rows.row
            if not self._braids.held[d]:
                located.locality[here] = rows.locality
        return located

    def _check_rows(self) -> None:
        first = self.components[0]
        for name, component in zip(self.names, self.components, strict=True):
            if (component.seq_len, component.eos_id) != (first.seq_len, first.eos_id):
                raise ConfigError(
                    f"has rows of {component.seq_len} tokens (end of text {component.eos_id}), but"
                    f" {self.names[0]!r} has {first.seq_len} ({first.eos_id})",
                    field=f"components.{name}",
                    cure="All components of a mixture need the same seq_len, tokenizer and split_documents.",
                )
            if component.pairs != first.pairs:
                which = name if component.pairs else self.names[0]
                raise ConfigError(
                    "has rows of preference pairs, and another component has not",
                    field=f"components.{which}",
                    cure="Mix pairs with pairs, or train on both in turn.",
                )

    def reordered(self, order: IndexMap) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: its steps already hold exact quotas",
            field="mixture",
            cure="Shuffle the components before mixing them.",
        )


def _plan(plan: StagePlan, names: Sequence[str]) -> StagePlan:
    return plan if plan.names == tuple(names) else StagePlan(plan.stages, plan.example_tokens, names)


def _stages(
    weights: Mapping[str, object] | Blend | Sequence[Stage] | StagePlan, batch: BatchSchedule
) -> tuple[Stage, ...]:
    if isinstance(weights, StagePlan):
        return tuple(stages_of_plan(weights, batch))
    if isinstance(weights, Blend | Mapping):
        return (Stage(0, weights if isinstance(weights, Blend) else Blend(weights)),)
    return tuple(weights)


def _limits(
    sizes: Mapping[str, int | None],
    max_epochs: float | Mapping[str, float] | None,
    max_examples: Mapping[str, int] | None,
) -> dict[str, int | None]:
    endless = [name for name, size in sizes.items() if size is None]
    bounded = max_epochs if isinstance(max_epochs, Mapping) else () if max_epochs is None else sizes
    for name in endless:
        if name in bounded:
            raise ConfigError("bounds a component without an end", field=f"max_epochs.{name}", cure="Leave it out.")
    limits = example_limits({n: UNLIMITED if s is None else s for n, s in sizes.items()}, max_epochs, max_examples)
    for name, size in sizes.items():
        most = max_epochs.get(name) if isinstance(max_epochs, Mapping) else max_epochs
        if most and size and math.floor(size * most) == 0:
            raise ConfigError(
                f"holds no row: component {name!r} has {size}",
                field=f"components.{name}.max_epochs" if isinstance(max_epochs, Mapping) else "max_epochs",
                value=most,
                cure=f"Give at least {1.01 / size:.3g}.",
            )
    return limits


def _repeated(name: str, dataset: AsyncDataset[Any]) -> PlannedDataset:
    if not isinstance(dataset, PlannedDataset):
        raise ConfigError(
            "does not lie in token stores",
            field=f"components.{name}",
            value=type(dataset).__name__,
            cure="Mix datasets over caches, and apply map() to the mixture.",
        )
    repeated = dataset.repeat() if dataset.is_finite() else dataset
    assert isinstance(repeated, PlannedDataset)  # by construction: repeat() of a planned dataset is planned
    return repeated
