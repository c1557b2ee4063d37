"""Stored blocks in memory: each is read once, straight into its slot; batches are gathered from there.

The memory is one flat buffer of equal slots under a byte budget, allocated once; the operating system backs only what
is touched. TensorStore reads into it; chunks of local uncompressed arrays are copied from memory-mapped files instead
(store/mapped.py), which is faster. Which block is in which slot is decided elsewhere (index/residency.py).

Rows that lie in their slots at multiples of their own length, which is the rule, are gathered for several steps in one
call of ``np.take``, straight into the buffers of the batches and without the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from headrace.errors import HeadraceError, ReadError
from headrace.feed.plan import BlockSpace, WindowPlan
from headrace.feed.workers import Workers
from headrace.metrics import ReadStats
from headrace.store.array import StoredArray, reason
from headrace.store.mapped import MappedArray

_POLL_S = 0.1


class _Pending(Protocol):
    def result(self, timeout: float | None = None) -> Any: ...


class _Failed:
    """A read that could not begin."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        raise self._error


class Gathering(NamedTuple):
    """A step whose rows are to be gathered.

    Attributes:
        plan: The plan that it belongs to.
        step: The step, counted from the plan's first.
        first_byte: Where in the memory each of its pieces begins.
        rows: Rows of the batch on this host, padding included.
    """

    plan: WindowPlan
    step: int
    first_byte: np.ndarray
    rows: int

    @property
    def held(self) -> int:
        """Rows that hold data."""
        return int(self.plan.row_bounds[self.step + 1] - self.plan.row_bounds[self.step])


