"""A few threads for work that runs without the interpreter's lock: gathering rows, checking blocks.

Jobs start in the order in which they were submitted. The threads start with the first job and end
with :meth:`Workers.close`; a job that has not started by then never runs. Price: about 10 us to
submit a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from headrace.errors import ReadError

T = TypeVar("T")


class Job(Generic[T]):
    """Submitted work; :meth:`result` waits for it."""

    __slots__ = ("_done", "_error", "_run", "_value")

    def __init__(self, run: Callable[[], T]) -> None:
        self._run: Callable[[], T] | None = run
        self._done = threading.Lock()  # held until the job is done: the cheapest event there is
        self._done.acquire()
        self._error: BaseException | None = None
        self._value: T | None = None

    def result(self, timeout: float | None = None) -> T:
        """Returns or raises what the work did; TimeoutError if it is not done within ``timeout``
        seconds.
        """
        if not self._done.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        self._done.release()
        if self._error is not None:
            raise self._error
        return self._value  # pyright: ignore[reportReturnType]

    def run(self) -> None:
        """Does the work in the calling thread."""
        # frees what the function refers to as soon as it is done
        run = self._run
        self._run = None
        try:
            assert run is not None
            self._value = run()
        except BaseException as error:  # noqa: BLE001  # result() raises it
            self._error = error
        del run
        self._done.release()

    def cancel(self) -> None:
        """Ends a job that has not started and never will: :meth:`result` raises ReadError."""
        self._run = None
        self._error = ReadError("the loader was closed before it was done")
        self._done.release()


class Workers:
    """Threads that do jobs. With 0 threads, :meth:`submit` does each job itself, at once.

    Example:
        >>> workers = Workers(2)
        >>> workers.submit(lambda: 6 * 7).result()
        42
        >>> workers.close()
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._running: list[threading.Thread] = []

    def submit(self, run: Callable[[], T]) -> Job[T]:
        """Queues work for the threads. Call it from one thread only."""
        job = Job(run)
        if not self._threads:
            job.run()
            return job
        if len(self._running) < self._threads:
            thread = threading.Thread(
                target=_work, args=(self._jobs,), name="headrace-worker", daemon=True
            )
            self._running.append(thread)
            thread.start()
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Ends the threads after their current jobs."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is not None:
                job.cancel()
        for _ in self._running:
            self._jobs.put(None)
        for thread in self._running:
            thread.join()
        self._running.clear()


def _work(jobs: SimpleQueue[Job[Any] | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job  # only those who wait for the result may keep it
