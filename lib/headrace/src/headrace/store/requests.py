"""Reads from stores over HTTP in flight: one background thread with an asyncio loop for all of a
process.

A coroutine per read follows it through index, request, retry, hedge and decoding; nothing blocks.
The thread starts with the first read, ends :data:`IDLE_S` seconds after the last, and holds only
reads in flight.

Invariant: every future returned by :func:`submit` is eventually done. The loop does not end while
it has a task; what the thread can no longer do fails. Nothing that may run a finaliser happens
under a lock, because a finaliser may wait for a thread that wants the same lock. A lost wake-up
costs :data:`_BEAT_S`.

Price: about 0.1 ms of CPU per chunk in addition to TensorStore's own 0.15 ms, for stores that are
milliseconds away.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import numpy as np
import tensorstore as ts

from headrace.store import azure, files, retry
from headrace.store.failures import (
    DamagedAnswerError,
    Failure,
    MissingAnswerError,
    StoreFailedError,
    failure_of,
    reason,
    throttles,
)
from headrace.store.location import Location

T = TypeVar("T")
IDLE_S = 5.0
_BEAT_S = 0.5
_END_S = 5.0
_KEPT_LATENCIES = 500
_ENOUGH_LATENCIES = 50
_FEW_FAILURES = 3  # of one read; fewer are no outage
_looked_at: dict[str, float] = {}  # server -> when it was asked for its Retry-After
_not_before: dict[str, float] = {}  # server -> when it may be asked again
_FINAL: dict[Failure, type[StoreFailedError]] = {
    "transient": StoreFailedError,
    "refused": StoreFailedError,
    "missing": MissingAnswerError,
    "damaged": DamagedAnswerError,
}
_LEAST_HEDGE_S = 0.25  # what comes sooner is not late, however near the store is


class Store:
    """A key-value store of TensorStore, or of Azure, for the loop's thread, that can be reopened.

    Args:
        spec: As :meth:`Location.kvstore` gives it.
        url: The folder, for the log.
        damaged_attempts: Most requests for bytes that come damaged; None: as the policy says.
        missing_attempts: Most requests for a file that is missing; None: only time counts.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        url: str,
        damaged_attempts: int | None = None,
        missing_attempts: int | None = None,
    ) -> None:
        self._spec = spec
        self.url = url
        self.damaged_attempts = damaged_attempts
        self.missing_attempts = missing_attempts
        self._open()

    def _open(self) -> None:
        self._context = read_context()
        spec = self._spec
        self.kvstore: Any
        if spec["driver"] == "az":
            self.kvstore = azure.Blobs(spec["bucket"], spec["path"])
        else:
            self.kvstore = ts.KvStore.open(spec, context=self._context).result()

    def renew(self) -> None:
        """Reopens it with fresh credentials, once for all stores that were opened with the same."""
        with _context_lock:
            key = (retry.policy(), 1)
            if _contexts.get(key) is self._context:
                del _contexts[key]
        self._open()


_context_lock = threading.Lock()
_contexts: dict[tuple[retry.RetryPolicy, int], Any] = {}


def read_context(attempts: int = 1) -> Any:
    """One TensorStore context for all reads under a policy with this many attempts by TensorStore
    itself. The pool is for local files: shard indices, and the chunks read last.
    """
    key = (retry.policy(), attempts)
    with _context_lock:
        if key not in _contexts:
            pool = {"cache_pool": {"total_bytes_limit": 64 << 20}}
            _contexts[key] = ts.Context(pool | retry.policy().tensorstore_context(attempts))
        return _contexts[key]


