"""When requests to a store are retried, what that costs, and how many requests this process has
sent.

408, 429 and 5xx, no answer in time, a broken connection and a truncated answer are retried with
exponential backoff and full jitter, up to a number of requests and a deadline. So are **damaged**
answers (other bytes than were stored, a web page instead, an ignored range) and **refused**
requests (401, 403, a redirect; retried with fresh credentials), each with its own limit. Missing
files are not requested again.

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
the numbers are those that a proxy would see (and those of the bill). Not counted: requests of other
clients, such as those of ``datasets`` for ``hf://``.
"""

from __future__ import annotations

import importlib
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, TypeVar

import tensorstore as ts

from headrace.errors import ConfigError, check_at_least

T = TypeVar("T")
_DRIVERS = ("gcs", "s3", "http")
_JITTER = (
    random.Random()
)  # its own: waits happen in many threads, and the state of `random` is the program's


@dataclass(frozen=True)
class RetryPolicy:
    """How often, how fast and for how long requests to a store are retried.

    Attributes:
        attempts: Requests per object, without hedges; an odd number acts as the next even one.
        first_delay_s: Wait before the second request.
        max_delay_s: The longest wait between two.
        timeout_s: A request that takes longer is given up and retried.
        deadline_s: After this time, no further request for the object is started.
        damaged_attempts: Requests for an object whose answers are damaged.
        refused_attempts: Requests for an object that the store refuses or redirects.
        concurrency: Largest number of concurrent requests of this process.
        hedge_after_s: Seconds after which a late request is hedged. None: never.
        hedge_p95: Alternative: this multiple of the 95th percentile of the last 500 answers, once
            there are 50.
        hedge_share: Largest share of requests that are hedged, so that a slow store does not get
            twice the load.
        redirect_hosts: Hosts (with their subdomains) to which web servers may redirect besides
            themselves; ``*``: any. By default, those where Hugging Face stores its files.

    Raises:
        ConfigError: a value is not usable.

    Example:
        >>> RetryPolicy(hedge_p95=3.0).attempts
        20
    """

    attempts: int = 20
    first_delay_s: float = 0.05
    max_delay_s: float = 20.0
    timeout_s: float = 30.0
    deadline_s: float = 120.0
    concurrency: int = 64
    hedge_after_s: float | None = None
    hedge_p95: float | None = None
    hedge_share: float = 0.05
    damaged_attempts: int = 6
    refused_attempts: int = 6
    redirect_hosts: tuple[str, ...] = ("hf.co", "huggingface.co")

    def __post_init__(self) -> None:
        for name in ("attempts", "damaged_attempts", "refused_attempts", "concurrency"):
            check_at_least(f"retry.{name}", getattr(self, name))
        for name in ("first_delay_s", "max_delay_s"):
            check_at_least(f"retry.{name}", getattr(self, name), 0)
        for name in ("timeout_s", "deadline_s", "hedge_after_s", "hedge_p95"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError("must be above 0", field=f"retry.{name}", value=value)
        if not 0 <= self.hedge_share <= 1:
            raise ConfigError(
                "must lie in 0 .. 1", field="retry.hedge_share", value=self.hedge_share
            )

    @property
    def rounds(self) -> int:
        """Number of requests made here; TensorStore may add one to each."""
        return (self.attempts + 1) // 2

    def delay_s(self, failed: int, uniform: Callable[[], float] = _JITTER.random) -> float:
        """Seconds to wait after the ``failed``-th failure, counted from 1: random up to a limit
        that doubles.

        Example:
            >>> [RetryPolicy(max_delay_s=0.3).delay_s(k, lambda: 1.0) for k in (1, 2, 3, 4)]
            [0.1, 0.2, 0.3, 0.3]
        """
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failed, 60)) * uniform()

    @property
    def write_retries(self) -> int:
        """TensorStore's number of retries when it writes, where it makes all of them, within the
        deadline.

        Example:
            >>> RetryPolicy().write_retries, RetryPolicy(attempts=4).write_retries
            (13, 3)
        """
        waits = accumulate(
            min(self.max_delay_s, self.first_delay_s * 2.0**k)
            for k in range(min(self.attempts, 64))
        )
        return min(self.attempts - 1, sum(waited <= self.deadline_s for waited in waits))

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
class RequestCounts:
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

    def __sub__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(
            *(getattr(self, f.name) - getattr(other, f.name) for f in fields(RequestCounts))
        )

    def __add__(self, other: RequestCounts) -> RequestCounts:
        return RequestCounts(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(RequestCounts))
        )


