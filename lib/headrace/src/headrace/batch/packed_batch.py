"""``PackedBatch``: the one contract between data and training (seed 002).

``token_weights[b, i]`` multiplies the loss of predicting ``labels[b, i]`` from position i. The last
position of each segment and all padding have weight 0, and no label crosses a segment: labels,
positions and weights are derived from tokens and segments, so they always agree with them.

A batch holds, and transfers to devices, only what cannot be derived: token ids in the narrowest
dtype and a few numbers per row. Everything else is a property; in a jitted training step it costs
no transfer and fuses with its consumer, in the batch's own sharding. Outside jit it is computed
where the tokens are: by numpy on the host, by jax on devices. ``expand()`` and ``flatten()``
materialise all of it; expanded batches of one shape have one structure, whatever they were made
for, so one compiled training step handles them all.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Bool, Float32, Int32, Integer, Num, Shaped, UInt8

from headrace.batch.along_rows import (
    begins_and_end,
    count_starts,
    latest,
    segment_starts,
    shifted,
    unpacked_bits,
    with_auto_axes,
)
from headrace.errors import ConfigError, check_choice

T = TypeVar("T")


class ExpandedBatch(eqx.Module):
    """B rows of S tokens with everything a training step reads, as arrays; see :class:`PackedBatch`
    for each.
    """

    tokens: Int32[Any, "B S"]
    labels: Int32[Any, "B S"]
    position_ids: Int32[Any, "B S"]
    segment_ids: Int32[Any, "B S"]
    cu_seqlens: Int32[Any, "B M1"]
    token_weights: Float32[Any, "B S"]
    label_mask: Bool[Any, "B S"]
    segment_groups: Int32[Any, "B M"]
    extras: dict[str, Any] | None = None


class FlatBatch(eqx.Module):
    """T tokens of n segments, concatenated; nanomoe's form once compacted.

    Segment k is ``tokens[cu_seqlens[k]:cu_seqlens[k + 1]]``; weight i multiplies the loss of label
    i.

    Attributes:
        tokens: Token ids.
        labels: The token that follows; 0 at the end of a segment.
        position_ids: Position within the segment.
        segment_ids: Number of the segment within the row that it came from; -1 in padding.
        cu_seqlens: Where segments begin, and T.
        token_weights: Weight of each label's loss.
        log_probs: Log probability of each label under the policy that sampled it, or None.
        extras: Further per-token leaves, each ``[T, ...]``; None: there are none.
    """

    tokens: Int32[Any, " T"]
    labels: Int32[Any, " T"]
    position_ids: Int32[Any, " T"]
    segment_ids: Int32[Any, " T"]
    cu_seqlens: Int32[Any, " n1"]
    token_weights: Float32[Any, " T"]
    log_probs: Float32[Any, " T"] | None = None
    extras: dict[str, Any] | None = None

    def compact(self) -> FlatBatch:
        """Removes padding and empty ranges, on the host.

        Raises:
            ConfigError: the arrays are on a device, where shapes must not depend on values.
        """
        if not isinstance(self.tokens, np.ndarray):
            raise ConfigError(
                "lies on a device",
                field="batch",
                value=type(self.tokens).__name__,
                cure="Flatten it on the host.",
            )
        is_token = self.segment_ids >= 0
        bounds = np.unique(np.concatenate([[0], np.cumsum(is_token)])[self.cu_seqlens]).astype(
            np.int32
        )
        of_tokens = replace(self, cu_seqlens=self.segment_ids)  # so that every leaf is per token
        return replace(jax.tree.map(lambda leaf: leaf[is_token], of_tokens), cu_seqlens=bounds)

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest segment, padding included; on the host."""
        return int(np.diff(np.asarray(self.cu_seqlens)).max(initial=0))


