"""Processes tables of addresses without the interpreter: copies pieces of rows and verifies chunks
against checksums.

NumPy gathers from one array only, and is fast only if rows begin at multiples of their length. A
few instructions in ``native/gather.c`` copy from a table of addresses, which may be in
memory-mapped files or in slots. Tables of 2 MiB and more, of which several are in flight, are
stored past the processor's caches, while the next row is fetched from memory: up to 1.5 times as
fast as ``memcpy``, but whoever reads a whole batch at once reads it from memory. If a mapped file
has become shorter, its missing pages are counted and read as zeros, in place of SIGBUS, which would
end the process.

:class:`KernelThread` runs them in a thread that is not a Python thread. After a copy, a Python
thread waits for the interpreter's lock, up to 5 ms each time, until the thread that plans and
delivers releases it. (The kernel's thread does not read from a pipe: Linux wakes the reader of a
pipe on the writer's core, where the two take turns.)

Price: about 20 ns a piece, 10 us a table.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.errors import HeadraceError
from headrace.native import NativeLibrary, native_library

# fields of tables
_COUNT = 3
_NEXT = 4
_AHEAD = 10


class Copies(NamedTuple):
    """Pieces to copy, in order: the address, target and bytes of each, as int64 ``[p]`` in C order.

    The addresses must be readable, and the targets writable, during the copy; ``holds`` keeps them
    so. ``check`` raises ReadError if the data are no longer what was written. ``filled``: an array
    that contains all targets, and what each gap between them begins with and repeats: at least one
    byte.
    """

    address: Int64[np.ndarray, " p"]
    target: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]
    check: Callable[[], None] = lambda: None
    holds: object = None
    filled: tuple[np.ndarray, np.ndarray] | None = None

    def table(self) -> Int64[np.ndarray, " f"]:
        """The fields that the kernel expects; see ``native/gather.c``."""
        fields = [*map(_address, self[:3]), self.size.size, 0, 0, 0, 0, 0, 0, 0]
        if self.filled is not None:
            out, blank = self.filled
            fields[6:10] = _address(out), _address(out) + out.nbytes, _address(blank), blank.nbytes
        return np.array(fields)

    def __call__(self) -> None:
        """Copies the pieces in this thread."""
        self.check()
        _process(self.table())


class Checks(NamedTuple):
    """Chunks of mapped files to verify against the checksums that follow them.

    Attributes:
        columns: Result of :meth:`~headrace.store.mapped.MappedArray.check_columns` for the chunks.
        sound: Results: uint8 ``[c]``, 1 if a chunk is correct.
        ahead: Number of chunks, these and those after them in the memory of ``columns``, that the
            system is asked to begin reading before the first is verified.
        advice: See :func:`~headrace.store.mapped.advice_to_bring`.
        holds: Keeps the files mapped.
    """

    columns: Int64[np.ndarray, "5 c"]
    sound: np.ndarray
    ahead: int
    advice: int
    holds: object = None

    def check(self) -> None:
        """Does nothing: no condition has to hold beforehand."""

    def table(self) -> Int64[np.ndarray, " f"]:
        """The fields that the kernel expects; see ``native/gather.c``."""
        address, low, length, size, named = map(_address, self.columns)
        fields = [
            address,
            low,
            length,
            self.sound.size,
            0,
            1,
            size,
            named,
            _address(self.sound),
        ]
        return np.array([*fields, self.advice, self.ahead])

    def __call__(self) -> None:
        """Verifies the chunks in this thread."""
        _process(self.table())


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@cache
def gather_kernel() -> NativeLibrary:
    """The library whose functions process tables. Threads that process one survive SIGBUS from now
    on; others keep the action that they have.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = (
        ...     tokens.ctypes.data + np.array([24, 4]),
        ...     row.ctypes.data + np.array([0, 8]),
        ... )
        >>> Copies(address, target, np.array([8, 8]))()
        >>> row.tolist()
        [6, 7, 1, 2]
    """
    library = native_library()
    if failed := library.calls.handle_bus_errors():
        raise OSError(failed, f"SIGBUS cannot be handled: {os.strerror(failed)}")
    return library


def _process(table: Int64[np.ndarray, " f"]) -> None:
    """Processes a table in this thread, and keeps it until then."""
    gather_kernel().calls.process(table.ctypes.data)


class KernelThread:
    """Processes tables one after the other, without the interpreter. For one thread; starts with
    the first table.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = (
        ...     tokens.ctypes.data + np.array([24, 4]),
        ...     row.ctypes.data + np.array([0, 8]),
        ... )
        >>> thread = KernelThread()
        >>> thread.submit([Copies(address, target, np.array([8, 8]))]).result()
        >>> thread.close()
        >>> row.tolist()
        [6, 7, 1, 2]
    """

    def __init__(self) -> None:
        # The last table that was processed, on which the next one hangs, and those in progress
        self._tables: deque[tuple[np.ndarray, object]] = deque()
        self._worker: int | None = None  # address of its state, which C allocates
        self._submitted = 0
        self._end: weakref.finalize[..., KernelThread] | None = None

    def submit(self, parts: Sequence[Copies | Checks]) -> Submitted:
        """Submits tables. If a check of theirs fails, none is processed and the result raises the
        error.
        """
        if self._worker is None:
            self._begin()
        try:
            for part in parts:
                part.check()
        except HeadraceError as error:
            return Submitted(self, 0, error)
        tables = [part.table() for part in parts]  # all of them, or none is submitted
        for table, part in zip(tables, parts, strict=True):
            self._tables[-1][0][_NEXT] = table.ctypes.data
            self._tables.append((table, part))
        worker = self._worker
        self._submitted = gather_kernel().short_calls.worker_submit(worker, len(parts))
        return Submitted(self, self._submitted)

    def is_done(self, number: int) -> bool:
        """Whether :meth:`wait` would return at once."""
        worker = self._worker
        return worker is None or gather_kernel().short_calls.worker_done(worker) >= number

    def wait(self, number: int) -> None:
        """Waits until ``number`` tables are done."""
        if self._worker is None:
            return  # closed: all were done
        tasks_done = gather_kernel().calls.worker_wait(self._worker, number)
        while len(self._tables) > self._submitted - tasks_done + 1:
            self._tables.popleft()
        self._tables[0] = self._tables[0][0], None  # only needed for its link to the next table

    def close(self) -> None:
        """Ends the thread after the copies that were submitted; skips checks that
        have not begun.
        """
        for table, part in self._tables:
            if isinstance(part, Checks):
                table[[_COUNT, _AHEAD]] = 0
        if self._end is not None:
            self._end()
            self._end = None
            self._worker = None
            self._tables.clear()

    def _begin(self) -> None:
        kernel = gather_kernel()
        first = np.zeros(_NEXT + 1, np.int64)
        failed = ctypes.c_int(0)
        self._worker = kernel.calls.worker_start(first.ctypes.data, ctypes.byref(failed))
        if self._worker is None:
            raise OSError(failed.value, f"no thread can be started: {os.strerror(failed.value)}")
        self._submitted = 0
        self._tables.append((first, None))
        self._end = weakref.finalize(self, _end, os.getpid(), kernel, self._worker, self._tables)
        self._end.atexit = False  # the submitter is stopped at exit, and closes this


class Submitted(NamedTuple):
    """Tables that were submitted."""

    thread: KernelThread
    number: int
    error: HeadraceError | None = None

    def result(self) -> None:
        """Waits until they are done."""
        if self.error is not None:
            raise self.error
        self.thread.wait(self.number)


def _end(process: int, kernel: NativeLibrary, worker: int, tables: object) -> None:
    """Ends the thread while ``tables`` still exist. A fork lacks the thread."""
    if os.getpid() == process:
        kernel.calls.worker_stop(worker)
