"""Gathers rows into batches: slots for stored blocks, reusable host buffers, and a few threads.

How the rows of a few steps come into one buffer, for each kind of values (tokens, columns); the
comments below have the same numbers:

1. **Take a buffer** with room for the rows of all these steps (:class:`Buffers`).
2. **Find where each piece begins.** The plan says block and offset of every piece. The block is in
   a memory-mapped file (store/mapped.py), where it was verified once and stays, or in a slot, into
   which it was read. Either way it is an address.
3. **Find where each piece goes.** Its row and column in the buffer; if each row is one piece, just
   the row.
4. **Convert** what is stored in another dtype than the batch has, where arrays of several dtypes
   are mixed: such pieces are copied end to end, converted, and begin there from now on.
5. **Copy**, by one table of addresses (native/gather.c), on a thread that needs no interpreter.
6. **Lay the values of documents**, which are one number a document and no chunks.

Slots: the memory of blocks is allocated once, as one flat buffer of equal slots for each kind of
values. The operating system backs only the pages that are touched.

Buffers: a new buffer costs a page fault for every 4 KiB, both when it is written and when it is
freed, which is as much as gathering a batch. A CPU device uses a host buffer without copying it, so
nobody may write to a buffer while a batch, or a computation that reads it, is alive. Every user of
a buffer holds a reference to its memory (it is the base of each view, and XLA holds the view), so a
buffer is free when only the pool refers to it.

Price: for each batch, one look at the reference counts of the pool's buffers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int64

from headrace.data.columns import RunColumn
from headrace.errors import HeadraceError
from headrace.feed.gather_kernel import Copies, KernelThread
from headrace.feed.mapped_files import MappedBlocks, MappedFiles
from headrace.feed.plan import WindowPlan
from headrace.metrics import ReadStats
from headrace.order.intervals import run_numbers
from headrace.store.array import ArrayFuture, StoredArray

ALIGNMENT = 64
"""XLA uses a host buffer without a copy if it begins at a multiple of this."""
_SPARE = 2
"""Free buffers to keep; the rest of a peak goes back to the system."""


class Buffers:
    """A pool of buffers. One thread takes buffers; any thread may drop them.

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
        """An uninitialised array ``[rows, row_elements]`` that nobody else uses."""
        # 1. NumPy gives every view of a view the owner as its base: whoever holds any part of the
        #    result holds a reference to the pool's memory, which is what `_free` counts.
        size = rows * row_elements * dtype.itemsize
        memory = self._free(size)
        begin = -memory.ctypes.data % ALIGNMENT
        return memory[begin : begin + size].view(dtype).reshape(rows, row_elements)

    def _free(self, size: int) -> np.ndarray:
        if size != self._size:  # the batch size changed: old buffers are freed when dropped
            self._memory.clear()
            self._size = size
        # One thread takes buffers, so a count that says "unused" stays true: nobody else could get
        # a new reference. Others may only drop theirs meanwhile, which is noticed the next time.
        spare = [k for k in range(len(self._memory)) if sys.getrefcount(self._memory[k]) == _UNSEEN]
        for k in reversed(spare[_SPARE:]):  # from behind: the numbers of the others stay
            del self._memory[k]
        if spare:
            return self._memory[spare[0]]
        memory = np.empty(size + ALIGNMENT, np.uint8)
        self._memory.append(memory)
        return memory


_SAMPLE = [np.empty(1, np.uint8)]
_UNSEEN = sys.getrefcount(_SAMPLE[0])
"""Result of ``getrefcount`` for an array to which only a list refers. It is measured, in the form
in which the pool asks, because Python versions count the argument of the call differently.
"""


Read: TypeAlias = ArrayFuture | Future[np.ndarray]


