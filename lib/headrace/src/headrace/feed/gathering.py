"""What batches are gathered with: slots of stored blocks, host buffers that are used again, and a few threads.

Slots: the memory of blocks is allocated once, for each kind of values (tokens, columns) one flat buffer of equal slots,
of which the operating system backs only what is touched. TensorStore reads into it. Chunks of local uncompressed arrays
stay where they are, in memory-mapped files (store/mapped.py): each is held against its checksum once, where it lies,
and its slot is but its address. The rows of several steps are gathered from these addresses in one call
(feed/gather_kernel.py), straight into the buffers of the batches, by a thread that needs no interpreter.

Where that kernel cannot be had, or arrays of several dtypes are mixed, mapped chunks are copied into their slots. Rows
that lie there at multiples of their own length are gathered in one call of ``np.take``, others in runs of elements.

Buffers: a fresh one costs a page fault for every 4 KiB, when it is written and again when it is given back: as much as
gathering a batch. A CPU device takes a host buffer over without a copy, so a buffer must not be written to while a
batch, or a computation that reads it, is alive. Whoever can see a buffer holds a reference to its memory (a view has it
as its base, XLA holds the view): no reference but the pool's own is the proof that it is free.

Price: one look at the reference counts of the pool's buffers a batch; one at each mapped file a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int64
from numpy.lib.stride_tricks import as_strided

from headrace.data.columns import RunColumn
from headrace.data.rows import runs_of_elements
from headrace.errors import HeadraceError
from headrace.feed.gather_kernel import Copies, copy_kernel
from headrace.feed.mapped_files import MappedFiles
from headrace.feed.plan import WindowPlan, slot_bytes
from headrace.feed.workers import Workers
from headrace.metrics import ReadStats
from headrace.store.array import StoredArray
from headrace.store.mapped import MappedArray

ALIGNMENT = 64
"""XLA takes a host buffer as it is, without a copy, if it begins at a multiple of this."""
_SPARE = 2
"""Free buffers that are kept; what was needed at a peak goes back to the system."""
_RUNS = (128, 16, 1)
"""Elements that are copied at a time, of pieces that are no whole rows: an index for each costs more than the copy."""


class Buffers:
    """A pool of buffers. For one thread; what it handed out may be dropped by any.

    Example:
        >>> buffers = Buffers()
        >>> first = buffers.take(2, 8, np.dtype(np.uint16))
        >>> at, second = first.ctypes.data, buffers.take(2, 8, np.dtype(np.uint16))
        >>> first.shape, at % 64, second.ctypes.data == at
        ((2, 8), 0, False)
        >>> del first
        >>> buffers.take(2, 8, np.dtype(np.uint16)).ctypes.data == at
        True
    """

    def __init__(self) -> None:
        self._memory: list[np.ndarray] = []
        self._size = 0

    def take(self, rows: int, row_elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """An array ``[rows, row_elements]``, not initialised, that nobody else can see."""
        size = rows * row_elements * dtype.itemsize
        memory = self._free(size)
        begin = -memory.ctypes.data % ALIGNMENT
        return memory[begin : begin + size].view(dtype).reshape(rows, row_elements)

    def _free(self, size: int) -> np.ndarray:
        if size != self._size:  # batches changed their size: the old buffers go as they are dropped
            self._memory.clear()
            self._size = size
        spare = [k for k in range(len(self._memory)) if sys.getrefcount(self._memory[k]) == _UNSEEN]
        for k in reversed(spare[_SPARE:]):
            del self._memory[k]
        if spare:
            return self._memory[spare[0]]
        memory = np.empty(size + ALIGNMENT, np.uint8)
        self._memory.append(memory)
        return memory


_SAMPLE = [np.empty(1, np.uint8)]
_UNSEEN = sys.getrefcount(_SAMPLE[0])
"""What ``getrefcount`` says of an array that only a list holds."""


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
    """A step whose rows are to be gathered: its number within the plan, the slot of each of its pieces, the rows of the
    arrays on this host, and whether those that hold no data may hold anything (they are zeros else).
    """

    plan: WindowPlan
    step: int
    slots: np.ndarray
    rows: int
    loose: bool = False

    @property
    def held(self) -> int:
        """Rows that hold data."""
        return int(self.plan.row_bounds[self.step + 1] - self.plan.row_bounds[self.step])

    @property
    def fills_rows(self) -> bool:
        """Whether each row is one piece, or may be a copy of one."""
        return self.plan.whole and (self.held == self.rows or (self.loose and self.held > 0))

    @property
    def pieces(self) -> slice:
        """Its pieces, among those of the plan."""
        return slice(int(self.plan.piece_bounds[self.step]), int(self.plan.piece_bounds[self.step + 1]))


class Slots:
    """Chunks of arrays that are all of one kind: tokens, or a column of theirs. An array without has the default, or
    values of its documents, which are not in chunks: they are laid where the tokens are when these are gathered.

    ``workers`` check chunks of local uncompressed arrays in memory-mapped files, if ``mapping``, or copy them.
    """

    def __init__(
        self, kind: RunColumn, chunk: Int64[np.ndarray, " a"], stats: ReadStats, workers: Workers, *, mapping: bool
    ) -> None:
        self.kind, self.arrays, self.stats = kind, kind.arrays, stats
        dtypes = [kind.dtype if run.dtype is None else run.dtype for run in kind.arrays.runs]
        self.dtype, self.width = kind.dtype, kind.width
        """Of every batch, whichever sources it holds: to the devices of all hosts it is one program."""
        self._dtypes = sorted(set(dtypes), key=str)
        self._dtype_of = kind.arrays.spread([self._dtypes.index(d) for d in dtypes])
        self._itemsize = kind.arrays.spread([d.itemsize for d in dtypes])
        self._of_documents = kind.has_documents
        self.slot_bytes = slot_bytes(kind, chunk)
        self._workers, self._mapping = workers, mapping
        self._mapped: dict[int, MappedArray | None] = {}
        self._files = MappedFiles()
        self._last_rows: tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray] | None = None
        self.allocate(0)

    def allocate(self, slots: int) -> None:
        """Makes room for so many chunks, instead of what there was."""
        self._memory = np.empty(slots * self.slot_bytes, np.uint8)
        self._own_address = self._memory.ctypes.data + np.arange(slots) * self.slot_bytes
        self._address = self._own_address.copy()
        self._files.hold(slots)

    @cached_property
    def _by_address(self) -> bool:
        """Whether pieces are copied from their addresses; else what is gathered lies in :attr:`_memory`."""
        return self._dtypes == [self.dtype] and self.slot_bytes > 0 and copy_kernel() is not None

    def start(self, number: int, chunk: int, slot: int) -> Pending | None:
        """Starts fetching a chunk of an array into a slot; None: there is nothing to wait for."""
        if number not in self._mapped:
            array = self.arrays.get(number)
            self._mapped[number] = array.mapped() if self._mapping and array is not None else None
        mapped = self._mapped[number]
        at = 0 if mapped is None else mapped.address(chunk)
        if mapped is not None and at:
            return self._start_mapped(number, mapped, chunk, slot, at)
        array = self.arrays.get(number)
        if array is not None:
            self.stats.bytes_read += _elements(array, chunk) * array.dtype.itemsize
            try:
                return self.read(number, chunk, slot)
            except HeadraceError as error:  # it cannot even begin: that concerns the step that needs it
                return _Failed(error)
        self._own(slot)
        self._memory_of(slot).view(self.dtype)[:] = self.kind.default
        return None

    def _start_mapped(self, number: int, mapped: MappedArray, chunk: int, slot: int, at: int) -> Pending | None:
        self.stats.bytes_read += mapped.bytes_of(chunk)
        self.stats.mapped_blocks += 1
        if not self._by_address:
            mapped.will_need(chunk)
            return self._workers.submit(partial(mapped.copy, chunk, self._memory_of(slot)[: mapped.chunk_bytes]))
        self._address[slot] = at
        self._files.put(slot, number, mapped, chunk)
        if mapped.is_sound(chunk):
            return None
        mapped.will_need(chunk)
        return self._workers.submit(partial(mapped.check, chunk))

    def read(self, number: int, chunk: int, slot: int) -> Pending:
        """Starts reading a chunk through TensorStore."""
        array = self.arrays.get(number)
        assert array is not None
        self._own(slot)
        out = self._memory_of(slot)[: _elements(array, chunk) * array.dtype.itemsize].view(array.dtype)
        self.stats.tensorstore_reads_issued += 1
        return array.read_into(out, chunk * array.chunk_elements)

    def _memory_of(self, slot: int) -> np.ndarray:
        return self._memory[slot * self.slot_bytes :][: self.slot_bytes]

    def _own(self, slot: int) -> None:
        """What comes into a slot lies in its own memory."""
        self._address[slot] = self._own_address[slot]
        self._files.drop(slot)

    def gather(self, steps: Sequence[Gathering], out: np.ndarray) -> list[Callable[[], None]]:
        """Calls that, one after the other, copy the rows of some steps, all of one length, into ``out``, where rows
        without data become zeros.

        For any thread, once; the slots must not be filled anew before they return. Those that are :class:`Copies` need
        no interpreter's lock. ``out`` is ``[rows of all steps, row elements]`` of :attr:`dtype`, C order,
        with :attr:`width` elements for each token.
        """
        parts = [self._gather_stored(steps, out)] if self.slot_bytes else []
        if self._of_documents or not self.slot_bytes:
            parts.append(partial(self._lay_documents, steps, out))
        return parts

    def _gather_stored(self, steps: Sequence[Gathering], out: np.ndarray) -> Callable[[], None]:
        if self._by_address:
            return self._gather_from_addresses(steps, out)
        row_bytes = out.shape[1] * out.itemsize
        first_byte = [self._addresses(step) - self._memory.ctypes.data for step in steps]
        regular = self._dtypes == [self.dtype] and self.slot_bytes % row_bytes == 0
        if regular and all(s.fills_rows for s in steps):
            by_place = [_by_place(s, begins) for s, begins in zip(steps, first_byte, strict=True)]
            begins = by_place[0] if len(steps) == 1 else np.concatenate(by_place)
            row, offset = np.divmod(begins, row_bytes)
            if not offset.any():
                return partial(_take, self._memory.reshape(-1, row_bytes), row, out.view(np.uint8))
        return partial(self._gather_steps, steps, first_byte, out)

    def _gather_from_addresses(self, steps: Sequence[Gathering], out: np.ndarray) -> Copies:
        addresses = [self._addresses(step) for step in steps]
        rows_at, row_bytes, blank = self._rows_of(out)
        if all(s.fills_rows for s in steps):
            addresses = [_by_place(s, begins) for s, begins in zip(steps, addresses, strict=True)]
            targets, sizes = [rows_at], [row_bytes]
        else:
            at, targets, sizes = 0, list[np.ndarray](), list[np.ndarray]()
            for number, step in enumerate(steps):
                plan, pieces, rows = step.plan, step.pieces, slice(at, at + step.rows)
                size = plan.size[pieces] * (self.width * out.itemsize)
                column = plan.column[pieces] * (self.width * out.itemsize)
                target = rows_at[at + plan.piece_row[pieces]] + column
                if int(size.sum()) < out[rows].nbytes:  # first what lies where no piece does
                    addresses[number] = np.concatenate([np.full(step.rows, blank.ctypes.data), addresses[number]])
                    size, target = np.concatenate([row_bytes[rows], size]), np.concatenate([rows_at[rows], target])
                sizes.append(size)
                targets.append(target)
                at += step.rows
        slots = np.concatenate([step.slots for step in steps])
        return Copies(
            np.concatenate(addresses),
            np.concatenate(targets) + out.ctypes.data,
            np.concatenate(sizes),
            check=partial(self._files.check, slots),
            holds=(out, blank, self),
        )

    def _rows_of(self, out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where each row begins, in bytes from the first, and how many it has; and a row without data."""
        if self._last_rows is None or self._last_rows[0] != out.shape:
            row_bytes, blank = out.shape[1] * out.itemsize, np.full(out.shape[1], self.kind.fill, self.dtype)
            self._last_rows = out.shape, np.arange(out.shape[0]) * row_bytes, np.full(out.shape[0], row_bytes), blank
        return self._last_rows[1:]

    def _addresses(self, where: Gathering) -> np.ndarray:
        """Where each piece of a step begins."""
        plan, pieces = where.plan, where.pieces
        itemsize = self._dtypes[0].itemsize if len(self._dtypes) == 1 else self._itemsize[plan.array[pieces]]
        return self._address[where.slots] + plan.offset[pieces] * self.width * itemsize

    def _gather_steps(self, steps: Sequence[Gathering], first_byte: Sequence[np.ndarray], out: np.ndarray) -> None:
        at = 0
        for step, begins in zip(steps, first_byte, strict=True):
            self._gather_pieces(step, begins, out[at : at + step.rows])
            at += step.rows

    def _gather_pieces(self, where: Gathering, first_byte: np.ndarray, out: np.ndarray) -> None:
        """Rows of any number of pieces, of any sizes and dtypes."""
        plan, pieces = where.plan, where.pieces
        which, size = self._dtype_of[plan.array[pieces]], plan.size[pieces] * self.width
        begin = plan.piece_row[pieces] * out.shape[1] + plan.column[pieces] * self.width
        if int(size.sum()) < out.size:
            out[:] = self.kind.fill  # where no piece lies
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
        offset = np.minimum(nth * run, np.repeat(size - run, count))
        memory = self._memory[: self._memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
        _runs(out, run)[np.repeat(begin, count) + offset] = _runs(memory, run)[np.repeat(first, count) + offset]

    def _lay_documents(self, steps: Sequence[Gathering], out: np.ndarray) -> None:
        """Writes what is of documents, and the default where an array has nothing and no slots keep it."""
        at, row = 0, out.shape[1]
        for where in steps:
            plan, pieces = where.plan, where.pieces
            array, flat = plan.array[pieces], out[at : at + where.rows].reshape(-1)
            begin = plan.piece_row[pieces] * row + plan.column[pieces]
            runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            for number in np.unique(array).tolist():
                documents, pieces_here = self.kind.documents(number), np.flatnonzero(array == number)
                start, size = plan.start[pieces][pieces_here], plan.size[pieces][pieces_here]
                if documents is not None:
                    of_documents = documents.runs(start, size)
                    runs.append(
                        (
                            begin[pieces_here][of_documents.piece] + of_documents.column,
                            of_documents.size,
                            of_documents.value,
                        )
                    )
                elif not self.slot_bytes:
                    runs.append((begin[pieces_here], size, np.full(pieces_here.size, self.kind.default, self.dtype)))
            if not self.slot_bytes and not runs:
                flat[:] = 0
            elif runs:
                _lay_runs(flat, *map(np.concatenate, zip(*runs, strict=True)), keep=self.slot_bytes > 0)
            at += where.rows


def _by_place(where: Gathering, first_byte: np.ndarray) -> np.ndarray:
    """Where each row of the arrays begins; those that hold no data are copies of one that does."""
    if where.plan.row_place is None:
        return first_byte
    begins = np.full(where.rows, first_byte[0])
    begins[where.plan.piece_row[where.pieces]] = first_byte
    return begins


def _elements(array: StoredArray, chunk: int) -> int:
    return min(array.chunk_elements, array.length - chunk * array.chunk_elements)


def _runs(elements: np.ndarray, run: int) -> np.ndarray:
    """An array ``[n, run]``, whose row e is the ``run`` elements from element e on: a view."""
    step = elements.itemsize
    return as_strided(elements, (elements.size - run + 1, run), (step, step))


def _lay_runs(flat: np.ndarray, begin: np.ndarray, size: np.ndarray, value: np.ndarray, *, keep: bool) -> None:
    """Writes runs of equal values; what lies between them is kept, or becomes zeros."""
    if keep:
        flat[runs_of_elements(begin, size)] = np.repeat(value, size)
        return
    order = np.argsort(begin, kind="stable")
    begin, size = begin[order], size[order]
    values, sizes = np.zeros(2 * order.size + 1, flat.dtype), np.empty(2 * order.size + 1, np.int64)
    ends = begin + size
    values[1::2], sizes[1::2] = value[order], size
    sizes[0], sizes[2::2] = begin[0], np.append(begin[1:], flat.size) - ends
    flat[:] = np.repeat(values, sizes)


def _take(rows: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    np.take(rows, numbers, axis=0, out=out, mode="clip")
