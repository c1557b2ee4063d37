"""Policies that are defined example by example, with random access to any of them.

The state of the sequence is saved every 4096 examples (at most at 512 positions: the longer the
run, the further apart), and a stretch is counted again when it is requested. A sequence does not
depend on how it is cut into steps or hosts.

Price: 2 to 4 us per example to count up to it once, unless there is an anchor (``Quota`` needs 2 us
per **step**, and nothing if weights are constant): 50 minutes for a billion examples. Then 10 ms
for a stretch of 4096 near the last one, and 10 ms times the distance of two saved states for an
earlier one.
"""

from __future__ import annotations

import abc
from bisect import bisect_right, insort
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from jaxtyping import Int32, Int64

from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.mix.policy import (
    Anchor,
    MixingPolicy,
    Watch,
    anchor_integer,
    anchor_integers,
    anchor_sum,
    refused,
)
from headrace.mix.schedule import BatchSchedule
from headrace.mix.shares import UNLIMITED

STRETCH = 4096
"""Examples between two anchors."""
_STRETCHES = 8
_WATCHED = 1 << 16
"""Examples that are counted between two progress reports."""
_MOST = 512
State = TypeVar("State")


class _SavedStates(Generic[State]):
    """States before some stretches: at most 512 evenly spaced ones; the first one always.

    Safe for several threads without a lock: the numbers of a pair always match its states, and
    thinning out makes a new pair. Concurrent threads may lose a state, which can be computed again.
    """

    def __init__(self, first: State) -> None:
        self._every = 1
        self._pair: tuple[list[int], dict[int, State]] = ([0], {0: first})

    def __len__(self) -> int:
        return len(self._pair[1])

    def last_before(self, stretch: int) -> tuple[int, State]:
        """The last state at or before a stretch, and its position."""
        numbers, states = self._pair
        at = numbers[bisect_right(numbers, stretch) - 1]
        return at, states[at]

    def save(self, stretch: int, state: State, always: bool = False) -> None:
        """Saves a state if it is at one of the evenly spaced positions."""
        numbers, states = self._pair
        if (stretch % self._every and not always) or stretch in states:
            return
        states[stretch] = state
        insort(numbers, stretch)
        if len(numbers) > _MOST:
            self._every *= 2
            fewer = {
                number: states[number]
                for number in sorted(set(numbers))
                if number % self._every == 0
            }
            self._pair = (list(fewer), fewer)


class _Stretch(NamedTuple, Generic[State]):
    """A stretch that was counted: its number, its components, and state and counts after it."""

    number: int
    drawn: Int32[np.ndarray, " n"]
    end: tuple[State, Int64[np.ndarray, " d"]]