class StepRange(NamedTuple):
    """Consecutive steps of a window whose rows are gathered together.

    Attributes:
        plan: The plan of the window.
        first: Number of the first step within the plan.
        stop: One past the last.
        rows: Rows of each step's arrays on this host.
        slots: Slot of each piece; None: all blocks are in mapped files and need no slots.
        loose: Whether rows without data may hold any values; otherwise they are zeros.
    """

    plan: WindowPlan
    first: int
    stop: int
    rows: int
    slots: Int64[np.ndarray, " p"] | None
    loose: bool = False

    @property
    def row_slice(self) -> slice:
        """Rows of these steps, as a slice of the plan's."""
        return slice(int(self.plan.row_bounds[self.first]), int(self.plan.row_bounds[self.stop]))

    @property
    def row_step(self) -> Int64[np.ndarray, " n"]:
        """Step of each of these rows, as a number within the plan."""
        return np.repeat(
            np.arange(self.first, self.stop),
            np.diff(self.plan.row_bounds[self.first : self.stop + 1]),
        )

    @property
    def pieces(self) -> slice:
        """Pieces of these steps, as a slice of the plan's."""
        return slice(
            int(self.plan.piece_bounds[self.first]), int(self.plan.piece_bounds[self.stop])
        )

    @property
    def fills_rows(self) -> bool:
        """Whether each row is one piece, or may be a copy of one."""
        if not self.plan.whole:
            return False
        bounds = self.plan.row_bounds[self.first : self.stop + 1]
        # No step has more rows.
        is_full = int(bounds[-1] - bounds[0]) == self.rows * (self.stop - self.first)
        return is_full or (self.loose and bool((np.diff(bounds) > 0).all()))

    @property
    def piece_rows(self) -> Int64[np.ndarray, " p"]:
        """Row of each piece, counted from the first row of all steps."""
        count = np.diff(self.plan.piece_bounds[self.first : self.stop + 1])
        return self.plan.piece_row[self.pieces] + np.repeat(
            np.arange(count.size) * self.rows, count
        )

    def by_row(self, begins: Int64[np.ndarray, " p"]) -> Int64[np.ndarray, " r"]:
        """Start of each row of the arrays, given the starts of pieces. A row without data copies a
        row of its step that has data. Only for steps whose pieces fill rows.
        """
        if self.plan.row_place is None and begins.size == (self.stop - self.first) * self.rows:
            return begins
        # First all rows of a step copy its first piece, then those that have one get their own. No
        # token of a row without data counts, whatever it holds; equal sizes keep the table plain.
        first = self.plan.piece_bounds[self.first : self.stop] - self.plan.piece_bounds[self.first]
        by_row = np.repeat(begins[first], self.rows)
        by_row[self.piece_rows] = begins
        return by_row


