"""The memory under the slots of a block cache, for one kind of values: how it is filled, and rows gathered from it.

It is one flat buffer of equal slots; the operating system backs only what is touched. TensorStore reads into it; chunks
of local uncompressed arrays are copied from memory-mapped files instead (store/mapped.py), which is faster.

Rows that lie in their slots at multiples of their own length, which is the rule, are gathered for several steps in one
call of ``np.take``, straight into the buffers of the batches and without the interpreter's lock. Rows of several
pieces, as those of packed documents, are gathered in runs of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64
from numpy.lib.stride_tricks import as_strided

from headrace.errors import HeadraceError
from headrace.feed.plan import WindowPlan, slot_bytes
from headrace.feed.workers import Workers
from headrace.metrics import ReadStats
from headrace.store.array import StoredArray
from headrace.store.mapped import MappedArray

_RUNS = (128, 16, 1)
"""Elements that are copied at a time, of pieces that are no whole rows: an index for each costs more than the copy."""


class Pending(Protocol):
    """A fetch under way; its result is False if what was copied is not what its checksum says."""

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
        slots: Slot of each of its pieces.
        rows: Rows of the batch on this host, padding included.
    """

    plan: WindowPlan
    step: int
    slots: np.ndarray
    rows: int

    @property
    def held(self) -> int:
        """Rows that hold data."""
        return int(self.plan.row_bounds[self.step + 1] - self.plan.row_bounds[self.step])

    @property
    def pieces(self) -> slice:
        """Its pieces, among those of the plan."""
        return slice(int(self.plan.piece_bounds[self.step]), int(self.plan.piece_bounds[self.step + 1]))


