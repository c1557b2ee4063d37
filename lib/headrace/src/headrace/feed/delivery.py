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
    """

    def __init__(self, placement: Placement, eos_id: int | None) -> None:
        self._placement = placement
        # a Module's constructor costs as much as all transfers together
        leaf = np.zeros(0)
        self._plain = jax.tree.structure(PackedBatch(leaf, leaf, eos_id=eos_id))
        self._segmented = jax.tree.structure(PackedBatch(leaf, leaf, segment_lengths=leaf, eos_id=eos_id))

    def __call__(self, host: HostRows) -> PackedBatch:
        """The global batch. ``host.tokens`` belongs to it from now on.

        No array is shared between batches: a training step may donate all that it is given.
        """
        place, size = self._placement.to_global, host.batch_size
        leaves = [place(host.tokens, size, seq_len=host.seq_len), place(host.source_id, size)]
        if host.segment_lengths is None:
            return jax.tree.unflatten(self._plain, leaves)
        leaves.append(place(host.segment_lengths, size, along_rows=True))
        return jax.tree.unflatten(self._segmented, leaves)
