"""What batches are gathered with: slots of stored blocks, host buffers that are used again, and a few threads.

Slots: the memory of blocks is allocated once, for each kind of values (tokens, columns) one flat buffer of equal slots,
of which the operating system backs only what is touched. TensorStore reads into it; chunks of local uncompressed arrays
are copied from memory-mapped files instead (store/mapped.py), which is faster. Rows that lie in their slots at
multiples of their own length, which is the rule, are gathered for several steps in one call of ``np.take``, straight
into the buffers of the batches. Rows of several pieces, as those of packed documents, are gathered in runs of elements.

Buffers: a fresh one costs a page fault for every 4 KiB, when it is written and again when it is given back: as much as
gathering a batch. A CPU device takes a host buffer over without a copy, so a buffer must not be written to while a
batch, or a computation that reads it, is alive. Whoever can see a buffer holds a reference to its memory (a view has it
as its base, XLA holds the view): no reference but the pool's own is the proof that it is free.

Threads do work that runs without the interpreter's lock: gathering rows, checking blocks. Jobs are taken in the order
in which they were given. The threads start with the first job and end with :meth:`Workers.close`; a job that was not
begun by then never runs.

Price: one look at the reference counts of the pool's buffers a batch; about 10 us to hand over a job.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from jaxtyping import Int64
from numpy.lib.stride_tricks import as_strided

from headrace.data.columns import RunColumn
from headrace.data.rows import runs_of_elements
from headrace.errors import HeadraceError, ReadError
from headrace.feed.plan import WindowPlan, slot_bytes
from headrace.metrics import ReadStats
from headrace.store.array import StoredArray
from headrace.store.mapped import MappedArray

T = TypeVar("T")

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


class Job(Generic[T]):
    """Work handed over; :meth:`result` waits for it."""

    __slots__ = ("_done", "_error", "_run", "_value")

    def __init__(self, run: Callable[[], T]) -> None:
        self._run: Callable[[], T] | None = run
        self._done = threading.Lock()  # a lock that is held until then: the cheapest event there is
        self._done.acquire()
        self._error: BaseException | None = None
        self._value: T | None = None

    def result(self, timeout: float | None = None) -> T:
        """What the work gave, or raised; TimeoutError if it is not done within ``timeout`` seconds."""
        if not self._done.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        self._done.release()
        if self._error is not None:
            raise self._error
        return self._value  # pyright: ignore[reportReturnType]

    def run(self) -> None:
        """Does the work, here."""
        run, self._run = self._run, None  # what it holds is free as soon as it is done
        try:
            assert run is not None
            self._value = run()
        except BaseException as error:  # noqa: BLE001  # whoever waits gets it
            self._error = error
        del run
        self._done.release()

    def cancel(self) -> None:
        """Ends a job that nobody has begun and nobody will."""
        self._run = None
        self._error = ReadError("the loader was closed before it was done")
        self._done.release()


class Workers:
    """Threads that do jobs; with 0 of them a job is done at once by whoever hands it over.

    Example:
        >>> workers = Workers(2)
        >>> workers.submit(lambda: 6 * 7).result()
        42
        >>> workers.close()
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._running: list[threading.Thread] = []

    def submit(self, run: Callable[[], T]) -> Job[T]:
        """Hands over work. For one thread."""
        job = Job(run)
        if not self._threads:
            job.run()
            return job
        if len(self._running) < self._threads:
            thread = threading.Thread(target=_work, args=(self._jobs,), name="headrace-worker", daemon=True)
            self._running.append(thread)
            thread.start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Ends the threads, after the jobs that they are at."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is not None:
                job.cancel()
        for _ in self._running:
            self._jobs.put(None)
        for thread in self._running:
            thread.join()
        self._running.clear()


