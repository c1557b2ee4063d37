"""Pieces of rows copied from wherever they lie: out of memory-mapped files as well as out of slots, in one pass.

NumPy gathers from one array, and quickly only what lies there at multiples of a row. The few instructions that copy
from a table of addresses are assembled here for the machine that runs them, by LLVM (``llvmlite``, which comes with
``headrace[numba]``); each piece is a ``memcpy`` of the C library, which knows the machine's vectors.

:class:`CopyThread` runs them in a thread that is none of Python's: a thread of Python's that has copied something waits
for the interpreter's lock, up to 5 ms each time, from a thread that plans and delivers. Tables come to it, and go back
when they are done, as addresses in a pipe. Price: .1 s to load LLVM, .02 s to assemble; about 20 ns a piece, 10 us a
table.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from headrace.errors import HeadraceError, install_command

_LOG = logging.getLogger(__name__)
_KERNEL = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @read(i32, ptr, i64)
declare i64 @write(i32, ptr, i64)

define void @copy_pieces(ptr %table) {
begin:
  %targets.at = getelementptr ptr, ptr %table, i64 1
  %sizes.at = getelementptr ptr, ptr %table, i64 2
  %count.at = getelementptr i64, ptr %table, i64 3
  %addresses = load ptr, ptr %table
  %targets = load ptr, ptr %targets.at
  %sizes = load ptr, ptr %sizes.at
  %count = load i64, ptr %count.at
  br label %next
next:
  %k = phi i64 [ 0, %begin ], [ %k.after, %copy ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %copy, label %end
copy:
  %address.at = getelementptr ptr, ptr %addresses, i64 %k
  %target.at = getelementptr ptr, ptr %targets, i64 %k
  %size.at = getelementptr i64, ptr %sizes, i64 %k
  %address = load ptr, ptr %address.at
  %target = load ptr, ptr %target.at
  %size = load i64, ptr %size.at
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %address, i64 %size, i1 false)
  %k.after = add i64 %k, 1
  br label %next
end:
  ret void
}

define ptr @serve(ptr %pipes) {
begin:
  %table.at = alloca ptr
  %done.at = getelementptr i32, ptr %pipes, i64 1
  %tables = load i32, ptr %pipes
  %done = load i32, ptr %done.at
  br label %next
next:
  %bytes = call i64 @read(i32 %tables, ptr %table.at, i64 8)
  %whole = icmp eq i64 %bytes, 8
  br i1 %whole, label %given, label %broken
broken:
  %interrupted = icmp slt i64 %bytes, 0
  br i1 %interrupted, label %next, label %end
given:
  %table = load ptr, ptr %table.at
  %last = icmp eq ptr %table, null
  br i1 %last, label %end, label %copy
copy:
  call void @copy_pieces(ptr %table)
  %written = call i64 @write(i32 %done, ptr %table.at, i64 8)
  br label %next
end:
  ret ptr null
}
"""
_FAULTS = {signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL}


class Copies(NamedTuple):
    """Pieces to copy, in order: of each its address, its target and its bytes; int64 ``[p]``, C order.

    The addresses must be readable, and the targets writable, while they are copied: ``holds`` keeps them so. ``check``
    raises ReadError where what lies there is no longer what was written.
    """

    address: Int64[np.ndarray, " p"]
    target: Int64[np.ndarray, " p"]
    size: Int64[np.ndarray, " p"]
    check: Callable[[], None] = lambda: None
    holds: object = None

    def table(self) -> Int64[np.ndarray, " 4"]:
        """What the kernel takes."""
        arrays = (self.address, self.target, self.size)
        return np.array([*(array.ctypes.data for array in arrays), self.size.size])

    def __call__(self) -> None:
        """Copies them, here."""
        self.check()
        kernel, table = copy_kernel(), self.table()
        assert kernel is not None
        kernel.copy(table.ctypes.data)


class CopyKernel:
    """The functions as they were assembled."""

    def __init__(self, llvm: Any) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(_KERNEL)
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
        self._engine.finalize_object()  # whose memory the functions lie in
        self.copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._engine.get_function_address("copy_pieces"))
        self.serve = ctypes.c_void_p(self._engine.get_function_address("serve"))


