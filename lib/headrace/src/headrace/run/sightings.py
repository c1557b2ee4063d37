"""Where a run has seen a document: every step whose batch contains any of its tokens, with the row
and their number.

A pure function of (config, step), like the order, so nothing needs to be recorded: it checks the
rows of the component in the order in which they are drawn. A removed document is found where its
tokens were, and is marked as removed. Price: about half a microsecond for each row of the component
up to the step.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import rows_of_step
from headrace.data.documents import token_ranges
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.data.phased import RunDataset
from headrace.data.provenance import removed_spans, spans_of_rows
from headrace.data.rows import RowSource
from headrace.errors import ConfigError, check_choice
from headrace.mix.amendments import family
from headrace.mix.schedule import RowOrder
from headrace.order.intervals import Intervals, starts
from headrace.progress import track
from headrace.store.cache import TokenCache

_ROWS = 1 << 16  # checked together


@dataclass(frozen=True)
class Sighting:
    """A document in a batch.

    Attributes:
        document: Its number; for a shuffled cache, its number in the original.
        step: The step.
        row: Row of the batch.
        tokens: Number of its tokens in the row.
        removed: Whether it was already removed, so the batch has none of its tokens.
    """

    document: int
    step: int
    row: int
    tokens: int
    removed: bool


def sightings(
    dataset: RunDataset,
    component: str,
    documents: Intervals,
    step: int,
    row_order: RowOrder = "locality",
) -> list[Sighting]:
    """Where the steps before ``step`` contain documents of a component, in order.

    Args:
        dataset: The run's dataset.
        component: Name of the component.
        documents: Numbers of documents, as in :class:`~headrace.data.documents.DocumentFilter`. If
            an amendment extends the component, they continue through the added documents.
        step: Number of steps to check.
        row_order: The run's row order.

    Raises:
        ConfigError: no such component; a number that no document has.
        IndexOutOfRangeError: the run has fewer steps.

    Example:
        >>> import headrace.testing
        >>> from headrace import LmDataConfig, ComponentConfig
        >>> config = LmDataConfig(
        ...     {"a": ComponentConfig(headrace.testing.tiny_cache().path)}, seq_len=16, batch_size=8
        ... )
        >>> found = sightings(config.dataset(), "a", Intervals.of_numbers(np.array([5])), 40)
        >>> {one.document for one in found}, len({one.step for one in found}) > 1
        ({5}, True)
    """
    mixture = mixture_of(dataset.at_step(0)[0])
    assert mixture is not None
    check_choice("component", component, mixture.names, "is not a component")
    names = family(component, mixture.names)
    caches = [mixture.components[mixture.names.index(name)].caches()[0] for name in names]
    first = starts([cache.num_originals for cache in caches]).tolist()
    if documents.stop.size and int(documents.stop[-1]) > first[-1]:
        problem = f"is not a document: {caches[0].path} has {first[-1]:,}"
        cure = "Documents count from 0."
        raise ConfigError(problem, field="document", value=int(documents.stop[-1]) - 1, cure=cure)
    all_sightings: list[Sighting] = []
    for name, cache, begin, end in zip(names, caches, first, first[1:], strict=False):
        of_cache = _of_component(
            dataset, name, cache, documents.within(begin, end), step, row_order
        )
        all_sightings += [replace(one, document=one.document + begin) for one in of_cache]
    return sorted(all_sightings, key=lambda one: (one.step, one.row))


def _of_component(
    dataset: RunDataset,
    name: str,
    cache: TokenCache,
    documents: Intervals,
    step: int,
    row_order: RowOrder,
) -> Iterator[Sighting]:
    stored = cache.stored_at(documents.numbers(np.arange(documents.total)))
    tokens = token_ranges(cache, Intervals.of_numbers(stored))
    ends = [*(begin for begin, _ in dataset.phases[1:]), step]
    steps: set[int] = set()
    for (begin, phase), end in zip(dataset.phases, ends, strict=True):
        if (mixture := mixture_of(phase)) is not None and tokens.total and begin < min(end, step):
            steps |= set(_steps(mixture, name, cache, tokens, range(begin, min(end, step))))
    for at in track(sorted(steps), "reading steps", len(steps)):
        yield from _in_step(dataset, name, stored, at, row_order)


def _steps(
    mixture: MixtureDataset, name: str, cache: TokenCache, tokens: Intervals, steps: range
) -> Iterator[int]:
    """The steps of a mixture with rows of a component that contain any of these tokens of its
    cache.
    """
    number = mixture.names.index(name)
    component = mixture.components[number]

    def drawn(step: int) -> int:
        return int(mixture.starts_at(step)[number])

    end = drawn(steps.stop)
    begins = range(drawn(steps.start), end, _ROWS)
    for begin in track(begins, "searching steps", len(begins)):
        ordinals = np.arange(begin, min(begin + _ROWS, end))
        located = component.locate(ordinals)
        hit = np.zeros(ordinals.size, bool)
        for at, source in enumerate(component.sources):
            matches = np.flatnonzero(located.source == at)
            hit[matches[_holding(source, cache, tokens, located.row[matches])]] = True
        for ordinal in ordinals[hit].tolist():
            yield steps[bisect.bisect_right(steps, ordinal, key=drawn) - 1]


def _holding(
    source: RowSource, cache: TokenCache, tokens: Intervals, rows: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " k"]:
    """Which of the rows contain any of the tokens."""
    pieces = source.pieces(rows)
    begin = starts(cache.part_tokens)[pieces.array] + pieces.start
    first = np.searchsorted(tokens.stop, begin, side="right")
    return pieces.row[np.searchsorted(tokens.start, begin + pieces.size, side="left") > first]


def _in_step(
    dataset: RunDataset, name: str, stored: np.ndarray, step: int, row_order: RowOrder
) -> Iterator[Sighting]:
    rows = rows_of_step(dataset, dataset.batch_schedule, step, row_order)
    of_component = np.flatnonzero(rows.component == rows.names.index(name))
    spans = spans_of_rows(rows, of_component)
    spans = spans[np.isin(spans.document, stored)]
    columns = (spans.document, spans.row, spans.size, removed_spans(rows, spans), spans.source)
    for document, row, size, removed, source in zip(*(c.tolist() for c in columns), strict=True):
        number = int(rows.caches[source].originals([document])[0])
        yield Sighting(number, step, row, size, removed)