class _Loop:
    """The loop of the process, its thread, and what belongs to a loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.active = 0  # reads that are not done; changed under _lock
        self.ended = False  # no read may come any more; changed under _lock
        self._room: tuple[int, asyncio.Semaphore] | None = None
        self._handed: deque[Callable[[], None]] = deque()
        self._told = False
        self._tasks: set[asyncio.Task[Any]] = set()  # asyncio itself does not keep them alive
        self._used = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="store-requests", daemon=True)

    def in_flight(self, most: int) -> asyncio.Semaphore:
        """Limits concurrent requests to ``most``. Call it in the thread."""
        if (
            self._room is None or self._room[0] != most
        ):  # another policy: what is under way counts by its own
            self._room = most, asyncio.Semaphore(most)
        return self._room[1]

    def hand_over(self, do: Callable[[], None]) -> None:
        """Runs ``do`` in the thread. Safe in any thread and finaliser: takes no lock, wakes the
        loop only if needed.
        """
        self._handed.append(do)
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self._take)
        if self.loop.is_closed():
            self._take()

    def begin(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        future: concurrent.futures.Future[Any],
        context: Context,
    ) -> None:
        """Starts a read for which :func:`_entered` was called. Call it in the thread."""
        if self.ended or future.cancelled():
            self._finish(future, _EndedError())
            return
        task = self.loop.create_task(work(), context=context)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, future))
        future.add_done_callback(partial(self._dropped, task))

    def _dropped(self, task: asyncio.Task[Any], future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            self.hand_over(task.cancel)  # pyright: ignore[reportArgumentType]

    def _finished(self, future: concurrent.futures.Future[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = _EndedError() if task.cancelled() else task.exception()
        self._finish(future, error, None if error is not None else task.result())

    def _finish(
        self, future: concurrent.futures.Future[Any], error: BaseException | None, value: Any = None
    ) -> None:
        self._used = time.monotonic()
        with _lock:
            self.active -= 1
        if future.set_running_or_notify_cancel():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

    def _take(self) -> None:
        self._told = False  # before looking: what comes from here on tells again
        with contextlib.suppress(IndexError):
            while True:
                self._handed.popleft()()

    def _beat(self) -> None:
        self._take()
        now = time.monotonic()
        if self.active or asyncio.all_tasks(self.loop):
            self._used = now
        elif now - self._used >= IDLE_S and self._end():
            self.loop.stop()
            return
        self.loop.call_later(min(_BEAT_S, IDLE_S), self._beat)

    def _end(self, *, at_once: bool = False) -> bool:
        """Stops accepting reads, unless one is in progress."""
        global _current
        with _lock:
            if self.active and not at_once:
                return False
            self.ended = True
            if _current is self:
                _current = None
        return True

    def _run(self) -> None:
        _thread.state = self
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._beat)
        try:
            self.loop.run_forever()
        finally:  # at the end of the process, or if all breaks, there are reads left
            self._end(at_once=True)
            self._take()
            self.loop.run_until_complete(_cancelled(asyncio.all_tasks(self.loop)))
            self.loop.close()
            self._take()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _EndedError(StoreFailedError):
    def __init__(self) -> None:
        super().__init__("CANCELLED: the thread that reads has ended")


class _LateError(TimeoutError):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"DEADLINE_EXCEEDED: no answer within {seconds:g} s")


class _Here(threading.local):
    state: _Loop | None = None


_thread = _Here()
_lock = threading.Lock()
_current: _Loop | None = None


def submit(work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
    """Starts a coroutine on the background loop, with the caller's context variables
    (:func:`headrace.store.retry.waiting_at_most`); ``cancel()`` of the future ends it.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    state = _entered()
    state.hand_over(partial(state.begin, work, future, copy_context()))
    return future


def _entered() -> _Loop:
    """The loop of the process, which will not end before one more read has."""
    global _current
    fresh: _Loop | None = None
    while True:
        with _lock:
            if _current is None and fresh is not None and not fresh.ended:
                _current = fresh
            state = _current
            if state is not None:
                state.active += 1
                return state
        fresh = _Loop()  # if another thread is faster, this one ends for want of reads
        fresh.thread.start()


@atexit.register
def _end_with_the_process() -> None:
    """Python cannot exit while one of its threads is inside TensorStore: it would abort."""
    state = _current
    if state is not None and state.thread.is_alive():
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            state.loop.call_soon_threadsafe(state.loop.stop)
        state.thread.join(_END_S)


async def arrived(future: Any, timeout_s: float | None = None) -> Any:
    """Waits for a TensorStore future. If the wait is given up, the future is dropped: TensorStore
    cannot cancel requests.

    Raises:
        TimeoutError: it is not there within ``timeout_s`` seconds.
    """
    state = _thread.state
    assert state is not None  # this runs on its loop
    waiter: asyncio.Future[None] = state.loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def expire(seconds: float) -> None:
        if not waiter.done():
            waiter.set_exception(_LateError(seconds))

    def wake_up(_: Any) -> None:
        state.hand_over(wake)

    future.add_done_callback(wake_up)
    timer = None if timeout_s is None else state.loop.call_later(timeout_s, expire, timeout_s)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
    return future.result()


async def get(
    store: Store,
    key: str,
    byte_range: slice | None,
    decode: Callable[[bytes], Awaitable[T]],
    *,
    index: bool = False,
) -> T:
    """Requests bytes of a stored file that has to be there, with the retries of the policy, and
    decodes them.

    Args:
        store: Its store.
        key: The file.
        byte_range: The bytes; all if None; ``slice(-n, None)`` for the last n.
        decode: Decodes the bytes, or raises ValueError if they are damaged.
        index: Whether to count it as a request for an index.

    Raises:
        MissingAnswerError: it is missing, after all retries.
        DamagedAnswerError: it is damaged, after all retries.
        StoreFailedError: the store failed until the deadline, or permanently.
    """
    policy = retry.policy()
    counts = retry.own_counts()
    patience = retry.Patience(store.url)
    failures: Counter[Failure] = Counter()
    most: dict[Failure, float] = {
        "transient": math.inf,
        "missing": store.missing_attempts or math.inf,
        "refused": policy.refused_attempts,
        "damaged": store.damaged_attempts or policy.damaged_attempts,
    }
    counts.index_requests += index
    while True:
        answer: bytes | None = None
        try:
            answer = await _one(store.kvstore, key, byte_range, policy)
            value = await decode(_of_range(answer, byte_range))
            patience.succeeded()
            return value
        except (ValueError, OSError, NotImplementedError) as error:
            kind = failure_of(error)
            failures[kind] += 1
            least_s = 0.0
            if throttles(error) and failures.total() >= _FEW_FAILURES:
                least_s = await _pause_s(store.url)
            wait = patience.wait_s(reason(error), least_s)
            if wait is None or failures[kind] >= most[kind]:
                came = "" if answer is None else f"; what came begins with {answer[:24]!r}"
                given_up = f"; {patience.tried}" if patience.tried else ""
                failure = _FINAL[kind](f"{reason(error)}{came}{given_up}")
                if wait is None:
                    failure.add_note(patience.tried)
                raise failure from error
        await asyncio.sleep(wait)
        counts.retries += 1
        counts.damaged += kind == "damaged"
        counts.refused += kind == "refused"
        if kind == "refused":
            store.renew()


