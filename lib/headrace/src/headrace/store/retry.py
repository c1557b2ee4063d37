"""When requests to a store are retried, what that costs, and how many requests this process has
sent.

408, 429 and 5xx, no answer in time, a broken connection, a truncated answer, one without a body
(204, 205, 304), and 404 for a chunk that the ledger lists, are retried with exponential backoff and
full jitter until :attr:`RetryPolicy.deadline_s` has passed since the first failure; the last
request is sent just then. Time decides, not a number of requests: a store that is away for less
than that ends no run, however fast it refuses. A ``Retry-After`` is waited for (not Azure's, which
no client tells). **Damaged** answers (other bytes than were stored, a web page instead, an ignored
range) and **refused** requests (401, 403, a redirect; retried with fresh credentials) have their
own limits besides, since waiting seldom cures them. Other missing files are not requested again.

While a store is away, the log says what is waited for and until when (:class:`Patience`).

A **hedge** is a second request for a late answer: the first answer wins. Both are counted, as whole
requests.

The policy applies to the whole process (:func:`use_policy`), like its connections. TensorStore
itself makes the first retry of each request for data, ``first_delay_s`` to twice that after the
first, with the policy at the time when the array was opened; the others are made here. For writes,
it makes all retries. TensorStore cannot cancel requests that it has given up: they end when nothing
has arrived for ``TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS`` (set to ``timeout_s``, once per
process).

:func:`wire` counts all requests over HTTP: TensorStore counts its own, and the clients of fsspec
(aiohttp for GCS and web servers, botocore for S3) report each request to a listener that
:func:`watch` installs, at the price of a function call. A client's own retries are counted too, so
the numbers are those that a proxy would see (and those of the bill). Not counted: what libcurl and
the client beneath botocore send again because a kept connection was closed instead of an answer,
and requests of other clients: those of ``datasets`` for ``hf://``, and those for small files in
Azure.
"""

from __future__ import annotations

import importlib
import logging
import math
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from itertools import accumulate, takewhile
from typing import Any, TypeVar

import tensorstore as ts

from headrace.errors import ConfigError, HeadraceError, check_at_least, redact
from headrace.metrics import Sums
from headrace.store.failures import reason
from headrace.store.location import Location

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_SAID_AFTER_S = 2.0  # a shorter failure is not worth a line
_SAID_EVERY_S = 30.0
_MOST_WRITES = 10_000
_DRIVERS = ("gcs", "s3", "http")
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
# Its own: waits happen in many threads, and the state of `random` is the program's.
_JITTER = random.Random()