class SequencePolicy(MixingPolicy, Generic[State]):
    """A sequence of components defined one example after the other, with random access.
    Thread-safe.

    Subclasses define the state before the first example and how a stretch is computed from a state.
    ``ends_after`` is the total number of examples, None if it is endless. The last step may have
    fewer examples than its batch.
    """

    def __init__(
        self, components: int, batch: BatchSchedule, ends_after: int | None = None
    ) -> None:
        if components < 1:
            raise ConfigError("needs at least one", field="components", value=components)
        self.components = components
        self.batch = batch
        self.ends_after = ends_after
        start = (self.initial_state(), np.zeros(components, np.int64))
        self._saved: _SavedStates[tuple[State, Int64[np.ndarray, " d"]]] = _SavedStates(start)
        # The latest few, filled without a lock, as in Quota: threads that meet store equal values.
        self._latest: list[_Stretch[State] | None] = [None] * _STRETCHES

    @abc.abstractmethod
    def initial_state(self) -> State:
        """State before the first example."""

    @abc.abstractmethod
    def walk(self, state: State, first: int, n: int) -> tuple[list[int], State]:
        """The next ``n`` components from ``state`` on, and the state after them; ``state`` itself
        is not changed.
        """

    def state_at(self, index: int) -> State:
        """State before the example ``index``."""
        stretch, offset = divmod(self._checked(index), STRETCH)
        return self.walk(self._state_before(stretch)[0], stretch * STRETCH, offset)[1]

    def sequence(self, first: int, stop: int) -> Int32[np.ndarray, " n"]:
        """Components of the examples ``first .. stop``, cut at the end of the sequence."""
        stop = stop if self.ends_after is None else min(stop, self.ends_after)
        if stop <= first:
            return np.zeros(0, np.int32)
        parts = [self._stretch(s) for s in range(first // STRETCH, (stop - 1) // STRETCH + 1)]
        skip = first // STRETCH * STRETCH
        return np.concatenate(parts)[first - skip : stop - skip]

    def components_at(self, step: int) -> Int32[np.ndarray, " b"]:
        """Component of each row of ``step``, in stream order."""
        first, size = self.batch.rows_at(step)
        if self.ends_after is not None and first >= self.ends_after:
            raise IndexOutOfRangeError(
                f"the mixture ends after {self.ends_after} examples", field="step", value=step
            )
        return self.sequence(first, first + size)

    def starts_at(self, step: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component in all steps before ``step``."""
        return self.counts_before(self.batch.rows_at(step)[0])

    def counts_before(self, index: int) -> Int64[np.ndarray, " d"]:
        """Examples of each component before the global example ``index``."""
        stretch, offset = divmod(self._checked(index), STRETCH)
        counts = self._state_before(stretch)[1]
        return (
            counts + np.bincount(self._stretch(stretch)[:offset], minlength=self.components)
            if offset
            else counts.copy()
        )

    def check_limits(self, step: int) -> None:
        """Does nothing: limits end it like its own rule, at ``ends_after``."""

    def anchor_at(self, step: int) -> Anchor:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        first = self.batch.rows_at(step)[0]
        if self.ends_after is not None and first > self.ends_after:
            raise IndexOutOfRangeError(
                f"the mixture ends after {self.ends_after} examples", field="step", value=step
            )
        stretch = self._anchored(self._checked(first)) // STRETCH
        state, counts = self._state_before(stretch)
        return {"stretch": stretch, "drawn": counts.tolist(), "state": _lists(state)}

    def use_anchor(self, anchor: Mapping[str, object]) -> None:
        """See :class:`~headrace.mix.policy.MixingPolicy`."""
        stretch = anchor_integer(anchor, "stretch", most=1 << 50)
        if self.ends_after is not None and stretch * STRETCH > self.ends_after:
            raise refused("is of a longer sequence")
        drawn = anchor_integers(
            anchor, "drawn", self.components, padded=True
        )  # amendments add components at the end
        anchor_sum(drawn, stretch * STRETCH, "drawn")
        state = cast(State, _tuples(anchor.get("state")))
        try:
            self.walk(state, stretch * STRETCH, min(self._size(stretch), 1))
        except (TypeError, ValueError, IndexError) as error:
            raise refused("has no 'state' that can be") from error
        self._saved.save(stretch, (state, drawn), always=True)

    def walk_to(self, step: int, watch: Watch) -> None:
        total = self.batch.rows_at(step)[0]
        for reached in (*range(_WATCHED, total, _WATCHED), total):
            self.counts_before(reached)
            watch(reached, total)

    def supply(self) -> Int64[np.ndarray, " d"]:
        return (
            np.full(self.components, UNLIMITED)
            if self.ends_after is None
            else self.counts_before(self.ends_after)
        )

    def _checked(self, index: int) -> int:
        if index < 0:
            raise IndexOutOfRangeError("is negative", field="index", value=index)
        return int(index) if self.ends_after is None else min(int(index), self.ends_after)

    def _anchored(self, index: int) -> int:
        """The example whose state is needed for that of ``index``."""
        return index

    def _stretch(self, stretch: int) -> Int32[np.ndarray, " n"]:
        """Components of a stretch."""
        latest = self._latest[stretch % _STRETCHES]
        if latest is None or latest.number != stretch:
            latest = self._walk_stretch(stretch, self._state_before(stretch))
        return latest.drawn

    def _size(self, stretch: int) -> int:
        return (
            STRETCH
            if self.ends_after is None
            else min(STRETCH, self.ends_after - stretch * STRETCH)
        )

    def _state_before(self, stretch: int) -> tuple[State, Int64[np.ndarray, " d"]]:
        """State and counts before a stretch."""
        at, start = self._saved.last_before(stretch)
        for latest in tuple(self._latest):
            if latest is not None and at <= latest.number < stretch:
                at = latest.number + 1
                start = latest.end
        for number in range(at, stretch):
            start = self._walk_stretch(number, start).end
        return start

    def _walk_stretch(
        self, stretch: int, start: tuple[State, Int64[np.ndarray, " d"]]
    ) -> _Stretch[State]:
        """Counts a stretch, and keeps what comes of it."""
        drawn, state = self.walk(start[0], stretch * STRETCH, self._size(stretch))
        components = np.array(drawn, np.int32)
        end = (state, start[1] + np.bincount(components, minlength=self.components))
        self._saved.save(stretch + 1, end)
        walked = _Stretch(stretch, components, end)
        self._latest[stretch % _STRETCHES] = walked
        return walked


def _lists(state: Any) -> Any:
    return [_lists(x) for x in cast(tuple[Any, ...], state)] if isinstance(state, tuple) else state


def _tuples(state: Any) -> Any:
    return tuple(_tuples(x) for x in cast(list[Any], state)) if isinstance(state, list) else state
