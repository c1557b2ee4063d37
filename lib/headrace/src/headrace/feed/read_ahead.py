"""Reads ahead of the batches: plans, decides what each step fetches, and starts the fetches in order of first use.

There are no borders between windows: a window is only what is planned in one go. A fetch starts as soon as its slot is
free, as far ahead as :data:`AHEAD` steps. What is fetched, and what makes room for it, follows from the plan and the
number of slots alone (index/residency.py); only the moment of a fetch depends on how far the batches have come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from headrace.feed.block_cache import BlockCache
from headrace.feed.diagnosis import LEAST_S, Wait, WaitLog
from headrace.feed.plan import WindowPlan
from headrace.index.residency import Residency
from headrace.stalls import Cause
from headrace.store.retry import own_counts

AHEAD = 64
_RAMP = 8


class Step(NamedTuple):
    """A step whose blocks have slots.

    Attributes:
        plan: The plan that it belongs to.
        number: Its number within the plan.
        slots: Slot of each of its pieces.
        fetched: Blocks that are fetched for it.
    """

    plan: WindowPlan
    number: int
    slots: np.ndarray
    fetched: list[int]

    @property
    def step(self) -> int:
        return self.plan.first_step + self.number


class _Fetch(NamedTuple):
    step: int
    block: int
    slot: int
    free_after: int
    wanted: float


class _Started(NamedTuple):
    """What is known of a fetch that is under way.

    Attributes:
        at: When it began.
        held_s: Seconds that it had to wait for its slot.
        mapped: Whether it is a copy of mapped memory, and no read.
        retries: Of this process until then,
        decode_s: and its seconds of decoding.
    """

    at: float
    held_s: float
    mapped: bool
    retries: int
    decode_s: float


class ReadAhead:
    """The steps of a run, in order, their fetches running ahead.

    Args:
        plan: Plans so many steps from a step on (fewer at the end of a phase).
        cache: Fetches.
        first_step: First step.
        stop_step: One past the last; None: no end.
        waits: Gets the long waits for plans and blocks.
    """

    def __init__(
        self,
        plan: Callable[[int, int], WindowPlan],
        cache: BlockCache,
        first_step: int,
        stop_step: int | None,
        waits: WaitLog,
    ) -> None:
        self.residency = Residency(cache.num_slots, first_step, stop_step)
        self._plan, self._cache = plan, cache
        self._first_step, self._stop_step = first_step, stop_step
        self._gathered = first_step - 1
        self._windows: deque[WindowPlan] = deque()
        self._steps: deque[Step] = deque()
        self._fetches: deque[_Fetch] = deque()
        self._waits = waits
        self._started: dict[int, _Started] = {}  # by block

    def run(self, step: int) -> None:
        """Decides steps, and starts fetches, as far ahead of ``step`` as it may.

        The first step runs alone: nothing is to stand in the way of the first batch.
        """
        residency = self.residency
        until = step + 1 + min(AHEAD, _RAMP * (step - self._first_step))
        if self._stop_step is not None:
            until = min(until, self._stop_step)
        while residency.next_step < until:
            while residency.wants_window:
                self._extend()
            plan = self._windows[0]
            number = residency.next_step - plan.first_step
            first, last = int(plan.piece_bounds[number]), int(plan.piece_bounds[number + 1])
            decided = residency.decide(plan.block[first:last])
            self._cache.stats.block_hits += decided.hits
            self._steps.append(Step(plan, number, decided.slots, decided.blocks))
            now = time.perf_counter()
            self._fetches.extend(
                _Fetch(decided.step, *fetch, now)
                for fetch in zip(decided.blocks, decided.into, decided.free_after, strict=True)
            )
            if number + 1 == plan.steps:
                self._windows.popleft()
            self._start()
        self._start()

    @property
    def next(self) -> Step:
        """The step that :meth:`begin` gives next."""
        return self._steps[0]

    def may_begin(self) -> bool:
        """Whether :meth:`begin` would return at once."""
        step = self._steps[0]
        started = not self._fetches or self._fetches[0].step > step.step
        return started and self._cache.ready(step.fetched)

    def begin(self) -> Step:
        """The next step, its blocks all there. Those before it must have been gathered unless :meth:`may_begin`.

        Raises:
            ReadError: a block cannot be read.
        """
        step = self._steps.popleft()
        for block in step.fetched:
            self._wait(block, step.step)
        return step

    def gathered(self, step: int) -> None:
        """Says that ``step`` has been gathered: blocks that make room for others may go."""
        self._gathered = step
        self._start()

    def _start(self) -> None:
        fetches = self._fetches
        while fetches and fetches[0].free_after <= self._gathered:
            fetch = fetches.popleft()
            stats = self._cache.stats
            mapped, now = stats.mapped_blocks, time.perf_counter()
            self._cache.start(fetch.block, fetch.slot)
            counts = own_counts()
            self._started[fetch.block] = _Started(
                now, now - fetch.wanted, stats.mapped_blocks > mapped, counts.retries, counts.decode_s
            )

    def _wait(self, block: int, step: int) -> None:
        began, started = time.perf_counter(), self._started.pop(block)
        self._waits.under_way = described = partial(self._described, block, began, started)
        try:
            self._cache.wait([block], step)
        finally:
            ended = time.perf_counter()
            self._waits.under_way = None
            if ended - began >= LEAST_S:
                self._waits.add(described(ended))

    def _described(self, block: int, began: float, started: _Started, ended: float) -> Wait:
        """A wait for a block. It is put down to the budget if the fetch had waited as long for its slot: else it would
        have been there.
        """
        number, chunk = self._cache.space.place_of(block)
        array = self._cache.space.arrays[number]
        held, took = started.held_s >= ended - began, f"{(ended - started.at) * 1000:.0f} ms"
        detail = f"copy and check took {took}" if started.mapped else f"read took {took}"
        if held:
            detail = f"{detail}, and had waited {started.held_s * 1000:.0f} ms for room"
        counts = own_counts()
        retries, decode_s = counts.retries - started.retries, counts.decode_s - started.decode_s
        if retries:
            detail = f"{detail}, {retries} retries meanwhile"
        if decode_s >= LEAST_S:
            detail = f"{detail}, {decode_s * 1000:.0f} ms of it decoding"
        decoding = decode_s > (ended - started.at) / 2
        cause: Cause = "budget" if held else "check" if started.mapped else "decode" if decoding else "store"
        return Wait(cause, began, ended, array.url, chunk, detail)

    def _extend(self) -> None:
        with self._waits.during("plan"):
            plan = self._plan(self.residency.planned_until, self.residency.window_steps)
        self.residency.extend(plan.uses)
        self._windows.append(plan)
