"""Reads from stores over HTTP in flight: one background thread with an asyncio loop for all of a
process.

What a loader mostly wants, one chunk whose place is known, is requested by the thread that reads,
and decoded where its answer arrives (:func:`send`). All else is a coroutine per read, which follows
it through index, request, retry, hedge and decoding (:func:`submit`); a request of :func:`send`
that is late, fails or brings damaged bytes goes on as one. Nothing blocks. The thread starts with
the first read, ends :data:`IDLE_S` seconds after the last, and holds only reads in flight.

Invariant: every future of :func:`submit` and :func:`send` is eventually done. The loop does not end
while it has a task; what the thread can no longer do fails. Nothing that may run a finaliser
happens under a lock, because a finaliser may wait for a thread that wants the same lock. A lost
wake-up costs :data:`_BEAT_S`.

Price, of a chunk of 128 KiB: TensorStore's request costs 0.13 ms of CPU, its bytes, their check
and their copy 0.08 ms, :func:`send` 0.04 ms, and a coroutine 0.16 ms. obstore's request in a pool
of threads costs 0.18 ms with its bytes, 0.23 ms with check and copy: the same in all. But it
follows every redirect, tells no ``Retry-After``, and would be a second client beside TensorStore,
which writes; so TensorStore reads.
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
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorstore as ts

from headrace.store import azure, files, remote, retry
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
_BEAT_S = 0.05
_END_S = 5.0
_KEPT_LATENCIES = 500
_ENOUGH_LATENCIES = 50
_FEW_FAILURES = 3  # of one read; fewer are no outage
_looked_at: dict[str, float] = {}  # store -> when it was asked for its Retry-After
_not_before: dict[str, float] = {}  # store -> when it may be asked again
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
        watches: Whether a file must stay as it was in the first answer, where no checksum tells.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        url: str,
        damaged_attempts: int | None = None,
        missing_attempts: int | None = None,
        *,
        watches: bool = False,
    ) -> None:
        self._spec = spec
        self._watches = watches
        self._versions: dict[str, bytes] = {}
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

    def check_unchanged(self, key: str, answer: Any) -> None:
        """Raises ValueError if the store watches, and a file has changed since its first answer."""
        if not self._watches:
            return
        version = answer.stamp.generation
        if self._versions.setdefault(key, version) != version:
            raise ValueError("DATA_LOSS: the file was changed since it was first read")

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
        self.direct: dict[_Direct[Any], None] = {}  # the oldest first
        self._handed: deque[Callable[[], None]] = deque()
        self._told = False
        self.tasks: set[asyncio.Task[Any]] = set()  # asyncio itself does not keep them alive
        self._used = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="store-requests", daemon=True)

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

    def leave(self) -> None:
        """One read less."""
        self._used = time.monotonic()
        with _lock:
            self.active -= 1

    def _take(self) -> None:
        self._told = False  # before looking: what comes from here on tells again
        with contextlib.suppress(IndexError):
            while True:
                self._handed.popleft()()

    def _take_over_late(self, now: float) -> None:
        policy = retry.policy()
        late = now - min(_hedge_after(policy), policy.timeout_s)
        for read in list(self.direct):
            if read.at > late:
                return
            read.take_over()

    def _beat(self) -> None:
        self._take()
        now = time.monotonic()
        _room.admit()
        self._take_over_late(now)
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
            for read in list(self.direct):
                read.take_over()
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
_is_over = False  # the process ends


class _Room:
    """Limits the requests of the process in flight to the policy's. Safe in any thread and
    finaliser: whoever waits is started by the loop, and a lost wake-up costs a beat.
    """

    def __init__(self) -> None:
        self._taken = 0  # changed under _lock
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, state: _Loop, start: Callable[[], None]) -> None:
        """Calls ``start`` at once if there is room, else in a loop's thread when there is; it owes
        a :meth:`leave`.
        """
        if not self._waiting and self._takes():
            start()
        else:
            self._waiting.append(start)
            state.hand_over(self.admit)  # somebody may have left just before

    def leave(self) -> None:
        with _lock:
            self._taken -= 1
        state = _current
        if self._waiting and state is not None:
            state.hand_over(self.admit)

    def admit(self) -> None:
        """Starts those who wait, as far as there is room. Call it in a loop's thread."""
        while self._waiting and self._takes():
            try:
                start = self._waiting.popleft()
            except IndexError:  # the thread of another loop was faster
                self.leave()
            else:
                start()

    def _takes(self) -> bool:
        most = retry.policy().concurrency
        with _lock:
            has_room = self._taken < most
            self._taken += has_room
        return has_room

    async def entered(self, state: _Loop) -> None:
        """Waits for room, in the loop's thread."""
        waiter: asyncio.Future[None] = state.loop.create_future()

        def wake() -> None:
            if waiter.done():  # the read was dropped
                self.leave()
            else:
                waiter.set_result(None)

        def start() -> None:
            if _thread.state is state:
                wake()
            else:
                state.hand_over(wake)

        self.enter(state, start)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.leave()
            raise


