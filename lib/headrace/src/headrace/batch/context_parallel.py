"""Which tokens each context-parallel rank holds, so that causal attention costs all ranks the same.

A token attends to those before it, so with contiguous slices the last rank would do most of the
work. *Zig-zag* cuts a document into 2R chunks and gives rank r chunks r and 2R - 1 - r; *striped*
deals tokens out one by one regardless of documents, so packed rows need no padding.

Invariant: every token is on exactly one rank; positions without a token are -1. Price: a few array
operations a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, Shaped

from headrace.batch.packed_batch import PackedBatch
from headrace.batch.sample_numbers import checked_count, checked_tokens
from headrace.errors import ConfigError, check_choice


class ContextSplit(NamedTuple):
    """Tokens of a row on each rank.

    Attributes:
        token: Position in the row of each token that a rank holds, -1 for padding.
        lengths: Positions that each document takes on every rank.
    """

    token: Int64[np.ndarray, "R T"]
    lengths: Int64[np.ndarray, " d"]

    def take(self, values: np.ndarray, fill: int | float = 0) -> np.ndarray:
        """Each rank's part of ``values`` (one entry per token of the row, ``[n, ...]``), padded
        with ``fill``.

        Raises:
            ConfigError: there are fewer values than tokens.
        """
        values = np.asarray(values)
        tokens = int(self.token.max(initial=-1)) + 1
        if values.ndim == 0 or len(values) < tokens:  # further values are the row's own padding
            raise ConfigError(
                f"must be one for each of the row's {tokens} tokens",
                field="values",
                value=len(np.atleast_1d(values)),
            )
        padded = np.concatenate([values, np.full_like(values, fill, shape=(1, *values.shape[1:]))])
        return padded[self.token]


def zigzag(lengths: Int64[np.ndarray, " d"], ranks: int) -> ContextSplit:
    """Splits each document of a row into two chunks per rank: the r-th from the front and the r-th
    from the back.

    Documents are padded to 2 x ``ranks`` equal chunks.

    Args:
        lengths: Tokens of each document of the row, in order.
        ranks: Context-parallel ranks.

    Raises:
        ConfigError: no rank, or lengths that are not non-negative integers.

    Example:
        >>> zigzag(np.array([10]), 2).take(np.arange(1, 11)).tolist()
        [[1, 2, 3, 10, 0, 0], [4, 5, 6, 7, 8, 9]]
    """
    lengths = checked_tokens(lengths, "lengths")
    ranks = checked_count("ranks", ranks)
    chunk = -(-lengths // (2 * ranks))
    first = np.cumsum(lengths) - lengths
    chunk_tokens = 2 * chunk
    document = np.repeat(np.arange(lengths.size), chunk_tokens)
    offset = np.arange(document.size) - np.repeat(
        np.cumsum(chunk_tokens) - chunk_tokens, chunk_tokens
    )
    size = chunk[document]
    rank = np.arange(ranks)[:, None]
    number = np.where(offset < size, rank, 2 * ranks - 1 - rank)
    token = number * size + np.where(offset < size, offset, offset - size)
    return ContextSplit(
        np.where(token < lengths[document], first[document] + token, -1), chunk_tokens
    )


def striped(length: int, ranks: int) -> ContextSplit:
    """Deals out the tokens of a row one by one: token t to rank ``t % ranks``.

    Raises:
        ConfigError: no rank, or a length that is not a non-negative integer.

    Example:
        >>> striped(5, 2).token.tolist()
        [[0, 2, 4], [1, 3, -1]]
    """
    length = checked_count("length", length, 0)
    ranks = checked_count("ranks", ranks)
    each = -(-length // ranks)
    token = np.arange(each)[None, :] * ranks + np.arange(ranks)[:, None]
    return ContextSplit(np.where(token < length, token, -1), np.array([each], np.int64))


class ContextBatch(NamedTuple):
    """A batch laid out as context-parallel ranks hold it: a contiguous slice of a row is one rank's
    part.

    As a token's neighbours are elsewhere, labels and positions are stored: attention follows from
    ``position_ids`` and ``segment_ids`` (a token attends to those of its segment up to its own
    position). Losses accept it like whole rows, with the denominators ``weights``, ``tokens`` and
    numbers.

    Attributes:
        tokens: Token ids.
        labels: The token that follows in the row.
        position_ids: Position within the segment.
        segment_ids: Number of the segment in its row; -1 in padding.
        token_weights: Weight of each label's loss.
        extras: Columns by name.
        label_mask: Which labels are trained on.
        label_extras: Columns by name, beside the labels.
    """

    tokens: Int32[Any, "B S"]
    labels: Int32[Any, "B S"]
    position_ids: Int32[Any, "B S"]
    segment_ids: Int32[Any, "B S"]
    token_weights: Float32[Any, "B S"]
    extras: dict[str, Any]
    label_mask: Bool[Any, "B S"]
    label_extras: dict[str, Any]

    def of_labels(self, name: str) -> Shaped[Any, "B S ..."]:
        """A column beside the labels; see
        :meth:`~headrace.batch.packed_batch.PackedBatch.of_labels`.

        Raises:
            ConfigError: there is no such column.
        """
        check_choice("extras", name, self.label_extras, "is no column of the batch")
        return self.label_extras[name]


SequenceLayout: TypeAlias = Literal["contiguous", "zigzag", "striped"]


def sequence_layout(
    layout: SequenceLayout, ranks: int, seq_lens: Sequence[int] = ()
) -> tuple[Callable[[PackedBatch], ContextBatch], ...]:
    """The function that lays out rows over ``ranks``; none if contiguous slices are right already.

    Zig-zag splits whole rows, whatever documents they hold, into 2 x ``ranks`` chunks.

    Raises:
        ConfigError: no such layout; no axis to lay rows out over; ``seq_lens`` that do not divide.

    Example:
        >>> from headrace.batch import pack_rows
        >>> [lay_out] = sequence_layout("zigzag", 2)
        >>> lay_out(pack_rows(np.arange(8)[None])).tokens.tolist()
        [[0, 1, 6, 7, 2, 3, 4, 5]]
    """
    check_choice("sequence_layout", layout, get_args(SequenceLayout))
    if layout == "contiguous":
        return ()
    if ranks < 2:
        cure = 'Give sharding=NamedSharding(mesh, PartitionSpec("data", "context")).'
        raise ConfigError(
            "needs a sharding that splits sequences",
            field="sequence_layout",
            value=layout,
            cure=cure,
        )
    chunks = 2 * ranks if layout == "zigzag" else ranks
    for length in seq_lens:
        if length % chunks:
            cure = f"Use {-(-length // chunks) * chunks}, or sequence_layout='striped'."
            raise ConfigError(
                f"does not divide into {chunks} chunks", field="seq_len", value=length, cure=cure
            )

    def lay_out(batch: PackedBatch) -> ContextBatch:
        split = (
            zigzag(np.array([batch.seq_len]), ranks)
            if layout == "zigzag"
            else striped(batch.seq_len, ranks)
        )
        column = split.token.reshape(-1)
        names = ("tokens", "labels", "position_ids", "segment_ids", "token_weights", "label_mask")
        values = {name: np.asarray(getattr(batch, name))[:, column] for name in names}
        extras = {name: np.asarray(leaf)[:, column] for name, leaf in (batch.extras or {}).items()}
        of_labels = {name: np.asarray(batch.of_labels(name))[:, column] for name in extras}
        return ContextBatch(**values, extras=extras, label_extras=of_labels)

    return (lay_out,)


def attention_work(
    split: ContextSplit, lengths: Int64[np.ndarray, " d"]
) -> Int64[np.ndarray, " R"]:
    """Number of token pairs in causal attention within documents, by rank.

    Raises:
        ConfigError: the documents have more or fewer tokens than the row that was split.

    Example:
        >>> attention_work(zigzag(np.array([8]), 2), np.array([8])).tolist()
        [18, 18]
    """
    lengths = checked_tokens(lengths, "lengths")
    tokens = int((split.token >= 0).sum())
    if int(lengths.sum()) != tokens:
        raise ConfigError(
            f"are not those of the {tokens} tokens that were split",
            field="lengths",
            value=int(lengths.sum()),
            cure="Give the lengths of this row's documents.",
        )
    position = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return split.take(position + 1).sum(axis=1)
