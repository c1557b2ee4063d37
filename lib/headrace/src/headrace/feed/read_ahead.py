"""Reads ahead of the batches: plans, decides what each step fetches, and starts the fetches in order of first use.

There are no borders between windows: a window is only what is planned in one go. A fetch starts as soon as its slot is
free, as far ahead as :data:`AHEAD` steps. What is fetched, and what makes room for it, follows from the plan and the
number of slots alone (order/residency.py); only the moment of a fetch depends on how far the batches have come.

A block is a chunk of tokens and, where batches have columns, the chunks of these beside it. All are fetched together,
once, straight into their slots (feed/gathering.py), and stay as long. All are under one byte budget. What lies in a
memory-mapped file stays there, and is held against its checksum once: windows all of whose blocks were have nothing to
fetch and no use for slots. What the budget would hold of them is decided and counted all the same, so that a forecast
need not know where a cache lies.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import HeadraceError, ReadError
from headrace.feed.gather_kernel import KernelThread
from headrace.feed.gathering import Pending, Slots, StepRange
from headrace.feed.mapped_files import MappedBlocks
from headrace.feed.plan import BlockSpace, WindowPlan
from headrace.feed.workers import Workers
from headrace.metrics import ReadStats
from headrace.order.residency import Residency
from headrace.stalls import LEAST_S, Cause, Wait, WaitLog
from headrace.store.failures import reason
from headrace.store.retry import own_counts

AHEAD = 64
_RAMP = 8
_POLL_S = 0.1


@dataclass(eq=False)
class Window:
    """A plan, and for each kind of values which of its blocks lie in mapped files.

    Attributes:
        plan: Of its steps.
        mapped: For each kind of values where its blocks lie in mapped files.
        in_place: Whether all do, and were checked, so that there is nothing to fetch and nothing to wait for.
        fetched: Of each step that was decided the blocks that are fetched for it.
        slots: The slots of its pieces; nothing for windows that are ``in_place``.
        begun: Steps that were begun.
    """

    plan: WindowPlan
    mapped: list[MappedBlocks]
    in_place: bool
    fetched: list[list[int]] = field(default_factory=list[list[int]])
    slots: list[np.ndarray] = field(default_factory=list[np.ndarray])
    begun: int = 0

    @property
    def step(self) -> int:
        """The step that is begun next."""
        return self.plan.first_step + self.begun


class BlockCache:
    """Blocks of a :class:`~headrace.feed.plan.BlockSpace`, at most ``max_bytes`` of them. For one thread.

    ``kinds`` is the memory of the tokens and of each column; see :class:`Slots` for the arguments.
    """

    def __init__(
        self,
        space: BlockSpace,
        max_bytes: int,
        stats: ReadStats,
        copiers: Workers,
        checker: KernelThread | None = None,
        *,
        mapping: bool = True,
    ) -> None:
        self.space, self.stats = space, stats
        self.kinds = [Slots(kind, space.chunk, stats, copiers, checker, mapping=mapping) for kind in space.kinds]
        self.slot_bytes = space.slot_bytes
        self.num_slots = min(max_bytes // self.slot_bytes, int(space.first_block[-1]))
        self.max_bytes = max_bytes
        for kind in self.kinds:
            kind.allocate(self.num_slots)
        self._pending: dict[int, tuple[tuple[int, int, int], list[tuple[Slots, Pending]]]] = {}
        """By block: its array, chunk and slot, and what it waits for."""
        self._interrupted = threading.Event()

    def open_window(self, plan: WindowPlan) -> Window:
        """Finds which blocks of the next window lie in mapped files."""
        blocks = plan.uses.blocks
        array = self.space.array_of(blocks)
        chunk = blocks - self.space.first_block[array]
        mapped = [kind.find(plan.uses, array, chunk) for kind in self.kinds]
        return Window(plan, mapped, all(bool(kind.sound.all()) for kind in mapped))

    def count_in_place(self, blocks: list[int]) -> None:
        """Counts blocks that are gathered from mapped files, and need no slots, as if they had been fetched."""
        if blocks:
            numbers = np.array(blocks)
            array = self.space.array_of(numbers)
            chunk = numbers - self.space.first_block[array]
            self.stats.block_fetches += len(blocks)
            for kind in self.kinds:
                kind.count_mapped(array, chunk)

    def start(self, block: int, slot: int) -> bool:
        """Starts fetching a block into a slot, and says whether there is anything to wait for. The step that used the
        slot last must have been gathered.
        """
        number, chunk = self.space.place_of(block)
        self.stats.block_fetches += 1
        waiting = [(kind, p) for kind in self.kinds if (p := kind.start(block, number, chunk, slot)) is not None]
        if waiting:
            self._pending[block] = (number, chunk, slot), waiting
        return bool(waiting)

    def ready(self, blocks: list[int]) -> bool:
        """Whether :meth:`wait` would return at once, and without an error."""
        for block in blocks:
            for _, pending in self._pending.get(block, (None, []))[1]:
                try:
                    if pending.result(0) is False:
                        return False
                except Exception:  # noqa: BLE001  # not there, or an error, which wait() reports
                    return False
        return True

    def wait(self, blocks: list[int], step: int) -> None:
        """Waits until blocks that were started have arrived; ``step`` needs them."""
        for block in blocks:
            if block not in self._pending:
                continue
            (number, chunk, slot), waiting = self._pending[block]
            for kind, pending in waiting:
                try:
                    if self._arrived(pending) is False:  # not what its checksum says: TensorStore tells, or reads it
                        self.stats.mapped_blocks -= 1
                        self._arrived(kind.read(block, number, chunk, slot))
                except HeadraceError as error:
                    array = kind.arrays.get(number)
                    raise ReadError(
                        f"chunk {chunk} cannot be read for step {step} ({reason(error.__cause__ or error)})",
                        field="array",
                        value=None if array is None else array.url,
                        cure="Check that the store can be reached and that the cache was copied whole, then go on from"
                        " this step.",
                    ) from error
            del self._pending[block]

    def interrupt(self) -> None:
        """Makes :meth:`wait` give up, now and from now on. For any thread."""
        self._interrupted.set()

    def gather(self, window: Window, steps: StepRange, into: Sequence[np.ndarray]) -> list[Callable[[], None]]:
        """What copies the rows of some steps of a window into one array for each of :attr:`kinds`, see
        :meth:`Slots.gather`.
        """
        kinds = zip(self.kinds, window.mapped, into, strict=True)
        return [part for kind, mapped, out in kinds for part in kind.gather(steps, mapped, out)]

    def close(self) -> None:
        """Gives the memory back. Reads in flight are abandoned; each keeps alive what it may still write into."""
        self._pending.clear()
        for kind in self.kinds:
            kind.allocate(0)

    def _arrived(self, pending: Pending) -> Any:
        while not self._interrupted.is_set():
            try:
                return pending.result(_POLL_S)
            except TimeoutError:
                continue
        raise ReadError("the loader was closed while it was read")


class _Fetch(NamedTuple):
    step: int
    block: int
    slot: int
    free_after: int
    wanted: float


class _Started(NamedTuple):
    """A fetch that is under way."""

    at: float
    waited_s: float  # for its slot
    mapped: bool  # memory-mapped, and not read
    retries: int  # of this process until then
    decode_s: float  # likewise


class ReadAhead:
    """The steps ``first_step .. stop_step`` (None: no end), in order, their fetches running ahead.

    ``plan`` plans so many steps from a step on (fewer at the end of a phase); ``waits`` gets the long waits.
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
        self._windows: deque[Window] = deque()
        self._decided: deque[Window] = deque()  # in part, and not begun as a whole
        self._fetches: deque[_Fetch] = deque()
        self._in_place: list[int] = []  # blocks whose use has begun since they were last counted
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
            window = self._windows[0]
            if not window.fetched:
                self._decided.append(window)
            self._decide(window)
            if len(window.fetched) == window.plan.steps:
                self._windows.popleft()
        self._start()

    def _decide(self, window: Window) -> None:
        """Decides the next step of a window; of one that is in place all others too, if they need not wait."""
        number, plan, stats = len(window.fetched), window.plan, self._cache.stats
        if window.in_place and (fetched := self.residency.decide_rest()) is not None:
            window.fetched += fetched
            stats.block_hits += int(plan.uses.bounds[-1] - plan.uses.bounds[number]) - sum(map(len, fetched))
            return
        pieces = slice(int(plan.piece_bounds[number]), int(plan.piece_bounds[number + 1]))
        decided = self.residency.decide(None if window.in_place else plan.block[pieces])
        window.fetched.append(decided.blocks)
        stats.block_hits += decided.hits
        if not window.in_place:
            window.slots.append(decided.slots)
            now = time.perf_counter()
            self._fetches.extend(
                _Fetch(decided.step, *fetch, now)
                for fetch in zip(decided.blocks, decided.into, decided.free_after, strict=True)
            )
            self._start()

    @property
    def next(self) -> Window:
        """The window whose next step :meth:`begin` gives next."""
        return self._decided[0]

    def may_begin(self) -> bool:
        """Whether :meth:`begin` would return at once."""
        return self._may_begin(self.next, self.next.begun)

    def _may_begin(self, window: Window, number: int) -> bool:
        if window.in_place:
            return True
        started = not self._fetches or self._fetches[0].step > window.plan.first_step + number
        return started and self._cache.ready(window.fetched[number])

    def begin(self, most: int) -> tuple[int, int]:
        """Begins steps of :attr:`next`: the first one, for whose blocks it waits, and at most ``most`` in all whose
        blocks are there. The bounds of their numbers. The steps before must have been gathered unless
        :meth:`may_begin`.
        """
        window = self.next
        first, stop = window.begun, min(window.begun + most, len(window.fetched))
        if window.in_place:
            self._in_place += chain.from_iterable(window.fetched[first:stop])
        else:
            stop = first + 1
            self._wait_for(window, first)
            while stop < min(first + most, len(window.fetched)) and self._may_begin(window, stop):
                self._wait_for(window, stop)
                stop += 1
        window.begun = stop
        if stop == window.plan.steps:
            self._decided.popleft()
        return first, stop

    def gathered(self, step: int) -> None:
        """Says that ``step`` has been gathered: blocks that make room for others may go."""
        self._gathered = step
        self._cache.count_in_place(self._in_place)
        self._in_place.clear()
        self._start()

    def _start(self) -> None:
        fetches = self._fetches
        while fetches and fetches[0].free_after <= self._gathered:
            fetch = fetches.popleft()
            mapped = self._cache.stats.mapped_blocks
            if self._cache.start(fetch.block, fetch.slot):
                counts, is_mapped, now = own_counts(), self._cache.stats.mapped_blocks > mapped, time.perf_counter()
                since = now - fetch.wanted
                self._started[fetch.block] = _Started(now, since, is_mapped, counts.retries, counts.decode_s)

    def _wait_for(self, window: Window, number: int) -> None:
        for block in window.fetched[number]:
            if block in self._started:
                self._wait(block, window.plan.first_step + number)

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
        no_room, took = started.waited_s >= ended - began, f"{(ended - started.at) * 1000:.0f} ms"
        detail = f"check took {took}" if started.mapped else f"read took {took}"
        if no_room:
            detail = f"{detail}, and had waited {started.waited_s * 1000:.0f} ms for room"
        counts = own_counts()
        retries, decode_s = counts.retries - started.retries, counts.decode_s - started.decode_s
        if retries:
            detail = f"{detail}, {retries} retries meanwhile"
        if decode_s >= LEAST_S:
            detail = f"{detail}, {decode_s * 1000:.0f} ms of it decoding"
        decoding = decode_s > (ended - started.at) / 2
        cause: Cause = "budget" if no_room else "check" if started.mapped else "decode" if decoding else "store"
        return Wait(cause, began, ended, array.url, chunk, detail)

    def _extend(self) -> None:
        with self._waits.during("plan"):
            plan = self._plan(self.residency.planned_until, self.residency.window_steps)
        self.residency.extend(plan.uses)
        self._windows.append(self._cache.open_window(plan))
