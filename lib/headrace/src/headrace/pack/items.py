"""What gets packed: documents, or pieces of those longer than a pack; and counters of everything
left out.

Invariant: every token of every document is in an item or counted. Price: 3 array operations if all
documents fit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.metrics import Sums

LongPolicy: TypeAlias = Literal["keep", "drop", "split", "truncate", "truncate_start", "error"]

POLICIES = "split, truncate or drop"
"""What may be written in place of ``error``."""


class Items(NamedTuple):
    """Documents or pieces of them, ordered by document and offset. Most are whole documents."""

    document: Int64[np.ndarray, " m"]  # number of the document
    offset: Int64[np.ndarray, " m"]  # where the piece begins in the document
    size: Int64[np.ndarray, " m"]  # its tokens, at least 1

    def at(self, places: np.ndarray | slice) -> Items:
        """The items at these positions. If no document was cut, offsets stay one shared 0."""
        document = self.document[places]
        offset = no_offsets(document.size) if _is_shared(self.offset) else self.offset[places]
        return Items(document, offset, self.size[places])

    @classmethod
    def join(cls, parts: list[Items]) -> Items:
        """Concatenates items. Empties the list, so that input and result are never
        both in memory.
        """
        if len(parts) == 1:
            return parts.pop()
        shared = all(_is_shared(p.offset) for p in parts)
        fields = [list(field) for field in zip(*parts, strict=True)] or [[], [], []]
        parts.clear()
        joined: list[np.ndarray] = []
        for number, field in enumerate(fields):
            if number == 1 and shared:
                joined.append(no_offsets(joined[0].size))
            else:
                joined.append(np.concatenate([np.zeros(0, np.int64), *field]))
            field.clear()
        return cls(*joined)


class Packed(NamedTuple):
    """A sequence of packs."""

    items: Items  # items of all packs, in order of the packs
    item_counts: Int64[np.ndarray, " p"]  # items of each pack

    @classmethod
    def join(cls, parts: list[Packed]) -> Packed:
        """Concatenates packs. Empties the list, as :meth:`Items.join` does."""
        items = [p.items for p in parts]
        item_counts = [p.item_counts for p in parts]
        parts.clear()
        return cls(Items.join(items), np.concatenate([np.zeros(0, np.int64), *item_counts]))


def no_offsets(n: int) -> Int64[np.ndarray, " n"]:
    """Offsets of ``n`` whole documents: one shared 0."""
    return np.broadcast_to(np.int64(0), n)


def _is_shared(offset: np.ndarray) -> bool:
    return isinstance(offset, np.ndarray) and offset.strides == (0,)


@dataclass(frozen=True)
class PackCounts(Sums):
    """What became of the documents.

    ``tokens`` is the sum of ``packed_tokens``, ``dropped_tokens``, ``truncated_tokens`` and
    ``underfilled_tokens``.
    """

    documents: int = 0  # documents given
    tokens: int = 0  # their tokens
    empty_documents: int = 0  # documents without tokens; in no pack
    long_documents: int = 0  # documents longer than a pack
    dropped_documents: int = 0  # long documents dropped; ``dropped_tokens`` counts their tokens
    dropped_tokens: int = 0
    truncated_documents: int = 0  # long documents of which only the start or the end is packed
    truncated_tokens: int = 0  # what was cut off
    split_documents: int = 0  # documents split into several pieces
    underfilled_packs: int = 0  # packs dropped because they were filled to less than ``min_fill``
    underfilled_items: int = (
        0  # documents or pieces in them; ``underfilled_tokens`` counts their tokens
    )
    underfilled_tokens: int = 0
    packs: int = 0  # packs
    packed_tokens: int = 0  # tokens in packs

    def __str__(self) -> str:
        return ", ".join(f"{name}={value:,}" for name, value in asdict(self).items() if value)


def check_lengths(lengths: object) -> Int64[np.ndarray, " n"]:
    """``lengths`` as an int64 vector.

    Raises:
        ConfigError: lengths are not integers, or one is negative (the error names the document).
    """
    values = np.asarray(lengths)
    if values.size == 0:
        return np.zeros(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ConfigError(
            f"must be a one-dimensional integer array, not {values.dtype} of shape {values.shape}",
            field="lengths",
        )
    if int(values.min()) < 0:
        bad = int(np.argmin(values >= 0))
        raise ConfigError("must not be negative", field=f"lengths[{bad}]", value=int(values[bad]))
    return values.astype(np.int64, copy=False)


def cut_documents(
    lengths: Int64[np.ndarray, " n"],
    capacity: int,
    long: LongPolicy,
    first_document: int = 0,
    most: int | None = None,
) -> tuple[Items, PackCounts]:
    """Turns documents into items, none longer than a pack unless ``long`` is ``"keep"``.

    Args:
        lengths: Tokens of each document.
        capacity: Tokens of a pack. A document of exactly this length fits.
        long: What happens to longer documents.
        first_document: Number of the first document.
        most: Tokens of the longest document that ``keep`` may keep; None: any.

    Returns:
        The items, and the counters of documents (those of packs are 0).

    Raises:
        ConfigError: a document is too long and ``long`` is ``"error"``, or longer than ``most`` and
            ``long`` is ``"keep"``; the error names the first such document.

    Example:
        >>> items, counts = cut_documents(np.array([3, 0, 9]), 4, "split")
        >>> items.document.tolist(), items.offset.tolist(), items.size.tolist()
        ([0, 2, 2, 2], [0, 0, 4, 8], [3, 4, 4, 1])
        >>> print(counts)
        documents=3, tokens=12, empty_documents=1, long_documents=1, split_documents=1
    """
    counts = {"documents": lengths.size, "tokens": int(lengths.sum())}
    long_at = np.flatnonzero(lengths > capacity)
    document = np.flatnonzero(lengths)
    counts["empty_documents"] = lengths.size - document.size
    counts["long_documents"] = long_at.size
    size = lengths if document.size == lengths.size else lengths[document]
    offset = no_offsets(document.size)
    if long_at.size and long == "error":
        raise _too_long(lengths, f"a pack of {capacity} tokens", long_at, first_document)
    if most is not None and long == "keep":
        beyond = np.flatnonzero(lengths > most)
        if beyond.size:
            raise _too_long(lengths, f"a row of {most} tokens", beyond, first_document)
    if long_at.size and long == "drop":
        fits = size <= capacity
        counts |= {"dropped_documents": long_at.size, "dropped_tokens": int(lengths[long_at].sum())}
        document, offset, size = Items(document, offset, size).at(fits)
    elif long_at.size and long in ("truncate", "truncate_start"):
        counts |= {
            "truncated_documents": long_at.size,
            "truncated_tokens": int(lengths[long_at].sum()) - capacity * long_at.size,
        }
        if long == "truncate_start":
            offset = np.maximum(size - capacity, 0)
        size = np.minimum(size, capacity)
    elif long_at.size and long == "split":
        counts["split_documents"] = long_at.size
        pieces = -(-size // capacity)
        document = np.repeat(document, pieces)
        offset = np.arange(document.size)
        offset -= np.repeat(np.cumsum(pieces) - pieces, pieces)
        offset *= capacity
        size = np.repeat(size, pieces)
        size -= offset
        np.minimum(size, capacity, out=size)
    return Items(
        document + first_document if first_document else document, offset, size
    ), PackCounts(**counts)


def _too_long(
    lengths: np.ndarray, place: str, long_at: np.ndarray, first_document: int
) -> ConfigError:
    at = int(long_at[0])
    return ConfigError(
        f"is longer than {place}, as {long_at.size} of {lengths.size} documents are",
        field=f"lengths[{first_document + at}]",
        value=int(lengths[at]),
        cure=f"Use longer rows, or another policy for long documents: {POLICIES}.",
    )
