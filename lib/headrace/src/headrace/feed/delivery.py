"""From host rows to a sharded ``PackedBatch``: tokens in the store's dtype and a few numbers a row, nothing else.

No kernel runs here: what a training step needs beyond that is derived inside it (data/batch.py).
"""

from __future__ import annotations

import jax
import numpy as np

from headrace.data.batch import PackedBatch
from headrace.feed.placement import Placement
from headrace.feed.reader import HostRows


class Delivery:
    """Hands host rows to the devices of a placement.

    Args:
        placement: Sharding of the batches.
        eos_id: Token after which a segment ends; None: each row is one segment.
        pairs: Whether segments are chosen and rejected in turn.
    """

    def __init__(self, placement: Placement, eos_id: int | None, pairs: bool) -> None:
        self._placement = placement
        # a Module's constructor costs as much as all transfers together
        leaf = np.zeros(0)
        self._structures = {
            (segmented, masked): jax.tree.structure(
                PackedBatch(
                    leaf,
                    leaf,
                    segment_lengths=leaf if segmented else None,
                    token_mask=leaf if masked else None,
                    eos_id=eos_id,
                    pairs=pairs,
                )
            )
            for segmented in (False, True)
            for masked in (False, True)
        }

    def __call__(self, host: HostRows) -> PackedBatch:
        """The global batch. ``host.tokens`` belongs to it from now on.

        No array is shared between batches: a training step may donate all that it is given.
        """
        place, size = self._placement.to_global, host.batch_size
        leaves = [place(host.tokens, size, seq_len=host.seq_len), place(host.source_id, size)]
        segmented, masked = host.segment_lengths is not None, host.token_mask is not None
        if host.segment_lengths is not None:
            leaves.append(place(host.segment_lengths, size, along_rows=True))
        if host.token_mask is not None:
            leaves.append(place(host.token_mask, size, seq_len=host.seq_len))
        return jax.tree.unflatten(self._structures[segmented, masked], leaves)