def _work(jobs: SimpleQueue[Job[Any] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # its result belongs to whoever waits for it


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
    def pieces(self) -> slice:
        """Its pieces, among those of the plan."""
        return slice(int(self.plan.piece_bounds[self.step]), int(self.plan.piece_bounds[self.step + 1]))


class Slots:
    """Chunks of arrays that are all of one kind: tokens, or a column of theirs. An array without has the default, or
    values of its documents, which are not in chunks: they are laid where the tokens are when these are gathered.

    ``workers`` copy chunks of local uncompressed arrays from memory-mapped files, if ``mapping``.
    """

    def __init__(
        self,
        kind: RunColumn,
        chunk: Int64[np.ndarray, " a"],
        stats: ReadStats,
        workers: Workers,
        *,
        mapping: bool,
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
        self._memory = np.empty(0, np.uint8)

    def allocate(self, slots: int) -> None:
        """Makes room for so many chunks, instead of what there was."""
        self._memory = np.empty(slots * self.slot_bytes, np.uint8)

    def start(self, number: int, chunk: int, slot: int) -> Pending | None:
        """Starts fetching a chunk of an array into a slot; None: there is nothing to wait for."""
        array, stats = self.arrays.get(number), self.stats
        begin = slot * self.slot_bytes
        if array is None:
            self._memory[begin : begin + self.slot_bytes].view(self.dtype)[:] = self.kind.default
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
        array = self.arrays.get(number)
        assert array is not None
        size, begin = _elements(array, chunk), slot * self.slot_bytes
        out = self._memory[begin : begin + size * array.dtype.itemsize].view(array.dtype)
        self.stats.tensorstore_reads_issued += 1
        return array.read_into(out, chunk * array.chunk_elements)

    def gather(self, steps: Sequence[Gathering], out: np.ndarray) -> Callable[[], None]:
        """What copies the rows of some steps, all of one length, into ``out``, where rows without data become zeros.

        For any thread, once; the slots must not be filled anew before it returns. As little as can be is left to it
        that needs the interpreter's lock. ``out`` is ``[rows of all steps, row elements]`` of :attr:`dtype`, C order,
        with :attr:`width` elements for each token.
        """
        if not self._of_documents and self.slot_bytes:
            return self._gather_stored(steps, out)
        stored = [self._gather_stored(steps, out)] if self.slot_bytes else []
        return partial(run_each, [*stored, partial(self._lay_documents, steps, out)])

    def _gather_stored(self, steps: Sequence[Gathering], out: np.ndarray) -> Callable[[], None]:
        row_bytes = out.shape[1] * out.itemsize
        first_byte = [self._first_byte(step) for step in steps]
        regular = self._dtypes == [self.dtype] and self.slot_bytes % row_bytes == 0
        if regular and all(s.plan.whole and (s.held == s.rows or (s.loose and s.held > 0)) for s in steps):
            by_place = [_by_place(s, begins) for s, begins in zip(steps, first_byte, strict=True)]
            begins = by_place[0] if len(steps) == 1 else np.concatenate(by_place)
            row, within = np.divmod(begins, row_bytes)
            if not within.any():
                return partial(_take, self._memory.reshape(-1, row_bytes), row, out.view(np.uint8))
        return partial(self._gather_steps, steps, first_byte, out)

    def _first_byte(self, where: Gathering) -> np.ndarray:
        """Where each piece of a step begins."""
        plan, pieces = where.plan, where.pieces
        itemsize = self._dtypes[0].itemsize if len(self._dtypes) == 1 else self._itemsize[plan.array[pieces]]
        return where.slots * self.slot_bytes + plan.offset[pieces] * self.width * itemsize

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
        within = np.minimum(nth * run, np.repeat(size - run, count))
        memory = self._memory[: self._memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
        _runs(out, run)[np.repeat(begin, count) + within] = _runs(memory, run)[np.repeat(first, count) + within]

    def _lay_documents(self, steps: Sequence[Gathering], out: np.ndarray) -> None:
        """Writes what is of documents, and the default where an array has nothing and no slots keep it."""
        at, row = 0, out.shape[1]
        for where in steps:
            plan, pieces = where.plan, where.pieces
            array, flat = plan.array[pieces], out[at : at + where.rows].reshape(-1)
            begin = plan.piece_row[pieces] * row + plan.column[pieces]
            runs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
            for number in np.unique(array).tolist():
                documents, here = self.kind.documents(number), np.flatnonzero(array == number)
                start, size = plan.start[pieces][here], plan.size[pieces][here]
                if documents is not None:
                    found = documents.runs(start, size)
                    runs.append((begin[here][found.piece] + found.column, found.size, found.value))
                elif not self.slot_bytes:
                    runs.append((begin[here], size, np.full(here.size, self.kind.default, self.dtype)))
            if not self.slot_bytes and not runs:
                flat[:] = 0
            elif runs:
                _lay_runs(flat, *map(np.concatenate, zip(*runs, strict=True)), keep=self.slot_bytes > 0)
            at += where.rows

    def _mapped_array(self, number: int, array: StoredArray) -> MappedArray | None:
        if not self._mapping:
            return None
        if number not in self._mapped:
            self._mapped[number] = array.mapped()
        return self._mapped[number]


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


def run_each(parts: Sequence[Callable[[], None]]) -> None:
    """Does some work, one part after the other."""
    for part in parts:
        part()


def _take(rows: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    np.take(rows, numbers, axis=0, out=out, mode="clip")
