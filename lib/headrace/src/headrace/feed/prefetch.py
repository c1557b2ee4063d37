"""Runs an iterator in a background thread, a few items ahead, and always ends the thread.

Items come in groups that are made together and handed over at once. A waiting consumer wakes once
per group, and so does a producer that waits for room. A wake-up costs as much as delivering a
batch, and with one per item, the two threads would take turns at the interpreter's lock.

An error in the background reaches the consumer at the item where it happened, and again at each
further request. Leaving a loop early, an exception, Ctrl-C or simply dropping the iterator stops
the thread: the thread holds no reference to the iterator, whose finaliser stops it. A group is
begun only while the groups that are not completely taken have fewer than ``depth`` items.

Only :meth:`Prefetched.close` waits for the thread. A finaliser runs in whichever thread triggers
the garbage collector, possibly one that the background work waits for, so it only signals the stop.
At exit, the process waits for all threads that are left.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, NoReturn, TypeVar

from headrace.errors import ConfigError, HostError, ReadError
from headrace.feed.host_gate import HostGate
from headrace.metrics import QueueStats

T = TypeVar("T")


class _End:
    """Marks the end of the items, with the error that ended them, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetched(Iterator[T], Generic[T]):
    """Items of the groups of ``make()``, made in a background thread.

    After :meth:`close`, ``next`` raises ReadError: an iteration that was stopped must not look
    complete.

    Use it as a context manager, or call :meth:`close`, to stop early; dropping it does the same.

    Args:
        make: Called in the thread; returns an iterator of groups, lists of at least one item, which
            get emptied. The iterator's ``close`` (if it is a generator) is called in the thread
            too.
        depth: Another group is begun when the groups that are not completely taken have fewer items
            than this; at least 1. To make one group while another is taken, give twice the size of
            a group.
        stats: Records each wait.
        interrupt: Called when stopping, from any thread: makes whatever the iterator waits for give
            up.
        gate: Makes this host wait for the others before it hands out an item.
        finish: Applied to each item when it is requested, in the consumer's thread.

    Example:
        >>> with Prefetched(lambda: iter([[0], [1, 2]]), depth=2) as items:
        ...     list(items)
        [0, 1, 2]
    """

    def __init__(
        self,
        make: Callable[[], Iterator[list[T]]],
        depth: int,
        stats: QueueStats | None = None,
        interrupt: Callable[[], None] | None = None,
        gate: HostGate | None = None,
        finish: Callable[[T], T] | None = None,
    ) -> None:
        self._gate = gate
        self._finish = finish
        self._queue: SimpleQueue[list[T] | _End] = SimpleQueue()
        self._group: deque[T] = deque()  # the rest of the group taken last
        self._group_size = 0
        self._made = [0]
        self._taken = 0
        # The size of each group that was completely taken.
        self._room: SimpleQueue[int] = SimpleQueue()
        self._stats = stats or QueueStats()
        self._depth = depth
        self._stop = threading.Event()
        self._ended: _End | None = None
        self._process = os.getpid()
        self.thread = threading.Thread(
            target=_produce,
            args=(make, self._queue, self._made, self._room, self._stop, depth),
            name="headrace-loader",
            daemon=True,
        )
        self._finalizer = weakref.finalize(
            self, _tell, self.thread, self._room, self._stop, interrupt, gate
        )
        _stops[self.thread] = self._finalizer
        try:
            self.thread.start()
        except RuntimeError as error:
            self._finalizer()
            raise ReadError(
                f"cannot begin here: {error}",
                field="iterator",
                cure="Begin it before Python shuts down, where threads can be started; single"
                " batches need none: loader.batch_at(step).",
            ) from error

    def __reduce__(self) -> NoReturn:
        cure = "Send the config or the dataset and the step, and make a loader there."
        raise ConfigError(
            "cannot be pickled: a thread reads ahead for it", field="batches", cure=cure
        )

    def __iter__(self) -> Prefetched[T]:
        return self

    def __next__(self) -> T:
        if self._ended is not None:
            raise self._ended.error or StopIteration
        if not self._finalizer.alive:
            raise _closed()
        if self._process != os.getpid():
            raise ReadError(
                "was made before os.fork, which left its thread behind",
                field="iterator",
                cure="Make it in the process that uses it, started with spawn or forkserver.",
            )
        occupancy = min((self._made[0] - self._taken) / self._depth, 1.0)
        started = time.perf_counter()
        self._stats.begin()
        try:
            if self._gate is not None:
                self._gate.ask()
            item = self._take()
            if self._gate is not None and not isinstance(item, _End):
                self._gate.cross()
        except HostError as error:
            item = _End(error)
        finally:
            self._stats.end()
        if isinstance(item, _End):
            self._ended = item
            if self._gate is not None:
                self._gate.leave(item.error)
            self.close()
            raise item.error or StopIteration
        self._taken += 1
        if not self._group:
            self._room.put(self._group_size)
        self._stats.record(time.perf_counter() - started, occupancy)
        return item if self._finish is None else self._finish(item)

    def _take(self) -> T | _End:
        patience = self._stats.say_after_s
        while not self._group:
            try:
                group = self._queue.get(timeout=patience)
            except Empty:
                self._stats.say()
                patience = self._stats.waiting_now_s  # report again when the wait has doubled
                continue
            if isinstance(group, _End):
                return group
            self._group.extend(group)
            self._group_size = len(group)
            group.clear()  # ``make`` may keep the list, but not its items
        return self._group.popleft()

    def close(self) -> None:
        """Stops the thread and waits for it. Safe to call twice, and from any thread."""
        self._finalizer()
        if self.thread is not threading.current_thread():
            self.thread.join()
            self._group.clear()
            with suppress(Empty):
                while True:
                    self._queue.get_nowait()
            # Wakes a consumer that waits in another thread.
            self._queue.put(self._ended or _End(_closed()))

    def __enter__(self) -> Prefetched[T]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._gate is not None:
            self._gate.leave(error)
        self.close()


