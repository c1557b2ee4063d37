"""``MixtureDataset``: several sources in exact, scheduled proportions.

Step s holds ``n_d(s)`` rows of source d with ``sum_d n_d(s)`` equal to the batch size and cumulative counts never a
whole example off the wanted share (index/quota.py). Which rows: source d's examples in its own order, from where the
step before left off; a source that is exhausted starts again in a new order. So every row of every step is a pure
function of (config, seed, step).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.dataset import AsyncDataset, PlannedDataset, ReorderedDataset
from headrace.data.rows import Rows, RowSource
from headrace.errors import ConfigError, did_you_mean
from headrace.index.blend import Blend
from headrace.index.braid import BraidShuffle
from headrace.index.braid_table import BraidTable
from headrace.index.draws import Draws
from headrace.index.limits import example_limits, mixture_length
from headrace.index.policies import make_policy
from headrace.index.remap import IndexMap, Repeat
from headrace.index.schedule import BatchSchedule
from headrace.index.shares import UNLIMITED
from headrace.index.stages import Stage
from headrace.metrics import ReadStats


class MixtureDataset(PlannedDataset):
    """Mixes datasets by weights that may change with the step.

    Args:
        components: Datasets by name, each with its shuffle applied. Finite ones start over, re-keyed, as long as limits
            and ``stop_strategy`` let them.
        weights: A weight for each component: a number, ``{"step": {step: w}}`` or ``{"linear": {step: w}}``; or a
            nested :class:`~headrace.index.blend.Blend` with the components as leaves (normalised at each step and
            node); or several :class:`~headrace.index.stages.Stage`, each over any of the components.
        batch_size: Rows in a step, an int or a :class:`~headrace.index.schedule.BatchSchedule`.
        max_epochs: Most passes over the components, one number or by name, fractions allowed. What a used-up component
            leaves goes to the others in proportion to their weights.
        max_examples: Most rows of components in the whole run, by name.
        stop_strategy: ``restart`` (go on for ever), ``first_exhausted`` or ``all_exhausted``.
        policy: Which rows come when; see :mod:`headrace.index.policies`.

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
        weights: Mapping[str, object] | Blend | Sequence[Stage],
        batch_size: int | Mapping[int, int] | BatchSchedule,
        *,
        max_epochs: float | Mapping[str, float] | None = None,
        max_examples: Mapping[str, int] | None = None,
        stop_strategy: str = "restart",
        policy: str = "quota",
    ) -> None:
        if not components:
            raise ConfigError("has no components", field="components", cure="Give at least one dataset.")
        self.names = tuple(components)
        self.stages = _stages(weights)
        _check_names(self.names, self.stages)
        sizes = {name: dataset.length for name, dataset in components.items()}
        self.components = tuple(_repeated(name, dataset) for name, dataset in components.items())
        self._check_rows()
        self.batch_schedule = batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule(batch_size)
        self.limits = _limits(sizes, max_epochs, max_examples)
        self.policy, self.stop_strategy = policy, stop_strategy
        self.draws = Draws(
            make_policy(
                policy,
                self.names,
                self.stages,
                self.batch_schedule,
                sizes=[*sizes.values()],
                limits=[*self.limits.values()],
                tokens=self.seq_len,
            )
        )
        endless = stop_strategy == "restart" and not any(limit is not None for limit in self.limits.values())
        self._length = None if endless else mixture_length(self.draws, [*sizes.values()], stop_strategy)
        self._braids = _Braids(self.components)
        self._sources = tuple(source for component in self.components for source in component.sources)
        self._first_source = np.cumsum([0] + [len(c.sources) for c in self.components])
        self._stats = ReadStats()

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
        }

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
    def read_stats(self) -> ReadStats:
        return self._stats

    def locate(self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None) -> Rows:
        component, ordinal = self.draws.route(indices)
        located = Rows(np.empty_like(indices), np.empty_like(indices), np.empty(indices.size))
        braided = self._braids.held[component]
        if braided.any():
            ordinal, where = self._braids.resolve(component, ordinal, braided)
            located.locality[braided] = where
        for d in np.unique(component).tolist():
            here = np.flatnonzero(component == d)
            part = self._braids.below[d].locate(ordinal[here])
            located.source[here] = part.source + self._first_source[d]
            located.row[here] = part.row
            if not self._braids.held[d]:
                located.locality[here] = part.locality
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

    def reordered(self, order: IndexMap) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: its steps already hold exact quotas",
            field="mixture",
            cure="Shuffle the components before mixing them.",
        )


def _stages(weights: Mapping[str, object] | Blend | Sequence[Stage]) -> tuple[Stage, ...]:
    if isinstance(weights, Blend | Mapping):
        return (Stage(0, weights if isinstance(weights, Blend) else Blend(weights)),)
    return tuple(weights)


def _check_names(names: Sequence[str], stages: Sequence[Stage]) -> None:
    used = [name for stage in stages for name in stage.blend.names]
    for name in used:
        if name not in names:
            raise ConfigError("is not a component", field=f"weights.{name}", cure=did_you_mean(name, names))
    for name in names:
        if name not in used:
            raise ConfigError("is missing", field=f"weights.{name}", cure="Give it a weight; 0 is one.")


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
    return example_limits({n: UNLIMITED if s is None else s for n, s in sizes.items()}, max_epochs, max_examples)


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


class _Braids:
    """The components that are repeated braids, resolved together: one pass over all rows instead of one a component.

    Attributes:
        held: Which components these are.
        below: By component, what the resolved rows are rows of: for the others, the component itself.
    """

    def __init__(self, components: Sequence[PlannedDataset]) -> None:
        found = [_repeated_braid(c) for c in components]
        self.held = np.asarray([f is not None for f in found])
        self.below = [c if f is None else f[0] for c, f in zip(components, found, strict=True)]
        self._number = np.cumsum(self.held) - 1
        orders = [f[1] for f in found if f is not None]
        self._table = BraidTable.of(orders) if orders else None

    def resolve(
        self, component: np.ndarray, ordinal: np.ndarray, braided: np.ndarray
    ) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " m"]]:
        """Ordinals with those of braided components replaced by their rows, and the localities of these."""
        assert self._table is not None  # there is a braided row, hence a table
        if braided.all():
            return self._table(self._number[component], ordinal)
        rows = ordinal.copy()
        rows[braided], where = self._table(self._number[component[braided]], ordinal[braided])
        return rows, where


def _repeated_braid(component: PlannedDataset) -> tuple[PlannedDataset, BraidShuffle] | None:
    if isinstance(component, ReorderedDataset) and isinstance(component.order, Repeat):
        inner = component.base
        if isinstance(inner, ReorderedDataset) and isinstance(inner.order, BraidShuffle):
            return inner.base, inner.order
    return None
