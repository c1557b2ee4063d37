"""Documents that were removed from a cache while runs train on it: rows keep their positions
without these tokens.

A row has no piece where a removed document is: none of its tokens reaches a batch. The row has
zeros there, or end-of-text tokens if these end segments, and the batch's ``token_mask`` is 0, so
nothing there is trained on. Nothing attends to it either: in packed rows, and in rows that are
divided into documents, the document remains its own segment; if end-of-text tokens end segments,
each of its tokens is a segment; if a row is one segment, it is split into what precedes the
document, the document, and what follows it. Plans, orders, quotas and splits of a run are not
affected.

Invariants: rows without such a document are bit-identical, and so are all rows of steps before the
removal. Price: a search for each piece of a row; a byte for each token of a batch, as for any mask.
If one document in 200 is removed, a batch of 64 rows of 2,048 tokens takes 1.4 ms of CPU instead of
0.3 to 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool, Int32, Int64

from headrace.data.columns import MASK, Column
from headrace.data.dataset import PlannedDataset, stored_dataset
from headrace.data.mixture import MixtureDataset, mixture_of
from headrace.data.rows import Pieces, RowSource
from headrace.errors import ConfigError
from headrace.order.intervals import Intervals, starts
from headrace.store.cache import TokenCache

if TYPE_CHECKING:
    from headrace.data.token_seq import CacheDataset

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
        self._rows = rows
        self.name = rows.name
        self.row_elements = rows.row_elements
        self.arrays = rows.arrays
        self.columns = {MASK: _TRAINED, **rows.columns}
        self.ends = rows.ends
        self.has_gaps = rows.has_gaps
        self.has_padding = rows.has_padding
        self.fill = rows.end_token or 0
        self.max_segments = rows.max_segments
        self._is_split = rows.max_segments == 0 and rows.ends is None
        if self._is_split:
            self.max_segments = _most_segments(rows, erasure)
        self._first_token = starts(cache.part_tokens)
        self._left = erasure.tokens.complement(int(self._first_token[-1]))

    @property
    def unerased(self) -> RowSource:
        return self._rows

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def pieces(self, rows: Int64[np.ndarray, " n"]) -> Pieces:
        """The pieces of rows, without what is erased."""
        row, column, array, start, size = self._rows.pieces(rows)
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
        return self._rows.last_tokens(rows)

    def is_erased(self, token: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        at = np.searchsorted(self._left.stop, token, side="right")
        return np.append(self._left.start, np.iinfo(np.int64).max)[at] > token

    def segment_lengths(self, rows: Int64[np.ndarray, " n"]) -> Int32[np.ndarray, "n M"]:
        if not self._is_split:
            return self._rows.segment_lengths(rows)
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
    later = mixture.stage_steps[1:]
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


class Erasures:
    """What is erased from the components of a mixture, from which step on.

    Args:
        of_components: By component: what is erased from which step on, in the order of steps, each
            including the previous.
        drawn_from: First step of components that amendments add. Nothing of them is erased before,
            so that the amendment adds no mask to earlier batches.

    Attributes:
        of_components: As given.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> from headrace.data.phased import PhasedDataset
        >>> tokens = TokenSeqDataset(headrace.testing.tiny_cache(documents=40), seq_len=8)
        >>> mixture = MixtureDataset({"web": tokens}, {"web": 1}, batch_size=2)
        >>> gone = Erasure(Intervals(np.array([18]), np.array([20])), 1, {"snapshot": [2]})
        >>> erasures = Erasures({"web": [(1, gone)]})
        >>> erased = PhasedDataset([(0, mixture)], mixture.batch_schedule, erasures=erasures)
        >>> (
        ...     erased.at_step(0)[0].read([0]).token_mask,
        ...     erased.at_step(1)[0].read([2]).token_mask.tolist(),
        ... )
        (None, [[1, 1, 0, 0, 1, 1, 1, 1]])
    """

    def __init__(
        self,
        of_components: Mapping[str, Sequence[tuple[int, Erasure]]],
        drawn_from: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.of_components = of_components
        from_step = {
            name: [(max(step, drawn_from.get(name, 0)), one) for step, one in of_component]
            for name, of_component in of_components.items()
        }
        steps = {0, *(step for ones in from_step.values() for step, _ in ones)}
        self._past = {step: _erased_by(step, from_step) for step in sorted(steps)}
        # By identity of the mixture, which is kept with it, and step of an erasure
        self._applied: dict[tuple[int, int], tuple[PlannedDataset, PlannedDataset]] = {}
        self._checked: set[tuple[int, int]] = set()

    def next_after(self, step: int) -> int | None:
        """The first step after this one at which more is erased."""
        return next((later for later in self._past if later > step), None)

    def applied(self, dataset: PlannedDataset, step: int | None = None) -> PlannedDataset:
        """A mixture without what is erased at a step, or at the end; itself if nothing is.

        Raises:
            ConfigError: nothing is left of a component from which rows are drawn at the step or
                later.
        """
        first = max(began for began in self._past if step is None or began <= step)
        past = self._past[first]
        mixture = mixture_of(dataset)
        if not past or mixture is None:
            return dataset
        key = id(dataset), first
        # Not before a step is asked for: a run may have begun with less
        if step is not None and key not in self._checked:
            _check_left(mixture, past, first)
            self._checked.add(key)
        if key not in self._applied:
            self._applied[key] = (dataset, _erased(mixture, past))
        return self._applied[key][1]

    def describe(self) -> dict[str, Any]:
        """As JSON values, for plans of runs; empty if nothing is erased."""
        recorded = {
            name: {str(step): one.record for step, one in ones}
            for name, ones in self.of_components.items()
        }
        return {"removed": recorded} if recorded else {}


def _erased_by(
    step: int, from_step: Mapping[str, Sequence[tuple[int, Erasure]]]
) -> dict[str, Erasure]:
    """What is erased from each component at a step."""
    past = {
        name: [one for first, one in of_component if first <= step]
        for name, of_component in from_step.items()
    }
    return {name: ones[-1] for name, ones in past.items() if ones and ones[-1].tokens.total}


def _erased(mixture: MixtureDataset, past: Mapping[str, Erasure]) -> PlannedDataset:
    sources: list[RowSource] = []
    for name, component in zip(mixture.names, mixture.components, strict=True):
        erasure = past.get(name)
        for rows, cache in zip(component.sources, component.caches(), strict=True):
            sources.append(rows if erasure is None else ErasedRows(rows, cache, erasure))
    return mixture.with_sources(sources)


NOTHING_ERASED = Erasures({})
