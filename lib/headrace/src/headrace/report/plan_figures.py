"""Figures of a plan: target and actual mixture, lengths of documents, and fill of packs. A pure
function of plan, offsets and packs; no token is read.

Steps are grouped into up to 200 spans. For each span and source there are the target rows (the sum
over its steps of batch size times share) and the rows that are drawn, counted with the loader's own
quotas.

Price: one pass of the quotas to the last step, 2 us per step, or almost nothing for constant
weights; 0.1 us per step and source with changing weights; and at most a million lengths of each
cache, in 16 evenly spaced stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.document_numbers import some_lengths
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import RunDataset
from headrace.store.cache import TokenCache

SPANS = 200
_SUMMED = 1 << 23
"""Number of weights (steps times sources) that are added up exactly; beyond it, 32 steps of each
span are sampled.
"""
_LOOKS = 32
MAX_LOOKED = 1 << 20
_RUNS = 16
_BINS_AN_OCTAVE = 2
_FILL_BINS = 20


@dataclass(frozen=True)
class MixtureFacts:
    """Rows of each source over the steps of a run.

    Attributes:
        edge: First step of each span, and the step after the last.
        target: Target rows in each span, before limits.
        drawn: Rows that are drawn in each span; ``tokens`` are theirs.
        summed: Whether ``target`` was added up over every step.
    """

    names: tuple[str, ...]
    edge: Int64[np.ndarray, " k+1"]
    target: Float64[np.ndarray, "k d"]
    drawn: Int64[np.ndarray, "k d"]
    tokens: Int64[np.ndarray, "k d"]
    summed: bool

    @property
    def middle(self) -> Int64[np.ndarray, " k"]:
        """Middle step of each span."""
        return (self.edge[:-1] + self.edge[1:] - 1) // 2

    @property
    def off_quota(self) -> Float64[np.ndarray, " d"] | None:
        """Largest difference, at the end of a span, between target and actual rows so far; None if
        not added up.
        """
        if not self.summed:
            return None
        return np.abs((self.drawn - self.target).cumsum(axis=0)).max(axis=0)


def mixture_facts(dataset: RunDataset, steps: int, spans: int | None = None) -> MixtureFacts:
    """Target and actual rows of a run.

    Args:
        dataset: The run's mixture.
        steps: Steps of the run.
        spans: Largest number of spans (changes of the row length add more); None: 200, or fewer for
            short runs, as single rows show as noise in spans of less than four steps.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> a, b = (
        ...     TokenSeqDataset(headrace.testing.tiny_cache(seed=s), seq_len=8, name="ab"[s])
        ...     for s in (0, 1)
        ... )
        >>> mixture = MixtureDataset(
        ...     {"a": a, "b": b}, {"a": 1, "b": {"step": {0: 0, 2: 1}}}, batch_size=8
        ... )
        >>> found = mixture_facts(mixture, steps=4, spans=2)
        >>> found.target.tolist(), found.drawn.tolist()
        ([[16.0, 0.0], [8.0, 8.0]], [[16, 0], [8, 8]])
    """
    starts = np.asarray([step for step, _ in dataset.phases])
    spans = min(SPANS, max(steps // 4, 20)) if spans is None else spans
    even = np.linspace(0, steps, min(spans, steps) + 1).astype(np.int64)
    edge = np.unique(np.concatenate([even, starts[starts < steps]]))
    first = cast(MixtureDataset, dataset.at_step(0)[0])
    planned = np.zeros((edge.size - 1, len(first.names)))
    drawn = np.zeros(planned.shape, np.int64)
    tokens = np.zeros(planned.shape, np.int64)
    summed = steps * len(first.names) <= _SUMMED
    for k, (begin, end) in enumerate(zip(edge[:-1].tolist(), edge[1:].tolist(), strict=True)):
        mixture = cast(MixtureDataset, dataset.at_step(begin)[0])
        planned[k] = _target_rows(mixture, begin, end, summed)
        drawn[k], tokens[k] = mixture.drawn_between(begin, end)
    return MixtureFacts(first.names, edge, planned, drawn, tokens, summed)


def _target_rows(mixture: MixtureDataset, begin: int, end: int, every_step: bool) -> np.ndarray:
    if every_step or end - begin <= _LOOKS:
        step = np.arange(begin, end)
    else:
        step = np.linspace(begin, end - 1, _LOOKS).astype(np.int64)
    rows = mixture.batch_schedule.size_at(step)[:, None] * mixture.weights_at(step)
    return rows.mean(axis=0) * (end - begin)


def largest(facts: MixtureFacts, most: int) -> Sequence[int]:
    """Numbers of the sources with the most tokens, in the order of the config."""
    by_size = np.argsort(-facts.tokens.sum(axis=0), kind="stable")
    return sorted(by_size[:most].tolist())


@dataclass(frozen=True)
class Lengths:
    """Lengths of the documents of a cache, in tokens; ``documents`` and ``tokens`` are shares of
    each bin.
    """

    looked: int  # documents that were read
    of: int
    mean: float
    median: float
    longest: int
    edge: Float64[np.ndarray, " b+1"]
    documents: Float64[np.ndarray, " b"]
    tokens: Float64[np.ndarray, " b"]


def document_lengths(cache: TokenCache) -> Lengths:
    """Lengths of all documents of a cache, or of a sample of a million.

    Example:
        >>> import headrace.testing
        >>> found = document_lengths(headrace.testing.tiny_cache(documents=100))
        >>> (
        ...     found.looked,
        ...     round(float(found.documents.sum()), 6),
        ...     round(float(found.tokens.sum()), 6),
        ... )
        (100, 1.0, 1.0)
    """
    return lengths_of(*some_lengths(cache, MAX_LOOKED, _RUNS))


def lengths_of(lengths: Int64[np.ndarray, " n"], total: int) -> Lengths:
    """Figures and histogram of lengths, two bins per octave; ``total`` is the number of all
    documents.
    """
    longest = int(lengths.max(initial=0))
    edge = 2.0 ** (
        np.arange(0, _BINS_AN_OCTAVE * (int(longest).bit_length() + 1) + 1) / _BINS_AN_OCTAVE
    )
    edge = np.unique(np.concatenate([[0.0], np.floor(edge)]))
    documents = np.histogram(lengths, edge)[0]
    tokens = np.histogram(lengths, edge, weights=lengths.astype(np.float64))[0]
    used = np.flatnonzero(documents)
    inside = slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 0)
    return Lengths(
        looked=lengths.size,
        of=total,
        mean=float(lengths.mean()) if lengths.size else 0.0,
        median=float(np.median(lengths)) if lengths.size else 0.0,
        longest=longest,
        edge=edge[inside.start : inside.stop + 1],
        documents=documents[inside] / max(lengths.size, 1),
        tokens=tokens[inside] / max(float(tokens.sum()), 1.0),
    )


@dataclass(frozen=True)
class Fill:
    """How full the packs of a component are: the share of their positions that hold a token."""

    packs: int
    mean: float
    worst: float
    share: Float64[np.ndarray, " 20"]  # of packs in each bin of equal width, from empty to full
    algorithm: str


def pack_fill(lengths: Int64[np.ndarray, " p"], seq_len: int, algorithm: str) -> Fill:
    """Fill of packs that hold these numbers of tokens in rows of ``seq_len``.

    Example:
        >>> found = pack_fill(np.array([8, 8, 4]), 8, "windowed")
        >>> round(found.mean, 3), found.worst, found.share.nonzero()[0].tolist()
        (0.833, 0.5, [10, 19])
    """
    fill = lengths / seq_len
    bins = np.minimum((fill * _FILL_BINS).astype(np.int64), _FILL_BINS - 1)
    share = np.bincount(bins, minlength=_FILL_BINS) / max(lengths.size, 1)
    return Fill(lengths.size, float(fill.mean()), float(fill.min()), share, algorithm)