class Slots:
    """Chunks of arrays that are all of one kind: tokens, or their masks.

    Args:
        arrays: By number; None: one that has none of these values, which then are all 1.
        chunk: Elements of the chunks of each.
        stats: Counters to add to.
        workers: Copy mapped chunks.
        mapping: Whether chunks of local uncompressed arrays are copied from memory-mapped files.
    """

    def __init__(
        self,
        arrays: Sequence[StoredArray | None],
        chunk: Int64[np.ndarray, " a"],
        stats: ReadStats,
        workers: Workers,
        *,
        mapping: bool,
    ) -> None:
        self.arrays, self.stats = arrays, stats
        dtypes = [np.dtype(np.uint8) if a is None else a.dtype for a in arrays]
        self.dtype = np.result_type(*dtypes)
        """Of every batch, whichever sources it holds: to the devices of all hosts it is one program."""
        self._dtypes = sorted(set(dtypes), key=str)
        self._dtype_of = np.asarray([self._dtypes.index(d) for d in dtypes], np.int64)
        self._itemsize = np.asarray([d.itemsize for d in dtypes], np.int64)
        self.slot_bytes = slot_bytes(arrays, chunk)
        self._workers, self._mapping = workers, mapping
        self._mapped: dict[int, MappedArray | None] = {}
        self._memory = np.empty(0, np.uint8)

    def allocate(self, slots: int) -> None:
        """Makes room for so many chunks, instead of what there was."""
        self._memory = np.empty(slots * self.slot_bytes, np.uint8)

    def start(self, number: int, chunk: int, slot: int) -> Pending | None:
        """Starts fetching a chunk of an array into a slot; None: there is nothing to wait for."""
        array, stats = self.arrays[number], self.stats
        begin = slot * self.slot_bytes
        if array is None:
            self._memory[begin : begin + self.slot_bytes] = 1
            return None
        stats.bytes_read += _elements(array, chunk) * array.dtype.itemsize
        mapped = self._mapped_array(number, array)
        if mapped is None or not mapped.address(chunk):
            try:
                return self.read(number, chunk, slot)
            except HeadraceError as error:  # it cannot even begin: that concerns the step that needs it
                return _Failed(error)
        stats.mapped_blocks += 1
        mapped.will_need(chunk)
        return self._workers.submit(partial(mapped.copy, chunk, self._memory[begin:][: mapped.chunk_bytes]))

    def read(self, number: int, chunk: int, slot: int) -> Pending:
        """Starts reading a chunk through TensorStore."""
        array = self.arrays[number]
        assert array is not None
        size, begin = _elements(array, chunk), slot * self.slot_bytes
        out = self._memory[begin : begin + size * array.dtype.itemsize].view(array.dtype)
        self.stats.tensorstore_reads_issued += 1
        return array.read_into(out, chunk * array.chunk_elements)

    def gather(self, steps: Sequence[Gathering], out: np.ndarray) -> Callable[[], None]:
        """What copies the rows of some steps into ``out``, where rows beyond those that hold data become zeros.

        For any thread, once; the slots must not be filled anew before it returns. As little as can be is left to it
        that needs the interpreter's lock.

        Args:
            steps: Steps whose rows have one length.
            out: ``[rows of all steps, row elements]`` of :attr:`dtype`, C order.
        """
        row_bytes = out.shape[1] * out.itemsize
        first_byte = [self._first_byte(step) for step in steps]
        regular = len(self._dtypes) == 1 and self.slot_bytes % row_bytes == 0
        if regular and all(s.plan.whole and s.held == s.rows for s in steps):
            begins = first_byte[0] if len(steps) == 1 else np.concatenate(first_byte)
            row, within = np.divmod(begins, row_bytes)
            if not within.any():
                return partial(_take, self._memory.reshape(-1, row_bytes), row, out.view(np.uint8))
        return partial(self._gather_steps, steps, first_byte, out)

    def _first_byte(self, where: Gathering) -> np.ndarray:
        """Where each piece of a step begins."""
        plan, pieces = where.plan, where.pieces
        itemsize = self.dtype.itemsize if len(self._dtypes) == 1 else self._itemsize[plan.array[pieces]]
        return where.slots * self.slot_bytes + plan.offset[pieces] * itemsize

    def _gather_steps(self, steps: Sequence[Gathering], first_byte: Sequence[np.ndarray], out: np.ndarray) -> None:
        at = 0
        for step, begins in zip(steps, first_byte, strict=True):
            self._gather_pieces(step, begins, out[at : at + step.rows])
            at += step.rows

    def _gather_pieces(self, where: Gathering, first_byte: np.ndarray, out: np.ndarray) -> None:
        """Rows of any number of pieces, of any sizes and dtypes."""
        plan, pieces = where.plan, where.pieces
        which, size = self._dtype_of[plan.array[pieces]], plan.size[pieces]
        begin = plan.piece_row[pieces] * out.shape[1] + plan.column[pieces]
        if int(size.sum()) < out.size:
            out[:] = 0  # what no piece fills
        flat, longest = out.reshape(-1), out.shape[1] + 1
        for run in (out.shape[1], *_RUNS):
            of_run = (size >= run) & (size < longest)
            longest = min(longest, run)
            for number, dtype in enumerate(self._dtypes):
                some = np.flatnonzero(of_run & (which == number))
                if some.size:
                    self._copy_runs(dtype, run, first_byte[some] // dtype.itemsize, begin[some], size[some], flat)

    def _copy_runs(
        self, dtype: np.dtype[Any], run: int, first: np.ndarray, begin: np.ndarray, size: np.ndarray, out: np.ndarray
    ) -> None:
        """Copies pieces of at least ``run`` elements, run by run; the last run of a piece ends with it, and may copy
        some of its elements again.
        """
        count = -(-size // run)
        nth = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        within = np.minimum(nth * run, np.repeat(size - run, count))
        memory = self._memory[: self._memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
        _runs(out, run)[np.repeat(begin, count) + within] = _runs(memory, run)[np.repeat(first, count) + within]

    def _mapped_array(self, number: int, array: StoredArray) -> MappedArray | None:
        if not self._mapping:
            return None
        if number not in self._mapped:
            self._mapped[number] = array.mapped()
        return self._mapped[number]


def _elements(array: StoredArray, chunk: int) -> int:
    return min(array.chunk_elements, array.length - chunk * array.chunk_elements)


def _runs(elements: np.ndarray, run: int) -> np.ndarray:
    """An array ``[n, run]``, whose row e is the ``run`` elements from element e on: a view."""
    step = elements.itemsize
    return as_strided(elements, (elements.size - run + 1, run), (step, step))


def _take(rows: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    np.take(rows, numbers, axis=0, out=out, mode="clip")
