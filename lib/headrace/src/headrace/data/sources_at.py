"""Where the sources of a mixture are at a step: weight, rows, tokens and passes of each.

A pure function of (dataset, step) that reads nothing. It is the same for a run that was resumed or
amended, for stages, packed rows and sources with limits, because all of them are in the plan.

Price: see :func:`sources_at`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import mixture_of
from headrace.metrics import SourceAt


class SourcesAt(Mapping[str, SourceAt]):
    """The sources of a dataset at a step, by name; computed when one is read. Empty if the dataset
    is no mixture.
    """

    def __init__(self, dataset: PlannedDataset | None, step: int, *, is_over: bool = False) -> None:
        self._dataset = dataset
        self._step = step
        self._is_over = is_over

    @cached_property
    def _sources(self) -> Mapping[str, SourceAt]:
        if self._dataset is None:
            return {}
        return sources_at(self._dataset, self._step, is_over=self._is_over)

    def __getitem__(self, name: str) -> SourceAt:
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return repr(dict(self._sources))


def sources_at(dataset: PlannedDataset, step: int, *, is_over: bool = False) -> dict[str, SourceAt]:
    """Each source after ``step`` steps; ``is_over``: the run has no step ``step``. Empty if there
    is no mixture.

    Price: 2 us for each step that nobody has counted yet, if weights change with the step, and 10
    us a source.
    """
    # 1. The mixture that serves the step, or the last one.
    served, _ = dataset.at_step(max(step - 1, 0) if is_over else step)
    mixture = mixture_of(served)
    if mixture is None:
        return {}
    names = mixture.names
    # 2. Rows and tokens so far: each phase counts rows of its own length.
    rows = np.zeros(len(names), np.int64)
    tokens = np.zeros(len(names), np.int64)
    ends = [*(first for first, _ in dataset.phases[1:]), step]
    for (first, phase), until in zip(dataset.phases, ends, strict=True):
        end = min(step, until)
        if end > first and (phase_mixture := mixture_of(phase)) is not None:
            rows_of_phase, tokens_of_phase = phase_mixture.drawn_between(first, end)
            rows += rows_of_phase
            tokens += tokens_of_phase
    # 3. Where each source is in its order: behind what was drawn, and what was skipped.
    ordinals = mixture.starts_at(step)
    # 4. Weights at the step, and what it draws.
    counts = np.zeros(len(names), np.int64) if is_over else mixture.draws.counts_at(step)
    blend = mixture.stages[mixture.stage_at(step)].blend
    planned = mixture.skips.planned(np.asarray([step]))
    weights = dict(zip(blend.names, blend.at(planned)[0].tolist(), strict=True))
    total = max(int(tokens.sum()), 1)
    sources: dict[str, SourceAt] = {}
    for d, (name, part) in enumerate(zip(names, mixture.components, strict=True)):
        of_pass = mixture.tokens_of_pass(name)
        sources[name] = SourceAt(
            weight=weights.get(name, 0.0),
            share=float(tokens[d] / total),
            rows_in_step=int(counts[d]),
            rows=int(rows[d]),
            tokens=int(tokens[d]),
            epoch=int(part.passes(ordinals[d : d + 1])[0]),
            epochs=None if of_pass is None else int(tokens[d]) / of_pass,
        )
    return sources
