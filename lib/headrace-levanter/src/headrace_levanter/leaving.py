"""Stops Levanter's loaders before the interpreter ends.

Their threads are daemons. When the interpreter ends, Python ends each of them at its next
acquisition of the lock, which may be inside compiled code of JAX; the process then dies with signal
6 or 11 although all its work is done. Loaders that still run at the end of the program are
therefore stopped first.
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
    """Registers :func:`stop_loaders` to run once when the program ends."""
    atexit.register(stop_loaders)


def stop_loaders(patience_s: float = _PATIENCE_S) -> int:
    """Stops the threads of all Levanter loaders that still run.

    Args:
        patience_s: Longest time to wait; a batch in progress is finished first.

    Returns:
        Number of loaders that had to be stopped.
    """
    iterators = [it for it in gc.get_objects() if isinstance(it, BackgroundIterator)]
    alive = [it for it in iterators if it.thread is not None and it.thread.is_alive()]
    for it in alive:
        it.stop(wait=False)
    deadline = time.monotonic() + patience_s
    for it in alive:
        while it.thread is not None and it.thread.is_alive() and time.monotonic() < deadline:
            _drain(it.q)  # a thread with an error to deliver waits for room in the queue
            it.thread.join(0.05)
    return len(alive)


def _drain(q: queue.Queue[object]) -> None:
    try:
        while True:
            q.get_nowait()
    except queue.Empty:
        pass
