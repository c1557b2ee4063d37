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
from jaxtyping import Int64

from headrace.data.dataset import AsyncDataset, PlannedDataset
from headrace.data.rows import Rows, RowSource
from headrace.errors import ConfigError, did_you_mean
from headrace.index.blend import Blend
from headrace.index.draws import Draws
from headrace.index.remap import IndexMap
from headrace.index.schedule import BatchSchedule
from headrace.metrics import ReadStats


class MixtureDataset(PlannedDataset):
    """Mixes datasets by weights that may change with the step.

    Args:
        components: Datasets by name, each with its shuffle applied. Finite ones are repeated, re-keyed each pass.
        weights: A weight for each component: a number, ``{"step": {step: w}}`` or ``{"linear": {step: w}}``; or a
            nested :class:`~headrace.index.blend.Blend` with the components as leaves. Normalised at each step and node.
        batch_size: Rows in a step, an int or a :class:`~headrace.index.schedule.BatchSchedule`.

    Raises:
        ConfigError: names differ, rows of different length, all weights zero at some step, a component that does not
            lie in stores.

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
        weights: Mapping[str, object] | Blend,
        batch_size: int | Mapping[int, int] | BatchSchedule,
    ) -> None:
        if not components:
            raise ConfigError("has no components", field="components", cure="Give at least one dataset.")
        blend = weights if isinstance(weights, Blend) else Blend(weights)
        for name in blend.names:
            if name not in components:
                raise ConfigError("is not a component", field=f"weights.{name}", cure=did_you_mean(name, components))
        for name in components:
            if name not in blend.names:
                raise ConfigError("is missing", field=f"weights.{name}", cure="Give it a weight; 0 is one.")
        self.blend = blend
        self.names = blend.names
        self.components = tuple(_repeated(name, components[name]) for name in self.names)
        first = self.components[0]
        for name, component in zip(self.names, self.components, strict=True):
            if (component.seq_len, component.eos_id) != (first.seq_len, first.eos_id):
                raise ConfigError(
                    f"has rows of {component.seq_len} tokens (end of text {component.eos_id}), but"
                    f" {self.names[0]!r} has {first.seq_len} ({first.eos_id})",
                    field=f"components.{name}",
                    cure="All components of a mixture need the same seq_len, tokenizer and split_documents.",
                )
        self.batch_schedule = batch_size if isinstance(batch_size, BatchSchedule) else BatchSchedule(batch_size)
        self.draws = Draws(blend, self.batch_schedule)
        self._sources = tuple(source for component in self.components for source in component.sources)
        self._first_source = np.cumsum([0] + [len(c.sources) for c in self.components])
        self._stats = ReadStats()

    @property
    def length(self) -> int | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "components": {n: c.describe() for n, c in zip(self.names, self.components, strict=True)},
            "weights": self.blend.to_config(),
            "batch_size": self.batch_schedule.to_config(),
        }

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
        for d in np.unique(component):
            here = np.flatnonzero(component == d)
            part = self.components[int(d)].locate(ordinal[here])
            located.source[here] = part.source + self._first_source[d]
            located.row[here] = part.row
            located.locality[here] = part.locality
        return located

    def reordered(self, order: IndexMap) -> PlannedDataset:
        raise ConfigError(
            "cannot be reordered: its steps already hold exact quotas",
            field="mixture",
            cure="Shuffle the components before mixing them.",
        )


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
