"""Decides which blocks are in memory at which step: pure, so that a loader and its forecast cannot disagree.

Steps are planned in windows, ahead of their use. For each step, :meth:`Residency.decide` returns which of its blocks
are in memory, which must be fetched, and into which slot. If memory is full, blocks that no planned step uses are
evicted, the least recently used first; then the block whose next planned use is farthest away (Belady's rule, as far as
is planned). All of this depends only on the planned uses and the number of slots, not on the speed of the store or the
consumer. A fetch may start as soon as the last step that used the slot has been gathered, so steps are decided far
ahead, and their blocks are read ahead.

The planning horizon is part of the rule: windows of 1, 8, 32, 64, 64, ... steps (so that the first batch does not wait
for a long plan); a step is decided with the uses of up to 32 further steps in view. Windows with enough unneeded slots
are decided as a whole, others step by step.

Price: about 5 us per step and 1 us per fetch; 20 us more for a fetch that evicts a needed block.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.errors import ConfigError

_NOTHING = np.zeros(0, np.int64)
NEVER = int(np.iinfo(np.int64).max)
FIRST_WINDOWS = (1, 8, 32)
WINDOW_STEPS = 64
FORESIGHT = 32
KEEP_STEPS = 2
"""A block that is still needed is evicted only if it was unused for this many steps, unless nothing else is left:
otherwise each step would wait for reads that could not start before the last one was done."""


@dataclasses.dataclass(frozen=True, eq=False)
class WindowUses:
    """The blocks that the steps of a window use."""

    first_step: int  # first step of the window
    blocks: Int64[np.ndarray, " m"]  # distinct blocks, ascending
    bounds: Int64[np.ndarray, " steps1"]  # step k has the uses ``bounds[k]:bounds[k + 1]``
    block: Int64[
        np.ndarray, " u"
    ]  # block of each use, as an index into ``blocks``; each once a step, ascending
    # Step that uses the block next, as far as is planned; else :data:`NEVER`. Kept up to date as further windows are
    # planned
    following: Int64[np.ndarray, " u"]
    last: Int64[
        np.ndarray, " m"
    ]  # the last use of each block in this window, as an index into ``block``

    @property
    def steps(self) -> int:
        return self.bounds.size - 1


def checked_budget(prefetch_bytes: int) -> int:
    """The budget; ConfigError unless it is a positive whole number of bytes."""
    if (
        not isinstance(prefetch_bytes, int | np.integer)
        or prefetch_bytes is True
        or prefetch_bytes < 1
    ):
        raise ConfigError(
            "must be a positive number of bytes",
            field="prefetch_bytes",
            value=prefetch_bytes,
            cure="E.g. 1073741824.",
        )
    return int(prefetch_bytes)


def window_steps(number: int) -> int:
    """Steps of a run's n-th window, unless the run or a phase ends in it.

    Example:
        >>> [window_steps(n) for n in range(5)]
        [1, 8, 32, 64, 64]
    """
    return FIRST_WINDOWS[number] if number < len(FIRST_WINDOWS) else WINDOW_STEPS


def window_uses(
    first_step: int, steps: int, block: Int64[np.ndarray, " p"], step: Int64[np.ndarray, " p"]
) -> tuple[WindowUses, Int64[np.ndarray, " p"]]:
    """The uses of a window, from the block and the step (counted from ``first_step``) of each piece; and each piece's
    block as an index into ``WindowUses.blocks``.

    Example:
        >>> uses, index = window_uses(7, 2, np.array([5, 3, 5]), np.array([0, 0, 1]))
        >>> uses.blocks.tolist(), index.tolist(), uses.bounds.tolist(), uses.following.tolist() == [NEVER, 8, NEVER]
        ([3, 5], [1, 0, 1], [0, 2, 3], True)
    """
    order = _by_block_and_step(block, step, steps)
    blocks = block[order]
    at = step[order]
    new_block = np.ones(order.size, bool)
    new_block[1:] = blocks[1:] != blocks[:-1]
    new_use = new_block.copy()
    new_use[1:] |= at[1:] != at[:-1]
    number = np.cumsum(new_block) - 1
    inverse = np.empty(order.size, np.int64)
    inverse[order] = number
    use_block = number[new_use]
    use_step = at[new_use]
    following = np.full(use_block.size, NEVER)
    again = np.flatnonzero(use_block[1:] == use_block[:-1])
    following[again] = use_step[again + 1] + first_step
    # numpy sorts 16-bit integers by counting
    by_step = np.argsort(use_step.astype(np.int16 if steps < 1 << 15 else np.int64), kind="stable")
    use_block = use_block[by_step]
    following = following[by_step]
    bounds = np.zeros(steps + 1, np.int64)
    np.cumsum(np.bincount(use_step, minlength=steps), out=bounds[1:])
    distinct = blocks[new_block]
    last = np.zeros(distinct.size, np.int64)
    final = np.flatnonzero(following == NEVER)
    last[use_block[final]] = final
    return WindowUses(first_step, distinct, bounds, use_block, following, last), inverse


def _by_block_and_step(block: np.ndarray, step: np.ndarray, steps: int) -> np.ndarray:
    """The order of pieces by block, then step, then place: one sort of packed integers where they fit."""
    place_bits = max(block.size - 1, 1).bit_length()
    bits = max(steps - 1, 1).bit_length()
    if int(block.max(initial=0)) >> (62 - place_bits - bits):
        return np.lexsort((step, block))
    packed = (((block << bits) | step) << place_bits) | np.arange(block.size)
    packed.sort()
    return packed & ((1 << place_bits) - 1)


class Decision(NamedTuple):
    """The decision for a step."""

    step: int  # the step
    slots: Int64[np.ndarray, " p"]  # slot of each requested piece
    hits: int  # blocks of the step that are in memory, or on their way
    blocks: list[int]  # blocks to fetch
    into: list[int]  # slot of each
    free_after: list[int]  # step that must have been gathered before each fetch begins; -1: none


class _Fetches(NamedTuple):
    """Fetches of a window in order of first use; step k has ``bounds[k]:bounds[k + 1]``."""

    blocks: list[int]
    into: list[int]
    free_after: list[int]
    bounds: list[int]


class Residency:
    """Decides which blocks to fetch and which to evict.

    Use: while :attr:`wants_window` is true, :meth:`extend` by a window of :attr:`window_steps` steps (or fewer, if a
    phase ends) from :attr:`planned_until` on; then :meth:`decide`. There is room for ``slots`` blocks; ``stop_step`` is
    one past the last step of the run (None: endless).

    Example:
        >>> memory = Residency(2, 0, 3)
        >>> for step, blocks in enumerate([[4, 5], [5, 6], [4, 6]]):
        ...     memory.extend(window_uses(step, 1, np.array(blocks), np.zeros(2, int))[0])
        >>> [memory.decide().blocks for _ in range(3)]
        [[4, 5], [6], [4]]
    """

    def __init__(self, slots: int, first_step: int, stop_step: int | None = None) -> None:
        self.slots = slots
        self.first_step = first_step
        self.stop_step = stop_step
        self.next_step = first_step  # the step that is decided next
        self.planned_until = first_step  # one past the last planned step
        self._planned = 0
        self._windows: deque[WindowUses] = deque()
        self._window_slots: Int64[np.ndarray, " m"] | None = (
            None  # of the first window, once its turn has come
        )
        self._latest: tuple[WindowUses | None, int, np.ndarray] = (
            None,
            0,
            _NOTHING,
        )  # window, fetches before, its slots
        self._num_fetched = 0
        self._fetches: _Fetches | None = (
            None  # of the first window, if it could be decided as a whole
        )
        self._slot: dict[int, int] = {}
        room = min(slots, 1024)  # grows as slots come into use
        self._block = np.zeros(room, np.int64)
        self._next_use = np.zeros(room, np.int64)
        self._last_use = np.zeros(room, np.int64)

    @property
    def resident(self) -> int:
        """Number of slots that hold a block or wait for one."""
        return len(self._slot)

    @property
    def window_steps(self) -> int:
        """Steps of the next window."""
        steps = window_steps(self._planned)
        return steps if self.stop_step is None else min(steps, self.stop_step - self.planned_until)

    @property
    def wants_window(self) -> bool:
        """Whether another window has to be planned before the next step can be decided."""
        ahead = min(FORESIGHT, 4 * (self.next_step - self.first_step))
        until = self.next_step + 1 + ahead
        return self.planned_until < (
            until if self.stop_step is None else min(until, self.stop_step)
        )

    def extend(self, window: WindowUses) -> None:
        """Adds the next planned window.

        Raises:
            ConfigError: a step uses more blocks than there are slots.
        """
        most = int(np.diff(window.bounds).max())
        if most > self.slots:
            at = window.first_step + int(np.argmax(np.diff(window.bounds) > self.slots))
            needed = int(np.diff(window.bounds)[at - window.first_step])
            raise ConfigError(
                f"hold too little: the rows of step {at} lie in {needed} blocks",
                field="slots",
                value=self.slots,
            )
        used = np.empty(window.blocks.size, np.int64)  # the step that uses each block first
        backwards = np.arange(window.block.size)[::-1]
        used[window.block[backwards]] = _steps(window)[backwards]
        for earlier in self._windows:
            if earlier.blocks.size and window.blocks.size:
                at = np.minimum(
                    np.searchsorted(earlier.blocks, window.blocks), earlier.blocks.size - 1
                )
                same = earlier.blocks[at] == window.blocks
                last = earlier.last[at[same]]
                open_end = earlier.following[last] == NEVER
                earlier.following[last[open_end]] = used[same][open_end]
        slots = self._slots_of(window)
        resident = slots >= 0
        resident_slots = slots[resident]
        ends = self._next_use[resident_slots] == NEVER
        self._next_use[resident_slots[ends]] = used[resident][ends]
        self._windows.append(window)
        self._planned += 1
        self.planned_until += window.steps

    def decide(self, pieces: Int64[np.ndarray, " p"] | None = None) -> Decision:
        """Decides the next step. ``pieces`` are indices into its window's ``blocks``: the result has their slots."""
        window, slots = self._begin_window()
        step = self.next_step
        k = self.next_step - window.first_step
        uses = int(window.bounds[k + 1] - window.bounds[k])
        if self._fetches is not None:
            first, last = self._fetches.bounds[k : k + 2]
            blocks, into, free_after = (x[first:last] for x in self._fetches[:3])
        else:
            blocks, into, free_after = self._decide_step(window, k, slots)
        piece_slots = slots[pieces] if pieces is not None else _NOTHING
        self._end_steps(window, 1)
        return Decision(step, piece_slots, uses - len(blocks), blocks, into, free_after)

    def decide_rest(self) -> list[list[int]] | None:
        """Decides all further steps of the window: the blocks that each of them fetches. None: this window is decided
        step by step.
        """
        window, _ = self._begin_window()
        if self._fetches is None:
            return None
        blocks = self._fetches.blocks
        bounds = self._fetches.bounds[self.next_step - window.first_step :]
        self._end_steps(window, len(bounds) - 1)
        return [blocks[first:last] for first, last in pairwise(bounds)]

    def _begin_window(self) -> tuple[WindowUses, np.ndarray]:
        """The window of the next step, and the slots of its blocks."""
        window = self._windows[0]
        if self._window_slots is None:
            self._window_slots = self._slots_of(window)
            self._fetches = self._decide_window(window, self._window_slots)
        return window, self._window_slots

    def _end_steps(self, window: WindowUses, count: int) -> None:
        self.next_step += count
        if self.next_step == window.first_step + window.steps:
            self._windows.popleft()
            self._window_slots = None

    def _decide_window(self, window: WindowUses, slots: np.ndarray) -> _Fetches | None:
        """All steps of a window at once, if there are enough unneeded slots; else None."""
        missing = np.flatnonzero(slots < 0)
        if missing.size > self.slots - len(self._slot) + self._idle().size:
            return None
        first = np.empty(window.blocks.size, np.int64)
        first[window.block[::-1]] = np.arange(window.block.size)[
            ::-1
        ]  # of several the first use is written last
        missing = missing[np.argsort(first[missing])]
        blocks = window.blocks[missing].tolist()
        into, free_after = self._take_free(missing.size)
        self._num_fetched += missing.size
        slots[missing] = into
        self._slot.update(zip(blocks, into, strict=True))
        self._block[into] = blocks
        self._last_use[slots] = _steps(window)[window.last]
        self._next_use[slots] = window.following[window.last]
        return _Fetches(
            blocks, into, free_after, np.searchsorted(first[missing], window.bounds).tolist()
        )

    def _decide_step(
        self, window: WindowUses, k: int, slots: np.ndarray
    ) -> tuple[list[int], list[int], list[int]]:
        """One step: blocks to fetch, their slots, and after which steps these are free."""
        step = window.first_step + k
        uses = slice(int(window.bounds[k]), int(window.bounds[k + 1]))
        block = window.block[uses]
        following = window.following[uses]
        used = slots[block]
        missing = np.flatnonzero(used < 0)
        fetched: list[int] = []
        into: list[int] = []
        free_after: list[int] = []
        if missing.size:
            self._last_use[used[used >= 0]] = step  # so that none of them makes room
            fetched = window.blocks[block[missing]].tolist()
            into, free_after = self._make_room(len(fetched), step, window, slots)
            self._num_fetched += len(fetched)
            used[missing] = into
            slots[block[missing]] = into
            self._slot.update(zip(fetched, into, strict=True))
            self._block[into] = fetched
        self._last_use[used] = step
        self._next_use[used] = following
        return fetched, into, free_after

    def _slots_of(self, window: WindowUses) -> np.ndarray:
        """Slot of each block; -1: none. If nothing was fetched since the last call for this window, the same array."""
        if self._latest[0] is not window or self._latest[1] != self._num_fetched:
            blocks = window.blocks.tolist()
            slots = np.fromiter(map(self._slot.get, blocks, repeat(-1)), np.int64, len(blocks))
            self._latest = window, self._num_fetched, slots
        return self._latest[2]

    def _idle(self) -> Int64[np.ndarray, " s"]:
        """Slots of blocks without a planned use."""
        return np.flatnonzero(self._next_use[: len(self._slot)] == NEVER)

    def _take_free(self, count: int) -> tuple[list[int], list[int]]:
        """At most ``count`` unneeded slots, and when they are free: unused ones first, then those of idle blocks, the
        least recently used first, and the blocks of one step in their order.
        """
        resident = len(self._slot)
        free = list(range(resident, min(resident + count, self.slots)))
        free_after = [-1] * len(free)
        if free and free[-1] >= self._block.size:
            self._grow(free[-1] + 1)
        if len(free) < count:
            idle = self._idle()
            count = count - len(free)
            if idle.size > count:  # no need to sort them all
                last_use = self._last_use[idle]
                idle = idle[last_use <= np.partition(last_use, count - 1)[count - 1]]
            idle = idle[np.lexsort((self._block[idle], self._last_use[idle]))[:count]]
            for block in self._block[idle].tolist():
                del self._slot[block]
            free += idle.tolist()
            free_after += self._last_use[idle].tolist()
        return free, free_after

    def _make_room(
        self, count: int, step: int, window: WindowUses, slots: np.ndarray
    ) -> tuple[list[int], list[int]]:
        """``count`` slots: unneeded ones, then those of the blocks that are needed again last."""
        free, free_after = self._take_free(count)
        if len(free) < count:
            victims = self._farthest(count - len(free), step, free)
            evicted = self._block[victims]
            for block in evicted.tolist():
                del self._slot[block]
            at = np.minimum(np.searchsorted(window.blocks, evicted), window.blocks.size - 1)
            slots[at[window.blocks[at] == evicted]] = -1
            free += victims.tolist()
            free_after += self._last_use[victims].tolist()
        return free, free_after

    def _farthest(self, count: int, step: int, taken: list[int]) -> np.ndarray:
        """The ``count`` slots whose blocks are needed again last, of those that this step does not use."""
        age = step - self._last_use
        age[taken] = 0
        may = np.flatnonzero(age > KEEP_STEPS)
        if may.size < count:
            may = np.flatnonzero(age > 0)
        order = np.lexsort((may, -age[may], -self._next_use[may]))
        return may[order[:count]]

    def _grow(self, least: int) -> None:
        had = self._block.size
        room = min(max(2 * had, least), self.slots)
        for name in ("_block", "_next_use", "_last_use"):
            grown = np.zeros(room, np.int64)
            grown[:had] = getattr(self, name)
            setattr(self, name, grown)


def _steps(window: WindowUses) -> np.ndarray:
    """Step of each use."""
    return np.repeat(
        np.arange(window.first_step, window.first_step + window.steps), np.diff(window.bounds)
    )
