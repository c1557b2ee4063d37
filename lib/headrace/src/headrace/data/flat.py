"""Other shapes of a :class:`~headrace.data.batch.PackedBatch`: all leaves written out, or one flat sequence.

Both are derived from the batch (``expand()``, ``flatten()``): segment ids, positions and ``cu_seqlens`` come from one
source. Every expanded batch of one shape has the same structure, whatever it was made for: one compiled training
step serves them all.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float32, Int32

from headrace.errors import ConfigError


class ExpandedBatch(eqx.Module):
    """B rows of S tokens with everything that a training step reads, as arrays; see ``PackedBatch`` for each.

    Attributes:
        tokens: Token ids.
        labels: The token that follows.
        position_ids: Position within the segment.
        segment_ids: Number of the segment within its row; -1 in padding.
        cu_seqlens: Where each row's segments begin.
        token_weights: Weight of each label's loss.
        label_mask: Which labels are trained on, whatever their weight.
        segment_groups: Group of each range of ``cu_seqlens``.
    """

    tokens: Int32[Any, "B S"]
    labels: Int32[Any, "B S"]
    position_ids: Int32[Any, "B S"]
    segment_ids: Int32[Any, "B S"]
    cu_seqlens: Int32[Any, "B M1"]
    token_weights: Float32[Any, "B S"]
    label_mask: Bool[Any, "B S"]
    segment_groups: Int32[Any, "B M"]


class FlatBatch(eqx.Module):
    """T tokens of n segments end to end; nanomoe's form once it is compact.

    Segment k is ``tokens[cu_seqlens[k]:cu_seqlens[k + 1]]``; weight i multiplies the loss of label i.

    Attributes:
        tokens: Token ids.
        labels: The token that follows; 0 at the end of a segment.
        position_ids: Position within the segment.
        segment_ids: Number of the segment within the row that it came from; -1 in padding.
        cu_seqlens: Where segments begin, and T.
        token_weights: Weight of each label's loss.
        log_probs: Log probability of each label under the policy that sampled it, or None.
    """

    tokens: Int32[Any, " T"]
    labels: Int32[Any, " T"]
    position_ids: Int32[Any, " T"]
    segment_ids: Int32[Any, " T"]
    cu_seqlens: Int32[Any, " n1"]
    token_weights: Float32[Any, " T"]
    log_probs: Float32[Any, " T"] | None = None

    def compact(self) -> FlatBatch:
        """Without padding and without empty ranges, on the host.

        Raises:
            ConfigError: the arrays are on a device, where shapes must not depend on values.
        """
        if not isinstance(self.tokens, np.ndarray):
            raise ConfigError(
                "lies on a device", field="batch", value=type(self.tokens).__name__, cure="Flatten it on the host."
            )
        kept = self.segment_ids >= 0
        at = np.concatenate([[0], np.cumsum(kept)])[self.cu_seqlens]
        held = {name: getattr(self, name)[kept] for name in _PER_TOKEN}
        bounds = np.unique(at).astype(np.int32) if kept.any() else np.zeros(1, np.int32)
        taken = None if self.log_probs is None else self.log_probs[kept]
        return FlatBatch(**held, cu_seqlens=bounds, log_probs=taken)

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest segment, padding included; on the host."""
        return int(np.diff(np.asarray(self.cu_seqlens)).max(initial=0))


_PER_TOKEN = ("tokens", "labels", "position_ids", "segment_ids", "token_weights")
