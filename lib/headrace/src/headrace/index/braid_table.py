"""The braids of all components of a mixture in one pass: (component, ordinal) -> (row, locality).

A mixture of 200 components has a few rows of each in a batch. Mapping them component by component costs some 100 us
each, whatever the number of rows; here each row brings the parameters of its component along, and the batch is mapped
at once. Where there are hundreds of rows of each, as in a window of steps of few components, these are mapped together.

Price: 0.5 us a row in batches of 1,024, 0.3 us from 4,096 on; any number of components, any lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int32, Int64

from headrace.errors import ConfigError
from headrace.index.braid import BraidShuffle, braid, braid_key
from headrace.index.braid_blocks import PlacedBlocks
from headrace.index.braid_spec import BraidSpec, braid_spec

_SLICE = 8192  # rows per pass, as in braid()
_MANY = 512  # rows of a component from which on it is cheaper alone
_MOST_ENTRIES = 1 << 20  # of the tables of all components together: 16 MiB


class BraidTable:
    """The braids of all components of a mixture, evaluated in one pass over rows of any of them.

    Row for row equal to ``Repeat(BraidShuffle(...))`` of the component; the cost does not depend on the number of
    components.

    Args:
        lengths: Examples of each component, at least 1.
        io_block_size: Examples in a block, one for all or one for each.
        strands: Strands of each component, see :func:`~headrace.index.strands.resolve_strands`.
        seeds: Integer seed of each component.
        laps: Lap of each component; None for ``strands``.
        first_strands: Number of each component's first strand; None: counted over the components.

    Raises:
        ConfigError: as :class:`BraidShuffle`; an empty component.

    Example:
        >>> table = BraidTable.of([BraidShuffle(n, io_block_size=4, strands=n // 5, seed=n) for n in (10, 100)])
        >>> rows, locality = table(np.array([0, 1, 0]), np.array([3, 99, 13]))  # 13: the second epoch of component 0
        >>> bool(rows[2] == BraidShuffle(10, io_block_size=4, strands=2, seed=10).at(np.array([3]), np.array([1]))[0])
        True
    """

    def __init__(
        self,
        lengths: Int64[np.ndarray, " d"],
        *,
        io_block_size: Int64[np.ndarray, " d"] | int,
        strands: Int64[np.ndarray, " d"],
        seeds: Sequence[int],
        laps: Float64[np.ndarray, " d"] | None = None,
        first_strands: Int64[np.ndarray, " d"] | None = None,
    ) -> None:
        lengths = np.asarray(lengths, np.int64)
        if (lengths < 1).any():
            raise ConfigError(
                "cannot be mixed: it is empty", field=f"component {int(lengths.argmin())}", cure="Leave it out."
            )
        keys = np.array([braid_key(seed) for seed in seeds], np.uint64)
        if first_strands is None:
            first_strands = np.cumsum(strands) - strands
        self.spec = braid_spec(
            lengths, io_block_size=io_block_size, strands=strands, lap=laps, key=keys, first_strand=first_strands
        )
        self.lengths = lengths
        self._of_one: dict[int, tuple[BraidSpec, PlacedBlocks | None]] = {}  # components that were mapped alone
        self._entries = 0  # of their tables

    @classmethod
    def of(cls, orders: Sequence[BraidShuffle]) -> BraidTable:
        """The table of braids that exist already, one for each component."""
        return cls(
            np.asarray([len(o) for o in orders]),
            io_block_size=np.asarray([o.io_block_size for o in orders]),
            strands=np.asarray([o.strands for o in orders]),
            seeds=[o.seed for o in orders],
            laps=np.asarray([o.lap for o in orders]),
            first_strands=np.asarray([o.first_strand for o in orders]),
        )

    def __call__(
        self,
        component: Int32[np.ndarray, " m"],
        ordinal: Int64[np.ndarray, " m"],
        first_epoch: Int64[np.ndarray, " m"] | None = None,
    ) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
        """Row in its component's store and locality of each ``ordinal``-th draw; each pass is re-keyed.

        Args:
            component: Component of each draw.
            ordinal: Draws of the component before it.
            first_epoch: Epoch of the component's first pass, for each draw; None: 0.
        """
        rows, where = np.empty(ordinal.shape, np.int64), np.empty(ordinal.shape, np.float64)
        drawn = ordinal.astype(np.uint64)
        for part, spec, blocks in self._parts(component):
            passes = drawn[part] // spec.n
            epoch = passes if first_epoch is None else passes + first_epoch[part].astype(np.uint64)
            rows[part], where[part] = braid(drawn[part] - passes * spec.n, epoch, spec, blocks)
        return rows, where

    def _parts(self, component: Int32[np.ndarray, " m"]) -> Iterator[tuple[Any, BraidSpec, PlacedBlocks | None]]:
        """Draws that are computed together, and their parameters: all of a component, if it has many, as to divide by
        one number is far cheaper than by one for each draw; else any.
        """
        counts = np.bincount(component)
        present = np.flatnonzero(counts)
        if component.size < _MANY * present.size:
            for lo in range(0, component.size, _SLICE):
                part = slice(lo, lo + _SLICE)
                yield part, self.spec.take(component[part]), None
            return
        order = np.argsort(component.astype(np.min_scalar_type(counts.size)), kind="stable")  # radix sort
        for d, stop in zip(present.tolist(), np.cumsum(counts[present]).tolist(), strict=True):
            if d not in self._of_one:
                spec = self.spec.take(np.array([d]))
                placed = PlacedBlocks(spec)
                self._entries += placed.entries
                self._of_one[d] = spec, placed if self._entries <= _MOST_ENTRIES else None
            yield order[stop - int(counts[d]) : stop], *self._of_one[d]
