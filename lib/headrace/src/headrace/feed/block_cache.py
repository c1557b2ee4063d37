"""Stored blocks in memory: each is read once, straight into its slot, and stays until nothing planned needs it.

The memory is one flat buffer of equal slots under a byte budget, allocated once; the operating system backs only what
is touched. A batch is one gather from it. Slots of blocks that no planned step needs are reused, least recently used
first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headrace.errors import ConfigError, ReadError
from headrace.feed.plan import BlockSpace, WindowPlan
from headrace.metrics import ReadStats
from headrace.store.array import ArrayFuture, reason

_POLL_S = 0.1


class BlockCache:
    """Blocks of a :class:`~headrace.feed.plan.BlockSpace` within a byte budget. For one thread.

    Args:
        space: The blocks.
        max_bytes: Budget for blocks in memory and in flight.
        stats: Counters to add to.
    """

    def __init__(self, space: BlockSpace, max_bytes: int, stats: ReadStats) -> None:
        self.space, self.stats = space, stats
        self.dtype = np.result_type(*(a.dtype for a in space.arrays))
        """Of every batch, whichever sources it holds: to the devices of all hosts it is one program."""
        self._itemsize = np.asarray([a.dtype.itemsize for a in space.arrays], np.int64)
        self.slot_bytes = int((space.chunk * self._itemsize).max() + 7) // 8 * 8
        self.num_slots = min(max_bytes // self.slot_bytes, int(space.first_block[-1]))
        self.max_bytes = max_bytes
        self._memory = np.empty(self.num_slots * self.slot_bytes, np.uint8)
        self._free = list(range(self.num_slots - 1, -1, -1))
        self._slot: dict[int, int] = {}
        self._pending: dict[int, ArrayFuture] = {}
        self._needed_until: dict[int, int] = {}
        self._expiring: dict[int, list[int]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._interrupted = threading.Event()

    @property
    def resident_bytes(self) -> int:
        """Bytes of slots that hold a block or wait for one."""
        return len(self._slot) * self.slot_bytes

    def fits(self, plan: WindowPlan, share: float = 1.0) -> bool:
        """Whether all blocks of a plan fit into this share of the budget at once, or all that there are into it all."""
        room = self.max_bytes // self.slot_bytes
        return plan.blocks.size <= share * room or int(self.space.first_block[-1]) <= room

    def check_fits(self, plan: WindowPlan) -> None:
        """Raises ConfigError unless all blocks of a plan fit at once."""
        if not self.fits(plan):
            needed = plan.blocks.size * self.slot_bytes
            raise ConfigError(
                f"is less than the blocks of one batch: step {plan.first_step} needs {plan.blocks.size} blocks of"
                f" {self.slot_bytes / 1024:.0f} KiB",
                field="prefetch_bytes",
                value=self.max_bytes,
                cure=f"Give at least {needed}; {4 * needed} lets reads run ahead.",
            )

    def admit(self, plan: WindowPlan, slots: np.ndarray, done: int) -> int:
        """Starts reading blocks of a plan, in order of first use, as far as there is room.

        Args:
            plan: The plan.
            slots: int64 array, one entry a block of the plan; filled in for admitted blocks.
            done: How many blocks of the plan were admitted before.

        Returns:
            How many blocks are admitted now.
        """
        if done == 0:  # what is here already must not make room for the rest, only to be read again
            for block in plan.blocks.tolist():
                self._idle.pop(block, None)
        for at in range(done, plan.blocks.size):
            block = int(plan.blocks[at])
            slot = self._slot.get(block)
            if slot is None:
                slot = self._take_slot()
                if slot is None:
                    return at
                self._slot[block] = slot
                self._pending[block] = self._start_read(block, slot)
            else:
                self.stats.block_hits += 1
            until = plan.first_step + int(plan.last_use[at])
            self._needed_until[block] = until
            self._expiring.setdefault(until, []).append(block)
            slots[at] = slot
        return plan.blocks.size

    def wait(self, plan: WindowPlan, step: int) -> None:
        """Waits until the blocks of step ``plan.first_step + step`` have arrived. All of them must be admitted.

        Raises:
            ReadError: a block cannot be read; array, chunk and step are named.
        """
        first, last = plan.block_bounds[step : step + 2]
        for block in plan.blocks[first:last].tolist():
            future = self._pending.get(block)
            if future is None:
                continue
            try:
                self._arrived(future)
            except ReadError as error:
                number = int(self.space.array_of(np.asarray([block]))[0])
                raise ReadError(
                    f"chunk {block - int(self.space.first_block[number])} cannot be read for step"
                    f" {plan.first_step + step} ({reason(error.__cause__ or error)})",
                    field="array",
                    value=self.space.arrays[number].url,
                    cure="Check that the store can be reached and that the cache was copied whole, then go on from this"
                    " step.",
                ) from error
            del self._pending[block]

    def interrupt(self) -> None:
        """Makes :meth:`wait` give up, now and from now on. For any thread."""
        self._interrupted.set()

    def _arrived(self, future: ArrayFuture) -> None:
        while not self._interrupted.is_set():
            try:
                future.result(_POLL_S)
            except TimeoutError:
                continue
            return
        raise ReadError("the loader was closed while it was read")

    def gather(self, plan: WindowPlan, slots: np.ndarray, step: int, row_elements: int) -> np.ndarray:
        """The rows of step ``plan.first_step + step``: a fresh array ``[local rows, row_elements]`` of :attr:`dtype`.

        Call :meth:`wait` for the step first.
        """
        pieces = np.arange(int(plan.piece_bounds[step]), int(plan.piece_bounds[step + 1]))
        rows = int(plan.row_bounds[step + 1] - plan.row_bounds[step])
        itemsizes = self._itemsize[plan.array[pieces]]
        if rows and pieces.size == rows and (itemsizes == self.dtype.itemsize).all():
            return self._windows(self.dtype, row_elements)[self._address(plan, slots, pieces, self.dtype)]
        out = np.empty((rows, row_elements), self.dtype)
        for itemsize in np.unique(itemsizes):
            some = pieces[itemsizes == itemsize]
            self._copy(plan, slots, some, out, self.space.arrays[int(plan.array[some[0]])].dtype)
        return out

    def finished(self, step: int) -> None:
        """Says that ``step`` has been gathered: blocks needed by no later planned step may go."""
        for block in self._expiring.pop(step, ()):
            if self._needed_until[block] == step:
                self._idle[block] = None

    def close(self) -> None:
        """Gives the memory back. Reads in flight are abandoned; each keeps alive what it may still write into."""
        self._pending.clear()
        self._slot.clear()
        self._free.clear()
        self._memory = np.empty(0, np.uint8)

    def _copy(
        self, plan: WindowPlan, slots: np.ndarray, pieces: np.ndarray, out: np.ndarray, dtype: np.dtype[Any]
    ) -> None:
        """Copies pieces of one dtype into their rows: whole rows in one gather, the others element by element."""
        whole = plan.size[pieces] == out.shape[1]
        if whole.any():
            some = pieces[whole]
            out[plan.piece_row[some]] = self._windows(dtype, out.shape[1])[self._address(plan, slots, some, dtype)]
        rest = pieces[~whole]
        if rest.size:
            size = plan.size[rest]
            within = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            source = np.repeat(self._address(plan, slots, rest, dtype), size) + within
            target = np.repeat(plan.piece_row[rest] * out.shape[1] + plan.column[rest], size) + within
            out.reshape(-1)[target] = self._memory.view(dtype)[source]

    def _windows(self, dtype: np.dtype[Any], size: int) -> np.ndarray:
        """All runs of ``size`` elements of the memory, as rows of a view."""
        return sliding_window_view(self._memory.view(dtype), size)

    def _address(self, plan: WindowPlan, slots: np.ndarray, pieces: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """First element of each piece in the memory seen as ``dtype``."""
        return slots[plan.block[pieces]] * (self.slot_bytes // dtype.itemsize) + plan.offset[pieces]

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        if not self._idle:
            return None
        block, _ = self._idle.popitem(last=False)
        self._needed_until.pop(block)
        return self._slot.pop(block)

    def _start_read(self, block: int, slot: int) -> ArrayFuture:
        number = int(self.space.array_of(np.asarray([block]))[0])
        array = self.space.arrays[number]
        start = (block - int(self.space.first_block[number])) * array.chunk_elements
        size = min(array.chunk_elements, array.length - start)
        begin = slot * self.slot_bytes
        out = self._memory[begin : begin + size * array.dtype.itemsize].view(array.dtype)
        self.stats.block_fetches += 1
        self.stats.tensorstore_reads_issued += 1
        self.stats.bytes_read += out.nbytes
        return array.read_into(out, start)
