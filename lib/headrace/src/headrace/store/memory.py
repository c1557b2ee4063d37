"""Memory that the C library keeps back.

glibc has an arena of memory for each thread that asks for some, eight a core at most, and what is freed in one is of
no use to another. TensorStore writes shards on many threads, each time on others: a copy of a cache so came to hold
more with every part that it wrote, 570 MiB after four parts of 256 MiB where 230 MiB are in use. With one arena for
all it stays there, and is no slower (`scripts/bench/bench_reshuffle.py`).
"""

from __future__ import annotations

import ctypes
import sys

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_one_arena() -> None:
    """Has threads that are started from now on ask for memory in one place. Nothing happens but with glibc.

    For processes that copy caches. Not for those that encode texts: there all threads ask for memory all the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