@dataclass(frozen=True)
class RetryPolicy:
    """For how long and how fast requests to a store are retried.

    Attributes:
        first_delay_s: Wait before the second request.
        max_delay_s: The longest wait between two.
        timeout_s: A request that takes longer is given up and retried.
        deadline_s: An object is requested until so long after its first failure.
        replica_after_s: The same for a store whose cache has a replica, which is read then.
        damaged_attempts: Requests for an object whose answers are damaged.
        refused_attempts: Requests for an object that the store refuses or redirects.
        concurrency: Largest number of concurrent requests of this process.
        hedge_after_s: Seconds after which a late request is hedged; None: as ``hedge_p95`` says.
        hedge_p95: This multiple of the 95th percentile of the last 500 answers, once there are 50,
            and at least a quarter of a second; None: never.
        hedge_share: Largest share of requests that are hedged, so that a slow store does not get
            twice the load.
        redirect_hosts: Hosts (with their subdomains) to which web servers may redirect besides
            themselves; ``*``: any. By default, those where Hugging Face stores its files.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> RetryPolicy(deadline_s=600).max_delay_s
        5.0
    """

    first_delay_s: float = 0.05
    max_delay_s: float = 5.0
    timeout_s: float = 30.0
    deadline_s: float = 120.0
    replica_after_s: float = 5.0
    concurrency: int = 128
    hedge_after_s: float | None = None
    hedge_p95: float | None = 3.0
    hedge_share: float = 0.05
    damaged_attempts: int = 6
    refused_attempts: int = 6
    redirect_hosts: tuple[str, ...] = ("hf.co", "huggingface.co")

    def __post_init__(self) -> None:
        for name in ("damaged_attempts", "refused_attempts", "concurrency"):
            check_at_least(f"retry.{name}", getattr(self, name))
        for name in ("first_delay_s", "max_delay_s"):
            check_at_least(f"retry.{name}", getattr(self, name), 0)
        positive = ("timeout_s", "deadline_s", "replica_after_s", "hedge_after_s", "hedge_p95")
        for name in positive:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError("must be above 0", field=f"retry.{name}", value=value)
        if not 0 <= self.hedge_share <= 1:
            raise ConfigError(
                "must lie in 0 .. 1", field="retry.hedge_share", value=self.hedge_share
            )

    def delay_s(self, failed: int, uniform: Callable[[], float] = _JITTER.random) -> float:
        """Seconds to wait after the ``failed``-th failure, counted from 1: random up to a limit
        that doubles.

        Example:
            >>> [RetryPolicy(max_delay_s=0.3).delay_s(k, lambda: 1.0) for k in (1, 2, 3, 4)]
            [0.1, 0.2, 0.3, 0.3]
        """
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failed, 60)) * uniform()

    @property
    @lru_cache(maxsize=16)  # noqa: B019  # each array that is opened asks; policies are few
    def retries(self) -> int:
        """TensorStore's number of retries within the deadline, where it makes all of them, as when
        it writes.

        Example:
            >>> RetryPolicy().retries, RetryPolicy(deadline_s=1).retries
            (29, 4)
        """
        waits = accumulate(
            min(self.max_delay_s, self.first_delay_s * 2.0 ** min(k, 60))
            for k in range(_MOST_WRITES)
        )
        return sum(1 for _ in takewhile(lambda waited: waited <= self.deadline_s, waits))

    def tensorstore_context(self, max_retries: int = 1) -> dict[str, Any]:
        """TensorStore's settings for this policy. Hanging requests count in its own limit."""
        retries = {
            "max_retries": max_retries,
            "initial_delay": f"{self.first_delay_s:.3f}s",
            "max_delay": f"{max(self.max_delay_s, self.first_delay_s):.3f}s",
        }
        context: dict[str, Any] = {}
        for driver in _DRIVERS:
            context[f"{driver}_request_retries"] = retries
            context[f"{driver}_request_concurrency"] = {"limit": 4 * self.concurrency}
        return context


@dataclass
class RequestCounts(Sums):
    """Counts of requests for reading from stores over HTTP. Subtract two to get those in between.

    Attributes:
        requests: Requests sent for data and shard indices, including retries and hedges.
        index_requests: Those among them for shard indices and array metadata, without retries.
        retries: Requests sent because another had failed, including ``damaged`` and ``refused``.
        damaged: Damaged answers, each of which was retried.
        refused: Refusals and redirects, each of which was retried.
        hedges: Requests sent because another was late.
        hedges_won: Hedges that answered first.
        replica_switches: Reads that continued at another location of their cache; see
            :mod:`headrace.store.replicas`.
        decode_s: Seconds in which at least one chunk was being decoded and checked.
    """

    requests: int = 0
    index_requests: int = 0
    retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    decode_s: float = 0.0
    damaged: int = 0
    refused: int = 0
    replica_switches: int = 0


@dataclass(frozen=True)
class Wire(Sums):
    """Requests over HTTP, and those that were answered with 408, 429 or 5xx, or not at all.

    Example:
        >>> Wire(7, 1) - Wire(5) + Wire(1)
        Wire(requests=3, failed=1)
    """

    requests: int = 0
    failed: int = 0


class _Process:
    """The policy and the counters of this process. ``wire``: requests of fsspec's clients, which
    all run in fsspec's single thread, so additions never collide.
    """

    policy = RetryPolicy()
    counts = RequestCounts()
    wire = Wire()
    others = Wire()  # changed under _counting


def policy() -> RetryPolicy:
    """The policy in force."""
    return _Process.policy