class PackedBatch(eqx.Module):
    """B rows of S tokens; each row is one or more segments (documents), concatenated.

    Attributes:
        token_ids: Token ids as stored, of any integer dtype. Use :attr:`tokens`.
        source_id: Number of the source of each row; -1 for rows that only fill up the batch.
        log_probs: Log probability of each label under the policy that sampled it (RL), or None.
        rewards: One reward per segment (RL), or None.
        segment_lengths: Tokens of each row's segments, zeros after the last; the rest of the row is
            padding. None: rows are full, and ``document_ends`` or ``eos_id`` says where segments
            end.
        document_ends: Where segments of full rows end, a bit for each token: bit ``i % 8`` of byte
            ``i // 8`` is 1 if a document ends after token i. None: see ``eos_id``.
        eos_id: The token that ends documents. Without ``document_ends``, a segment ends after each
            of these tokens, and each row is one segment if it is None. Static under jit.
        loss_mask: Which labels are trained on, as far as segments allow (RL, and SFT of examples);
            None: all. Position i is about token i + 1; for a mask of tokens, as in caches, see
            ``token_mask``.
        weights: Weight of each label (RL: its advantage), or ``[B, 1]``, one for each row (its
            source's); None: 1. Ignored where a label is not trained on.
        group_ids: Group of each segment (RL: the prompt; preference: the pair), any numbers; None:
            each its own.
        policy_version: Version of the policy that sampled each label (RL), or None.
        token_mask: Which tokens are trained on, as caches store it (SFT): the label of a position
            counts if the token after it does. Float values are weights as well: they weight the
            label's loss, and a label with weight 0 is not trained on. None: all.
        pairs: Whether the segments of each row alternate between chosen and rejected: rejected ones
            weigh -1, and the two of a pair are one group. Static under jit.
        extras: Further leaves, each ``[B, S, ...]``, one entry per token: columns of caches, or
            where pictures go. Carried unchanged; :meth:`of_labels` aligns them with labels.

    Example:
        >>> batch = pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0)
        >>> batch.labels.tolist(), batch.token_weights.tolist()
        ([[6, 0, 0, 0]], [[1.0, 1.0, 0.0, 0.0]])
        >>> batch.segment_ids.tolist(), batch.position_ids.tolist(), batch.cu_seqlens.tolist()
        ([[0, 0, 0, 1]], [[0, 1, 2, 0]], [[0, 3, 4, 4, 4]])
    """

    token_ids: Integer[Any, "B S"]
    source_id: Int32[Any, " B"]
    log_probs: Float32[Any, "B S"] | None = None
    rewards: Float32[Any, "B M"] | None = None
    segment_lengths: Int32[Any, "B M"] | None = None
    document_ends: UInt8[Any, "B W"] | None = None
    eos_id: int | None = eqx.field(static=True, default=None)
    loss_mask: Integer[Any, "B S"] | None = None
    weights: Float32[Any, "B S1"] | None = None
    group_ids: Int32[Any, "B M"] | None = None
    policy_version: Int32[Any, "B S"] | None = None
    token_mask: Num[Any, "B S"] | None = None
    pairs: bool = eqx.field(static=True, default=False)
    extras: dict[str, Any] | None = None

    def __check_init__(self) -> None:
        if getattr(self.source_id, "dtype", None) == np.bool_:
            raise ConfigError(
                "are truth values, not numbers",
                field="source_id",
                cure="Rows that only fill up have source -1.",
            )

    @property
    def batch_size(self) -> int:
        """Rows of the batch, padding included."""
        return int(self.token_ids.shape[0])

    @property
    def seq_len(self) -> int:
        """Tokens in a row."""
        return int(self.token_ids.shape[1])

    @property
    def valid(self) -> Bool[Any, " B"]:
        """False for rows that only fill up the batch, as in the last batch of a finite dataset."""
        return self.source_id >= 0

    @property
    def tokens(self) -> Int32[Any, "B S"]:
        """Token ids."""
        return self.token_ids.astype(np.int32)

    @property
    def labels(self) -> Int32[Any, "B S"]:
        """The token that follows; 0 at the end of a segment."""
        return self._ahead(self.tokens, 1)

    def of_labels(self, name: str) -> Shaped[Any, "B S ..."]:
        """A leaf of ``extras`` aligned with labels: position i holds the entry of token i + 1; 0 at
        a segment's end.

        Raises:
            ConfigError: no such leaf.

        Example:
            >>> batch = pack_rows(
            ...     np.array([[5, 6, 7]]), extras={"score": np.array([[0.1, 0.2, 0.3]], np.float32)}
            ... )
            >>> batch.of_labels("score").round(1).tolist()
            [[0.20000000298023224, 0.30000001192092896, 0.0]]
        """
        check_choice("extras", name, self.extras or {}, "is no column of the batch")
        return self._ahead((self.extras or {})[name], 1)

    def next_labels(self, count: int) -> Int32[Any, "B S n"]:
        """The next ``count`` tokens of the segment at each position, for multi-token prediction; 0
        past its end.

        Derived where the batch is stored; :meth:`next_weights` gives the loss weights.

        Example:
            >>> pack_rows(np.array([[5, 6, 7]])).next_labels(2).tolist()
            [[[6, 7], [7, 0], [0, 0]]]
        """
        return self._xp.stack(
            [self._ahead(self.tokens, distance) for distance in range(1, count + 1)], axis=-1
        )

    def next_weights(self, count: int) -> Float32[Any, "B S n"]:
        """Loss weights of :meth:`next_labels`: each token's own weight as a next token.

        Example:
            >>> pack_rows(np.array([[5, 6, 7]])).next_weights(2).tolist()
            [[[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]]
        """
        weights = self.token_weights
        further = [self._ahead(weights, distance) for distance in range(1, count)]
        return self._xp.stack([weights, *further], axis=-1)

    def _ahead(self, values: Any, distance: int) -> Any:
        """The value this many positions ahead, within the segment; 0 elsewhere."""
        ends = self._ends
        for back in range(1, distance):
            ends = ends | shifted(self._ends, -back, True)
        ends = ends.reshape(*ends.shape, *[1] * (values.ndim - 2))
        return self._xp.where(ends, np.zeros((), values.dtype), shifted(values, -distance, 0))

    @property
    def label_mask(self) -> Bool[Any, "B S"]:
        """Which labels are trained on: none at the end of a segment or in padding, otherwise as the
        masks tell.
        """
        trained = ~self._ends & self.valid[:, None]
        if self.segment_lengths is not None:
            trained = trained & ~self._padding
        if self.token_mask is not None:
            trained = trained & (shifted(self.token_mask, -1, 0) != 0)
        return trained if self.loss_mask is None else trained & (self.loss_mask != 0)

    @property
    def token_weights(self) -> Float32[Any, "B S"]:
        """Loss weight of each label: ``weights`` (or 1) times ``token_mask``, negated in rejected
        segments of ``pairs``; 0 where a label is not trained on.
        """
        has_weights = self.token_mask is not None and jnp.issubdtype(
            self.token_mask.dtype, jnp.floating
        )
        if self.weights is None and not self.pairs and not has_weights:
            return self.label_mask.astype(np.float32)
        weights = np.float32(1) if self.weights is None else self.weights
        if has_weights:
            weights = weights * shifted(self.token_mask, -1, 0)
        if self.pairs:
            weights = self._xp.where(self.segment_ids % 2 == 0, weights, -weights)
        return self._xp.where(self.label_mask, weights, np.float32(0)).astype(np.float32)

    @property
    def position_ids(self) -> Int32[Any, "B S"]:
        """Position within the segment, from 0."""
        position = self._positions
        return position - latest(self._xp.where(self._starts, position, 0))

    @property
    def segment_ids(self) -> Int32[Any, "B S"]:
        """Number of the segment within its row, from 0; -1 in padding."""
        number = count_starts(self._starts) - 1
        return number if self.segment_lengths is None else self._xp.where(self._padding, -1, number)

    @property
    def cu_seqlens(self) -> Int32[Any, "B M1"]:
        """Where segments begin: row b's segment k is ``tokens[b, cu_seqlens[b, k]:cu_seqlens[b, k +
        1]]``.

        Entries past the last segment are S, so one more range covers the padding. M is 1 if each
        row is one segment; one more than the width of ``segment_lengths``, if given; otherwise S,
        the maximum.
        """
        xp = self._xp
        length = self.seq_len
        if self.segment_lengths is not None:
            ends = xp.where(
                self.segment_lengths > 0, xp.cumsum(self.segment_lengths, axis=1), length
            )
            # sharded as these are
            first = xp.zeros_like(ends[:, :1])
            last = xp.full_like(ends[:, :1], length)
            return xp.concatenate([first, ends, last], axis=1).astype(np.int32)
        if not self.is_divided:
            return (self._zeros + xp.asarray([0, length], dtype=np.int32)).astype(np.int32)
        begins = xp.where(self._starts, self._positions, length)
        if xp is np:
            return begins_and_end(begins)
        return with_auto_axes(begins_and_end, begins, out=lambda spec: PartitionSpec(*spec[:1]))

    @property
    def segment_groups(self) -> Int32[Any, "B M"]:
        """Group of each range of ``cu_seqlens``: ``group_ids``; without them, each pair or range is
        its own group.
        """
        rows = self.token_ids.shape[0]
        ranges = self.cu_seqlens.shape[1] - 1
        if self.group_ids is None:
            size = 2 if self.pairs else 1
            first = (
                -(-ranges // size) * self._xp.arange(rows, dtype=np.int32)[:, None] + self._zeros
            )
            return first + self._xp.arange(ranges, dtype=np.int32) // size
        spare = ranges - self.group_ids.shape[1]  # padding is not trained on: any group will do
        return self._xp.pad(self.group_ids, ((0, 0), (0, spare)))

    def expand(self) -> ExpandedBatch:
        """Everything derived, as arrays; if the tokens are on devices, there and in the batch's
        sharding.

        Example:
            >>> pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0).expand().labels.tolist()
            [[6, 0, 0, 0]]
        """
        return ExpandedBatch(
            self.tokens,
            self.labels,
            self.position_ids,
            self.segment_ids,
            self.cu_seqlens,
            self.token_weights,
            self.label_mask,
            self.segment_groups,
            self.extras,
        )

    def flatten(self) -> FlatBatch:
        """The batch as one sequence of T = B x S tokens with one ``cu_seqlens``, for
        variable-length kernels.

        Its shape depends only on the batch's shape, so it works under jit: unused ranges are empty,
        and padding is a range of its own. :meth:`FlatBatch.compact` removes both, on the host.

        Example:
            >>> flat = pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0).flatten()
            >>> flat.cu_seqlens.tolist(), flat.compact().cu_seqlens.tolist()
            ([0, 3, 4, 4, 4], [0, 3, 4])
        """
        if self._xp is np:
            return self._flat()

        def shardings(spec: PartitionSpec) -> FlatBatch:
            tokens = PartitionSpec(*spec[:1])
            logged = None if self.log_probs is None else tokens
            extras = self.extras and dict.fromkeys(self.extras, tokens)
            return FlatBatch(
                tokens, tokens, tokens, tokens, PartitionSpec(), tokens, logged, extras
            )

        return with_auto_axes(PackedBatch._flat, self, out=shardings)

    def _flat(self) -> FlatBatch:
        xp = self._xp
        (rows, length) = self.token_ids.shape
        begins = self.cu_seqlens[:, :-1] + length * xp.arange(rows, dtype=np.int32)[:, None]
        end = xp.full(1, rows * length, np.int32)
        return FlatBatch(
            *(
                getattr(self, name).reshape(-1)
                for name in ("tokens", "labels", "position_ids", "segment_ids")
            ),
            cu_seqlens=xp.concatenate([begins.reshape(-1), end]).astype(np.int32),
            token_weights=self.token_weights.reshape(-1),
            log_probs=None if self.log_probs is None else self.log_probs.reshape(-1),
            extras=self.extras
            and {n: leaf.reshape(-1, *leaf.shape[2:]) for n, leaf in self.extras.items()},
        )

    @property
    def _xp(self) -> ModuleType:
        return np if isinstance(self.token_ids, np.ndarray) else jnp

    @property
    def _positions(self) -> Int32[Any, "B S"]:
        positions = self._xp.arange(self.seq_len, dtype=np.int32)
        if self._xp is np:
            return np.broadcast_to(positions, self.token_ids.shape)
        return positions + self.tokens * 0  # sharded like these; the compiler removes the product

    @property
    def _zeros(self) -> Int32[Any, "B 1"]:
        """A zero per row, sharded like the rows."""
        return self.source_id[:, None] * 0

    @property
    def _padding(self) -> Bool[Any, "B S"]:
        assert self.segment_lengths is not None
        return self._positions >= self.segment_lengths.sum(axis=1)[:, None]

    @property
    def is_divided(self) -> bool:
        """Whether rows may have more than one segment."""
        return any(
            one is not None for one in (self.segment_lengths, self.document_ends, self.eos_id)
        )

    @property
    def _starts(self) -> Bool[Any, "B S"]:
        if self.segment_lengths is not None:
            return segment_starts(self._xp, self.segment_lengths, self.seq_len)
        if self.document_ends is not None:
            return shifted(unpacked_bits(self.token_ids, self.document_ends), 1, True)
        if self.eos_id is None:
            return self._positions == 0
        return shifted(self.token_ids == self.eos_id, 1, True)

    @property
    def _ends(self) -> Bool[Any, "B S"]:
        if not self.is_divided:
            return self._positions == self.seq_len - 1
        return shifted(self._starts, -1, True)


def pack_rows(
    token_ids: Integer[np.ndarray, "B S"],
    source_id: Int32[np.ndarray, " B"] | None = None,
    eos_id: int | None = None,
    segment_lengths: Int32[np.ndarray, "B M"] | None = None,
    token_mask: Num[np.ndarray, "B S"] | None = None,
    pairs: bool = False,
    extras: dict[str, np.ndarray] | None = None,
    document_ends: UInt8[np.ndarray, "B W"] | None = None,
) -> PackedBatch:
    """A batch whose rows all hold data, on the host. Arguments are its attributes; ``source_id``
    defaults to 0.
    """
    rows = token_ids.shape[0]
    return PackedBatch(
        token_ids=token_ids,
        source_id=np.zeros(rows, np.int32) if source_id is None else source_id,
        segment_lengths=segment_lengths,
        document_ends=document_ends,
        eos_id=eos_id,
        token_mask=token_mask,
        pairs=pairs,
        extras=extras,
    )