_room = _Room()


class Sent(NamedTuple):
    """A request in flight: when it was sent, TensorStore's future, and what ends it."""

    at: float
    answer: Any
    leave: Callable[[], None]


class _Read(concurrent.futures.Future[T]):
    """A read that somebody waits for; :meth:`cancel` ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = _entered()
        self._context = copy_context()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Goes on as a coroutine. Call it in the loop's thread."""
        state = self.state
        if state.ended or self.cancelled():
            self.finish(_EndedError())
            return
        task = state.loop.create_task(work(), context=self._context)
        state.tasks.add(task)
        task.add_done_callback(self._finished)
        # The read itself is no part of it: nothing refers to itself, so it is freed at once.
        self.add_done_callback(partial(_drop, state, task))

    def _finished(self, task: asyncio.Task[T]) -> None:
        self.state.tasks.discard(task)
        error = _EndedError() if task.cancelled() else task.exception()
        self.finish(error, None if error is not None else task.result())

    def finish(self, error: BaseException | None, value: Any = None) -> None:
        self.state.leave()
        if self.set_running_or_notify_cancel():
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(value)


def _drop(state: _Loop, task: asyncio.Task[Any], read: concurrent.futures.Future[Any]) -> None:
    if read.cancelled():
        state.hand_over(task.cancel)  # pyright: ignore[reportArgumentType]


class _Direct(_Read[T]):
    """A read whose request the reading thread sends; see :func:`send`."""

    def __init__(
        self,
        request: Callable[[], Any],
        accept: Callable[[Any], T],
        otherwise: Callable[[Sent], Coroutine[Any, Any, T]],
    ) -> None:
        super().__init__()
        self._request = request
        self._accept = accept
        self._otherwise = otherwise
        self._answer: Any = None
        self._has_room = False  # changed under _lock
        self.at = 0.0
        # No bound method: see begin.
        self.add_done_callback(_Direct._ended)  # pyright: ignore[reportArgumentType]

    def start(self) -> None:
        """Sends it. Called when there is room."""
        self._has_room = True
        if self.cancelled():
            self.finish(None)
            self._leave()
            return
        self.at = time.monotonic()
        answer = self._request()
        self._answer = answer
        self.state.direct[self] = None
        answer.add_done_callback(self._arrived)  # self._answer may be gone: it is late already

    def take_over(self) -> None:
        """A coroutine goes on with the request: it is late."""
        if self._claimed():
            self.state.hand_over(self._go_on)

    def _ended(self) -> None:
        """It is done."""
        if self._claimed():  # it was cancelled
            self.finish(None)
        self._leave()

    def _claimed(self) -> bool:
        """Whether this caller is the one that goes on with the read."""
        return self.state.direct.pop(self, self) is None

    def _arrived(self, answer: Any) -> None:
        if not self._claimed():
            return
        try:
            value = self._accept(answer.result())
        except Exception:  # noqa: BLE001  # the coroutine meets it again
            self.state.hand_over(self._go_on)
            return
        _latencies.add(time.monotonic() - self.at)
        self._answer = None  # its bytes are not kept
        self.finish(None, value)

    def _go_on(self) -> None:
        first = Sent(self.at, self._answer, self._leave)
        self._answer = None
        self.begin(partial(self._otherwise, first))

    def _leave(self) -> None:
        with _lock:
            had_room = self._has_room
            self._has_room = False
        if had_room:
            _room.leave()