@dataclass(frozen=True)
class Wire:
    """Requests over HTTP, and those that were answered with 408, 429 or 5xx or, for fsspec, not at
    all.

    Example:
        >>> Wire(7, 1) - Wire(5) + Wire(1)
        Wire(requests=3, failed=1)
    """

    requests: int = 0
    failed: int = 0

    def __add__(self, other: Wire) -> Wire:
        return Wire(self.requests + other.requests, self.failed + other.failed)

    def __sub__(self, other: Wire) -> Wire:
        return Wire(self.requests - other.requests, self.failed - other.failed)


class _Process:
    """The policy and the counters of this process. ``wire``: requests of fsspec's clients, which
    all run in fsspec's single thread, so additions never collide.
    """

    policy = RetryPolicy()
    counts = RequestCounts()
    wire = Wire()


def policy() -> RetryPolicy:
    """The policy in force."""
    return _Process.policy


def use_policy(new: RetryPolicy) -> RetryPolicy:
    """Sets the policy for all reads that start from now on.

    Returns:
        The previous policy.

    Example:
        >>> before = use_policy(RetryPolicy(attempts=4, hedge_after_s=0.5))
        >>> use_policy(before).attempts
        4
    """
    previous = _Process.policy
    _Process.policy = new
    return previous


def request_counts() -> RequestCounts:
    """Requests of this process's reads over HTTP so far, including TensorStore's own retries.

    TensorStore counts for the whole process, so retries of other code that uses it are included.
    """
    inner = sum(
        int(v["value"]) for driver in _DRIVERS for v in _collected(f"kvstore/{driver}/retries")
    )
    return _Process.counts + RequestCounts(requests=inner, retries=inner)


def with_retries(
    ask: Callable[[], T], transient: Callable[[Exception], bool], most: int | None = None
) -> T:
    """Calls ``ask``, which must be safe to repeat, until it succeeds, fails with an error that is
    not ``transient``, exhausts the policy, or was called ``most`` times; then raises the last
    error.
    """
    current = policy()
    began = time.monotonic()
    failed = 0
    while True:
        try:
            return ask()
        except Exception as error:
            failed += 1
            wait = current.delay_s(failed)
            late = time.monotonic() + wait - began > current.deadline_s
            if not transient(error) or failed >= (most or current.rounds) or late:
                raise
        time.sleep(wait)


def own_counts() -> RequestCounts:
    """The counters themselves, without TensorStore's own retries. Only the thread that sends the
    requests adds to them, so they need no lock.
    """
    return _Process.counts


_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def wire() -> Wire:
    """Requests that this process has sent so far."""
    failed = sum(
        int(v["value"]) for v in _collected("http/response_codes") if _fails(int(v["code"] or 0))
    )
    started = sum(int(v["value"]) for v in _collected("http/request_started"))
    return _Process.wire + Wire(started, failed)


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
        tracing.on_request_start.append(_aiohttp_sent)
        tracing.on_request_end.append(_aiohttp_answered)
        tracing.on_request_exception.append(_aiohttp_failed)
        tracing.freeze()
        client.trace_configs.append(tracing)
    elif hasattr(client, "meta"):
        client.meta.events.register("before-send", _botocore_sent)
        client.meta.events.register("response-received", _botocore_answered)


async def _aiohttp_sent(*_: Any) -> None:
    _Process.wire += Wire(1)


async def _aiohttp_answered(session: Any, context: Any, told: Any) -> None:
    _Process.wire += Wire(0, _fails(int(told.response.status)))


async def _aiohttp_failed(*_: Any) -> None:
    _Process.wire += Wire(0, 1)


def _botocore_sent(**_: Any) -> None:
    _Process.wire += Wire(1)


def _botocore_answered(parsed_response: Any = None, exception: Any = None, **_: Any) -> None:
    metadata: dict[str, Any] = (parsed_response or {}).get("ResponseMetadata", {})
    _Process.wire += Wire(
        0, exception is not None or _fails(int(metadata.get("HTTPStatusCode", 0)))
    )


def _fails(status: int) -> bool:
    return status in (408, 429) or status >= 500


def _collected(name: str) -> list[dict[str, Any]]:
    """The values of a metric of TensorStore's."""
    return [
        v
        for m in ts.experimental_collect_matching_metrics(f"/tensorstore/{name}")
        for v in m["values"]
    ]
