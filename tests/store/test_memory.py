"""Threads share one arena of memory once they are told to, and large blocks come
from the system.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from headrace.store.memory import return_freed_memory
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
barrier = threading.Barrier(4)
def ask():
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fdopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out)
libc.fflush(None)
"""


@pytest.mark.parametrize(
    ("call", "arenas"), [("", range(2, 100)), ("return_freed_memory()", range(1, 2))]
)
def test_arenas(call, arenas):
    if not sys.platform.startswith("linux"):
        pytest.skip("only glibc has arenas")
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.count("<heap nr=") in arenas


LARGE = """
import ctypes
from headrace.store.memory import return_freed_memory
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.sbrk.restype = ctypes.c_void_p
libc.free(libc.malloc(30 << 20))  # glibc learns that blocks of this size come and go
before, block = libc.sbrk(0), libc.malloc(20 << 20)
print(libc.sbrk(0) - before)
"""


@pytest.mark.parametrize(("call", "grows"), [("", True), ("return_freed_memory()", False)])
def test_large_blocks(call, grows):
    if not sys.platform.startswith("linux"):
        pytest.skip("only glibc has a heap of this kind")
    command = [sys.executable, "-c", LARGE.format(call=call)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (int(printed) > 10 << 20) == grows
