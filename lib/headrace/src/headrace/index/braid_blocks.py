"""The blocks of a braid in an epoch: full ones in keyed order, each with rows turned in a way of its own.

Price: 0.06 us a block, once an epoch where a table is worth it; else once for each row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt64

from headrace.index.braid_spec import BraidSpec
from headrace.index.permutation import permute
from headrace.index.seeds import fold

# What a child key is for; vectors, as in braid
BLOCK, _INSIDE = (np.array([k], np.uint64) for k in (2, 3))
_ONE = np.uint64(1)
_MOST_PLACED = 1 << 16  # blocks of a table that is kept


class Placed(NamedTuple):
    """Where blocks of an epoch's sequence lie.

    Attributes:
        first: Physical row that each begins at.
        keyed: 64 bits each, which say how its rows are turned.
    """

    first: UInt64[np.ndarray, " m"]
    keyed: UInt64[np.ndarray, " m"]


def place_blocks(block: UInt64[np.ndarray, " m"], key: UInt64[np.ndarray, "*#m"], s: BraidSpec) -> Placed:
    """Where blocks lie in the epoch of a key. The partial block at the end stays there.

    Args:
        block: Their places in the epoch's sequence.
        key: Key of the epoch.
        s: Parameters of the braid.
    """
    within = np.minimum(block, s.full_blocks - _ONE).view(np.int64)
    outer = permute(within, s.full_blocks, fold(key, BLOCK)).view(np.uint64)
    first = np.where(block >= s.full_blocks, s.full_blocks, outer) * s.block
    return Placed(first, fold(fold(key, _INSIDE), block))


class PlacedBlocks:
    """Where the blocks of one braid lie in the epoch that is read: each is hashed once, and not for each of its rows.

    A table of at most 1 MiB, made when as many rows of the epoch have been asked for as it has entries, so that it pays
    whatever is asked. Threads that meet make it twice.
    """

    def __init__(self, spec: BraidSpec) -> None:
        self._spec = spec
        blocks = int(spec.full_blocks[0]) + bool(spec.tail[0])
        self.entries = blocks if blocks <= _MOST_PLACED else 0
        """Of the table, 16 bytes each; 0: there are too many blocks for one."""
        self._asked: tuple[int, int] = (-1, 0)  # key of the epoch; rows
        self._held: tuple[int, Placed] | None = None

    def of(self, key: np.ndarray, rows: int) -> Placed | None:
        """The table of the epoch of this key; None if it is not worth it (yet). ``rows`` are about to be mapped."""
        epoch, held = int(key[0]), self._held
        if held is not None and held[0] == epoch:
            return held[1]
        asked = rows + (self._asked[1] if self._asked[0] == epoch else 0)
        self._asked = (epoch, asked)
        if asked < self.entries or not self.entries:
            return None
        placed = place_blocks(np.arange(self.entries, dtype=np.uint64), key, self._spec)
        self._held = (epoch, placed)
        return placed
