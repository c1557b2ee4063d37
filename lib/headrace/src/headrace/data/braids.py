"""``Braids``: the orders of a mixture's components, mapped together: the rows of a batch in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from headrace.data.dataset import PlannedDataset
from headrace.order.shuffle_config import BATCHED, BatchedOrders


class Braids:
    """Ordinals of a mixture's components to rows and localities, in one pass where their orders can be mapped together.

    Such a component is one order that repeats for ever, or the rest of an epoch and then the whole again and again
    (:class:`~headrace.data.phased.Continued`). Price: 0.5 us a row in batches of 1,024.

    Attributes:
        held: bool: which components are mapped together with others.
        below: What resolved rows are rows of, by part; parts of components that are mapped alone are these themselves.
    """

    def __init__(self, components: Sequence[PlannedDataset]) -> None:
        runs = [component.ordered_runs() for component in components]
        runs = [parts if all(type(part.order) in BATCHED for part in parts) else () for parts in runs]
        counts = np.asarray([max(len(parts), 1) for parts in runs])
        self.held = np.asarray([bool(parts) for parts in runs])
        self.below: list[PlannedDataset] = []
        for component, parts in zip(components, runs, strict=True):
            self.below += [part.dataset for part in parts] or [component]
        self._first_part = np.cumsum(counts) - counts
        self._second = counts > 1
        self._two = bool(self._second.any())
        # ordinals below belong to the first of two parts
        self._rest_ends = np.asarray([parts[1].first if len(parts) > 1 else 0 for parts in runs])
        self._first, self._epoch, self._entry, self._table_of = np.zeros((4, len(self.below)), np.int64)
        numbers = [number for number, held in enumerate(np.repeat(self.held, counts).tolist()) if held]
        parts = dict(zip(numbers, (part for parts in runs for part in parts), strict=True))
        self._tables: list[BatchedOrders] = []
        for kind in dict.fromkeys(type(part.order) for part in parts.values()):
            members = [number for number, part in parts.items() if type(part.order) is kind]
            self._entry[members], self._table_of[members] = np.arange(len(members)), len(self._tables)
            self._tables.append(BATCHED[kind]([parts[number].order for number in members]))
        for number, part in parts.items():
            self._first[number], self._epoch[number] = part.first, part.epoch

    def part_of(self, component: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """Which part serves each ordinal."""
        part = self._first_part[component]
        if self._two:
            part = part + (self._second[component] & (ordinal >= self._rest_ends[component]))
        return part

    def resolve(
        self, part: np.ndarray, ordinal: np.ndarray
    ) -> tuple[Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Rows and localities of ordinals, all of parts that are mapped together."""
        drawn, epoch, entry = ordinal - self._first[part], self._epoch[part], self._entry[part]
        if len(self._tables) == 1:
            return self._tables[0](entry, drawn, epoch)
        rows, locality = np.empty_like(ordinal), np.empty(ordinal.size)
        for number, table in enumerate(self._tables):
            chosen = self._table_of[part] == number
            rows[chosen], locality[chosen] = table(entry[chosen], drawn[chosen], epoch[chosen])
        return rows, locality
