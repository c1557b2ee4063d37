"""Returns freed memory to the system.

glibc keeps freed memory for two reasons. It has an arena for each allocating thread, up to eight
per core, and memory freed in one cannot be used by another; TensorStore writes shards on many
threads, each time on others. And once large blocks have been freed, it allocates blocks of up to 32
MiB from its heap, where small remaining ones prevent them from being returned. A copy of a cache
therefore held more memory with every part that it wrote: 1,040 MiB at 2 GiB of tokens, of which it
used a quarter. With one arena, and large blocks from the system, memory use is constant, for an
eighth more CPU (`scripts/bench/bench_reshuffle.py`).
"""

from __future__ import annotations

import ctypes
import sys

# of malloc.h
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_LARGE_BYTES = 2 << 20


def return_freed_memory() -> None:
    """Makes glibc use one arena for threads that start from now on, and the system for blocks above
    2 MiB.

    For processes that copy caches, but not for those that encode texts, where all threads allocate
    all the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
