"""Threads share one arena of memory once they are told to."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from headrace.store.memory import share_one_arena
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


@pytest.mark.parametrize(("call", "arenas"), [("", range(2, 100)), ("share_one_arena()", range(1, 2))])
def test_arenas(call, arenas):
    if not sys.platform.startswith("linux"):
        pytest.skip("only glibc has arenas")
    command = [sys.executable, "-c", PROGRAM.format(call=call)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.count("<heap nr=") in arenas
