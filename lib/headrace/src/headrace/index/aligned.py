"""Whole blocks first: numbers the rows of a store of several parts so that blocks of rows never lie across two parts.

A shuffle works on blocks of ``b`` consecutive rows. If a part does not hold a multiple of ``b`` rows, every block after
it would straddle two stored chunks and each chunk would be read twice. ``BlockAligned`` therefore numbers the full
blocks of all parts first and the short tails of the parts after them; compose a shuffle with it and each block is one
chunk again.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.index.remap import IndexMap


class BlockAligned(IndexMap):
    """Bijection that lists full blocks of all parts, in order, then the tails of all parts, in order.

    Args:
        part_rows: Rows of each part.
        block: Rows of a block.

    Raises:
        ConfigError: ``block`` below 1.

    Example:
        >>> BlockAligned(np.array([5, 3]), 2)(np.arange(8)).tolist()
        [0, 1, 2, 3, 5, 6, 4, 7]
    """

    bijective = True

    def __init__(self, part_rows: Int64[np.ndarray, " p"], block: int) -> None:
        part_rows = np.asarray(part_rows, np.int64)
        super().__init__(int(part_rows.sum()), int(part_rows.sum()))
        if block < 1:
            raise ConfigError("must be at least 1", field="io_block_size", value=block, cure="Count in examples.")
        self.block = block
        full = part_rows // block * block
        self._part_start = np.cumsum(part_rows) - part_rows
        self._full_start = np.cumsum(full) - full
        self._full = full
        self._tail_start = np.cumsum(part_rows - full) - (part_rows - full)
        self._full_total = int(full.sum())

    @property
    def described(self) -> tuple[str, ...]:
        return ("length", "block")  # the rows of the parts follow from the cache, which has a fingerprint of its own

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        if self._part_start.size <= 1:
            return i
        # searchsorted "right" minus one skips parts without a full block, or without a tail
        part = np.searchsorted(self._full_start, i, side="right") - 1
        tail = i - self._full_total
        tail_part = np.searchsorted(self._tail_start, tail, side="right") - 1
        in_full = self._part_start[part] + (i - self._full_start[part])
        in_tail = self._part_start[tail_part] + self._full[tail_part] + (tail - self._tail_start[tail_part])
        return np.where(i < self._full_total, in_full, in_tail)
