"""The mixture that a run wants and the one that it gets, step by step; a pure function of the plan.

Steps are put into up to 200 spans. For each span and source there are the rows that the weights want (the sum over its
steps of batch size times share) and the rows that are drawn, counted by the same quotas that the loader goes by.

Price: one walk of the quotas to the last step, 2 us a step, or nothing to speak of for constant weights; and 0.1 us for
each step and source of weights that change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import IndexOutOfRangeError

SPANS = 200
_SUMMED = 1 << 23
"""Weights (steps times sources) that are added up one by one; of more, 32 steps of each span are looked at."""
_LOOKS = 32


@dataclass(frozen=True)
class MixtureFacts:
    """Rows of each source over the steps of a run.

    Attributes:
        names: Sources.
        edge: First step of each span, and the step after the last.
        wanted: Rows that weights ask for in each span, before limits.
        drawn: Rows in each span.
        tokens: Tokens of these rows.
        summed: Whether ``wanted`` was added up over every step.
    """

    names: tuple[str, ...]
    edge: Int64[np.ndarray, " k+1"]
    wanted: Float64[np.ndarray, "k d"]
    drawn: Int64[np.ndarray, "k d"]
    tokens: Int64[np.ndarray, "k d"]
    summed: bool

    @property
    def middle(self) -> Int64[np.ndarray, " k"]:
        """Middle step of each span."""
        return (self.edge[:-1] + self.edge[1:] - 1) // 2

    @property
    def off_quota(self) -> Float64[np.ndarray, " d"] | None:
        """Largest distance, at the end of a span, between rows wanted and drawn so far; None if not added up."""
        if not self.summed:
            return None
        return np.abs((self.drawn - self.wanted).cumsum(axis=0)).max(axis=0)


def mixture_facts(dataset: MixtureDataset | PhasedDataset, steps: int, spans: int | None = None) -> MixtureFacts:
    """Wanted and drawn rows of a run.

    Args:
        dataset: The run's mixture.
        steps: Steps of the run.
        spans: Spans to put them into, at most (and those that a change of the row length cuts); None: 200, but of four
            steps or more where there are many: single rows show as noise in short ones.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> a, b = (TokenSeqDataset(headrace.testing.tiny_cache(seed=s), seq_len=8, name="ab"[s]) for s in (0, 1))
        >>> mixture = MixtureDataset({"a": a, "b": b}, {"a": 1, "b": {"step": {0: 0, 2: 1}}}, batch_size=8)
        >>> found = mixture_facts(mixture, steps=4, spans=2)
        >>> found.wanted.tolist(), found.drawn.tolist()
        ([[16.0, 0.0], [8.0, 8.0]], [[16, 0], [8, 8]])
    """
    starts = np.asarray([step for step, _ in dataset.phases] if isinstance(dataset, PhasedDataset) else [0])
    spans = min(SPANS, max(steps // 4, 20)) if spans is None else spans
    even = np.linspace(0, steps, min(spans, steps) + 1).astype(np.int64)
    edge = np.unique(np.concatenate([even, starts[starts < steps]]))
    first = cast(MixtureDataset, dataset.phase_at(0)[0])
    wanted = np.zeros((edge.size - 1, len(first.names)))
    drawn, tokens = np.zeros(wanted.shape, np.int64), np.zeros(wanted.shape, np.int64)
    summed = steps * len(first.names) <= _SUMMED
    for k, (begin, end) in enumerate(zip(edge[:-1].tolist(), edge[1:].tolist(), strict=True)):
        mixture = cast(MixtureDataset, dataset.phase_at(begin)[0])
        wanted[k] = _wanted(mixture, begin, end, summed)
        drawn[k] = _starts_at(mixture, end) - _starts_at(mixture, begin)
        tokens[k] = drawn[k] * mixture.seq_len
    return MixtureFacts(first.names, edge, wanted, drawn, tokens, summed)


def _wanted(mixture: MixtureDataset, begin: int, end: int, every_step: bool) -> np.ndarray:
    if every_step or end - begin <= _LOOKS:
        step = np.arange(begin, end)
    else:
        step = np.linspace(begin, end - 1, _LOOKS).astype(np.int64)
    rows = mixture.batch_schedule.size_at(step)[:, None] * mixture.weights_at(step)
    return rows.mean(axis=0) * (end - begin)


def _starts_at(mixture: MixtureDataset, step: int) -> np.ndarray:
    try:
        return mixture.draws.starts_at(step)
    except IndexOutOfRangeError:  # the last batch is not full
        return mixture.draws.starts_at(step - 1) + mixture.draws.counts_at(step - 1)


def largest(facts: MixtureFacts, most: int) -> Sequence[int]:
    """Numbers of the sources with the most tokens, in the order of the config."""
    by_size = np.argsort(-facts.tokens.sum(axis=0), kind="stable")
    return sorted(by_size[:most].tolist())
