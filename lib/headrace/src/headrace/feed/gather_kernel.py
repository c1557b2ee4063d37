"""Processes tables of addresses without the interpreter: copies pieces of rows and verifies chunks against checksums.

NumPy gathers from one array only, and is fast only if rows begin at multiples of their length. A few instructions in
``gather_kernel.c`` (see :mod:`headrace.native`) copy from a table of addresses, which may be in memory-mapped files or
in slots. Tables of 2 MiB and more, of which several are in flight, are stored past the processor's caches, while the
next row is fetched from memory: up to 1.5 times as fast as ``memcpy``, but whoever reads a whole batch at once reads it
from memory. If a mapped file has become shorter, its missing pages are counted and read as zeros, in place of SIGBUS,
which would end the process.

:class:`KernelThread` runs them in a thread that is not a Python thread. After a copy, a Python thread waits for the
interpreter's lock, up to 5 ms each time, until the thread that plans and delivers releases it. (The kernel's thread
does not read from a pipe: Linux wakes the reader of a pipe on the writer's core, where the two take turns.)

Price: about 20 ns a piece, 10 us a table.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.errors import HeadraceError
from headrace.native import assemble, assembled

# fields of tables
_COUNT = 3
_NEXT = 4
_AHEAD = 12
_SUBMITTED = 48  # the first field after mutex and conditions
_SA_SIGINFO = 4
_lock = threading.Lock()
_FAULTS = {signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL}


class Copies(NamedTuple):
    """Pieces to copy, in order: the address, target and bytes of each, as int64 ``[p]`` in C order.

    The addresses must be readable, and the targets writable, during the copy; ``holds`` keeps them so. ``check`` raises
    ReadError if the data are no longer what was written. ``filled``: an array that contains all targets, and what each
    gap between them begins with and repeats: at least one byte.
    """

    address: Int64[np.ndarray, " p"]
    target: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]
    check: Callable[[], None] = lambda: None
    holds: object = None
    filled: tuple[np.ndarray, np.ndarray] | None = None

    def table(self, kernel: GatherKernel) -> Int64[np.ndarray, " f"]:
        """The fields that the kernel expects; see ``gather_kernel.c``."""
        fields = [*map(_address, self[:3]), self.size.size, 0, kernel.copy_pieces, 0, 0, 0, 0]
        if self.filled is not None:
            out, blank = self.filled
            fields[6:] = _address(out), _address(out) + out.nbytes, _address(blank), blank.nbytes
        return np.array(fields)

    def __call__(self) -> None:
        """Copies the pieces in this thread."""
        self.check()
        kernel = gather_kernel()
        assert kernel is not None
        kernel.run(self.table(kernel))


class Checks(NamedTuple):
    """Chunks of mapped files to verify against the checksums that follow them.

    Attributes:
        columns: Result of :meth:`~headrace.store.mapped.MappedArray.check_columns` for the chunks.
        sound: Results: uint8 ``[c]``, 1 if a chunk is correct.
        ahead: Number of chunks, these and those after them in the memory of ``columns``, that the system is asked to
            begin reading before the first is verified.
        system: See :func:`~headrace.store.mapped.native_addresses`.
        holds: Keeps the files mapped.
    """

    columns: Int64[np.ndarray, "5 c"]
    sound: np.ndarray
    ahead: int
    system: tuple[int, int, int]
    holds: object = None

    def check(self) -> None:
        """Does nothing: no condition has to hold beforehand."""

    def table(self, kernel: GatherKernel) -> Int64[np.ndarray, " f"]:
        """The fields that the kernel expects; see ``gather_kernel.c``."""
        address, low, length, size, named = map(_address, self.columns)
        fields = [
            address,
            low,
            length,
            self.sound.size,
            0,
            kernel.check_chunks,
            size,
            named,
            _address(self.sound),
        ]
        return np.array([*fields, *self.system, self.ahead])


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


class GatherKernel:
    """The assembled functions."""

    def __init__(self) -> None:
        self._engine = assemble("headrace.feed", "gather_kernel.ll")
        address = self._engine.get_function_address
        self.copy_pieces = address("copy_pieces")
        self.check_chunks = address("check_chunks")
        self.serve = ctypes.c_void_p(address("serve"))
        self.wait = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(
            address("wait")
        )
        # Short: keeps the interpreter's lock
        self.submit = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address("submit"))
        self._process = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address("process"))
        self._lost = ctypes.c_int64.from_address(self._engine.get_global_value_address("lost"))
        if sys.platform.startswith("linux"):  # elsewhere, no file is mapped
            self._survive_bus_errors()

    def run(self, table: Int64[np.ndarray, " f"]) -> None:
        """Processes a table in this thread."""
        self._process(table.ctypes.data)

    @property
    def lost_pages(self) -> int:
        """Pages of mapped files that were missing when they were copied, since the process began."""
        return self._lost.value

    def _survive_bus_errors(self) -> None:
        """Handles SIGBUS in threads that process a table; other threads keep the action that they have."""
        library = ctypes.CDLL(None)
        address = self._engine.get_global_value_address
        library.pthread_key_create(ctypes.c_void_p(address("key")), None)
        ctypes.c_int64.from_address(address("page")).value = mmap.PAGESIZE
        handler = self._engine.get_function_address("on_bus_error")
        action = struct.pack("@Q128xiQ", handler, _SA_SIGINFO, 0)
        library.sigaction(signal.SIGBUS, action, ctypes.c_void_p(address("previous")))


@cache
def gather_kernel() -> GatherKernel | None:
    """The kernel that processes tables; None if it cannot be assembled.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = tokens.ctypes.data + np.array([24, 4]), row.ctypes.data + np.array([0, 8])
        >>> Copies(address, target, np.array([8, 8]))()
        >>> row.tolist()
        [6, 7, 1, 2]
    """
    with _lock:  # the first callers may be several threads, and SIGBUS must be handled once
        return _made_kernel()


@cache
def _made_kernel() -> GatherKernel | None:
    return assembled(
        GatherKernel, "blocks of local caches are copied before rows are gathered, which is slower"
    )


class KernelThread:
    """Processes tables one after the other, without the interpreter. For one thread; starts with the first table.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = tokens.ctypes.data + np.array([24, 4]), row.ctypes.data + np.array([0, 8])
        >>> thread = KernelThread()
        >>> thread.submit([Copies(address, target, np.array([8, 8]))]).result()
        >>> thread.close()
        >>> row.tolist()
        [6, 7, 1, 2]
    """

    def __init__(self) -> None:
        self._tables: deque[tuple[np.ndarray, object]] = (
            deque()
        )  # the last that was processed, and those in progress
        self._state = np.zeros(_SUBMITTED + 3, np.int64)  # laid out as the kernel expects
        self._end: weakref.finalize[..., KernelThread] | None = None

    def submit(self, parts: Sequence[Copies | Checks]) -> Submitted:
        """Submits tables. If a check of theirs fails, none is processed and the result raises the error."""
        kernel = self._kernel
        try:
            for part in parts:
                part.check()
        except HeadraceError as error:
            return Submitted(self, 0, error)
        tables = [part.table(kernel) for part in parts]  # all of them, or none is submitted
        for table, part in zip(tables, parts, strict=True):
            self._tables[-1][0][_NEXT] = table.ctypes.data
            self._tables.append((table, part))
        kernel.submit(self._state.ctypes.data, len(parts))
        return Submitted(self, int(self._state[_SUBMITTED]))

    def is_done(self, number: int) -> bool:
        """Whether :meth:`wait` would return at once."""
        return int(self._state[_SUBMITTED + 1]) >= number

    def wait(self, number: int) -> None:
        """Waits until ``number`` tables are done."""
        done = self._kernel.wait(self._state.ctypes.data, number)
        while len(self._tables) > int(self._state[_SUBMITTED]) - done + 1:
            self._tables.popleft()
        self._tables[0] = self._tables[0][0], None  # only needed for its link to the next table

    def close(self) -> None:
        """Ends the thread after the copies that were submitted; skips checks that have not begun."""
        for table, part in self._tables:
            if isinstance(part, Checks):
                table[[_COUNT, _AHEAD]] = 0
        if self._end is not None:
            self._end()
            self._end = None
            self._tables.clear()

    @property
    def _kernel(self) -> GatherKernel:
        kernel = gather_kernel()
        assert kernel is not None
        if self._end is None:
            self._begin(kernel)
        return kernel

    def _begin(self, kernel: GatherKernel) -> None:
        library = ctypes.CDLL(None)
        thread = ctypes.c_void_p()
        state = self._state.ctypes.data
        library.pthread_mutex_init(ctypes.c_void_p(state), None)
        for condition in (state + 128, state + 256):
            library.pthread_cond_init(ctypes.c_void_p(condition), None)
        first = np.zeros(_NEXT + 1, np.int64)
        self._tables.append((first, None))
        self._state[_SUBMITTED + 1 :] = self._state[_SUBMITTED], first.ctypes.data
        blocked = signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals() - _FAULTS
        )  # Python handles them
        try:
            failed = library.pthread_create(
                ctypes.byref(thread), None, kernel.serve, ctypes.c_void_p(state)
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if failed:
            raise OSError(failed, f"no thread can be started: {os.strerror(failed)}")
        self._end = weakref.finalize(
            self, _end, os.getpid(), kernel, library, thread, self._state, self._tables
        )
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


def _end(
    process: int,
    kernel: GatherKernel,
    library: ctypes.CDLL,
    thread: ctypes.c_void_p,
    state: np.ndarray,
    tables: object,
) -> None:
    """Ends the thread by submitting no table, while ``state`` and ``tables`` still exist. A fork lacks the thread."""
    if os.getpid() == process:
        kernel.submit(state.ctypes.data, 1)
        library.pthread_join(thread, None)
