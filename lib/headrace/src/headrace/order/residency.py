"""Decides which blocks are in memory at which step, so that loader and forecast cannot disagree.

Memory is a row of slots, each of which holds one block. A step needs all of its blocks at once.
How a step is decided:

1. Plan ahead, in windows of steps, which blocks each step uses (:func:`window_uses`); so each block
   in memory has a *next use*, the first step still to come that uses it, or none as far as planned.
2. Blocks of the step that are in memory stay where they are.
3. Each block that is missing gets a slot; the first of these that there are:

   a. a slot that was never used;
   b. that of an *idle* block, which no planned step uses: the least recently used first;
   c. that of the block whose next use is farthest away (Belady's rule, as far as is planned), of
      those that no step has used lately (``KEEP_STEPS``), unless there are no others.

4. The fetch may begin as soon as the last step that used the slot's old block has been gathered
   (``free_after``). Steps are decided far ahead, so their blocks are read ahead.
5. The step's blocks get their next uses, and this step as their last use.

With pencil and paper, for three slots and the four steps {1 2 3}, {3 4}, {1 4}, {2}::

    step  uses   slots before  missing   slot
    0     1 2 3  -  -  -       1, 2, 3   0, 1, 2: never used (a)
    1     3 4    1  2  3       4         1: block 1 is needed at step 2, block 2 at step 3 (c)
    2     1 4    1  4  3       none
    3     2      1  4  3       2         2: all are idle, and block 3 was used at step 1, before
                                         the others (b); so the fetch may begin after step 1

All of this depends only on the planned uses and the number of slots, not on the speed of the store
or the consumer: every host, and a forecast without any store, decide the same.

The planning horizon is part of the rule: windows of 1, 8, 32, 64, 64, ... steps (so that the first
batch does not wait for a long plan); a step is decided with the uses of up to 32 further steps in
view. Windows with enough slots of kinds a and b are decided as a whole, others step by step.

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
"""Steps beyond the one that is decided whose uses are in view."""
KEEP_STEPS = 2
"""A block that is still needed is evicted only if it was unused for this many steps, unless nothing
else is left: otherwise each step would wait for reads that could not start before the last one was
done."""


@dataclasses.dataclass(frozen=True, eq=False)
class WindowUses:
    """The blocks that the steps of a window use."""

    first_step: int  # first step of the window
    blocks: Int64[np.ndarray, " m"]  # distinct blocks, ascending
    bounds: Int64[np.ndarray, " steps1"]  # step k has the uses ``bounds[k]:bounds[k + 1]``
    # Block of each use, as an index into ``blocks``; each once a step, ascending
    block: Int64[np.ndarray, " u"]
    # Step that uses the block next, as far as is planned; else :data:`NEVER`. Kept up to date as
    # further windows are planned
    following: Int64[np.ndarray, " u"]
    # The last use of each block in this window, as an index into ``block``
    last: Int64[np.ndarray, " m"]

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
    """The uses of a window, from each piece's block and step (counted from ``first_step``).

    Also returns each piece's block as an index into ``WindowUses.blocks``.

    Example:
        Step 7 reads pieces of blocks 5 and 3, step 8 one of block 5: step 8 uses block 5 next.

        >>> uses, index = window_uses(7, 2, np.array([5, 3, 5]), np.array([0, 0, 1]))
        >>> uses.blocks.tolist(), index.tolist(), uses.bounds.tolist()
        ([3, 5], [1, 0, 1], [0, 2, 3])
        >>> uses.following.tolist() == [NEVER, 8, NEVER]
        True
    """
    # 1. Sort pieces by block, then step: several pieces of one block in one step are one use
    order = _by_block_and_step(block, step, steps)
    piece_block = block[order]
    piece_step = step[order]
    new_block = np.ones(order.size, bool)
    new_block[1:] = piece_block[1:] != piece_block[:-1]
    new_use = new_block.copy()
    new_use[1:] |= piece_step[1:] != piece_step[:-1]
    # 2. Number the distinct blocks, and take the numbers back to the pieces as they came
    number = np.cumsum(new_block) - 1
    piece_number = np.empty(order.size, np.int64)
    piece_number[order] = number
    # 3. In this order, a use is followed by the next one of its block
    use_block = number[new_use]
    use_step = piece_step[new_use]
    following = np.full(use_block.size, NEVER)
    again = np.flatnonzero(use_block[1:] == use_block[:-1])
    following[again] = use_step[again + 1] + first_step
    # 4. Sort uses by step; a stable sort leaves the blocks of a step ascending. NumPy sorts 16-bit
    #    integers by counting
    by_step = np.argsort(use_step.astype(np.int16 if steps < 1 << 15 else np.int64), kind="stable")
    use_block = use_block[by_step]
    following = following[by_step]
    bounds = np.zeros(steps + 1, np.int64)
    np.cumsum(np.bincount(use_step, minlength=steps), out=bounds[1:])
    # 5. Each block's last use is the one that none follows: the next window continues from it
    distinct = piece_block[new_block]
    last = np.zeros(distinct.size, np.int64)
    final = np.flatnonzero(following == NEVER)
    last[use_block[final]] = final
    return WindowUses(first_step, distinct, bounds, use_block, following, last), piece_number


def _by_block_and_step(block: np.ndarray, step: np.ndarray, steps: int) -> np.ndarray:
    """The order of pieces by block, then step, then place.

    One sort of integers that pack the three, where they fit: faster than a lexsort.
    """
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
    """Decides which blocks to fetch and which to evict; see the module for the steps.

    Use: while :attr:`wants_window` is true, :meth:`extend` by a window of :attr:`window_steps`
    steps (or fewer, if a phase ends) from :attr:`planned_until` on; then :meth:`decide`. There is
    room for ``slots`` blocks; ``stop_step`` is one past the last step of the run (None: endless).

    Example:
        The four steps of the module, planned as one window:

        >>> memory = Residency(3, 0, 4)
        >>> blocks = np.array([1, 2, 3, 3, 4, 1, 4, 2])
        >>> memory.extend(window_uses(0, 4, blocks, np.array([0, 0, 0, 1, 1, 2, 2, 3]))[0])
        >>> for decision in (memory.decide() for _ in range(4)):
        ...     print(decision.step, decision.blocks, decision.into, decision.free_after)
        0 [1, 2, 3] [0, 1, 2] [-1, -1, -1]
        1 [4] [1] [0]
        2 [] [] []
        3 [2] [2] [1]
    """

    def __init__(self, slots: int, first_step: int, stop_step: int | None = None) -> None:
        self.slots = slots
        self.first_step = first_step
        self.stop_step = stop_step
        self.next_step = first_step  # the step that is decided next
        self.planned_until = first_step  # one past the last planned step
        self._planned = 0  # windows
        self._windows: deque[WindowUses] = deque()
        # Of the first window, once its turn has come: the slots of its blocks (-1: none), and its
        # fetches, if it could be decided as a whole
        self._window_slots: Int64[np.ndarray, " m"] | None = None
        self._fetches: _Fetches | None = None
        # The answer of _slots_of: the window, how many fetches there had been, and its slots
        self._latest: tuple[WindowUses | None, int, np.ndarray] = (None, 0, _NOTHING)
        self._num_fetched = 0
        # Memory: the slot of each block that is in one; and of each slot its block, the next step
        # that uses it (NEVER: idle) and the last one that did. Pages of slots that never come into
        # use take no memory
        self._slot: dict[int, int] = {}
        self._block = np.zeros(slots, np.int64)
        self._next_use = np.zeros(slots, np.int64)
        self._last_use = np.zeros(slots, np.int64)

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
        # The view grows with the run, so that the first steps do not wait for a long plan
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
        step_uses = np.diff(window.bounds)
        if int(step_uses.max()) > self.slots:
            too_large = int(np.argmax(step_uses > self.slots))
            raise ConfigError(
                f"hold too little: the rows of step {window.first_step + too_large} lie in"
                f" {int(step_uses[too_large])} blocks",
                field="slots",
                value=self.slots,
            )
        # 1. The step that uses each block first: of several writes to one place, the last one stays
        first_use = np.empty(window.blocks.size, np.int64)
        backwards = np.arange(window.block.size)[::-1]
        first_use[window.block[backwards]] = _steps(window)[backwards]
        # It is the next use after the last one in an earlier window, if none in between is
        for earlier in self._windows:
            if earlier.blocks.size and window.blocks.size:
                at = np.minimum(
                    np.searchsorted(earlier.blocks, window.blocks), earlier.blocks.size - 1
                )
                same = earlier.blocks[at] == window.blocks
                last = earlier.last[at[same]]
                open_end = earlier.following[last] == NEVER
                earlier.following[last[open_end]] = first_use[same][open_end]
        # and that of blocks in memory that were idle
        slots = self._slots_of(window)
        resident = slots >= 0
        resident_slots = slots[resident]
        idle = self._next_use[resident_slots] == NEVER
        self._next_use[resident_slots[idle]] = first_use[resident][idle]
        self._windows.append(window)
        self._planned += 1
        self.planned_until += window.steps

    def decide(self, pieces: Int64[np.ndarray, " p"] | None = None) -> Decision:
        """Decides the next step.

        ``pieces`` are indices into its window's ``blocks``: the result has their slots.
        """
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
        """Decides all further steps of the window: the blocks that each of them fetches.

        None: this window is decided step by step.
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
        """All steps of a window at once, if there are enough unneeded slots; else None.

        Same order of preference, fewer operations: if slots of kinds a and b suffice for all that
        is missing, nothing that is needed must go. Every block of the window counts as needed until
        the window ends.
        """
        missing = np.flatnonzero(slots < 0)
        if missing.size > self.slots - len(self._slot) + self._idle().size:
            return None
        # Missing blocks in order of first use; of writes to one place, the last one stays
        first_use = np.empty(window.blocks.size, np.int64)
        first_use[window.block[::-1]] = np.arange(window.block.size)[::-1]
        missing = missing[np.argsort(first_use[missing])]
        blocks = window.blocks[missing].tolist()
        # 3. Slots, and 4. when their fetches may begin
        into, free_after = self._take_free(missing.size)
        self._num_fetched += missing.size
        slots[missing] = into
        self._slot.update(zip(blocks, into, strict=True))
        self._block[into] = blocks
        # 5. As they will be after the window: nothing asks before
        self._last_use[slots] = _steps(window)[window.last]
        self._next_use[slots] = window.following[window.last]
        bounds = np.searchsorted(first_use[missing], window.bounds).tolist()
        return _Fetches(blocks, into, free_after, bounds)

    def _decide_step(
        self, window: WindowUses, k: int, slots: np.ndarray
    ) -> tuple[list[int], list[int], list[int]]:
        """One step: blocks to fetch, their slots, and after which steps these are free."""
        step = window.first_step + k
        uses = slice(int(window.bounds[k]), int(window.bounds[k + 1]))
        block = window.block[uses]
        following = window.following[uses]
        # 2. What is in memory stays
        used = slots[block]
        missing = np.flatnonzero(used < 0)
        fetched: list[int] = []
        into: list[int] = []
        free_after: list[int] = []
        # 3. Slots for the others, and 4. when their fetches may begin
        if missing.size:
            self._last_use[used[used >= 0]] = step  # so that none of them makes room
            fetched = window.blocks[block[missing]].tolist()
            into, free_after = self._make_room(len(fetched), step, window, slots)
            self._num_fetched += len(fetched)
            used[missing] = into
            slots[block[missing]] = into
            self._slot.update(zip(fetched, into, strict=True))
            self._block[into] = fetched
        # 5. This step was their last use; the next is planned
        self._last_use[used] = step
        self._next_use[used] = following
        return fetched, into, free_after

    def _slots_of(self, window: WindowUses) -> np.ndarray:
        """Slot of each block; -1: none.

        If nothing was fetched since the last call for this window, the same array.
        """
        if self._latest[0] is not window or self._latest[1] != self._num_fetched:
            blocks = window.blocks.tolist()
            slots = np.fromiter(map(self._slot.get, blocks, repeat(-1)), np.int64, len(blocks))
            self._latest = window, self._num_fetched, slots
        return self._latest[2]

    def _idle(self) -> Int64[np.ndarray, " s"]:
        """Slots of blocks without a planned use."""
        return np.flatnonzero(self._next_use[: len(self._slot)] == NEVER)

    def _take_free(self, count: int) -> tuple[list[int], list[int]]:
        """At most ``count`` unneeded slots, and the step after which each is free."""
        # a. Never used: free at once
        resident = len(self._slot)
        free = list(range(resident, min(resident + count, self.slots)))
        free_after = [-1] * len(free)
        # b. Idle blocks, the least recently used first; of those of one step, the lower number
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
        # c. Blocks that are needed again: a later step of this window may have to fetch them back
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
        """The ``count`` slots whose blocks are needed again last; none that this step uses."""
        age = step - self._last_use  # in steps; 0: used by this one
        age[taken] = 0
        may = np.flatnonzero(age > KEEP_STEPS)
        if may.size < count:
            may = np.flatnonzero(age > 0)
        # The farthest next use first, then the longest unused, then the lower slot: no tie is left,
        # so all hosts decide the same
        order = np.lexsort((may, -age[may], -self._next_use[may]))
        return may[order[:count]]


def _steps(window: WindowUses) -> np.ndarray:
    """Step of each use."""
    return np.repeat(
        np.arange(window.first_step, window.first_step + window.steps), np.diff(window.bounds)
    )
