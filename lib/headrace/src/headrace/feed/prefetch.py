"""Runs an iterator in a background thread, a few items ahead, and never leaves the thread behind.

An error in the background reaches the consumer at the item where it happened. Leaving a loop early, an exception,
Ctrl-C or simply dropping the iterator stops the thread: it holds no reference to the iterator, whose finaliser stops
it.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from headrace.errors import ReadError
from headrace.metrics import QueueStats

T = TypeVar("T")
_POLL_S = 0.05


class _End:
    """Marks the end of the items, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetched(Iterator[T], Generic[T]):
    """Items of ``make()``, made in a background thread up to ``depth`` ahead.

    Asked for more after it was closed it raises ReadError: an end that is none must not look like one.

    Use it as a context manager, or call :meth:`close`, to stop early; dropping it does the same.

    Args:
        make: Called in the thread; gives the iterator. Its ``close`` (if a generator) is called in the thread too.
        depth: Items that may be ready and unasked for, at least 1.
        stats: Gets each wait.
        name: Name of the thread.
        interrupt: Called when stopping, from any thread: makes what the iterator waits for give up.

    Example:
        >>> with Prefetched(lambda: iter(range(3)), depth=2) as items:
        ...     list(items)
        [0, 1, 2]
    """

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        depth: int,
        stats: QueueStats | None = None,
        name: str = "headrace-loader",
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
        self._stats = stats or QueueStats()
        self._depth = depth
        self._stop = threading.Event()
        self._ended: _End | None = None
        self._thread = threading.Thread(target=_produce, args=(make, self._queue, self._stop), name=name, daemon=True)
        self._finalizer = weakref.finalize(self, _shut_down, self._thread, self._queue, self._stop, interrupt)
        self._thread.start()

    def __iter__(self) -> Prefetched[T]:
        return self

    def __next__(self) -> T:
        if self._ended is not None:
            raise StopIteration
        if not self._finalizer.alive:
            raise _closed()
        occupancy = self._queue.qsize() / self._depth
        started = time.perf_counter()
        item = self._queue.get()
        if isinstance(item, _End):
            self._ended = item
            self.close()
            if item.error is not None:
                raise item.error
            raise StopIteration
        self._stats.record(time.perf_counter() - started, occupancy)
        return item

    def close(self) -> None:
        """Stops the thread and waits for it. Safe to call twice, and from any thread."""
        self._finalizer()

    def __enter__(self) -> Prefetched[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _produce(make: Callable[[], Iterator[T]], out: queue.Queue[T | _End], stop: threading.Event) -> None:
    error: BaseException | None = None
    try:
        items = make()
        try:
            for item in items:
                if not _put(out, item, stop):
                    break
                del item  # a ready batch belongs to the queue alone
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
    except BaseException as raised:  # noqa: BLE001  # whatever it is, the consumer gets it
        error = raised
    _put(out, _End(error), stop)
    error = None  # its traceback leads back to this frame: nothing would be freed before the next garbage collection


def _put(out: queue.Queue[T | _End], item: T | _End, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            out.put(item, timeout=_POLL_S)
            return True
        except queue.Full:
            continue
    return False


def _shut_down(
    thread: threading.Thread,
    out: queue.Queue[T | _End],
    stop: threading.Event,
    interrupt: Callable[[], None] | None,
) -> None:
    stop.set()
    if interrupt is not None:
        interrupt()
    _empty(out)  # make room, so that a blocked put returns at once
    if thread is not threading.current_thread():
        thread.join()
        _empty(out)
        out.put_nowait(_End(_closed()))  # for a consumer that waits in another thread


def _closed() -> ReadError:
    return ReadError(
        "was closed before its end", field="iterator", cure="Go on with a new one: loader.iter_from_step(step)."
    )


def _empty(out: queue.Queue[T | _End]) -> None:
    while True:
        try:
            out.get_nowait()
        except queue.Empty:
            return