def _produce(
    make: Callable[[], Iterator[list[T]]],
    out: SimpleQueue[list[T] | _End],
    made: list[int],
    room: SimpleQueue[int],
    stop: threading.Event,
    depth: int,
) -> None:
    error: BaseException | None = None
    try:
        groups = make()
        try:
            untaken = 0  # items of groups that are not completely taken
            while True:
                while untaken >= depth and not stop.is_set():
                    untaken -= room.get()
                if stop.is_set():
                    break
                try:
                    group = next(groups)
                except StopIteration:
                    break
                if stop.is_set():
                    break
                untaken += len(group)
                made[0] += len(group)
                out.put(group)
                del group  # only the queue may refer to a ready batch
        finally:
            close = getattr(groups, "close", None)
            if close is not None:
                close()
    except BaseException as raised:  # noqa: BLE001  # whatever it is, the consumer gets it
        error = raised
    if not stop.is_set():
        out.put(_End(error))
    _stops.pop(threading.current_thread(), None)
    # its traceback refers to this frame: nothing would be freed before the next garbage collection
    error = None


def _tell(
    thread: threading.Thread,
    room: SimpleQueue[int],
    stop: threading.Event,
    interrupt: Callable[[], None] | None,
    gate: HostGate | None,
) -> None:
    """Signals the thread to stop. Takes only locks that are held briefly, and waits for nothing
    else.
    """
    stop.set()
    if gate is not None:
        gate.leave()
    if interrupt is not None:
        interrupt()
    room.put(0)  # wakes a thread that waits for room, so that it sees the stop
    if not thread.is_alive():
        _stops.pop(thread, None)


_stops: dict[threading.Thread, Callable[[], object]] = {}
"""For each thread that may be alive, a function that stops it."""


@atexit.register
def _end_with_the_process() -> None:
    """Stops all threads: Python aborts if it exits while one of its threads is inside TensorStore
    or XLA.
    """
    for thread, stop in list(_stops.items()):
        stop()
        thread.join()


def _closed() -> ReadError:
    return ReadError(
        "was closed before its end",
        field="iterator",
        cure="Go on with a new one: loader.iter_from_step(step).",
    )