def use_policy(new: RetryPolicy) -> RetryPolicy:
    """Sets the policy for all reads that start from now on.

    Returns:
        The previous policy.

    Example:
        >>> before = use_policy(RetryPolicy(deadline_s=30, hedge_after_s=0.5))
        >>> use_policy(before).deadline_s
        30
    """
    previous = _Process.policy
    _Process.policy = new
    return previous


def request_counts() -> RequestCounts:
    """Requests of this process's reads over HTTP so far, including TensorStore's own retries.

    TensorStore counts for the whole process, so retries of other code that uses it are included.
    """
    inner = sum(_total(f"kvstore/{driver}/retries") for driver in _DRIVERS)
    return _Process.counts + RequestCounts(requests=inner, retries=inner)


_limit_s: ContextVar[float | None] = ContextVar("limit_s", default=None)


@contextmanager
def waiting_at_most(seconds: float | None) -> Iterator[None]:
    """Reads that start in the block give up so long after their first failure, if that is before
    the policy's deadline; None: they do not.
    """
    token = _limit_s.set(seconds)
    try:
        yield
    finally:
        _limit_s.reset(token)


class FailedAnswerError(OSError):
    """A store answered with 408, 429 or 5xx, or without what was asked for."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.headers = headers


@dataclass
class Call:
    """A call of a client, and how many requests it has sent for it."""

    requests: int = 0


_retried_here: ContextVar[Call | None] = ContextVar("retried_here", default=None)


@contextmanager
def retried_here() -> Iterator[Call]:
    """Around a call of fsspec that the caller repeats: it raises :class:`FailedAnswerError`, or
    OSError if there is no answer, at once, in place of the client's own retries, which pass over
    ``Retry-After`` and the policy's deadline. The value counts what is sent for it: aiohttp sends a
    request again whose connection closes, and follows redirects.
    """
    call = Call()
    token = _retried_here.set(call)
    try:
        yield call
    finally:
        _retried_here.reset(token)


class Patience:
    """The time within which one object is requested again: from its first failure on, until the
    policy's deadline or that of :func:`waiting_at_most`.

    Args:
        url: The object; the log names its store.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._policy = policy()
        limit_s = _limit_s.get()
        self._deadline_s = self._policy.deadline_s
        if limit_s is not None:
            self._deadline_s = min(limit_s, self._deadline_s)
        self._failures = 0
        self._first_failure = 0.0
        self._is_last = False

    def wait_s(self, why: str, least_s: float = 0.0) -> float | None:
        """Seconds to wait after a failure; None: the time is over.

        Args:
            why: The failure, in words.
            least_s: What the store asked for (``Retry-After``).
        """
        now = time.monotonic()
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        if self._is_last:
            return None
        # The last request is sent at the deadline, or as soon after it as one that was sent before
        # has failed: the store may have come back meanwhile.
        left_s = max(self._first_failure + self._deadline_s - now, 0.0)
        wait_s = min(least_s + self._policy.delay_s(self._failures), left_s)
        self._is_last = wait_s == left_s
        if now + wait_s - self._first_failure >= _SAID_AFTER_S:
            _outages.say(self._url, why, self._first_failure, now + left_s)
        return wait_s

    def answered(self) -> None:
        """To be called when the object has come, or the store has said that there is none."""
        if self._failures:
            _outages.end(self._url)

    @property
    def tried(self) -> str:
        """How long it was tried; empty after one request."""
        if self._failures < 2:
            return ""
        seconds = time.monotonic() - self._first_failure
        return f"given up after {self._failures} rounds in {seconds:.1f} s"