@cache
def copy_kernel() -> CopyKernel | None:
    """What :class:`Copies` are copied by; None where it cannot be assembled.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = tokens.ctypes.data + np.array([24, 4]), row.ctypes.data + np.array([0, 8])
        >>> Copies(address, target, np.array([8, 8]))()
        >>> row.tolist()
        [6, 7, 1, 2]
    """
    try:
        return CopyKernel(import_module("llvmlite.binding"))
    except Exception as error:  # noqa: BLE001  # llvmlite and the library that it loads raise anything
        cure = install_command("headrace[numba]") if isinstance(error, ModuleNotFoundError) else str(error)
        _LOG.info("blocks of local caches are copied before rows are gathered, which is slower: %s", cure)
        return None


class CopyThread:
    """Copies tables of pieces one after the other, without the interpreter. For one thread; begins with the first.

    Example:
        >>> tokens, row = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
        >>> address, target = tokens.ctypes.data + np.array([24, 4]), row.ctypes.data + np.array([0, 8])
        >>> thread = CopyThread()
        >>> thread.submit([Copies(address, target, np.array([8, 8]))]).result()
        >>> thread.close()
        >>> row.tolist()
        [6, 7, 1, 2]
    """

    def __init__(self) -> None:
        self._tables: deque[tuple[np.ndarray, Copies]] = deque()  # under way; they hold what is read and written
        self._submitted = self._done = 0
        self._end: weakref.finalize[..., CopyThread] | None = None

    def submit(self, parts: list[Copies]) -> Copying:
        """Hands over copies; an error of their checks is that of the result, and nothing is copied."""
        try:
            for copies in parts:
                copies.check()
        except HeadraceError as error:
            return Copying(self, 0, error)
        if self._end is None:
            self._begin()
        for copies in parts:
            table = copies.table()
            self._tables.append((table, copies))
            os.write(self._input, table.ctypes.data.to_bytes(8, "little"))
        self._submitted += len(parts)
        return Copying(self, self._submitted)

    def wait(self, number: int) -> None:
        """Waits until so many tables are done."""
        while self._done < number:
            count = len(os.read(self._output, 512)) // 8
            self._done += count
            for _ in range(count):
                self._tables.popleft()

    def close(self) -> None:
        """Ends the thread, after what was handed over."""
        if self._end is not None:
            self._end()
            self._end, self._done = None, self._submitted
            self._tables.clear()

    def _begin(self) -> None:
        kernel = copy_kernel()
        assert kernel is not None
        (tables, self._input), (self._output, results) = os.pipe(), os.pipe()
        pipes, thread, library = (ctypes.c_int32 * 2)(tables, results), ctypes.c_void_p(), ctypes.CDLL(None)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)  # they are Python's
        try:
            failed = library.pthread_create(ctypes.byref(thread), None, kernel.serve, pipes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if failed:
            raise OSError(failed, f"no thread can be started: {os.strerror(failed)}")
        memory = (pipes, kernel, self._tables)
        pipe_ends = (tables, self._input, self._output, results)
        self._end = weakref.finalize(self, _end, os.getpid(), library, thread, pipe_ends, memory)


class Copying(NamedTuple):
    """Copies that were handed over."""

    thread: CopyThread
    number: int
    error: HeadraceError | None = None

    def result(self) -> None:
        """Waits until they are done."""
        if self.error is not None:
            raise self.error
        self.thread.wait(self.number)


def _end(
    process: int, library: ctypes.CDLL, thread: ctypes.c_void_p, pipe_ends: tuple[int, ...], memory: object
) -> None:
    """Ends the thread while ``memory`` keeps what it reads and writes. A fork has no such thread, but its pipes."""
    if os.getpid() == process:
        os.write(pipe_ends[1], bytes(8))
        library.pthread_join(thread, None)
    for pipe_end in pipe_ends:
        os.close(pipe_end)
