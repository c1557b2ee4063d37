"""``PackedBatch``: the one contract between data and training (seed 002).

``token_weights[b, i]`` multiplies the loss of predicting ``labels[b, i]`` from position i. The last position of each
segment and all padding weigh 0, and no label crosses a segment: labels, positions and weights are derived from tokens
and segments, so they cannot disagree with them.

A batch holds, and sends to the devices, only what cannot be derived: token ids in the narrowest dtype and a few
numbers a row. The rest are properties; used inside a jitted training step they cost nothing to move and fuse with what
uses them, in the batch's own sharding. Outside jit they are computed where the tokens are: numpy on the host, jax on
devices.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Int32, Integer


class PackedBatch(eqx.Module):
    """B rows of S tokens, each row one or more segments (documents) end to end.

    Attributes:
        token_ids: Token ids as stored, of any integer dtype. Use :attr:`tokens`.
        valid: False for rows that only fill up the last batch of a finite dataset.
        source_id: Number of the source that each row came from.
        log_probs: Log probabilities under the policy that sampled the tokens (RL), or None.
        rewards: One reward a row (RL), or None.
        eos_id: A segment ends after each of these tokens; None: each row is one segment. Static under jit.

    Example:
        >>> batch = pack_rows(np.array([[5, 6, 0, 8]], np.uint16), eos_id=0)
        >>> batch.labels.tolist(), batch.token_weights.tolist()
        ([[6, 0, 0, 0]], [[1.0, 1.0, 0.0, 0.0]])
        >>> batch.segment_ids.tolist(), batch.position_ids.tolist(), batch.cu_seqlens.tolist()
        ([[0, 0, 0, 1]], [[0, 1, 2, 0]], [[0, 3, 4, 4, 4]])
    """

    token_ids: Integer[Any, "B S"]
    valid: Bool[Any, " B"]
    source_id: Int32[Any, " B"]
    log_probs: Float32[Any, "B S"] | None = None
    rewards: Float32[Any, " B"] | None = None
    eos_id: int | None = eqx.field(static=True, default=None)

    @property
    def batch_size(self) -> int:
        """Rows of the batch, padding included."""
        return int(self.token_ids.shape[0])

    @property
    def seq_len(self) -> int:
        """Tokens in a row."""
        return int(self.token_ids.shape[1])

    @property
    def tokens(self) -> Int32[Any, "B S"]:
        """Token ids."""
        return self.token_ids.astype(np.int32)

    @property
    def labels(self) -> Int32[Any, "B S"]:
        """The token that follows; 0 at the end of a segment."""
        xp, tokens = self._xp, self.tokens
        following = xp.concatenate([tokens[:, 1:], xp.zeros_like(tokens[:, :1])], axis=1)
        return xp.where(self._ends, 0, following)

    @property
    def token_weights(self) -> Float32[Any, "B S"]:
        """Loss weight of each label: 1, but 0 at the end of a segment and in padding."""
        return (~self._ends & self.valid[:, None]).astype(np.float32)

    @property
    def position_ids(self) -> Int32[Any, "B S"]:
        """Position within the segment, from 0."""
        xp, position = self._xp, self._positions
        begun = xp.where(self._starts, position, 0)
        return position - (np.maximum.accumulate(begun, axis=1) if xp is np else jax.lax.cummax(begun, axis=1))

    @property
    def segment_ids(self) -> Int32[Any, "B S"]:
        """Number of the segment within its row, from 0."""
        return self._xp.cumsum(self._starts, axis=1, dtype=np.int32) - 1

    @property
    def cu_seqlens(self) -> Int32[Any, "B M1"]:
        """Where segments begin: row b's segment k is ``tokens[b, cu_seqlens[b, k]:cu_seqlens[b, k + 1]]``.

        Entries past the last segment are S. M is 1 where each row is one segment, else S, the most that there can be.
        """
        xp, (rows, length) = self._xp, self.token_ids.shape
        if self.eos_id is None:
            return xp.broadcast_to(xp.asarray([0, length], dtype=np.int32), (rows, 2))
        begins = xp.sort(xp.where(self._starts, self._positions, length), axis=1)
        return xp.concatenate([begins, xp.full((rows, 1), length, np.int32)], axis=1).astype(np.int32)

    @property
    def _xp(self) -> ModuleType:
        return np if isinstance(self.token_ids, np.ndarray) else jnp

    @property
    def _positions(self) -> Int32[Any, "B S"]:
        return self._xp.broadcast_to(self._xp.arange(self.seq_len, dtype=np.int32), self.token_ids.shape)

    @property
    def _starts(self) -> Bool[Any, "B S"]:
        if self.eos_id is None:
            return self._positions == 0
        first = self._xp.ones_like(self.token_ids[:, :1], dtype=bool)
        return self._xp.concatenate([first, self.token_ids[:, :-1] == self.eos_id], axis=1)

    @property
    def _ends(self) -> Bool[Any, "B S"]:
        if self.eos_id is None:
            return self._positions == self.seq_len - 1
        last = self._xp.ones_like(self.token_ids[:, :1], dtype=bool)
        return self._xp.concatenate([self.token_ids[:, :-1] == self.eos_id, last], axis=1)


def pack_rows(
    token_ids: Integer[np.ndarray, "B S"],
    source_id: Int32[np.ndarray, " B"] | None = None,
    eos_id: int | None = None,
) -> PackedBatch:
    """A batch of full rows on the host.

    Args:
        token_ids: The rows.
        source_id: Source of each row; None: 0.
        eos_id: See :class:`PackedBatch`.
    """
    rows = token_ids.shape[0]
    return PackedBatch(
        token_ids=token_ids,
        valid=np.ones(rows, bool),
        source_id=np.zeros(rows, np.int32) if source_id is None else source_id,
        eos_id=eos_id,
    )