class _Outages:
    """What the log said about stores that are away. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Of each store: when it failed first, and when that was said last.
        self._warnings: dict[str, tuple[float, float]] = {}

    def say(self, url: str, why: str, since: float, deadline: float) -> None:
        store = store_of(url)
        now = time.monotonic()
        with self._lock:
            first, last = self._warnings.get(store, (since, -math.inf))
            if now - last < _SAID_EVERY_S:
                return
            self._warnings[store] = first, now
        left_s = deadline - now
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
        _LOG.warning(
            "%s does not answer (%s): it is asked again until %s, for %.0f s more",
            store,
            redact(why),
            until,
            left_s,
        )

    def end(self, url: str) -> None:
        store = store_of(url)
        with self._lock:
            warning = self._warnings.pop(store, None)
        if warning is not None:
            _LOG.warning("%s answers again, after %.0f s", store, time.monotonic() - warning[0])


_outages = _Outages()


def store_of(url: str) -> str:
    """The bucket or the server of an object, or its local path."""
    location = Location.parse(url)
    return f"{location.scheme}://{location.bucket}" if location.bucket else location.shown


def with_retries(
    ask: Callable[[], T],
    transient: Callable[[Exception], bool],
    url: str,
    most: int | None = None,
) -> T:
    """Calls ``ask``, which must be safe to repeat, until it succeeds, fails with an error that is
    not ``transient``, the time is over, or it was called ``most`` times; then raises the last
    error, with a note that says how long it was tried.

    Args:
        ask: What to call.
        transient: Whether an error may pass.
        url: What is asked for.
        most: Most calls; None: only time counts.
    """
    patience = Patience(url)
    calls = 0
    while True:
        try:
            answer = _answer(ask, transient)
        except Exception as error:
            calls += 1
            may_pass = transient(error)
            if not may_pass:
                patience.answered()
            if calls == most or not may_pass or tried(error):
                raise
            wait = patience.wait_s(reason(error), retry_after_s(error))
            if wait is None:
                error.add_note(patience.tried)
                raise
        else:
            patience.answered()
            return answer
        time.sleep(wait)


def _answer(ask: Callable[[], T], transient: Callable[[Exception], bool]) -> T:
    """What ``ask`` returns. fsspec's client for web servers says of some failures that the file is
    missing, and raises that from the failure: the failure is raised then.
    """
    try:
        with retried_here():
            return ask()
    except FileNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and transient(cause):
            raise cause  # noqa: B904  # as if nothing had been said of it
        raise


def tried(error: BaseException | None) -> str:
    """How long it was tried, of an error that came because time was over; else empty."""
    while error is not None:
        for note in getattr(error, "__notes__", ()):
            if note.startswith("given up after"):
                return note
        error = error.__cause__
    return ""


def retry_after_s(error: BaseException | None) -> float:
    """Seconds that a store asks to wait, by the ``Retry-After`` of the answer behind a client's
    error; 0 if it asks for none.

    Example:
        >>> error = OSError()
        >>> error.headers = {"Retry-After": "7"}
        >>> retry_after_s(error), retry_after_s(OSError())
        (7.0, 0.0)
    """
    while error is not None:
        response = getattr(error, "response", None)  # botocore's
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        headers = getattr(error, "headers", None) or metadata.get("HTTPHeaders") or {}  # aiohttp's
        value = headers.get("Retry-After") or headers.get("retry-after")
        if value is not None:
            return _seconds(value)
        error = error.__cause__
    return 0.0


def _seconds(retry_after: str) -> float:
    """A number of seconds, or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except ValueError:
        return 0.0


def own_counts() -> RequestCounts:
    """The counters themselves, without TensorStore's own retries. Each field is added to by one
    thread, or under the lock of those that add to it; so reading them takes none.
    """
    return _Process.counts


_counting = threading.Lock()
_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def wire() -> Wire:
    """Requests that this process has sent so far."""
    started = _total("http/request_started")
    failed = _total("http/request_completed")  # less those that were answered
    for answers in _collected("http/response_codes"):
        if not fails(int(answers["code"] or 0)):
            failed -= int(answers["value"])
    return _Process.wire + _Process.others + Wire(started, failed)


def count(sent: Wire) -> None:
    """Counts requests of a client that :func:`watch` does not know. For any thread."""
    with _counting:
        _Process.others += sent


def watch(fs: Any) -> None:
    """Counts the requests of an fsspec filesystem from now on, if it uses HTTP. Can be called
    repeatedly.
    """
    for name in ("set_session", "_set_session"):
        connect = getattr(fs, name, None)
        if connect is not None and not getattr(connect, "counts_requests", False):
            setattr(fs, name, _listening(connect))


