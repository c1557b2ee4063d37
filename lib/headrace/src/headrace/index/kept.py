"""States of a long walk, remembered at a bounded number of places, so that going back does not mean to begin again."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Generic, TypeVar

_LATEST = 8
_MOST = 512
State = TypeVar("State")


class Kept(Generic[State]):
    """States before some stretches, at most 512 of them evenly spaced and the latest few; the first for ever.

    For several threads without a lock: ``_numbers`` never names what is not in ``_held``, and thinning out makes a new
    pair. Two threads that meet lose a state that can be walked to again.
    """

    def __init__(self, first: State) -> None:
        self._every = 1
        self._pair: tuple[list[int], dict[int, State]] = ([0], {0: first})
        self._latest: list[tuple[int, State] | None] = [None] * _LATEST

    def __len__(self) -> int:
        return len(self._pair[1])

    def before(self, stretch: int) -> tuple[int, State]:
        """The last state at or before a stretch, and where it is."""
        numbers, held = self._pair
        at = numbers[bisect_right(numbers, stretch) - 1]
        found = (at, held[at])
        for recent in tuple(self._latest):
            if recent is not None and found[0] < recent[0] <= stretch:
                found = recent
        return found

    def keep(self, stretch: int, state: State, always: bool = False) -> None:
        """Remember a state, for good if it is at a place for one."""
        self._latest[stretch % _LATEST] = (stretch, state)
        numbers, held = self._pair
        if (stretch % self._every and not always) or stretch in held:
            return
        held[stretch] = state
        insort(numbers, stretch)
        if len(numbers) > _MOST:
            every = 2 * self._every
            fewer = {number: held[number] for number in sorted(set(numbers)) if number % every == 0}
            self._every, self._pair = every, (list(fewer), fewer)