async def _pause_s(url: str) -> float:
    """Seconds that a web server that is throttling wants to be left alone. TensorStore does not
    tell its ``Retry-After``, so fsspec's client asks for one byte, at most once a second for all
    reads. Buckets, which seldom send one, are not asked.
    """
    location = Location.parse(url)
    now = time.monotonic()
    if location.is_web and now - _looked_at.get(location.bucket, -math.inf) >= 1:
        _looked_at[location.bucket] = now
        counts = retry.own_counts()
        counts.requests += 1
        counts.retries += 1
        fs, path = files.filesystem(url)
        asking = asyncio.run_coroutine_threadsafe(fs._cat_file(path, start=0, end=1), fs.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(asking), retry.policy().timeout_s)
        except Exception as error:  # noqa: BLE001  # only what it asks for matters
            _not_before[location.bucket] = time.monotonic() + retry.retry_after_s(error)
    return max(_not_before.get(location.bucket, now) - time.monotonic(), 0.0)


def _of_range(answer: bytes, byte_range: slice | None) -> bytes:
    """The answer, if it has the requested number of bytes."""
    if byte_range is not None:
        size = -byte_range.start if byte_range.start < 0 else byte_range.stop - byte_range.start
        if len(answer) != size:
            raise ValueError(f"DATA_LOSS: {len(answer)} bytes came, {size} were asked for")
    return answer


async def _one(
    kvstore: Any, key: str, byte_range: slice | None, policy: retry.RetryPolicy
) -> bytes:
    """One request and, if it is late, its hedge."""
    state = _thread.state
    assert state is not None  # this runs on its loop
    async with state.in_flight(policy.concurrency):
        asked_at = time.monotonic()
        hedge_after = _hedge_after(policy)
        first = _start_read(kvstore, key, byte_range)
        try:
            # Most answers are in time: no task is made for them.
            answer = await arrived(first, min(hedge_after, policy.timeout_s))
        except _LateError:
            if hedge_after >= policy.timeout_s:
                raise
            left_s = policy.timeout_s - hedge_after
            counts = retry.own_counts()
            if counts.hedges + 1 > max(1, math.floor(policy.hedge_share * counts.requests)):
                answer = await arrived(first, left_s)
            else:
                counts.hedges += 1
                second = _start_read(kvstore, key, byte_range)
                answer = await _first_good(
                    [arrived(first, left_s), arrived(second, policy.timeout_s)]
                )
        _latencies.add(time.monotonic() - asked_at)
    if answer.state == "missing":
        raise ValueError("NOT_FOUND: it is missing")
    if answer.state == "unspecified":  # of 304, which nobody asked for
        raise ValueError("DATA_LOSS: an answer without bytes")
    return bytes(answer.value)


async def _first_good(answers: list[Coroutine[Any, Any, Any]]) -> Any:
    """The first successful answer, of a request and its hedge; the last failure if both fail."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    running = set(tasks)
    try:
        while True:
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                if task.exception() is None:
                    retry.own_counts().hedges_won += task is not tasks[0]
                    return task.result()
            if not running:
                return finished.pop().result()
    finally:
        for task in running:
            task.cancel()


def _start_read(kvstore: Any, key: str, byte_range: slice | None) -> Any:
    """TensorStore's future of one request."""
    retry.own_counts().requests += 1
    return kvstore.read(key, byte_range=byte_range)


class Latencies:
    """Seconds that the last answers took.

    Attributes:
        usual_s: The 95th percentile of the last 500, computed anew every 50 answers; None before.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self._last: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self._fresh = 0

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self._fresh += 1
        if self._fresh >= _ENOUGH_LATENCIES:
            self._fresh = 0
            self.usual_s = float(np.percentile(np.fromiter(self._last, float), 95))


_latencies = Latencies()


def _hedge_after(policy: retry.RetryPolicy) -> float:
    """Seconds after which a request is late."""
    if policy.hedge_after_s is not None:
        return policy.hedge_after_s
    if policy.hedge_p95 is None or _latencies.usual_s is None:
        return math.inf
    return max(policy.hedge_p95 * _latencies.usual_s, _LEAST_HEDGE_S)
