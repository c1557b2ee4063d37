"""What a run makes of conversations: rows that train nothing, conversations that are cut from their
question, and those that are left out.

Price: the lengths of all conversations, and masks without tokens: of a small source those of all
rows; of a large one those of 2,048 rows in 32 places, about a request each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Int64

from headrace.data.async_dataset import run_blocking
from headrace.data.dataset import PlannedDataset
from headrace.data.packed import PackedTokenDataset
from headrace.data.row_tokens import read_labels
from headrace.data.token_seq import stored_dataset
from headrace.store.cache import TokenCache

_ALL_ROWS = 1 << 14
_SAMPLED_RANGES = 32
_ROWS_PER_PLACE = 64
_UNITS_AT_A_TIME = 1 << 20


@dataclass(frozen=True)
class Conversations:
    """The conversations of one component, as its rows have them."""

    looked_rows: int  # rows that were looked at
    untrained_rows: int  # those of them without a token that is trained on
    pieces: int  # pieces of conversations with which rows, or segments of packed rows, begin
    begun_inside: int  # those of them that begin inside a conversation, without its question
    documents: int  # conversations of the cache, without those that are removed
    left_out_documents: int  # conversations longer than a row that are in no row
    left_out_tokens: int  # their tokens
    unit: int  # documents that stay together: 2 for pairs
    longest: int  # tokens of the longest conversation, or pair

    @property
    def untrained_share(self) -> float:
        """Share of the rows without a token that is trained on."""
        return self.untrained_rows / max(self.looked_rows, 1)


def look_at_conversations(trained: PlannedDataset, cache: TokenCache) -> Conversations | None:
    """Looks at rows of a component; None if its cache does not mark what is trained on, or does not
    exist.

    Args:
        trained: The rows that are trained on, in stored order.
        cache: Their cache.

    Example:
        >>> import headrace.testing
        >>> from headrace import TokenSeqDataset
        >>> cache = headrace.testing.tiny_cache()
        >>> look_at_conversations(TokenSeqDataset(cache, 16), cache) is None
        True
    """
    if cache.is_virtual or cache.mask_leaf("auto") is None or not len(trained):
        return None
    rows = _looked_rows(len(trained))
    located = trained.locate(rows)
    labels = run_blocking(read_labels(trained, located))
    pieces = trained.joined_rows.pieces(
        located.source, located.row, np.zeros(len(trained.sources), np.int64)
    )
    # A piece begins with a conversation if the token before it is the last of another one.
    inside = np.flatnonzero(pieces.start > 0)
    ended, _ = cache.document_ends.last_tokens(
        pieces.array[inside], pieces.start[inside] - 1, np.ones(inside.size, np.int64)
    )
    begun_inside = inside.size - np.unique(ended).size
    stored = stored_dataset(trained)
    documents = cache.num_documents
    left_out = 0
    tokens = 0
    if stored.pack_plan is not None:
        counts = stored.pack_plan.counts
        left_out = counts.dropped_documents
        tokens = counts.dropped_tokens
        documents -= cast(PackedTokenDataset, stored).removal.num_documents
    unit = getattr(stored, "unit", 1)
    return Conversations(
        looked_rows=rows.size,
        untrained_rows=int((labels == 0).sum()),
        pieces=pieces.row.size,
        begun_inside=begun_inside,
        documents=documents,
        left_out_documents=left_out,
        left_out_tokens=tokens,
        unit=unit,
        longest=_longest(cache, unit),
    )


def _looked_rows(rows: int) -> Int64[np.ndarray, " n"]:
    """All rows of a small source; of a large one, stretches that are spread evenly."""
    if rows <= _ALL_ROWS:
        return np.arange(rows)
    first = np.linspace(0, rows - _ROWS_PER_PLACE, _SAMPLED_RANGES).astype(np.int64)
    return (first[:, None] + np.arange(_ROWS_PER_PLACE)).reshape(-1)


def _longest(cache: TokenCache, unit: int) -> int:
    """Tokens of the longest of all units of documents."""
    units = cache.num_documents // unit
    longest = 0
    for at in range(0, units, _UNITS_AT_A_TIME):
        stop = min(at + _UNITS_AT_A_TIME, units)
        lengths = cache.lengths(at * unit, stop * unit).reshape(-1, unit)
        longest = max(longest, int(lengths.sum(axis=1).max()))
    return longest
