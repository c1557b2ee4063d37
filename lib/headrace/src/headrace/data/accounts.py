"""Where every token of a component goes: trained on, held out, removed, or in no row. Nothing is dropped uncounted.

Invariant: ``tokens = train_tokens + validation_tokens + removed_tokens + dropped_tokens``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from headrace.data.dataset import PlannedDataset
from headrace.data.packing import PackedTokenDataset
from headrace.data.rows import segments_of
from headrace.data.token_seq import TokenSeqDataset

_CHUNK = 1 << 14  # rows whose segments are looked at together


@dataclass(frozen=True)
class Account:
    """One component, in rows of the first phase.

    Attributes:
        documents: Documents of its cache.
        tokens: Tokens of its cache.
        listed_documents: Numbers that its filter gives, repeats included.
        repeated_documents: Numbers that the filter gives again.
        not_found_documents: Numbers of the filter that no document has.
        removed_documents: Documents that the filter leaves out.
        removed_tokens: Tokens of these.
        train_rows: Rows that are trained on, in an epoch.
        train_tokens: Tokens of these, without padding.
        validation_rows: Rows that are held out.
        validation_tokens: Tokens of these, without padding.
        dropped_tokens: Tokens that fill no row on either side.
        padding_tokens: Places of rows of both sides that hold no token: packs are not quite full.
        incomplete_documents: Documents that are not packed as another one of their unit is removed or without tokens.
        incomplete_tokens: Tokens of these; part of ``dropped_tokens``.
    """

    documents: int
    tokens: int
    listed_documents: int
    repeated_documents: int
    not_found_documents: int
    removed_documents: int
    removed_tokens: int
    train_rows: int
    train_tokens: int
    validation_rows: int
    validation_tokens: int
    dropped_tokens: int
    padding_tokens: int = 0
    incomplete_documents: int = 0
    incomplete_tokens: int = 0

    def to_json(self) -> dict[str, int]:
        """All figures as JSON values."""
        return asdict(self)


def account(
    dataset: TokenSeqDataset | PackedTokenDataset, train: PlannedDataset, validation: PlannedDataset | None
) -> Account:
    """The account of a component.

    Args:
        dataset: All of it, without the documents to leave out.
        train: What is trained on.
        validation: What is held out; None: nothing.

    Example:
        >>> import headrace.testing
        >>> dataset = TokenSeqDataset(headrace.testing.tiny_cache(documents=100), seq_len=8)
        >>> found = account(dataset, *dataset.holdout_documents(one_in=10))
        >>> found.train_tokens + found.validation_tokens + found.dropped_tokens == found.tokens
        True
    """
    removal = dataset.removal
    held = 0 if validation is None else len(validation)
    trained = _tokens(train)
    held_out = 0 if validation is None else _tokens(validation)
    units = dataset if isinstance(dataset, PackedTokenDataset) else None
    return Account(
        documents=dataset.cache.num_documents,
        tokens=dataset.cache.num_tokens,
        listed_documents=removal.listed,
        repeated_documents=removal.repeated,
        not_found_documents=removal.not_found,
        removed_documents=dataset.removed_documents,
        removed_tokens=dataset.removed_tokens,
        train_rows=len(train),
        train_tokens=trained,
        validation_rows=held,
        validation_tokens=held_out,
        dropped_tokens=dataset.cache.num_tokens - dataset.removed_tokens - trained - held_out,
        padding_tokens=(len(train) + held) * dataset.seq_len - trained - held_out,
        incomplete_documents=0 if units is None else units.incomplete_documents,
        incomplete_tokens=0 if units is None else units.incomplete_tokens,
    )


def _tokens(side: PlannedDataset) -> int:
    """Tokens of all rows: their segments', where rows know them, for then a row may be padded."""
    if not any(hasattr(source, "segment_lengths") for source in side.sources):
        return len(side) * side.seq_len
    total = 0
    for at in range(0, len(side), _CHUNK):
        rows = side.locate(np.arange(at, min(at + _CHUNK, len(side))))
        lengths = segments_of(side.sources, rows.source, rows.row)
        total += 0 if lengths is None else int(lengths.sum())
    return total
