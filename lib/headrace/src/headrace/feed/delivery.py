"""From host rows to a sharded ``PackedBatch``: tokens in the store's dtype and a few numbers a row, nothing else.

No kernel runs here: what a training step needs beyond that is derived inside it (data/batch.py).
"""

from __future__ import annotations

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

    def __call__(self, host: HostRows) -> PackedBatch:
        """The global batch. ``host.tokens`` belongs to it from now on.

        No array is shared between batches: a training step may donate all that it is given.
        """
        local = self._placement.local_rows(host.batch_size)
        return PackedBatch(
            token_ids=self._placement.to_global(host.tokens, host.batch_size),
            valid=self._placement.to_global(local < host.num_valid, host.batch_size),
            source_id=self._placement.to_global(host.source_id, host.batch_size),
            eos_id=self._eos_id,
        )