class Slots:
    """Chunks of arrays of one kind: tokens, or one of their columns. An array that does not store
    this kind has its default or one value per document. The latter are not in chunks and are
    written while tokens are gathered.

    ``mapping``: whether chunks of local uncompressed arrays are used in place, in memory-mapped
    files. ``checker`` verifies them against their checksums.
    """

    def __init__(
        self,
        kind: RunColumn,
        slot_bytes: int,
        stats: ReadStats,
        checker: KernelThread | None,
        *,
        mapping: bool,
    ) -> None:
        self.kind = kind
        self.arrays = kind.arrays
        self.stats = stats
        dtypes = [kind.dtype if run.dtype is None else run.dtype for run in kind.arrays.runs]
        self.dtype = kind.dtype
        self.width = kind.width
        """The same for every batch, whatever its sources, so that the devices of all hosts run one
        program.
        """
        self._dtypes = sorted(set(dtypes), key=str)
        self._dtype_of = kind.arrays.spread([self._dtypes.index(d) for d in dtypes])
        self._itemsize = kind.arrays.spread([d.itemsize for d in dtypes])
        self._stored_itemsize = kind.arrays.spread([run.itemsize for run in kind.arrays.runs])
        self._chunk = kind.arrays.spread([run.chunk for run in kind.arrays.runs])
        self._of_documents = kind.has_documents
        self.slot_bytes = slot_bytes
        default = np.full(self.slot_bytes // kind.dtype.itemsize, kind.default, kind.dtype)
        self.files = MappedFiles(kind.arrays, default, checker, mapping=mapping)
        self._last_rows: tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray] | None = None
        self.allocate(0)

    def allocate(self, slots: int) -> None:
        """Replaces the memory with room for ``slots`` chunks."""
        self._memory = np.empty(slots * self.slot_bytes, np.uint8)

    def count_mapped(self, array: Int64[np.ndarray, " k"], chunk: Int64[np.ndarray, " k"]) -> None:
        """Counts chunks that are gathered from mapped files from now on."""
        stored = self._stored_itemsize[array] > 0
        size = np.minimum(
            self._chunk[array], self.arrays.lengths[array] - chunk * self._chunk[array]
        )
        self.stats.bytes_read += int((size * self._stored_itemsize[array]).sum())
        self.stats.mapped_blocks += int(stored.sum())

    def start(self, number: int, chunk: int, slot: int) -> Read:
        """Starts reading a chunk of an array into a slot. If it cannot even begin, this is an error
        of the step that needs it.
        """
        array = self._stored(number)
        self.stats.bytes_read += _elements(array, chunk) * array.dtype.itemsize
        try:
            return self.read(number, chunk, self._memory[slot * self.slot_bytes :])
        except HeadraceError as error:
            failed = Future[np.ndarray]()
            failed.set_exception(error)
            return failed

    def read(self, number: int, chunk: int, memory: np.ndarray) -> ArrayFuture:
        """Starts reading a chunk of a stored array into the begin of some memory."""
        array = self._stored(number)
        out = memory[: _elements(array, chunk) * array.dtype.itemsize].view(array.dtype)
        self.stats.tensorstore_reads_issued += 1
        return array.read_into(out, chunk * array.chunk_elements)

    def _stored(self, number: int) -> StoredArray:
        array = self.arrays.get(number)
        assert array is not None
        return array

    def gather(
        self, steps: StepRange, mapped: MappedBlocks, out: np.ndarray
    ) -> list[Callable[[], None]]:
        """Calls that, run in order, copy the rows of some steps into ``out``. Rows without data
        become zeros.

        Any thread may run each call, once; the slots must not be refilled until they return. Calls
        that are :class:`Copies` do not need the interpreter's lock. ``mapped`` has the blocks of
        the window. ``out`` is ``[rows of all steps, row elements]`` of :attr:`dtype`, in C order,
        with :attr:`width` elements for each token.
        """
        # Stored pieces first: values of documents are then laid over them where an array has both
        parts = self._copies(steps, mapped, out) if self.slot_bytes else []
        if self._of_documents or not self.slot_bytes:
            parts.append(partial(self._lay_documents, steps, out))
        return parts

    def _addresses(self, steps: StepRange, mapped: MappedBlocks) -> Int64[np.ndarray, " p"]:
        """Start of each piece of some steps."""
        # 2. Offsets are in tokens; an address counts bytes.
        plan = steps.plan
        pieces = steps.pieces
        itemsize = (
            self._dtypes[0].itemsize
            if len(self._dtypes) == 1
            else self._itemsize[plan.array[pieces]]
        )
        offset = plan.offset[pieces] * self.width * itemsize
        address = mapped.address[plan.block[pieces]]
        if steps.slots is not None:
            slot_address = self._memory.ctypes.data + steps.slots * self.slot_bytes
            address = np.where(address, address, slot_address)  # 0: not in a mapped file
        return address + offset

    def _copies(
        self, steps: StepRange, mapped: MappedBlocks, out: np.ndarray
    ) -> list[Callable[[], None]]:
        """Calls that copy what is stored."""
        address = self._addresses(steps, mapped)
        # The files are looked at just before the copy: what was verified may have changed since.
        # `self` goes along to keep the slots' memory, and the files mapped, until it is done.
        check_files = partial(self.files.check_files, mapped)
        conversions = self._conversions(steps, address, check_files)
        # 3. If pieces fill rows there is one entry a row: no sizes, columns or gaps to compute.
        rows_at, row_bytes, blank = self._rows_of(out)
        if steps.fills_rows:
            address = steps.by_row(address)
            target = rows_at
            size = row_bytes
        else:
            plan = steps.plan
            pieces = steps.pieces
            token_bytes = self.width * out.itemsize
            size = plan.size[pieces] * token_bytes
            target = rows_at[steps.piece_rows] + plan.column[pieces] * token_bytes
        # 5. With all that was converted
        holds = self, conversions
        table = address, target + out.ctypes.data, size
        return [*conversions, Copies(*table, check_files, holds, (out, blank))]

    def _conversions(
        self, steps: StepRange, address: Int64[np.ndarray, " p"], check_files: Callable[[], None]
    ) -> list[Callable[[], None]]:
        """Calls that convert the pieces of other dtypes; changes their addresses."""
        calls: list[Callable[[], None]] = []
        if self._dtypes == [self.dtype]:
            return calls
        pieces = steps.pieces
        which = self._dtype_of[steps.plan.array[pieces]]
        sizes = steps.plan.size[pieces] * self.width
        for number, dtype in enumerate(self._dtypes):
            some = np.flatnonzero(which == number)
            if dtype == self.dtype or not some.size:
                continue
            # 4. End to end
            size = sizes[some]
            begin = np.cumsum(size) - size
            stored = np.empty(int(size.sum()), dtype)
            converted = np.empty(stored.size, self.dtype)
            target = stored.ctypes.data + begin * dtype.itemsize
            calls.append(
                Copies(address[some], target, size * dtype.itemsize, check_files, (self, stored))
            )
            calls.append(partial(np.copyto, converted, stored, casting="unsafe"))
            address[some] = converted.ctypes.data + begin * self.dtype.itemsize
        return calls

    def _rows_of(self, out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start of each row, in bytes from the first; the bytes of each; and a row without data."""
        if self._last_rows is None or self._last_rows[0] != out.shape:
            row_bytes = out.shape[1] * out.itemsize
            blank = np.full(out.shape[1], self.kind.fill, self.dtype)
            self._last_rows = (
                out.shape,
                np.arange(out.shape[0]) * row_bytes,
                np.full(out.shape[0], row_bytes),
                blank,
            )
        return self._last_rows[1:]

    def _lay_documents(self, steps: StepRange, out: np.ndarray) -> None:
        """Writes values of documents, and the default where an array stores nothing and no slots
        hold it.
        """
        # 6. Array by array: each has its own table from positions to documents, and few have one.
        plan = steps.plan
        pieces = steps.pieces
        flat = out.reshape(-1)
        array = plan.array[pieces]
        start = plan.start[pieces]
        size = plan.size[pieces]
        begin = steps.piece_rows * out.shape[1] + plan.column[pieces]
        runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for number in np.unique(array).tolist():
            documents = self.kind.documents(number)
            some = np.flatnonzero(array == number)
            if documents is not None:
                document_runs = documents.runs(start[some], size[some])
                runs.append(
                    (
                        begin[some][document_runs.piece] + document_runs.column,
                        document_runs.size,
                        document_runs.value,
                    )
                )
            elif not self.slot_bytes:
                runs.append(
                    (begin[some], size[some], np.full(some.size, self.kind.default, self.dtype))
                )
        if not self.slot_bytes and not runs:
            flat[:] = 0
        elif runs:
            _lay_runs(flat, *map(np.concatenate, zip(*runs, strict=True)), keep=self.slot_bytes > 0)


def _elements(array: StoredArray, chunk: int) -> int:
    return min(array.chunk_elements, array.length - chunk * array.chunk_elements)


def _lay_runs(
    flat: np.ndarray, begin: np.ndarray, size: np.ndarray, value: np.ndarray, *, keep: bool
) -> None:
    """Writes runs of equal values; elements between them are kept or become zeros."""
    if keep:
        flat[run_numbers(begin, size)] = np.repeat(value, size)
        return
    # One long repeat writes every element once: gap, run, gap, run, ..., gap. Even entries are the
    # gaps, with value 0; entry 0 is the gap before the first run.
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    size = size[order]
    values = np.zeros(2 * order.size + 1, flat.dtype)
    sizes = np.empty(2 * order.size + 1, np.int64)
    ends = begin + size
    values[1::2] = value[order]
    sizes[1::2] = size
    sizes[0] = begin[0]
    sizes[2::2] = np.append(begin[1:], flat.size) - ends
    flat[:] = np.repeat(values, sizes)
