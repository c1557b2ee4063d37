"""Turning scattered pieces of arrays into few ranges: pure, so that a read plan can be tested without a disk."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


def adjacent_runs(
    array: Int64[np.ndarray, " p"], start: Int64[np.ndarray, " p"], size: Int64[np.ndarray, " p"]
) -> tuple[Int64[np.ndarray, " r"], Int64[np.ndarray, " r"]]:
    """Maximal runs of pieces that follow each other in the same array.

    Args:
        array: Array of each piece.
        start: Its first element.
        size: Its elements.

    Returns:
        The first piece of each run, and the elements of the run.

    Example:
        >>> adjacent_runs(np.array([0, 0, 0, 1]), np.array([0, 4, 9, 13]), np.array([4, 4, 4, 4]))
        (array([0, 2, 3]), array([8, 4, 4]))
    """
    if array.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    follows = (array[1:] == array[:-1]) & (start[1:] == start[:-1] + size[:-1])
    first = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(~follows) + 1])
    return first, np.add.reduceat(size, first)
