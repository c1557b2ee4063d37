"""Stored blocks in memory: each is read once, straight into its slot; batches are gathered from there.

A block is a chunk of tokens and, where sources say which tokens are trained on, the chunk of their mask. Both are
fetched together, and stay as long. The memory is under one byte budget, allocated once (feed/slots.py). Which block is
in which slot is decided elsewhere (index/residency.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import HeadraceError, ReadError
from headrace.feed.plan import BlockSpace
from headrace.feed.slots import Gathering, Pending, Slots
from headrace.feed.workers import Workers
from headrace.metrics import ReadStats
from headrace.store.array import reason

_POLL_S = 0.1


class BlockCache:
    """Blocks of a :class:`~headrace.feed.plan.BlockSpace` within a byte budget. For one thread.

    Args:
        space: The blocks.
        max_bytes: Budget for blocks in memory and in flight.
        stats: Counters to add to.
        workers: Copy mapped blocks.
        mapping: Whether blocks of local uncompressed arrays are copied from memory-mapped files.

    Attributes:
        kinds: The memory of the tokens and, if there are any, of their masks.
    """

    def __init__(
        self, space: BlockSpace, max_bytes: int, stats: ReadStats, workers: Workers, *, mapping: bool = True
    ) -> None:
        self.space, self.stats = space, stats
        self.kinds = [Slots(arrays, space.chunk, stats, workers, mapping=mapping) for arrays in space.kinds]
        self.slot_bytes = space.slot_bytes
        self.num_slots = min(max_bytes // self.slot_bytes, int(space.first_block[-1]))
        self.max_bytes = max_bytes
        for kind in self.kinds:
            kind.allocate(self.num_slots)
        self._pending: dict[int, tuple[int, list[tuple[Slots, Pending]]]] = {}  # by block: its slot, what it waits for
        self._interrupted = threading.Event()

    def start(self, block: int, slot: int) -> None:
        """Starts fetching a block into a slot. The step that used the slot last must have been gathered."""
        number, chunk = self.space.place_of(block)
        self.stats.block_fetches += 1
        started = [(kind, kind.start(number, chunk, slot)) for kind in self.kinds]
        self._pending[block] = slot, [(kind, pending) for kind, pending in started if pending is not None]

    def ready(self, blocks: list[int]) -> bool:
        """Whether :meth:`wait` would return at once, and without an error."""
        for block in blocks:
            for _, pending in self._pending.get(block, (0, []))[1]:
                try:
                    if pending.result(0) is False:
                        return False
                except Exception:  # noqa: BLE001  # not there, or an error, which wait() reports
                    return False
        return True

    def wait(self, blocks: list[int], step: int) -> None:
        """Waits until blocks that were started have arrived; ``step`` needs them.

        Raises:
            ReadError: a block cannot be read; array, chunk and step are named.
        """
        for block in blocks:
            if block not in self._pending:
                continue
            slot, waiting = self._pending[block]
            number, chunk = self.space.place_of(block)
            for kind, pending in waiting:
                try:
                    if self._arrived(pending) is False:  # not what its checksum says: TensorStore tells, or reads it
                        self.stats.mapped_blocks -= 1
                        self._arrived(kind.read(number, chunk, slot))
                except HeadraceError as error:
                    array = kind.arrays[number]
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

    def gather(self, steps: Sequence[Gathering], into: Sequence[np.ndarray]) -> Callable[[], None]:
        """What copies the rows of some steps into one array for each of :attr:`kinds`, see :meth:`Slots.gather`."""
        parts = [kind.gather(steps, out) for kind, out in zip(self.kinds, into, strict=True)]
        return partial(_in_turn, parts)

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


def _in_turn(parts: Sequence[Callable[[], None]]) -> None:
    for part in parts:
        part()
