"""The order of a store that is written in packs: every row of so many tokens holds whole documents,
and what they do not fill is padding, which is stored as a document behind them.

Rows then begin where they would without padding, so a row is found by arithmetic, a chunk holds
whole rows, and no plan is needed to read them. How documents come to their places:

1. They are shuffled, as :class:`~headrace.order.document_shuffle.DocumentShuffle` says.
2. In that order, neighbours share rows (``windowed``), and rows follow their first documents.
3. Empty documents come first. Then each row has its documents and its padding, maybe of no token.

Numbers from the number of documents on are paddings: number ``documents + k`` is that of row k.

Price: 40 bytes of memory a document while the order is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from headrace.order.document_shuffle import DocumentGroups, DocumentShuffle
from headrace.pack.plan import plan_packs

_WINDOW_ROWS = 64  # whose documents are neighbours: 256 fill rows no better


@dataclass(frozen=True, eq=False)
class PackOrder:
    """Documents in rows.

    Attributes:
        order: Where each document and each padding is.
        row_ends: The stored position behind the padding of each row.
        padding: Tokens of all paddings.
        max_documents: Most documents in a row.
    """

    order: DocumentGroups
    row_ends: Int64[np.ndarray, " rows"]
    padding: int
    max_documents: int

    @classmethod
    def of(
        cls, shuffle: DocumentShuffle, lengths: Int64[np.ndarray, " documents"], row: int
    ) -> PackOrder:
        """The order of documents of these lengths, none longer than a row.

        Raises:
            ConfigError: none has a token.

        Example:
            >>> packs = PackOrder.of(DocumentShuffle(5, seed=0), np.array([4, 3, 0, 5, 2]), row=6)
            >>> packs.order.originals(np.arange(8)).tolist()  # paddings: 5, 6 and 7
            [2, 3, 5, 4, 0, 6, 1, 7]
            >>> packs.row_ends.tolist(), packs.padding
            ([3, 6, 8], 4)
        """
        documents = shuffle.documents
        document_at = shuffle.originals(np.arange(documents))
        length_at = lengths[document_at]
        plan = plan_packs(length_at, row, "windowed", block_tokens=_WINDOW_ROWS * row)
        rows = np.arange(len(plan))
        empty = np.flatnonzero(length_at == 0)
        row_ends = empty.size + plan.bounds[1:] + rows + 1
        position = empty.size + np.arange(plan.items.document.size)
        position += np.repeat(rows, np.diff(plan.bounds))  # a padding for each row before
        stored = documents + rows.size
        dtype = np.dtype("<u4" if stored <= 1 << 32 else "<u8")
        number_at = np.empty(stored, dtype)
        number_at[: empty.size] = document_at[empty]
        number_at[position] = document_at[plan.items.document]
        number_at[row_ends - 1] = documents + rows
        place_of = np.empty(stored, dtype)
        place_of[number_at] = np.arange(stored)
        padding = rows.size * row - plan.counts.packed_tokens
        return cls(DocumentGroups(place_of, number_at), row_ends, padding, plan.max_items)
