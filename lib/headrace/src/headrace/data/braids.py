"""The components of a mixture that are braids, resolved together: one pass over all rows instead of one a component.

Such a component is a braid that repeats for ever, or, from a change of the row length on, the rest of an epoch and then
the whole again and again (:class:`~headrace.data.phased.Continued`): two braids, one behind the other.

Price: that of a :class:`~headrace.index.braid_table.BraidTable`, 0.5 us a row in batches of 1,024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.dataset import PlannedDataset, ReorderedDataset
from headrace.data.phased import Continued
from headrace.index.braid import BraidShuffle
from headrace.index.braid_table import BraidTable
from headrace.index.remap import Repeat


class _Part(NamedTuple):
    """A braid that serves ordinals from ``first`` on; the next part of its component ends it."""

    below: PlannedDataset
    order: BraidShuffle
    first: int
    epoch: int


class Braids:
    """Ordinals of components to rows and localities.

    Args:
        components: All components of a mixture.

    Attributes:
        held: bool: which components are braids.
        below: What resolved rows are rows of, by part; parts of components that are no braids are these themselves.
    """

    def __init__(self, components: Sequence[PlannedDataset]) -> None:
        found = [_parts(c) for c in components]
        self.held = np.asarray([bool(parts) for parts in found])
        self.below: list[PlannedDataset] = []
        first_part: list[int] = []
        rest_ends: list[int] = []  # ordinals below belong to the first of two parts
        parts: list[_Part] = []
        for component, mine in zip(components, found, strict=True):
            first_part.append(len(self.below))
            rest_ends.append(mine[1].first if len(mine) > 1 else 0)
            self.below += [part.below for part in mine] or [component]
            # What is no braid has an entry that is not used: parts and entries have the same numbers.
            parts += mine or [_Part(component, _NO_BRAID, 0, 0)]
        self._first_part, self._rest_ends = np.asarray(first_part), np.asarray(rest_ends)
        self._two = bool(self._rest_ends.any())
        self._second = np.asarray([len(mine) > 1 for mine in found])
        self._table = BraidTable.of([p.order for p in parts]) if self.held.any() else None
        self._first = np.asarray([p.first for p in parts], np.int64)
        self._epoch = np.asarray([p.epoch for p in parts], np.int64)

    def part_of(self, component: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """Which part serves each ordinal."""
        part = self._first_part[component]
        if self._two:
            part = part + (self._second[component] & (ordinal >= self._rest_ends[component]))
        return part

    def resolve(
        self, part: np.ndarray, ordinal: np.ndarray
    ) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Rows and localities of ordinals, all of parts that are braids."""
        assert self._table is not None  # there is a braided row, hence a table
        return self._table(part, ordinal - self._first[part], self._epoch[part])


_NO_BRAID = BraidShuffle(1, io_block_size=1, strands=1, seed=0)


def _parts(component: PlannedDataset) -> list[_Part]:
    if isinstance(component, Continued):
        rest, whole = component.rest, component.whole
        behind = component.first + component.rest_rows
        found = [] if rest is None else _braid(rest, component.first, component.epoch)
        last = _braid(whole, behind, component.whole_epoch)
        return [*found, *last] if last and (rest is None or found) else []
    if isinstance(component, ReorderedDataset) and isinstance(component.order, Repeat):
        return _braid(component.base, 0, 0)
    return []


def _braid(dataset: PlannedDataset, first: int, epoch: int) -> list[_Part]:
    if isinstance(dataset, ReorderedDataset) and isinstance(dataset.order, BraidShuffle):
        return [_Part(dataset.base, dataset.order, first, epoch)]
    return []