class BlockCache:
    """Blocks of a :class:`~headrace.feed.plan.BlockSpace` within a byte budget. For one thread.

    Args:
        space: The blocks.
        max_bytes: Budget for blocks in memory and in flight.
        stats: Counters to add to.
        workers: Copy mapped blocks.
        mapping: Whether blocks of local uncompressed arrays are copied from memory-mapped files.
    """

    def __init__(
        self, space: BlockSpace, max_bytes: int, stats: ReadStats, workers: Workers, *, mapping: bool = True
    ) -> None:
        self.space, self.stats = space, stats
        self.dtype = np.result_type(*(a.dtype for a in space.arrays))
        """Of every batch, whichever sources it holds: to the devices of all hosts it is one program."""
        self._itemsize = np.asarray([a.dtype.itemsize for a in space.arrays], np.int64)
        kinds = sorted({a.dtype for a in space.arrays}, key=str)
        self._kinds = kinds
        self._kind = np.asarray([kinds.index(a.dtype) for a in space.arrays], np.int64)
        self.slot_bytes = slot_bytes(space)
        self.num_slots = min(max_bytes // self.slot_bytes, int(space.first_block[-1]))
        self.max_bytes = max_bytes
        self._workers = workers
        self._mapping = mapping
        self._mapped: dict[int, MappedArray | None] = {}
        self._memory = np.empty(self.num_slots * self.slot_bytes, np.uint8)
        self._pending: dict[int, tuple[int, _Pending]] = {}  # by block: its slot, and what it waits for
        self._interrupted = threading.Event()

    def start(self, block: int, slot: int) -> None:
        """Starts fetching a block into a slot. The step that used the slot last must have been gathered."""
        number, chunk = self.space.place_of(block)
        array = self.space.arrays[number]
        stats = self.stats
        stats.block_fetches += 1
        stats.bytes_read += self._elements(array, chunk) * array.dtype.itemsize
        mapped = self._mapped_array(number)
        if mapped is None or not mapped.address(chunk):
            try:
                self._pending[block] = slot, self._read(number, chunk, slot)
            except HeadraceError as error:  # it cannot even begin: that concerns the step that needs the block
                self._pending[block] = slot, _Failed(error)
            return
        stats.mapped_blocks += 1
        mapped.will_need(chunk)
        into = self._memory[slot * self.slot_bytes :][: mapped.chunk_bytes]
        self._pending[block] = slot, self._workers.submit(partial(mapped.copy, chunk, into))

    def ready(self, blocks: list[int]) -> bool:
        """Whether :meth:`wait` would return at once, and without an error."""
        for block in blocks:
            waiting = self._pending.get(block)
            if waiting is None:
                continue
            try:
                if waiting[1].result(0) is False:
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
            waiting = self._pending.get(block)
            if waiting is None:
                continue
            slot, future = waiting
            number, chunk = self.space.place_of(block)
            try:
                sound = self._arrived(future)
                if sound is False:  # not what its checksum says: TensorStore reads it, or says what is wrong
                    self.stats.mapped_blocks -= 1
                    self._arrived(self._read(number, chunk, slot))
            except HeadraceError as error:
                raise ReadError(
                    f"chunk {chunk} cannot be read for step {step} ({reason(error.__cause__ or error)})",
                    field="array",
                    value=self.space.arrays[number].url,
                    cure="Check that the store can be reached and that the cache was copied whole, then go on from this"
                    " step.",
                ) from error
            del self._pending[block]

    def interrupt(self) -> None:
        """Makes :meth:`wait` give up, now and from now on. For any thread."""
        self._interrupted.set()

    def located(self, plan: WindowPlan, step: int, slots: np.ndarray, rows: int) -> Gathering:
        """A step, its pieces found, for :meth:`gather`.

        Args:
            plan: The plan.
            step: The step, counted from its first. Call :meth:`wait` for it before.
            slots: Slot of each piece.
            rows: Rows of the batch on this host, padding included.
        """
        pieces = slice(int(plan.piece_bounds[step]), int(plan.piece_bounds[step + 1]))
        itemsize = self.dtype.itemsize if len(self._kinds) == 1 else self._itemsize[plan.array[pieces]]
        return Gathering(plan, step, slots * self.slot_bytes + plan.offset[pieces] * itemsize, rows)

    def gather(self, steps: Sequence[Gathering], out: np.ndarray) -> Callable[[], None]:
        """What copies the rows of some steps into ``out``, where rows beyond those that hold data become zeros.

        For any thread, once; the blocks must not be replaced before it returns. As little as can be is left to it that
        needs the interpreter's lock.

        Args:
            steps: Steps whose rows have one length.
            out: ``[rows of all steps, row elements]`` of :attr:`dtype`, C order.
        """
        row_bytes = out.shape[1] * out.itemsize
        regular = len(self._kinds) == 1 and self.slot_bytes % row_bytes == 0
        if regular and all(s.plan.whole and s.held == s.rows for s in steps):
            first_byte = steps[0].first_byte if len(steps) == 1 else np.concatenate([s.first_byte for s in steps])
            row, within = np.divmod(first_byte, row_bytes)
            if not within.any():
                return partial(_take, self._memory.reshape(-1, row_bytes), row, out.view(np.uint8))
        return partial(self._gather_steps, steps, out)

    def _gather_steps(self, steps: Sequence[Gathering], out: np.ndarray) -> None:
        at = 0
        for step in steps:
            self._gather_pieces(step, out[at : at + step.rows])
            at += step.rows

    def _gather_pieces(self, where: Gathering, out: np.ndarray) -> None:
        """Rows of any number of pieces, of any sizes and dtypes: whole rows row by row, the others by element."""
        plan, step = where.plan, where.step
        pieces = slice(int(plan.piece_bounds[step]), int(plan.piece_bounds[step + 1]))
        kind, size = self._kind[plan.array[pieces]], plan.size[pieces]
        row, column = plan.piece_row[pieces], plan.column[pieces]
        if int(size.sum()) < out.size:
            out[:] = 0  # what no piece fills
        for number in np.unique(kind).tolist():
            here, dtype = kind == number, self._kinds[number]
            whole = np.flatnonzero(here & (size == out.shape[1]))
            if whole.size:
                out[row[whole]] = self._runs(dtype, out.shape[1])[where.first_byte[whole]]
            rest = np.flatnonzero(here & (size != out.shape[1]))
            if rest.size:
                length = size[rest]
                within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
                source = np.repeat(where.first_byte[rest], length) + within * dtype.itemsize
                target = np.repeat(row[rest] * out.shape[1] + column[rest], length) + within
                out.reshape(-1)[target] = self._runs(dtype, 1)[source, 0]

    def _runs(self, dtype: np.dtype[Any], size: int) -> np.ndarray:
        """The memory as array ``[bytes, size]``: row b is the ``size`` elements that begin at byte b."""
        whole = self._memory[: self._memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
        shape = (max(self._memory.size - size * dtype.itemsize + 1, 0), size)
        return as_strided(whole, shape, (1, dtype.itemsize), writeable=False)

    def close(self) -> None:
        """Gives the memory back. Reads in flight are abandoned; each keeps alive what it may still write into."""
        self._pending.clear()
        self._memory = np.empty(0, np.uint8)

    def _mapped_array(self, number: int) -> MappedArray | None:
        if not self._mapping:
            return None
        if number not in self._mapped:
            self._mapped[number] = self.space.arrays[number].mapped()
        return self._mapped[number]

    def _read(self, number: int, chunk: int, slot: int) -> _Pending:
        array = self.space.arrays[number]
        start = chunk * array.chunk_elements
        size = self._elements(array, chunk)
        begin = slot * self.slot_bytes
        out = self._memory[begin : begin + size * array.dtype.itemsize].view(array.dtype)
        self.stats.tensorstore_reads_issued += 1
        return array.read_into(out, start)

    @staticmethod
    def _elements(array: StoredArray, chunk: int) -> int:
        return min(array.chunk_elements, array.length - chunk * array.chunk_elements)

    def _arrived(self, future: _Pending) -> Any:
        while not self._interrupted.is_set():
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                continue
        raise ReadError("the loader was closed while it was read")


def _take(rows: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    np.take(rows, numbers, axis=0, out=out, mode="clip")


def slot_bytes(space: BlockSpace) -> int:
    """Bytes that each block takes in memory: those of the largest."""
    itemsize = np.asarray([a.dtype.itemsize for a in space.arrays], np.int64)
    return int((space.chunk * itemsize).max() + 7) // 8 * 8
