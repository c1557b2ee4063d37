"""How many requests this process sent to stores over HTTP, whoever sent them: TensorStore, or the clients of fsspec.

TensorStore counts its own. The clients of fsspec (aiohttp for GCS and web servers, botocore for S3) tell each request
to a listener that :func:`watch` gives them. Retries that a client makes by itself are requests like all others, so the
numbers are those of a proxy on the way (and of the bill). Not seen: what a package sends by clients of its own, such as
``datasets`` does for ``hf://``.

Price: a function call a request.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorstore as ts


@dataclass(frozen=True)
class Wire:
    """Requests over HTTP. Subtract two to see what lies between.

    Attributes:
        requests: Requests sent.
        failed: Those among them that were answered with 408, 429 or 5xx or, to fsspec, not at all.

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
    """What the clients of fsspec sent. They all live on fsspec's one thread, so nothing is added twice at a time."""

    sent = Wire()


_watched: weakref.WeakSet[Any] = weakref.WeakSet()


def wire() -> Wire:
    """What this process sent so far."""
    codes = [v for m in _collected("response_codes") for v in m["values"]]
    failed = sum(int(v["value"]) for v in codes if _fails(int(v["code"] or 0)))
    started = sum(int(v["value"]) for m in _collected("request_started") for v in m["values"])
    return _Process.sent + Wire(started, failed)


def watch(fs: Any) -> None:
    """Counts the requests of a filesystem of fsspec from now on, if it speaks HTTP. Harmless when it is repeated."""
    for name in ("set_session", "_set_session"):
        connect = getattr(fs, name, None)
        if connect is not None and not getattr(connect, "counts_requests", False):
            setattr(fs, name, _listening(connect))


def _listening(connect: Callable[..., Any]) -> Callable[..., Any]:
    """The method by which a filesystem gets its client, now and then a new one: each gets a listener."""

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
    _Process.sent += Wire(1)


async def _aiohttp_answered(session: Any, context: Any, told: Any) -> None:
    _Process.sent += Wire(0, _fails(int(told.response.status)))


async def _aiohttp_failed(*_: Any) -> None:
    _Process.sent += Wire(0, 1)


def _botocore_sent(**_: Any) -> None:
    _Process.sent += Wire(1)


def _botocore_answered(parsed_response: Any = None, exception: Any = None, **_: Any) -> None:
    said: dict[str, Any] = (parsed_response or {}).get("ResponseMetadata", {})
    _Process.sent += Wire(0, exception is not None or _fails(int(said.get("HTTPStatusCode", 0))))


def _fails(status: int) -> bool:
    return status in (408, 429) or status >= 500


def _collected(name: str) -> list[dict[str, Any]]:
    return list(ts.experimental_collect_matching_metrics(f"/tensorstore/http/{name}"))
