"""Memory that is freed goes back to the system.

glibc keeps it in two ways. It has an arena for each thread that asks for memory, eight a core at most, and what is
freed in one is of no use to another; TensorStore writes shards on many threads, each time on others. And once large
blocks have been freed it takes blocks of up to 32 MiB out of its heap, where small ones that stay keep them from going
back. So a copy of a cache came to hold more with every part that it wrote: 1,040 MiB at 2 GiB of tokens, of which it
used a quarter. With one arena, and large blocks from the system, that is flat, and takes an eighth more CPU
(`scripts/bench/bench_reshuffle.py`).
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of malloc.h
_LARGE_BYTES = 2 << 20


def return_freed_memory() -> None:
    """Has glibc use one arena for threads that are started from now on, and the system for blocks above 2 MiB.

    For processes that copy caches. Not for those that encode texts: there all threads ask for memory all the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