def send(
    store: Store,
    key: str,
    span: slice,
    accept: Callable[[bytes], T],
    otherwise: Callable[[Sent], Coroutine[Any, Any, T]],
) -> concurrent.futures.Future[T]:
    """Requests bytes of a stored file from this thread; ``cancel()`` of the future ends it.

    Args:
        store: Its store.
        key: The file.
        span: The bytes.
        accept: Makes the value of the bytes, in a thread of TensorStore, or raises ValueError if
            they are damaged.
        otherwise: The same read as a coroutine on the loop, for a request that is late or fails:
            it hands that request to :func:`get`.
    """
    request = partial(_start_read, store.kvstore, key, span)
    read = _Direct(request, lambda answer: accept(_of_range(_bytes_of(answer), span)), otherwise)
    _room.enter(read.state, read.start)
    return read


def submit(work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
    """Starts a coroutine on the background loop, with the caller's context variables
    (:func:`headrace.store.retry.waiting_at_most`); ``cancel()`` of the future ends it.
    """
    read: _Read[T] = _Read()
    read.state.hand_over(partial(read.begin, work))
    return read


def _entered() -> _Loop:
    """The loop of the process, which will not end before one more read has."""
    global _current
    if _is_over:
        raise _EndedError
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
    """Python cannot exit while one of its threads is inside TensorStore: it would abort. A daemon
    thread may read on until the very end, so it is refused.
    """
    global _is_over
    _is_over = True
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
    waiter: asyncio.Future[bool] = state.loop.create_future()  # whether it is there

    def wake(is_there: bool = True) -> None:
        if not waiter.done():
            waiter.set_result(is_there)

    def wake_up(_: Any) -> None:
        state.hand_over(wake)

    future.add_done_callback(wake_up)
    timer = None if timeout_s is None else state.loop.call_later(timeout_s, wake, False)
    try:
        if not await waiter:
            raise _LateError(timeout_s or 0.0)
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
    first: Sent | None = None,
) -> T:
    """Requests bytes of a stored file that has to be there, with the retries of the policy, and
    decodes them.

    Args:
        store: Its store.
        key: The file.
        byte_range: The bytes; all if None; ``slice(-n, None)`` for the last n.
        decode: Decodes the bytes, or raises ValueError if they are damaged.
        index: Whether to count it as a request for an index.
        first: The first request for these bytes, if it was sent already.

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
            sent = first
            first = None
            answer = await _one(store, key, byte_range, policy, sent)
            value = await decode(_of_range(answer, byte_range))
            patience.answered()
            return value
        except (ValueError, OSError, NotImplementedError) as error:
            kind = failure_of(error)
            failures[kind] += 1
            least_s = 0.0
            if throttles(error) and failures.total() >= _FEW_FAILURES:
                least_s = await _pause_s(files.join(store.url, key))
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
    """Seconds that a store that is throttling wants to be left alone. TensorStore does not tell its
    ``Retry-After``, so fsspec's client asks for one byte of a file that is there, at most once a
    second for all reads; Azure's tells none either.
    """
    store = retry.store_of(url)
    now = time.monotonic()
    is_azure = Location.parse(url).scheme == "az"
    if not is_azure and now - _looked_at.get(store, -math.inf) >= 1:
        _looked_at[store] = now
        fs, path = remote.filesystem(url)
        with retry.retried_here() as call:
            asking = asyncio.run_coroutine_threadsafe(fs._cat_file(path, start=0, end=1), fs.loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(asking), retry.policy().timeout_s)
        except Exception as error:  # noqa: BLE001  # only what it asks for matters
            _not_before[store] = time.monotonic() + retry.retry_after_s(error)
        finally:
            _count_requests(call.requests)
            retry.own_counts().retries += call.requests
    return max(_not_before.get(store, now) - time.monotonic(), 0.0)


def _of_range(answer: bytes, byte_range: slice | None) -> bytes:
    """The answer, if it has the requested number of bytes."""
    if byte_range is not None:
        size = -byte_range.start if byte_range.start < 0 else byte_range.stop - byte_range.start
        if len(answer) != size:
            raise ValueError(f"DATA_LOSS: {len(answer)} bytes came, {size} were asked for")
    return answer


async def _one(
    store: Store,
    key: str,
    byte_range: slice | None,
    policy: retry.RetryPolicy,
    first: Sent | None,
) -> bytes:
    """One request, unless it was sent already, and, if it is late, its hedge."""
    if first is None:
        state = _thread.state
        assert state is not None  # this runs on its loop
        await _room.entered(state)
        sent_at = time.monotonic()
        first = Sent(sent_at, _start_read(store.kvstore, key, byte_range), _room.leave)
    try:
        hedge_after = _hedge_after(policy)
        in_time_s = min(hedge_after, policy.timeout_s) - (time.monotonic() - first.at)
        try:
            # Most answers are in time: no task is made for them.
            answer = await arrived(first.answer, max(in_time_s, 0.0))
        except _LateError:
            if hedge_after >= policy.timeout_s:
                raise _LateError(policy.timeout_s) from None
            left_s = policy.timeout_s - hedge_after
            counts = retry.own_counts()
            if counts.hedges + 1 > max(1, math.floor(policy.hedge_share * counts.requests)):
                answer = await arrived(first.answer, left_s)
            else:
                counts.hedges += 1
                second = _start_read(store.kvstore, key, byte_range)
                answer = await _first_good(
                    [arrived(first.answer, left_s), arrived(second, policy.timeout_s)]
                )
        _latencies.add(time.monotonic() - first.at)
    finally:
        first.leave()
    content = _bytes_of(answer)
    store.check_unchanged(key, answer)
    return content


def _bytes_of(answer: Any) -> bytes:
    """The bytes of TensorStore's answer; ValueError if it has none."""
    if answer.state == "missing":
        raise ValueError("NOT_FOUND: it is missing")
    if answer.state == "unspecified":  # of 304, which nobody asked for
        raise ValueError("UNAVAILABLE: an answer without bytes")
    return bytes(answer.value)


async def _first_good(answers: list[Coroutine[Any, Any, Any]]) -> Any:
    """The first successful answer, of a request and its hedge; the last failure if both fail."""
    tasks = [asyncio.ensure_future(answer) for answer in answers]
    for task in tasks:
        task.add_done_callback(azure.retrieve_error)  # also the loser's, which nobody looks at
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
    _count_requests(1)
    return kvstore.read(key, byte_range=byte_range)


def _count_requests(number: int) -> None:
    counts = retry.own_counts()
    with _lock:  # it may be any thread
        counts.requests += number


class Latencies:
    """Seconds that the last answers took. Safe for several threads.

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
            self.usual_s = float(np.percentile(list(self._last), 95))


_latencies = Latencies()


def _hedge_after(policy: retry.RetryPolicy) -> float:
    """Seconds after which a request is late."""
    if policy.hedge_after_s is not None:
        return policy.hedge_after_s
    if policy.hedge_p95 is None or _latencies.usual_s is None:
        return math.inf
    return max(policy.hedge_p95 * _latencies.usual_s, _LEAST_HEDGE_S)
