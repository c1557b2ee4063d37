"""What may have caused a spike of the loss: sources, documents and files of some steps, by how
unusual their loss was.

The batches are a function of the config, so only the losses need to have been logged
(:mod:`headrace.feed.run_log`): ``log(step, loss_by_source={"web": 2.1, ...})``, a figure for each
source; or ``log(step, row_loss={"0": 2.3, ...})``, one for each row of the batch. A loss is
compared with those of up to 200 steps before: how far it is above their median, in multiples of
their median absolute deviation, scaled to be a standard deviation for normal noise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64

from headrace.data.dataset import rows_of_step
from headrace.data.phased import RunDataset
from headrace.data.provenance import StepRows, spans_of_rows
from headrace.ingest.origins import find_origins
from headrace.mix.schedule import RowOrder
from headrace.store.cache import TokenCache

SHOWN_SUSPECTS = 8
SHOWN_DOCUMENTS = 5
"""Of these many, documents are looked for in their files."""
_STEPS_BEFORE = 200
_LEAST = 8
_OF_NORMAL = 1.4826
_SOURCE = re.compile(r"(?:.*/)?loss_by_source/(.+)")
_ROW = re.compile(r"(?:.*/)?row_loss/(\d+)")


@dataclass(frozen=True)
class Document:
    """A document in these steps.

    Attributes:
        document: Its number, as the files of its cache count.
        tokens: Its tokens in the steps.
        part: Part of the cache.
        origin: The file and what of it; empty if that cannot be told, or was not looked for.
    """

    document: int
    tokens: int
    part: str
    origin: str = ""


@dataclass(frozen=True)
class Suspect:
    """Rows of a source, with their loss.

    Attributes:
        source: Name of the source.
        steps: Steps that have the rows.
        row: The row of the only step, if losses of rows were logged; None: all of the source.
        loss: The greatest loss; None: none was logged.
        usual: Median of the losses before; None: too few were logged.
        excess: How unusual the loss is, in standard deviations.
        tokens: Tokens of the documents.
        documents: The documents, most tokens first.
    """

    source: str
    steps: list[int]
    row: int | None
    loss: float | None
    usual: float | None
    excess: float | None
    tokens: int
    documents: list[Document]


def blame(
    dataset: RunDataset,
    steps: range,
    figures: Mapping[int, Mapping[str, float]],
    row_order: RowOrder = "locality",
) -> list[Suspect]:
    """The rows of some steps, the most unusual loss first; those without a loss come last, most
    tokens first. For the first of them, the source files of the largest documents are read.

    Args:
        dataset: The run's dataset.
        steps: The steps.
        figures: What the trainer logged, by step.
        row_order: The run's row order.

    Example:
        >>> import headrace.testing
        >>> from headrace import LmDataConfig, ComponentConfig
        >>> cache = headrace.testing.tiny_cache()
        >>> config = LmDataConfig({"a": ComponentConfig(cache.path)}, seq_len=16, batch_size=4)
        >>> logged = {step: {"loss_by_source/a": 2 + step % 3 / 10} for step in range(20)}
        >>> logged[20] = {"loss_by_source/a": 9.0}
        >>> [worst] = blame(config.dataset(), range(20, 21), logged)
        >>> worst.source, worst.loss, worst.usual, worst.tokens
        ('a', 9.0, 2.1, 64)
    """
    batches = {
        step: rows_of_step(dataset, dataset.batch_schedule, step, row_order) for step in steps
    }
    # 1. Each row is a suspect if losses of rows were logged, else each source.
    if any(_ROW.fullmatch(name) for step in steps for name in figures.get(step, {})):
        earlier = _figures_before(steps.start, figures, _ROW)
        suspects = [
            _suspect(
                {step: np.array([row])},
                batches,
                earlier,
                _losses([step], figures, _ROW, str(row)),
                row,
            )
            for step, batch in batches.items()
            for row in range(len(batch))
        ]
    else:
        rows_by_source: dict[str, dict[int, Int64[np.ndarray, " k"]]] = {}
        for step, batch in batches.items():
            for number in np.unique(batch.component).tolist():
                rows = np.flatnonzero(batch.component == number)
                rows_by_source.setdefault(batch.names[number], {})[step] = rows
        suspects = [
            _suspect(
                rows,
                batches,
                _figures_before(steps.start, figures, _SOURCE, name),
                _losses(steps, figures, _SOURCE, name),
            )
            for name, rows in rows_by_source.items()
        ]
    # 2. The most unusual first: sorts are stable, so tokens decide between equals.
    suspects.sort(key=lambda one: one[0].tokens, reverse=True)
    suspects.sort(key=lambda one: -np.inf if one[0].excess is None else one[0].excess, reverse=True)
    # 3. Where the documents that are shown come from, with one look into each cache.
    numbers: dict[TokenCache, list[int]] = {}
    for _, largest in suspects[:SHOWN_SUSPECTS]:
        for cache, number in largest:
            numbers.setdefault(cache, []).append(number)
    origins = {cache: find_origins(cache, documents) for cache, documents in numbers.items()}
    for suspect, largest in suspects[:SHOWN_SUSPECTS]:
        for k, (cache, number) in enumerate(largest):
            origin = origins[cache][number].origin
            suspect.documents[k] = replace(suspect.documents[k], origin=origin)
    return [suspect for suspect, _ in suspects]


def _losses(
    steps: Sequence[int],
    figures: Mapping[int, Mapping[str, float]],
    kind: re.Pattern[str],
    name: str | None = None,
) -> list[float]:
    """Losses that were logged at some steps, of one source or row; None: of all."""
    return [
        value
        for step in steps
        for figure, value in figures.get(step, {}).items()
        if (of := kind.fullmatch(figure)) is not None and name in (None, of[1])
    ]


def _figures_before(
    first: int,
    figures: Mapping[int, Mapping[str, float]],
    kind: re.Pattern[str],
    name: str | None = None,
) -> list[float]:
    earlier = sorted(step for step in figures if step < first)
    return _losses(earlier[-_STEPS_BEFORE:], figures, kind, name)


def _suspect(
    rows: Mapping[int, Int64[np.ndarray, " k"]],
    batches: Mapping[int, StepRows],
    before: Sequence[float],
    losses: Sequence[float],
    row: int | None = None,
) -> tuple[Suspect, list[tuple[TokenCache, int]]]:
    """Rows of one source, by step; and where the largest documents are."""
    source = ""
    tokens: Counter[tuple[TokenCache, int]] = Counter()
    for step, chosen in rows.items():
        batch = batches[step]
        source = batch.names[int(batch.component[chosen[0]])]
        spans = spans_of_rows(batch, chosen)
        for number, cache, size in zip(
            spans.document.tolist(), spans.source.tolist(), spans.size.tolist(), strict=True
        ):
            tokens[batch.caches[cache], number] += size
    documents: list[Document] = []
    for (cache, number), size in tokens.most_common():
        original = cache.original(number)
        documents.append(Document(original.number, size, original.part))
    # nothing is more unusual than a loss that is not a number, and it says nothing of what is usual
    loss = max(losses, key=lambda one: np.inf if np.isnan(one) else one, default=None)
    usual: float | None = None
    excess: float | None = None
    if loss is not None and len(finite := [one for one in before if np.isfinite(one)]) >= _LEAST:
        usual = float(np.median(finite))
        spread = float(np.median(np.abs(np.asarray(finite) - usual))) * _OF_NORMAL
        excess = (loss - usual) / max(spread, abs(usual) * 1e-6, 1e-12)
        excess = np.inf if np.isnan(excess) else excess
    suspect = Suspect(source, [*rows], row, loss, usual, excess, tokens.total(), documents)
    return suspect, [document for document, _ in tokens.most_common(SHOWN_DOCUMENTS)]
