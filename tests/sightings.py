"""Where steps have documents, found by looking at each of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from headrace.cli.options import open_target
from headrace.data.dataset import rows_of_step
from headrace.data.phased import RunDataset
from headrace.data.provenance import removed_spans, spans_of_rows


class Sighting(NamedTuple):
    """A document in a step, and whether it was removed by then."""

    document: int
    step: int
    tokens: int
    removed: bool


def sightings(
    dataset: RunDataset, component: str, documents: Collection[int], steps: int
) -> list[Sighting]:
    """Where the steps before ``steps`` have these documents of a component."""
    found: list[Sighting] = []
    for step in range(steps):
        rows = rows_of_step(dataset, dataset.batch_schedule, step)
        spans = spans_of_rows(rows)
        columns = (spans.row, spans.source, spans.document, spans.size, removed_spans(rows, spans))
        for row, source, stored, size, removed in zip(*(c.tolist() for c in columns), strict=True):
            document = int(rows.caches[source].originals([stored])[0])
            if rows.names[rows.component[row]] == component and document in documents:
                found.append(Sighting(document, step, size, removed))
    return found


def seen_by(
    target: object, component: str, document: int, steps: int, *settings: str
) -> list[Sighting]:
    """Where the steps of a run, or of a config, have a document."""
    return sightings(open_target(str(target), [*settings])[1], component, [document], steps)
