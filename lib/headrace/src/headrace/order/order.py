"""``Order``: a pure function from positions of a run to rows of a store; and the orders that only
slice and repeat.

An order is stateless: ``m(i)`` for an int64 array, in any order and any number of times, returns
the same rows. Shuffles are orders too; see permutation, block_shuffle and braid. Orders take the
**epoch** as a second argument: behind a :class:`Repeat`, every pass is another one.

Price: a few numpy calls per batch, never a Python loop over indices.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError, check_at_least, check_whole

MAX_LENGTH = 1 << 62
_BELOW_ONE = np.nextafter(1.0, 0.0)  # a row above 2**53 over a length as large may round to 1


class OpenWindow(NamedTuple):
    """The rows that an order draws from before it moves on."""

    blocks: int = 0  # blocks that it keeps open by design, over all hosts; 0 if it has no blocks
    rows: int = 0  # rows of these, or rows in random order; 0 for the order of the wrapped dataset
    windows: int = 1  # such windows that memory must hold
    everywhere: bool = False  # every host draws from all of it, whatever its share of the batch


class Order(abc.ABC):
    """Maps positions ``[0, length)`` to rows ``[0, rows)``.

    Subclasses implement :meth:`at`, for int64 positions of any length up to 2**62. A shuffle also
    says its ``kind``, that it is ``bijective`` and ``reorders``, what is ``described``, and in
    :meth:`open_window` what it keeps open, which forecasts and budgets count. Where rows change
    their length, what is left of an epoch is known by :meth:`touched_rows`, or by whole blocks of
    orders with ``touched_blocks`` and ``block_permutation``
    (:class:`~headrace.mix.phases.BlockOrder`); an order without them leaves over all of it. Call
    the order itself for epoch 0 with bounds checked.

    Args:
        length: Number of positions, 0 to 2**62.
        rows: Number of rows in its range; ``length`` if it is a bijection.

    Raises:
        ConfigError: a size is negative or above 2**62.
    """

    bijective: bool = False
    """Every row in ``[0, rows)`` occurs exactly once."""
    reorders: bool = False
    """It is a shuffle, with a locality of its own."""
    repeats: bool = False
    """It is a :class:`Repeat`."""
    in_table: bool = False
    """It is a braid: a :class:`~headrace.order.braid.BraidTable` maps those of all
    components in one pass.
    """
    is_pending: bool = False
    """It is a :class:`~headrace.order.shuffle_config.PendingBraid`, whose strands are still to be
    determined.
    """
    kind: str = "none"
    """The shuffle's name in configs and reports."""
    io_block_size: int = 0
    """Rows per block that the shuffle keeps together; 0 if it has no blocks."""
    strands: int = 0
    """Number of strands; 0 for shuffles without strands."""
    block_reads: float = 1.0
    """How often a pass comes to a block after it has left it, and to each for the first time, by
    design: a memory that holds fewer than all blocks reads them so many times.
    """
    endless: bool = False
    """Passes repeat endlessly."""
    described: tuple[str, ...] = ("length",)
    """Names of the attributes that, with the class, determine the order."""

    def __init__(self, length: int, rows: int) -> None:
        for name, value in (("length", length), ("rows", rows)):
            if not 0 <= value <= MAX_LENGTH:
                raise ConfigError("must lie in 0 .. 2**62", field=name, value=value)
        self.length = int(length)
        self.rows = int(rows)

    def __len__(self) -> int:
        return self.length

    def selects(self, length: int | None) -> bool:
        """Whether it leaves out some of ``length`` rows, or returns some more often than others."""
        return not self.bijective or self.rows != length

    def __call__(self, i: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Rows at positions ``i`` in epoch 0.

        Raises:
            IndexOutOfRangeError: an index is negative or not below ``len(self)``.
        """
        i = check_indices(i, self.length)
        return self.at(i, np.zeros_like(i))

    @abc.abstractmethod
    def at(
        self, i: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """Rows at positions ``i`` of the given epochs. Indices are not checked."""

    def open_window(self) -> OpenWindow:
        """The rows that it draws from at a time: the answer that loaders, forecasts
        and checks use.
        """
        return OpenWindow()

    def pass_of(
        self, i: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """The epoch of what it orders, at positions ``i`` of the given epochs."""
        return epoch

    def touched_rows(self, drawn: int) -> int:
        """Number of first rows that contain all rows of the first ``drawn`` positions of an epoch:
        all, unless an order knows better.
        """
        return self.rows if drawn else 0

    def describe(self) -> dict[str, object]:
        """The order as JSON values, for fingerprints and reports: different orders have different
        descriptions.
        """
        values = {name: getattr(self, name) for name in self.described}
        plain = {name: v.describe() if isinstance(v, Order) else v for name, v in values.items()}
        return {"map": type(self).__name__, **plain}

    def resolve(
        self, i: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """:meth:`at` and :meth:`locality` in one call: rows, and their positions in the store's
        reading front.
        """
        rows = self.at(i, epoch)
        return rows, np.minimum(rows / max(self.rows, 1), _BELOW_ONE)

    def locality(
        self, i: Int64[np.ndarray, " n"], epoch: Int64[np.ndarray, " n"] | None = None
    ) -> Float64[np.ndarray, " n"]:
        """The position of each row in the store's reading front, in [0, 1).

        The loader sorts the rows of a batch by it, so that a host always reads from the same part
        of the store.
        """
        return self.resolve(i, np.zeros_like(i) if epoch is None else epoch)[1]


def check_indices(i: object, length: int | None) -> Int64[np.ndarray, " n"]:
    """``i`` as an int64 vector, every element in ``[0, length)`` (only non-negative if ``length``
    is None).

    Raises:
        IndexOutOfRangeError: an index is out of range, or ``i`` is not an integer vector.
    """
    a = np.asarray(i)
    if a.size == 0:
        return np.zeros(0, np.int64)
    if a.ndim != 1 or not np.issubdtype(a.dtype, np.integer):
        raise IndexOutOfRangeError(
            f"must be a one-dimensional integer array, not {a.dtype} of shape {a.shape}",
            field="indices",
        )
    low = int(a.min())
    high = int(a.max())
    if low < 0 or (length is not None and high >= length):
        bad = low if low < 0 else high
        limit = "" if length is None else f" of {length}"
        raise IndexOutOfRangeError(
            f"is outside the length{limit}",
            field="index",
            value=bad,
            cure="Indices count from 0; repeat() wraps around.",
        )
    return a.astype(np.int64, copy=False)


class Identity(Order):
    """Positions are rows.

    Example:
        >>> Identity(3)(np.array([2, 0]))
        array([2, 0])
    """

    bijective = True

    def __init__(self, n: int) -> None:
        super().__init__(n, n)

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return i

    def touched_rows(self, drawn: int) -> int:
        return drawn


class Slice(Order):
    """Positions ``start .. stop`` of ``n`` rows, with Python's rules for missing and negative ends.

    Example:
        >>> Slice(10, 2, 5)(np.arange(3))
        array([2, 3, 4])
        >>> len(Slice(10, -3))
        3
    """

    described = ("start", "length")

    def __init__(self, n: int, start: int | None = None, stop: int | None = None) -> None:
        first, last, _ = slice(start, stop).indices(n)
        super().__init__(max(last - first, 0), n)
        self.start = first
        self.bijective = self.length == n

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return i + self.start


class Repeat(Order):
    """``n`` positions, pass by pass: what it repeats is told the number of the pass as its epoch.

    Args:
        n: Positions of a pass.
        epochs: Number of passes; None for as many as indices can count.

    Raises:
        ConfigError: there are no positions, or ``epochs`` is not positive.

    Example:
        >>> order = Repeat(4, epochs=2)
        >>> order(np.arange(8)).tolist(), order.pass_of(np.arange(8), np.zeros(8, int)).tolist()
        ([0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 0, 0, 1, 1, 1, 1])
    """

    repeats = True
    described = ("base", "epochs")

    def __init__(self, n: int, epochs: int | None = None) -> None:
        if n == 0:
            raise ConfigError(
                "cannot repeat an empty dataset",
                field="repeat",
                cure="Give it at least one example.",
            )
        check_whole("epochs", epochs)
        check_at_least("epochs", epochs, cure="Leave it out to repeat without end.")
        super().__init__(min(n * epochs, MAX_LENGTH) if epochs else MAX_LENGTH, n)
        # what is repeated lies in the dataset below; descriptions alone ask for this
        self.base = Identity(n)
        self.epochs = epochs
        self.endless = epochs is None

    def selects(self, length: int | None) -> bool:
        return self.rows != length

    def at(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return i % self.rows

    def pass_of(self, i: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        return i // self.rows + epoch * (self.epochs or 0)
