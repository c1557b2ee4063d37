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
        self._placement, self._eos_id = placement, eos_id
        self._all_valid: dict[int, jax.Array] = {}

    def __call__(self, host: HostRows) -> PackedBatch:
        """The global batch. ``host.tokens`` belongs to it from now on."""
        return PackedBatch(
            token_ids=self._placement.to_global(host.tokens, host.batch_size),
            valid=self._valid(host.batch_size, host.num_valid),
            source_id=self._placement.to_global(host.source_id, host.batch_size),
            eos_id=self._eos_id,
        )

    def _valid(self, batch_size: int, num_valid: int) -> jax.Array:
        if num_valid < batch_size:
            return self._placement.to_global(self._placement.local_rows(batch_size) < num_valid, batch_size)
        if batch_size not in self._all_valid:  # the same array for every full batch
            everything = np.ones(self._placement.local_rows(batch_size).size, bool)
            self._all_valid[batch_size] = self._placement.to_global(everything, batch_size)
        return self._all_valid[batch_size]
