"""Reads ahead of the batches: plans, decides what each step fetches, and starts the fetches in
order of first use.

Reading does not stop at the end of a window, which is only the steps that are planned in one go. A
fetch starts as soon as its slot is free, up to :data:`AHEAD` steps ahead. The plan and the number
of slots alone decide what is fetched and what makes room for it (order/residency.py); only the time
of a fetch depends on the progress of the batches.

A block is a chunk of tokens and, if batches have columns, the corresponding chunks of these. They
are fetched together, once, directly into their slots (feed/gathering.py), are evicted together, and
share one byte budget. Chunks in memory-mapped files stay there, need no slots, and are verified
against their checksums once, before the first step that uses them (feed/mapped_files.py). What the
budget would hold of them is decided and counted all the same, so that a forecast need not know
where a cache is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from headrace.data.rows import BlockSpace
from headrace.errors import HeadraceError, ReadError
from headrace.feed.gather_kernel import KernelThread
from headrace.feed.gathering import Read, Slots, StepRange
from headrace.feed.horizon import AHEAD, Horizon
from headrace.feed.mapped_files import MappedBlocks
from headrace.feed.plan import WindowPlan
from headrace.metrics import LEAST_S, Cause, ReadStats, Wait, WaitLog
from headrace.order.residency import Residency
from headrace.store.failures import reason
from headrace.store.retry import own_counts

_RAMP = 8
_POLL_S = 0.1


@dataclass(eq=False)
class Window:
    """A plan and, for each kind of values, which of its blocks are in mapped files.

    Attributes:
        plan: The plan of its steps.
        mapped: For each kind of values, where its blocks are in mapped files.
        reads: Whether each block, or a column of it, must be read.
        reads_of_step: For each decided step, the blocks that are read for it.
        in_files: For each decided step, the blocks in files whose use begins with it.
        slots: For each decided step, the slots of its pieces; empty for windows that read nothing.
        begun: Number of steps that have begun.
    """

    plan: WindowPlan
    mapped: list[MappedBlocks]
    reads: Bool[np.ndarray, " m"]
    reads_of_step: list[list[int]] = field(default_factory=list[list[int]])
    in_files: list[list[int]] = field(default_factory=list[list[int]])
    slots: list[np.ndarray] = field(default_factory=list[np.ndarray])
    begun: int = 0

    def __post_init__(self) -> None:
        self.in_place = not self.reads.any()
        self.checked = self.in_place and all(kind.checks is None for kind in self.mapped)
        """Whether there is nothing to wait for."""

    @property
    def step(self) -> int:
        """The next step to begin."""
        return self.plan.first_step + self.begun


class BlockCache:
    """Holds blocks of a :class:`~headrace.data.rows.BlockSpace`, at most ``max_bytes`` of them.
    Used by one thread.

    ``kinds`` has the memory of the tokens and of each column; see :class:`Slots` for the arguments.
    """

    def __init__(
        self,
        space: BlockSpace,
        max_bytes: int,
        stats: ReadStats,
        checker: KernelThread | None = None,
        *,
        mapping: bool = True,
    ) -> None:
        self.space = space
        self.stats = stats
        self.kinds = [
            Slots(kind, size, stats, checker, mapping=mapping)
            for kind, size in zip(space.kinds, space.kind_bytes, strict=True)
        ]
        self.slot_bytes = space.slot_bytes
        self.num_slots = min(max_bytes // self.slot_bytes, int(space.first_block[-1]))
        self.max_bytes = max_bytes
        for kind in self.kinds:
            kind.allocate(self.num_slots)
        self._pending: dict[int, list[tuple[Slots, Read]]] = {}
        """By block: the reads that it waits for."""
        self._interrupted = threading.Event()

    def open_window(self, plan: WindowPlan) -> Window:
        """Finds out which blocks of the next window are in mapped files."""
        blocks = plan.uses.blocks
        array = self.space.array_of(blocks)
        chunk = blocks - self.space.first_block[array]
        mapped = [kind.files.find(plan.uses, array, chunk) for kind in self.kinds]
        return Window(plan, mapped, np.any([kind.must_be_read for kind in mapped], axis=0))

    def count_in_files(self, blocks: list[int]) -> None:
        """Counts blocks that are gathered from mapped files, and so need no slots, as if they had
        been fetched.
        """
        if blocks:
            numbers = np.array(blocks)
            array = self.space.array_of(numbers)
            chunk = numbers - self.space.first_block[array]
            self.stats.block_fetches += len(blocks)
            for kind in self.kinds:
                kind.count_mapped(array, chunk)

    def start(self, window: Window, block: int, slot: int) -> None:
        """Starts reading a block of a window into a slot. The last step that used the slot must
        have been gathered.
        """
        number, chunk = self.space.place_of(block)
        at = int(np.searchsorted(window.plan.uses.blocks, block))
        self.stats.block_fetches += 1
        self._pending[block] = []
        for kind, mapped in zip(self.kinds, window.mapped, strict=True):
            if mapped.must_be_read[at]:
                self._pending[block].append((kind, kind.start(number, chunk, slot)))
            else:
                kind.count_mapped(np.array([number]), np.array([chunk]))

    def is_settled(self, window: Window, number: int) -> bool:
        """Whether :meth:`settle` would return at once, and without an error."""
        kinds = zip(self.kinds, window.mapped, strict=True)
        return all(kind.files.is_settled(mapped, number) for kind, mapped in kinds)

    def settle(self, window: Window, number: int) -> None:
        """Waits until the chunks in mapped files that a step of a window uses are verified against
        their checksums. A chunk that fails is read: this raises an error that explains the damage,
        unless the file has been replaced.
        """
        step = window.plan.first_step + number
        for kind, mapped in zip(self.kinds, window.mapped, strict=True):
            for block, array, chunk in kind.files.settle(mapped, number):
                memory = np.empty(kind.slot_bytes, np.uint8)
                try:
                    self._arrived(kind.read(array, chunk, memory))
                except HeadraceError as error:
                    raise _not_readable(kind, array, chunk, step, error) from error
                self.stats.mapped_blocks -= 1
                kind.files.replace(block, memory)

    def ready(self, blocks: list[int]) -> bool:
        """Whether :meth:`wait` would return at once, and without an error."""
        for block in blocks:
            for _, pending in self._pending.get(block, ()):
                try:
                    pending.result(0)
                except Exception:  # noqa: BLE001
                    # not there yet, or an error, which wait() reports
                    return False
        return True

    def wait(self, blocks: list[int], step: int) -> None:
        """Waits until the started ones of these blocks have arrived; ``step`` needs them."""
        for block in blocks:
            if block not in self._pending:
                continue
            for kind, pending in self._pending[block]:
                try:
                    self._arrived(pending)
                except HeadraceError as error:
                    place = self.space.place_of(block)
                    raise _not_readable(kind, *place, step, error) from error
            del self._pending[block]

    def interrupt(self) -> None:
        """Makes :meth:`wait` give up, now and from now on. Safe to call from any thread."""
        self._interrupted.set()

    def gather(
        self, window: Window, steps: StepRange, into: Sequence[np.ndarray]
    ) -> list[Callable[[], None]]:
        """Calls that copy the rows of some steps of a window into one array for each of
        :attr:`kinds`; see :meth:`Slots.gather`.
        """
        kinds = zip(self.kinds, window.mapped, into, strict=True)
        return [part for kind, mapped, out in kinds for part in kind.gather(steps, mapped, out)]

    def check_files(self, window: Window) -> None:
        """Checks the mapped files of a window; see :meth:`MappedFiles.check_files`."""
        for kind, mapped in zip(self.kinds, window.mapped, strict=True):
            kind.files.check_files(mapped)

    def close(self) -> None:
        """Frees the memory. Reads in flight are abandoned; each keeps the memory alive that it may
        still write to.
        """
        self._pending.clear()
        for kind in self.kinds:
            kind.allocate(0)

    def _arrived(self, pending: Read) -> None:
        while not self._interrupted.is_set():
            with suppress(TimeoutError):
                pending.result(_POLL_S)
                return
        raise ReadError("the loader was closed while it was read")


def _not_readable(
    kind: Slots, number: int, chunk: int, step: int, error: HeadraceError
) -> ReadError:
    array = kind.arrays.get(number)
    return ReadError(
        f"chunk {chunk} cannot be read for step {step} ({reason(error.__cause__ or error)})",
        field="array",
        value=None if array is None else array.url,
        cure="Check that the store can be reached and that the cache was copied whole, then go on"
        " from this step.",
    )


class _Fetch(NamedTuple):
    step: int
    window: Window
    block: int
    slot: int
    free_after: int
    wanted: float


class _Started(NamedTuple):
    """A fetch in flight."""

    at: float
    waited_s: float  # for its slot to become free
    retries: int  # of this process before the fetch
    decode_s: float  # likewise


class ReadAhead:
    """The steps from ``first_step`` to the end of ``horizon``, in order, with fetches that run
    ahead.

    ``plan(step, steps)`` plans ``steps`` steps from ``step`` on (fewer at the end of a phase);
    ``waits`` records the long waits.
    """

    def __init__(
        self,
        plan: Callable[[int, int], WindowPlan],
        cache: BlockCache,
        first_step: int,
        horizon: Horizon,
        waits: WaitLog,
    ) -> None:
        self.residency = Residency(cache.num_slots, first_step, horizon.stop)
        self._horizon = horizon
        self._plan = plan
        self._cache = cache
        self._first_step = first_step
        self._gathered = first_step - 1
        self._windows: deque[Window] = deque()
        # At least in part, and not all of whose steps have begun.
        self._decided: deque[Window] = deque()
        self._fetches: deque[_Fetch] = deque()
        self._in_files: list[int] = []  # blocks in files whose use began after the last count
        self._waits = waits
        self._started: dict[int, _Started] = {}  # by block

    def run(self, step: int) -> bool:
        """Decides steps and starts fetches as far ahead of ``step`` as allowed. Returns whether
        there is a step to begin: there is none at the end.

        The first step runs alone: nothing should delay the first batch.
        """
        residency = self.residency
        until = step + 1 + min(AHEAD, _RAMP * (step - self._first_step))
        while residency.next_step < until:
            while residency.wants_window:
                self._extend()
            if residency.next_step == residency.planned_until:
                break
            window = self._windows[0]
            if not window.reads_of_step:
                self._decided.append(window)
            self._decide(window)
            if len(window.reads_of_step) == window.plan.steps:
                self._windows.popleft()
        self._start()
        return bool(self._decided)

    def _decide(self, window: Window) -> None:
        """Decides the next step of a window; if it reads nothing, also all others, unless these
        must wait.
        """
        number = len(window.reads_of_step)
        plan = window.plan
        stats = self._cache.stats
        if window.in_place and (fetched := self.residency.decide_rest()) is not None:
            window.in_files += fetched
            window.reads_of_step += [[]] * len(fetched)
            stats.block_hits += int(plan.uses.bounds[-1] - plan.uses.bounds[number]) - sum(
                map(len, fetched)
            )
            return
        pieces = slice(int(plan.piece_bounds[number]), int(plan.piece_bounds[number + 1]))
        decided = self.residency.decide(None if window.in_place else plan.block[pieces])
        stats.block_hits += decided.hits
        reads = window.reads[np.searchsorted(plan.uses.blocks, decided.blocks)].tolist()
        now = time.perf_counter()
        fetches = [
            _Fetch(decided.step, window, *fetch, now)
            for fetch in compress(
                zip(decided.blocks, decided.into, decided.free_after, strict=True), reads
            )
        ]
        window.reads_of_step.append([fetch.block for fetch in fetches])
        window.in_files.append(
            [block for block, is_read in zip(decided.blocks, reads, strict=True) if not is_read]
        )
        if not window.in_place:
            window.slots.append(decided.slots)
            self._fetches.extend(fetches)
            self._start()

    @property
    def next(self) -> Window:
        """The window that has the next step for :meth:`begin`."""
        return self._decided[0]

    def may_begin(self) -> bool:
        """Whether :meth:`begin` would return at once."""
        return self._may_begin(self.next, self.next.begun)

    def _may_begin(self, window: Window, number: int) -> bool:
        if window.checked:
            return True
        started = not self._fetches or self._fetches[0].step > window.plan.first_step + number
        return (
            started
            and self._cache.is_settled(window, number)
            and self._cache.ready(window.reads_of_step[number])
        )

    def begin(self, most: int) -> tuple[int, int]:
        """Begins steps of :attr:`next`: waits for the blocks of the first one, and adds those after
        it whose blocks are there, up to ``most`` in all. Returns the bounds of their numbers.
        Unless :meth:`may_begin`, all earlier steps must have been gathered.
        """
        window = self.next
        first = window.begun
        stop = min(window.begun + most, len(window.reads_of_step))
        if not window.checked:
            stop = first + 1
            self._wait_for(window, first)
            while stop < min(first + most, len(window.reads_of_step)) and self._may_begin(
                window, stop
            ):
                self._wait_for(window, stop)
                stop += 1
        self._in_files += chain.from_iterable(window.in_files[first:stop])
        window.begun = stop
        if stop == window.plan.steps:
            self._decided.popleft()
        return first, stop

    def gathered(self, step: int) -> None:
        """Records that ``step`` has been gathered: its blocks may now make room for others."""
        self._gathered = step
        self._cache.count_in_files(self._in_files)
        self._in_files.clear()
        self._start()

    def _start(self) -> None:
        fetches = self._fetches
        while fetches and fetches[0].free_after <= self._gathered:
            fetch = fetches.popleft()
            self._cache.start(fetch.window, fetch.block, fetch.slot)
            counts = own_counts()
            now = time.perf_counter()
            waited_s = now - fetch.wanted
            self._started[fetch.block] = _Started(now, waited_s, counts.retries, counts.decode_s)

    def _wait_for(self, window: Window, number: int) -> None:
        step = window.plan.first_step + number
        uses = window.plan.uses
        now = time.perf_counter()
        blocks = uses.blocks[uses.block[uses.bounds[number] : uses.bounds[number + 1]]]
        if blocks.size:
            with self._noting(partial(self._described_check, int(blocks[0]), now)):
                self._cache.settle(window, number)
        for block in window.reads_of_step[number]:
            if block in self._started:
                now = time.perf_counter()
                started = self._started.pop(block)
                with self._noting(partial(self._described, block, now, started)):
                    self._cache.wait([block], step)

    @contextmanager
    def _noting(self, described: Callable[[float], Wait]) -> Iterator[None]:
        """Records a wait if it becomes a long one."""
        began = time.perf_counter()
        self._waits.under_way = described
        try:
            yield
        finally:
            ended = time.perf_counter()
            self._waits.under_way = None
            if ended - began >= LEAST_S:
                self._waits.add(described(ended))

    def _described_check(self, block: int, began: float, ended: float) -> Wait:
        """A wait for the checks of chunks in mapped files; ``block`` has one of them."""
        number, chunk = self._cache.space.place_of(block)
        detail = f"check took {(ended - began) * 1000:.0f} ms"
        return Wait("check", began, ended, self._cache.space.arrays[number].url, chunk, detail)

    def _described(self, block: int, began: float, started: _Started, ended: float) -> Wait:
        """A wait for a block. Its cause is the budget if the fetch had waited at least as long for
        its slot: with more room, the block would have been there.
        """
        number, chunk = self._cache.space.place_of(block)
        array = self._cache.space.arrays[number]
        no_room = started.waited_s >= ended - began
        detail = f"read took {(ended - started.at) * 1000:.0f} ms"
        if no_room:
            detail = f"{detail}, and had waited {started.waited_s * 1000:.0f} ms for room"
        counts = own_counts()
        retries = counts.retries - started.retries
        decode_s = counts.decode_s - started.decode_s
        if retries:
            detail = f"{detail}, {retries} retries meanwhile"
        if decode_s >= LEAST_S:
            detail = f"{detail}, {decode_s * 1000:.0f} ms of it decoding"
        decoding = decode_s > (ended - started.at) / 2
        cause: Cause = "budget" if no_room else "decode" if decoding else "store"
        return Wait(cause, began, ended, array.url, chunk, detail)

    def _extend(self) -> None:
        with self._waits.during("plan"):
            first = self.residency.planned_until
            steps = self._horizon.plan(first, self.residency.window_steps)
            self.residency.stop_step = self._horizon.stop
            if not steps:  # the plan has been ended here
                return
            plan = self._plan(first, steps)
        self.residency.extend(plan.uses)
        self._windows.append(self._cache.open_window(plan))
