"""Host buffers of batches, used again as soon as nobody can see them any more.

A fresh buffer costs a page fault for every 4 KiB, when it is written and again when it is given back: as much as
gathering a batch. A CPU device takes a host buffer over without a copy, so a buffer must not be written to while a
batch, or a computation that reads it, is alive. Whoever can see a buffer holds a reference to its memory (a view has it
as its base, XLA holds the view): no reference but the pool's own is the proof that it is free.

Price: one look at the reference counts of the pool's buffers a batch.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

ALIGNMENT = 64
"""XLA takes a host buffer as it is, without a copy, if it begins at a multiple of this."""
_SPARE = 2
"""Free buffers that are kept; what was needed at a peak goes back to the system."""


class Buffers:
    """A pool of buffers. For one thread; what it handed out may be dropped by any.

    Example:
        >>> buffers = Buffers()
        >>> first = buffers.take(2, 8, np.dtype(np.uint16))
        >>> at, second = first.ctypes.data, buffers.take(2, 8, np.dtype(np.uint16))
        >>> first.shape, at % 64, second.ctypes.data == at
        ((2, 8), 0, False)
        >>> del first
        >>> buffers.take(2, 8, np.dtype(np.uint16)).ctypes.data == at
        True
    """

    def __init__(self) -> None:
        self._memory: list[np.ndarray] = []
        self._size = 0

    def take(self, rows: int, row_elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """An array ``[rows, row_elements]``, not initialised, that nobody else can see."""
        size = rows * row_elements * dtype.itemsize
        memory = self._free(size)
        begin = -memory.ctypes.data % ALIGNMENT
        return memory[begin : begin + size].view(dtype).reshape(rows, row_elements)

    def _free(self, size: int) -> np.ndarray:
        if size != self._size:  # batches changed their size: the old buffers go as they are dropped
            self._memory.clear()
            self._size = size
        spare = [k for k in range(len(self._memory)) if sys.getrefcount(self._memory[k]) == _UNSEEN]
        for k in reversed(spare[_SPARE:]):
            del self._memory[k]
        if spare:
            return self._memory[spare[0]]
        memory = np.empty(size + ALIGNMENT, np.uint8)
        self._memory.append(memory)
        return memory


def _references_of_the_pool() -> int:
    """What ``getrefcount`` says of an array that only a list holds."""
    held = [np.empty(1, np.uint8)]
    return sys.getrefcount(held[0])


_UNSEEN = _references_of_the_pool()
