"""Orders after orders: what selects rows from a shuffle selects the same rows in every epoch.

A shuffle has another order in each epoch, so the first hundred positions of it are a hundred other
rows each time. Who takes them means a set, though: the rows to train on, or those to validate with.
So a selection is made once, from the order of epoch 0, and only its sequence changes from epoch to
epoch (:class:`FixedSet`). A second shuffle after the first selects nothing, and both change.

Invariant: the rows of an epoch are those of epoch 0, each as often. Price: one more permutation per
index, 0.1 us, for a selection from a shuffle.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError
from headrace.order.block_shuffle import EraShuffle
from headrace.order.order import OpenWindow, Order
from headrace.order.seeds import derive_keys

_SEED = 0  # the shuffle below has the seed of the run


class FixedSet(Order):
    """What an order returns in epoch 0, in another sequence in each later epoch.

    Rows that the shuffle below reads together stay together, or each stored block would be read
    again for every row:

    1. The positions form a ring, which an epoch begins at a place of its own.
    2. From there on they are permuted within *eras*, each as long as the shuffle's window.

    An era crosses the border of two windows, so memory must hold two of them.

    Args:
        chosen: The order.
        era: Number of positions that are permuted together: the rows of the shuffle's window.

    Example:
        >>> from headrace.order.order import Slice
        >>> fixed = FixedSet(Slice(20, 3, 7), era=20)
        >>> [fixed.at(np.arange(4), np.full(4, epoch)).tolist() for epoch in (0, 1, 2)]
        [[3, 4, 5, 6], [4, 6, 3, 5], [5, 4, 6, 3]]
    """

    described = ("chosen", "era")

    def __init__(self, chosen: Order, era: int) -> None:
        super().__init__(len(chosen), chosen.rows)
        self.chosen = chosen
        self.era = max(min(era, self.length), 1)
        self._eras = EraShuffle(self.length, era_length=self.era, seed=_SEED)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self.chosen.at(self._turned(i, epoch), np.zeros_like(epoch))

    def _turned(
        self, i: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """Where the positions of an epoch stand in epoch 0."""
        if not epoch.any():
            return i
        first = derive_keys(_SEED, "turn", last=epoch) % np.uint64(self.length)
        position = (self._eras.at(i, epoch) + first.astype(np.int64)) % self.length
        return np.where(epoch == 0, i, position)


class Compose(Order):
    """``outer`` after ``inner``: position -> ``inner`` -> ``outer`` -> row, in each epoch.

    Raises:
        ConfigError: ``inner`` may return rows that ``outer`` does not have.

    Example:
        >>> from headrace.order.order import Slice
        >>> Compose(Slice(20, 3, 9), Slice(6, 2, 5))(np.arange(3)).tolist()
        [5, 6, 7]
    """

    described = ("outer", "inner")

    def __init__(self, outer: Order, inner: Order) -> None:
        if inner.rows > outer.length:
            raise ConfigError(
                f"names up to {inner.rows} rows, but the outer map has {outer.length}",
                field="inner",
                value=inner,
            )
        super().__init__(inner.length, outer.rows)
        self.outer = outer
        self.inner = inner

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return self.outer.at(self.inner.at(i, epoch), epoch)


def window_of_part(window: OpenWindow, length: int) -> OpenWindow:
    """The window of a selection of ``length`` positions from a shuffle with this one; see
    :class:`FixedSet`.
    """
    if length <= window.rows:
        return window
    return window._replace(windows=2 * window.windows)
