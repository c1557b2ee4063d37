"""Documents that were removed from a cache while runs train on it: rows keep their positions
without these tokens.

A row has no piece where a removed document is. Nothing of the document is read. The row has zeros
there, or end-of-text tokens if these end segments, and the batch's ``token_mask`` is 0, so nothing
there is trained on. Nothing attends to it either: in packed rows, and in rows that are divided into
documents, the document remains its own segment; if end-of-text tokens end segments, each of its
tokens is a segment; if a row is one segment, it is split into what precedes the document, the
document, and what follows it. Plans, orders, quotas and splits of a run are not affected.

Invariants: rows without such a document are bit-identical, and so are all rows of steps before the
removal. Price: a search for each piece of a row; a byte for each token of a batch, as for any mask.
If one document in 200 is removed, a batch of 64 rows of 2,048 tokens takes 1.4 ms of CPU instead of
0.3 to 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from jaxtyping import Bool, Int32, Int64

from headrace.batch.packed_batch import PackedBatch
from headrace.data.columns import MASK, Column
from headrace.data.dataset import PlannedDataset, WrappingDataset, stored_dataset
from headrace.data.mixture import MixtureDataset
from headrace.data.phased import PhaseChange, PhasedDataset
from headrace.data.provenance import Explained
from headrace.data.rows import Pieces, Rows, RowSource
from headrace.data.token_seq import CacheDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.order.intervals import Intervals
from headrace.order.order import OpenWindow, Order, check_indices
from headrace.order.rising import starts
from headrace.store.cache import TokenCache

_TRAINED = Column(MASK, np.dtype(np.uint8), 1)  # wherever a piece lies


@dataclass(frozen=True, eq=False)
class Erasure:
    """What is erased from the rows of a component.

    Attributes:
        tokens: Positions of the documents in the token stream of the whole cache, all parts end to
            end.
        documents: Number of documents.
        record: Its entry in plans of runs, as JSON values: ``snapshot``, ``documents`` and
            ``digest``.
        field: The field of the config that selects it.
    """

    tokens: Intervals
    documents: int
    record: Mapping[str, Any]
    field: str = "snapshot"


class ErasedRows(RowSource):
    """The rows of a source without the tokens of some documents.

    Rows that know their segments keep them, and so do rows that are divided into documents. Others
    are split where something is erased.

    Args:
        rows: The source.
        cache: The cache of the source.
        erasure: What is erased.
    """

    def __init__(self, rows: RowSource, cache: TokenCache, erasure: Erasure) -> None:
        self._whole = rows
        self.name = rows.name
        self.row_elements = rows.row_elements
        self.arrays = rows.arrays
        self.columns = {MASK: _TRAINED, **rows.columns}
        self.ends = rows.ends
        self.has_gaps = rows.has_gaps
        self.fill = rows.end_token or 0
        self.max_segments = rows.max_segments
        self._is_split = rows.max_segments == 0 and rows.ends is None
        if self._is_split:
            self.max_segments = _most_segments(rows, erasure)
        self._first_token = starts(cache.part_tokens)
        self._left = erasure.tokens.complement(int(self._first_token[-1]))

    @property
    def whole(self) -> RowSource:
        return self._whole

    @property
    def num_rows(self) -> int:
        return self._whole.num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        """The pieces of rows, without what is erased."""
        row, column, array, start, size = self._whole.pieces(rows)
        begin = self._first_token[array] + start
        first = np.searchsorted(self._left.stop, begin, side="right")
        count = np.searchsorted(self._left.start, begin + size, side="left") - first
        of = np.repeat(np.arange(row.size), count)
        at = first[of] + np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
        low = np.maximum(begin[of], self._left.start[at])
        skipped = low - begin[of]
        size_left = np.minimum((begin + size)[of], self._left.stop[at]) - low
        return Pieces(row[of], column[of] + skipped, array[of], start[of] + skipped, size_left)

    def last_tokens(
        self, rows: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]]:
        """The last tokens of documents, of those that are erased too: they remain segments of their
        own.
        """
        return self._whole.last_tokens(rows)

    def is_erased(self, token: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        at = np.searchsorted(self._left.stop, token, side="right")
        return np.append(self._left.start, np.iinfo(np.int64).max)[at] > token

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        if not self._is_split:
            return self._whole.segment_lengths(rows)
        pieces = self.pieces(rows)
        length = self.row_elements
        begin = pieces.row * (length + 1) + pieces.column
        edges, count = np.unique(np.concatenate([begin, begin + pieces.size]), return_counts=True)
        first = np.arange(rows.size) * (length + 1)  # adjacent ranges have no edge between them
        edges = np.unique(np.concatenate([edges[count == 1], first, first + length]))
        row, column = np.divmod(edges, length + 1)
        begins = np.flatnonzero(np.diff(row, append=-1) == 0)
        nth = np.arange(begins.size) - np.searchsorted(row[begins], row[begins])
        lengths = np.zeros((rows.size, self.max_segments), np.int32)
        lengths[row[begins], nth] = np.diff(column)[begins]
        return lengths


def _most_segments(rows: RowSource, erasure: Erasure) -> int:
    """Upper bound of the segments of a row of one segment that is split where something is
    erased.
    """
    gaps = erasure.documents
    spans = rows.in_stream(erasure.tokens)
    if spans is not None:
        reach = np.searchsorted(spans.start, spans.stop + (rows.row_elements - 1), side="left")
        gaps = int((reach - np.arange(reach.size)).max(initial=0))
    return min(2 * gaps + 1, rows.row_elements)


def _check_left(mixture: MixtureDataset, past: Mapping[str, Erasure], step: int) -> None:
    """Raises ConfigError if a component from which rows are drawn, at this step or later, has
    nothing left.
    """
    later = [stage.first_step for stage in mixture.stages[1:]]
    drawn = {
        name
        for stage, end in zip(mixture.stages, [*later, None], strict=True)
        if end is None or end > step
        for name in stage.blend.names
    }
    for name, erasure in past.items():
        dataset = mixture.components[mixture.names.index(name)]
        cache = dataset.caches()[0]
        removal = cast("CacheDataset[Any]", stored_dataset(dataset)).removal
        if name not in drawn or erasure.tokens.total < cache.num_tokens - removal.num_tokens:
            continue
        if Intervals.union([erasure.tokens, removal.tokens]).total == cache.num_tokens:
            cure = f"Drop the source in the same amendment: drop: [{name}]."
            if not erasure.field.startswith("amendments"):
                cure = (
                    "Leave the source out, or train on what was removed:"
                    f" components.{name}.snapshot: 1."
                )
            problem = f"leaves nothing of {cache.path}: all documents of {name!r} are removed"
            raise ConfigError(
                problem, field=erasure.field, value=erasure.record["snapshot"], cure=cure
            )


RunDataset: TypeAlias = "MixtureDataset | PhasedDataset | ErasedDataset"
"""What a config makes of its components."""


class ErasedDataset(WrappingDataset):
    """The dataset of a run, with documents erased from given steps on.

    Args:
        base: The dataset.
        erasures: By component: what is erased from which step on, in the order of steps, each
            including the previous.
        drawn_from: First step of components that amendments add. Nothing of them is erased before,
            so that the amendment adds no mask to earlier batches.

    Attributes:
        erasures: As given.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> tokens = TokenSeqDataset(headrace.testing.tiny_cache(documents=40), seq_len=8)
        >>> mixture = MixtureDataset({"web": tokens}, {"web": 1}, batch_size=2)
        >>> gone = Erasure(Intervals(np.array([18]), np.array([20])), 1, {"snapshot": [2]})
        >>> erased = ErasedDataset(mixture, {"web": [(1, gone)]})
        >>> (
        ...     erased.at_step(0)[0].read([0]).token_mask,
        ...     erased.at_step(1)[0].read([2]).token_mask.tolist(),
        ... )
        (None, [[1, 1, 0, 0, 1, 1, 1, 1]])
    """

    def __init__(
        self,
        base: MixtureDataset | PhasedDataset,
        erasures: Mapping[str, Sequence[tuple[int, Erasure]]],
        drawn_from: Mapping[str, int] | None = None,
    ) -> None:
        self.base = base
        self.batch_schedule = base.batch_schedule
        self.erasures = erasures
        self._drawn_from = drawn_from or {}
        self._from_step = {
            name: [(max(step, self._drawn_from.get(name, 0)), one) for step, one in of_component]
            for name, of_component in erasures.items()
        }
        self._steps = sorted(
            {0, *(step for of_component in self._from_step.values() for step, _ in of_component)}
        )
        self._served: dict[tuple[int, int], PlannedDataset] = {}
        self._checked: set[tuple[int, int]] = set()

    def with_loss_weights(self, weights: Mapping[str, object]) -> ErasedDataset:
        """See :meth:`~headrace.data.mixture.MixtureDataset.with_loss_weights`."""
        return ErasedDataset(
            cast("MixtureDataset | PhasedDataset", self.base).with_loss_weights(weights),
            self.erasures,
            self._drawn_from,
        )

    def at_step(self, step: int) -> tuple[PlannedDataset, int | None]:
        inner, until = self.base.at_step(step)
        number = int(np.searchsorted(self._steps, step, side="right")) - 1
        ends = [end for end in (until, *self._steps[number + 1 : number + 2]) if end is not None]
        if (
            id(inner),
            number,
        ) not in self._checked:  # not before a step is requested: a run may have started with less
            _check_left(cast(MixtureDataset, inner), self._past(number), self._steps[number])
            self._checked.add((id(inner), number))
        return self._variant(inner, number), min(ends, default=None)

    def _past(self, number: int) -> dict[str, Erasure]:
        """What is erased from each component from the ``number``-th erasing step on."""
        past = {
            n: [one for first, one in ones if first <= self._steps[number]]
            for n, ones in self._from_step.items()
        }
        return {name: ones[-1] for name, ones in past.items() if ones and ones[-1].tokens.total}

    def _variant(self, inner: PlannedDataset, number: int) -> PlannedDataset:
        key = id(inner), number
        if key not in self._served:
            self._served[key] = self._erased(cast(MixtureDataset, inner), self._past(number))
        return self._served[key]

    def _erased(self, mixture: MixtureDataset, past: Mapping[str, Erasure]) -> PlannedDataset:
        """The mixture without what is erased; the mixture itself if nothing is."""
        sources: list[RowSource] = []
        for name, component in zip(mixture.names, mixture.components, strict=True):
            of_sources = zip(component.sources, component.caches(), strict=True)
            if (erasure := past.get(name)) is not None:
                sources += [ErasedRows(rows, cache, erasure) for rows, cache in of_sources]
            else:
                sources += component.sources
        return mixture.with_sources(sources) if past else mixture

    @property
    def sources(self) -> Sequence[RowSource]:
        """Those of the last steps, which have the columns of all."""
        return self._variant(self.base.at_step(0)[0], len(self._steps) - 1).sources

    @property
    def phases(self) -> Sequence[tuple[int, PlannedDataset]]:
        return self.base.phases

    @property
    def changes(self) -> Sequence[PhaseChange]:
        return self.base.changes

    @property
    def mixture(self) -> PlannedDataset | None:
        return self.base.mixture

    @property
    def own_schedule(self) -> BatchSchedule:
        return self.batch_schedule

    @property
    def length(self) -> int | None:
        return self.base.length

    def describe(self) -> dict[str, Any]:
        recorded = {
            n: {str(step): one.record for step, one in ones} for n, ones in self.erasures.items()
        }
        return {**self.base.describe(), "removed": recorded}

    def explain(self, example: Int64[np.ndarray, " n"]) -> Explained:
        return self.base.explain(example)

    def open_windows(self, step: int | None = None) -> Mapping[str, tuple[OpenWindow, int]]:
        return self.base.open_windows(step)

    def locate(
        self, indices: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Rows:
        return self.base.locate(indices, epoch)

    async def get_batch(self, indices: Int64[np.ndarray, " n"]) -> PackedBatch:
        steps = self.batch_schedule.step_of(check_indices(indices, self.length))
        served, until = self.at_step(int(steps.min()) if steps.size else 0)
        if until is not None and int(steps.max(initial=0)) >= until:
            raise ConfigError(
                f"lie on both sides of step {until}, where rows change their length or documents"
                " are erased",
                field="indices",
                cure="Ask for the examples of one side at a time.",
            )
        return await served.get_batch(indices)

    def reordered(self, order: Order) -> PlannedDataset:
        return self.base.reordered(order)
