"""Hierarchical block shuffle: permute I/O blocks over the corpus, then examples within a window of blocks.

The order of seed 004 and of Levanter's ``BlockShufflingDataset`` (marin issue 2917). A window of ``window_blocks``
blocks is read and mixed together, so a reader touches each block once per epoch while its window is open. The partial
block at the end, if any, stays at the end, permuted within itself.

Quality reaches that of a full shuffle once ``window_blocks`` is about the batch size in examples.
Price: two permutations, about 0.1 us an index.
"""

from __future__ import annotations

import numpy as np

from headrace.errors import ConfigError
from headrace.index.intervals import Intervals
from headrace.index.permutation import permutation_family
from headrace.index.remap import IndexMap
from headrace.index.seeds import derive, derive_keys, fold


class BlockShuffle(IndexMap):
    """Permutes blocks of ``io_block_size`` examples, then examples within windows of ``window_blocks`` blocks.

    Args:
        n: Number of examples.
        io_block_size: Examples in a block; best equal to one stored chunk.
        window_blocks: Blocks that are mixed together.
        seed: Integer seed.
        perm_type: ``"feistel"`` or ``"linear"``.

    Raises:
        ConfigError: a size below 1, unknown ``perm_type``.

    Example:
        >>> m = BlockShuffle(100, io_block_size=8, window_blocks=3, seed=0)
        >>> sorted(m(np.arange(100)).tolist()) == list(range(100))
        True
    """

    bijective = True
    reorders = True

    def __init__(
        self, n: int, *, io_block_size: int, window_blocks: int, seed: int, perm_type: str = "feistel"
    ) -> None:
        super().__init__(n, n)
        for name, value in (("io_block_size", io_block_size), ("window_blocks", window_blocks)):
            if value < 1:
                raise ConfigError("must be at least 1", field=name, value=value, cure="Give a positive number.")
        self.io_block_size, self.window_blocks, self.seed = io_block_size, window_blocks, seed
        self.num_blocks = n // io_block_size
        self.perm_type = perm_type
        self._permute = permutation_family(perm_type)
        derive(seed)

    @property
    def described(self) -> tuple[str, ...]:
        return ("length", "io_block_size", "window_blocks", "seed", "perm_type")

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        size, full = self.io_block_size, self.num_blocks * self.io_block_size
        window_size = min(size * self.window_blocks, max(full, 1))
        tail = i >= full
        window = np.where(tail, -1, i // window_size)
        start = np.where(tail, full, window * window_size)
        stop = np.where(tail, self.length, np.minimum(start + window_size, full))
        window_key = fold(derive_keys(self.seed, "window", last=epoch), window.astype(np.uint64))
        virtual = start + self._permute(i - start, stop - start, window_key)
        if self.num_blocks == 0:
            return virtual
        block, place = np.divmod(np.minimum(virtual, full - 1), size)
        physical = self._permute(block, self.num_blocks, derive_keys(self.seed, "block", last=epoch)) * size + place
        return np.where(tail, virtual, physical)

    def touched_blocks(self, drawn: int, epoch: int) -> Intervals:
        """Blocks of the epoch's sequence that hold any of the rows at its first ``drawn`` positions, whole windows."""
        windows = -(-drawn // (self.io_block_size * self.window_blocks))
        return Intervals(np.zeros(1, np.int64), np.array([min(windows * self.window_blocks, self.num_blocks)]))

    def block_permutation(self, epoch: int) -> tuple[str, int, int]:
        """Family, length and key of the permutation of blocks."""
        return self.perm_type, self.num_blocks, int(derive_keys(self.seed, "block", last=np.array([epoch]))[0])
