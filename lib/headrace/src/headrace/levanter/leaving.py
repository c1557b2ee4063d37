"""Leaving the interpreter while a loader of Levanter's is at work.

Its thread is a daemon: when the interpreter ends, Python takes it away at the next turn of the lock, which may be
within compiled code of JAX that cannot be left so, and the process dies with signal 6 or 11 after all its work is
done. What is still alive at the end of the program is therefore stopped before.
"""

from __future__ import annotations

import atexit
import functools
import gc
import queue
import time

from levanter.utils.background_iterable import BackgroundIterator

_PATIENCE_S = 30.0


@functools.cache
def stop_loaders_at_exit() -> None:
    """From now on, stop what is left of Levanter's loaders when the program ends. Does so once."""
    atexit.register(stop_loaders)


def stop_loaders(patience_s: float = _PATIENCE_S) -> int:
    """Stops the threads of all loaders of Levanter's that are still there.

    Args:
        patience_s: How long to wait for them; a batch that is being made is finished first.

    Returns:
        How many had to be stopped.
    """
    iterators = [it for it in gc.get_objects() if isinstance(it, BackgroundIterator)]
    alive = [it for it in iterators if it.thread is not None and it.thread.is_alive()]
    for it in alive:
        it.stop(wait=False)
    deadline = time.monotonic() + patience_s
    for it in alive:
        while it.thread is not None and it.thread.is_alive() and time.monotonic() < deadline:
            _drain(it.q)  # a thread that has an error to hand over waits for room
            it.thread.join(0.05)
    return len(alive)


def _drain(q: queue.Queue[object]) -> None:
    try:
        while True:
            q.get_nowait()
    except queue.Empty:
        pass
