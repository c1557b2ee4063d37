"""Pieces of rows copied from wherever they lie: out of memory-mapped files as well as out of slots, in one pass.

NumPy gathers from one array, and quickly only what lies there at multiples of a row. The few instructions that copy
from a table of addresses are assembled here for the machine that runs them, by LLVM (``llvmlite``, which comes with
``headrace[numba]``); each piece is a ``memcpy`` of the C library, which knows the machine's vectors.

:class:`CopyThread` runs them in a thread that is none of Python's: a thread of Python's that has copied something waits
for the interpreter's lock, up to 5 ms each time, until the thread that plans and delivers lets it go. (Not fed by a
pipe: Linux wakes the reader of a pipe on the writer's own core, where the two take turns.) Price: .1 s to load LLVM,
.02 s to assemble; about 20 ns a piece, 20 us a table.
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
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)

; mutex; conditions: work, result; tables submitted, tables copied; the table that was begun last
%state = type { [16 x i64], [16 x i64], [16 x i64], i64, i64, ptr }

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

define void @submit(ptr %state) {
  %work = getelementptr %state, ptr %state, i32 0, i32 1
  %submitted.at = getelementptr %state, ptr %state, i32 0, i32 3
  call i32 @pthread_mutex_lock(ptr %state)
  %submitted = load i64, ptr %submitted.at
  %submitted.after = add i64 %submitted, 1
  store i64 %submitted.after, ptr %submitted.at
  call i32 @pthread_cond_signal(ptr %work)
  call i32 @pthread_mutex_unlock(ptr %state)
  ret void
}

define i64 @wait(ptr %state, i64 %number) {
begin:
  %result = getelementptr %state, ptr %state, i32 0, i32 2
  %copied.at = getelementptr %state, ptr %state, i32 0, i32 4
  call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %copied = load i64, ptr %copied.at
  %enough = icmp sge i64 %copied, %number
  br i1 %enough, label %end, label %sleep
sleep:
  call i32 @pthread_cond_wait(ptr %result, ptr %state)
  br label %look
end:
  call i32 @pthread_mutex_unlock(ptr %state)
  ret i64 %copied
}

define ptr @serve(ptr %state) {
begin:
  %work = getelementptr %state, ptr %state, i32 0, i32 1
  %result = getelementptr %state, ptr %state, i32 0, i32 2
  %submitted.at = getelementptr %state, ptr %state, i32 0, i32 3
  %copied.at = getelementptr %state, ptr %state, i32 0, i32 4
  %last.at = getelementptr %state, ptr %state, i32 0, i32 5
  call i32 @pthread_mutex_lock(ptr %state)
  br label %look
look:
  %submitted = load i64, ptr %submitted.at
  %copied = load i64, ptr %copied.at
  %idle = icmp eq i64 %submitted, %copied
  br i1 %idle, label %sleep, label %given
sleep:
  call i32 @pthread_cond_wait(ptr %work, ptr %state)
  br label %look
given:
  %last = load ptr, ptr %last.at
  %next.at = getelementptr ptr, ptr %last, i64 4
  %table = load ptr, ptr %next.at
  store ptr %table, ptr %last.at
  call i32 @pthread_mutex_unlock(ptr %state)
  %ends = icmp eq ptr %table, null
  br i1 %ends, label %end, label %copy
copy:
  call void @copy_pieces(ptr %table)
  call i32 @pthread_mutex_lock(ptr %state)
  %copied.after = add i64 %copied, 1
  store i64 %copied.after, ptr %copied.at
  call i32 @pthread_cond_signal(ptr %result)
  br label %look
end:
  ret ptr null
}
"""
_SUBMITTED = 48  # the first behind mutex and conditions
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

    def table(self) -> Int64[np.ndarray, " 5"]:
        """What the kernel takes: three arrays, how many pieces they have, and the address of the next table, or 0."""
        arrays = (self.address, self.target, self.size)
        return np.array([*(array.ctypes.data for array in arrays), self.size.size, 0])

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
        self.serve = ctypes.c_void_p(self._address("serve"))
        self.copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address("copy_pieces"))
        self.wait = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(self._address("wait"))
        self.submit = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._address("submit"))  # short: keeps the lock

    def _address(self, name: str) -> int:
        return self._engine.get_function_address(name)


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
        self._tables: deque[tuple[np.ndarray, object]] = deque()  # the last that was copied, and those under way
        self._state = np.zeros(_SUBMITTED + 3, np.int64)  # as the kernel has it
        self._end: weakref.finalize[..., CopyThread] | None = None

    def submit(self, parts: list[Copies]) -> Copying:
        """Hands over copies; an error of their checks is that of the result, and nothing is copied."""
        kernel = self._kernel
        try:
            for copies in parts:
                copies.check()
        except HeadraceError as error:
            return Copying(self, 0, error)
        for copies in parts:
            table = copies.table()
            self._tables[-1][0][4] = table.ctypes.data
            self._tables.append((table, copies))
            kernel.submit(self._state.ctypes.data)
        return Copying(self, int(self._state[_SUBMITTED]))

    def wait(self, number: int) -> None:
        """Waits until so many tables are done."""
        copied = self._kernel.wait(self._state.ctypes.data, number)
        while len(self._tables) > int(self._state[_SUBMITTED]) - copied + 1:
            self._tables.popleft()
        self._tables[0] = self._tables[0][0], None  # it only says which is next

    def close(self) -> None:
        """Ends the thread, after what was handed over."""
        if self._end is not None:
            self._end()
            self._end = None
            self._tables.clear()

    @property
    def _kernel(self) -> CopyKernel:
        kernel = copy_kernel()
        assert kernel is not None
        if self._end is None:
            self._begin(kernel)
        return kernel

    def _begin(self, kernel: CopyKernel) -> None:
        library, thread, state = ctypes.CDLL(None), ctypes.c_void_p(), self._state.ctypes.data
        library.pthread_mutex_init(ctypes.c_void_p(state), None)
        for condition in (state + 128, state + 256):
            library.pthread_cond_init(ctypes.c_void_p(condition), None)
        first = np.zeros(5, np.int64)
        self._tables.append((first, None))
        self._state[_SUBMITTED + 1 :] = self._state[_SUBMITTED], first.ctypes.data
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)  # they are Python's
        try:
            failed = library.pthread_create(ctypes.byref(thread), None, kernel.serve, ctypes.c_void_p(state))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if failed:
            raise OSError(failed, f"no thread can be started: {os.strerror(failed)}")
        self._end = weakref.finalize(self, _end, os.getpid(), kernel, library, thread, self._state, self._tables)
        self._end.atexit = False  # whoever submits is stopped then, and closes this


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
    process: int, kernel: CopyKernel, library: ctypes.CDLL, thread: ctypes.c_void_p, state: np.ndarray, tables: object
) -> None:
    """Ends the thread, by a table that is none, while ``state`` and ``tables`` are there. A fork has no such thread."""
    if os.getpid() == process:
        kernel.submit(state.ctypes.data)
        library.pthread_join(thread, None)