def _listening(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method by which a filesystem gets its client, so that each new client gets a
    listener.
    """

    async def connected(*args: Any, **options: Any) -> Any:
        client = await connect(*args, **options)
        if client not in _watched:
            _listen(client)
            _watched.add(client)
        return client

    connected.counts_requests = True  # pyright: ignore[reportFunctionMemberAccess]
    return connected


def _listen(client: Any) -> None:
    if hasattr(client, "trace_configs"):
        tracing: Any = importlib.import_module("aiohttp").TraceConfig()
        tracing.on_request_start.append(_aiohttp_started)
        tracing.on_request_headers_sent.append(_aiohttp_sent)
        tracing.on_request_end.append(_aiohttp_answered)
        tracing.on_request_exception.append(_aiohttp_failed)
        tracing.freeze()
        client.trace_configs.append(tracing)
    elif hasattr(client, "meta"):
        client.meta.events.register("before-send", _botocore_sent)
        client.meta.events.register("response-received", _botocore_answered)


async def _aiohttp_started(session: Any, context: Any, told: Any) -> None:
    _sent(1)
    context.sent = 0


async def _aiohttp_sent(session: Any, context: Any, told: Any) -> None:
    """Sent once more: the connection was kept from an earlier request, and is closed; or a server
    redirects.
    """
    _sent(min(context.sent, 1))
    context.sent += 1


async def _aiohttp_answered(session: Any, context: Any, told: Any) -> None:
    try:
        _answered(told.response.status, told.response.headers, told.method)
    except FailedAnswerError:
        told.response.release()
        raise


async def _aiohttp_failed(session: Any, context: Any, told: Any) -> None:
    if not isinstance(told.exception, FailedAnswerError):  # counted already
        _unanswered(told.exception)


def _unanswered(error: BaseException) -> None:
    _Process.wire += Wire(0, 1)
    is_final = isinstance(error, HeadraceError) or not isinstance(error, Exception)
    if _retried_here.get() is not None and not is_final:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _botocore_sent(**_: Any) -> None:
    _sent(1)


def _sent(requests: int) -> None:
    _Process.wire += Wire(requests)
    call = _retried_here.get()
    if call is not None:
        call.requests += requests


def _botocore_answered(parsed_response: Any = None, exception: Any = None, **_: Any) -> None:
    if exception is not None:
        _unanswered(exception)
        return
    metadata: dict[str, Any] = (parsed_response or {}).get("ResponseMetadata", {})
    _answered(int(metadata.get("HTTPStatusCode", 0)), metadata.get("HTTPHeaders", {}))


def _answered(status: int, headers: Mapping[str, str], method: str = "") -> None:
    if not fails(status) and not (method == "GET" and _is_short(status, headers)):
        return
    _Process.wire += Wire(0, 1)
    if _retried_here.get() is not None:
        raise FailedAnswerError(status, headers)


def _is_short(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer has less than was asked for: no body, or less of a range than it says.

    Example:
        >>> _is_short(206, {"Content-Range": "bytes 4-7/100", "Content-Length": "3"})
        True
        >>> _is_short(200, {"Content-Length": "0"}), _is_short(304, {})
        (False, True)
    """
    if status in _WITHOUT_BODY:
        return True
    of_range = _RANGE.match(headers.get("Content-Range", ""))
    length = headers.get("Content-Length", "")
    if status != HTTPStatus.PARTIAL_CONTENT or of_range is None or not length.isdecimal():
        return False
    return int(length) <= int(of_range[2]) - int(of_range[1])


def fails(status: int) -> bool:
    """Whether an answer with this status is one of a store in trouble."""
    return status in (408, 429) or status >= 500


def _total(name: str) -> int:
    """The sum of a metric of TensorStore's."""
    return sum(int(v["value"]) for v in _collected(name))


def _collected(name: str) -> list[dict[str, Any]]:
    """The values of a metric of TensorStore's."""
    return [
        v
        for m in ts.experimental_collect_matching_metrics(f"/tensorstore/{name}")
        for v in m["values"]
    ]
