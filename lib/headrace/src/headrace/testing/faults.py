"""A proxy that loses, delays, cuts and changes answers, to test code that reads over HTTP.

It runs in front of any HTTP server on this machine (:mod:`headrace.testing.servers` starts some),
in its own thread and on its own port. The fate of a request depends on the seed and on the request
(method, path, range, number of earlier attempts), not on the timing of threads, so a run with
faults can be repeated. Every request is logged, so a client's counters can be compared with what
was actually sent. It costs about 0.5 ms per request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlsplit

import numpy as np

from headrace.errors import ConfigError
from headrace.store.http_messages import Head, read_body, read_head

T = TypeVar("T")
Fate: TypeAlias = Literal[
    "ok", "error", "cut", "close", "hang", "flip", "page", "whole", "redirect", "head", "reset"
]
Outage: TypeAlias = Literal["503", "429", "refused", "reset"]
_FATES: tuple[Fate, ...] = get_args(Fate)[1:-1]  # those that have a rate
_PAGE = b"<!doctype html><title>Sign in</title><p>Who are you?"
_SIGN_IN = "/sign-in"
_NO_LINGER = struct.pack("ii", 1, 0)  # a closed connection is reset
_MAX_HEAD = 1 << 16
_NONCE = re.compile(r"[?&]tensorstore=[0-9a-f]+")  # TensorStore adds it against proxies


@dataclass(frozen=True)
class Faults:
    """What a :class:`FaultProxy` does to requests. Rates are shares of the requests, 0 to 1.

    Attributes:
        latency_s: Every answer is this many seconds late.
        spike_rate: Share of the answers that are late by ``spike_s`` more.
        spike_s: Seconds.
        error_rate: Share answered with a status of ``error_status`` instead of the server's answer.
        error_status: Statuses to choose from at random.
        cut_rate: Share whose answer ends in the middle of its body, with the connection.
        close_rate: Share whose connection is closed with no answer.
        hang_rate: Share that is never answered.
        flip_rate: Share with one bit of the body flipped.
        page_rate: Share answered with 200 and an HTML page.
        whole_rate: Share answered with 200 and the whole file, whatever range was requested.
        redirect_rate: Share answered with 302; its target is an HTML page.
        head_rate: Share whose answer ends in the middle of its headers, with the connection.
        methods: Only requests of these methods can get a fault (all are logged, and all are late by
            ``latency_s``).
        path_contains: Only requests whose path contains this text.

    Raises:
        ConfigError: a rate is not within 0 .. 1, or they add up to more than 1.

    Example:
        >>> Faults(latency_s=0.03, error_rate=0.01, cut_rate=0.01).error_status
        (408, 429, 500, 502, 503, 504)
    """

    latency_s: float = 0.0
    spike_rate: float = 0.0
    spike_s: float = 0.5
    error_rate: float = 0.0
    error_status: tuple[int, ...] = (408, 429, 500, 502, 503, 504)
    cut_rate: float = 0.0
    close_rate: float = 0.0
    hang_rate: float = 0.0
    flip_rate: float = 0.0
    page_rate: float = 0.0
    whole_rate: float = 0.0
    redirect_rate: float = 0.0
    head_rate: float = 0.0
    methods: tuple[str, ...] = ("GET", "HEAD")
    path_contains: str = ""

    def __post_init__(self) -> None:
        rates = {f"{fate}_rate": getattr(self, f"{fate}_rate") for fate in _FATES}
        for name, rate in {**rates, "spike_rate": self.spike_rate}.items():
            if not 0 <= rate <= 1:
                raise ConfigError("must lie in 0 .. 1", field=name, value=rate)
        if sum(rates.values()) > 1 + 1e-9:
            raise ConfigError(
                f"add up to {sum(rates.values())}, more than 1", field="rates", value=rates
            )

    def fate(self, random: np.random.Generator) -> Fate:
        """What happens to one request."""
        draw = random.random()
        for fate in _FATES:
            draw -= getattr(self, f"{fate}_rate")
            if draw < 0:
                return fate
        return "ok"


@dataclass
class LoggedRequest:
    """One request as the proxy saw it.

    Attributes:
        method: ``GET``, ...
        path: With its query.
        range: The ``Range`` header, ``""`` if none.
        fate: What the proxy did to it.
        late_s: Seconds by which the proxy delayed it.
        reused: Whether its connection had had a request before.
        status: Status sent to the client; 0 until it is sent.
        bytes: Bytes of body sent to the client.
    """

    method: str
    path: str
    range: str
    fate: Fate
    late_s: float
    reused: bool = False
    status: int = 0
    bytes: int = 0


@dataclass
class FaultProxy:
    """A proxy in front of an HTTP server of this machine, as a context manager.

    Args:
        target: Address of the server, ``http://host:port``.
        faults: What to do to requests; may be replaced at any time.
        seed: Seed of the faults.

    Example:
        >>> from headrace.testing import web_server
        >>> import pathlib, tempfile, urllib.request
        >>> with (
        ...     tempfile.TemporaryDirectory() as folder,
        ...     web_server(folder) as server,
        ...     FaultProxy(server) as proxy,
        ... ):
        ...     _ = pathlib.Path(folder, "a.txt").write_text("hello")
        ...     with urllib.request.urlopen(f"{proxy.url}/a.txt") as answer:
        ...         print(answer.read(), [(r.method, r.path, r.status, r.bytes) for r in proxy.log])
        b'hello' [('GET', '/a.txt', 200, 5)]
    """

    target: str
    faults: Faults = field(default_factory=Faults)
    seed: int = 0

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(
                "is not an http:// address",
                field="target",
                value=self.target,
                cure="http://host:port",
            )
        self.server_address = (parts.hostname, parts.port or 80)
        self._lock = threading.Lock()
        self._log: list[LoggedRequest] = []
        self._asked: Counter[tuple[str, str, str]] = Counter()
        self._scripted: list[
            tuple[str, Fate, int]
        ] = []  # path_contains, fate and status of a request to come
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._comeback: asyncio.Task[None] | None = None
        self.down = False
        """While True, every connection is closed at once, as if the server had disappeared."""
        self.port = 0
        self._outage: Outage | None = None
        self._away_until = 0.0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Address for clients to use instead of the server's."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[LoggedRequest]:
        """All requests since the start or the last :meth:`clear`, in order of arrival."""
        with self._lock:
            return list(self._log)

    def clear(self) -> None:
        """Clears the log, the counts of repeated requests, and fates set by :meth:`next`."""
        with self._lock:
            self._log.clear()
            self._asked.clear()
            self._scripted.clear()

    def count(self, method: str = "", path_contains: str = "", fate: str = "") -> int:
        """Number of logged requests that match all given arguments."""
        return sum(
            method in ("", r.method) and path_contains in r.path and fate in ("", r.fate)
            for r in self.log
        )

    def next(
        self, fate: Fate, *, times: int = 1, path_contains: str = "", status: int = 503
    ) -> None:
        """Sets the fate of the next ``times`` requests whose path contains the text, whatever the
        rates.
        """
        with self._lock:
            scripted: tuple[str, Fate, int] = (path_contains, fate, status)
            self._scripted += [scripted] * times

    def outage(self, kind: Outage, seconds: float) -> None:
        """Lets the server be away for so long from now on.

        Args:
            kind: What clients get: a status (429 with the remaining seconds as ``Retry-After``), a
                reset connection, or none at all.
            seconds: How long.
        """
        with self._lock:
            self._outage = kind
            self._away_until = time.monotonic() + seconds
        if kind == "refused":
            self._run(self._refuse(seconds))

    @property
    def away_s(self) -> float:
        """Seconds until the end of the outage; 0 if there is none."""
        return max(self._away_until - time.monotonic(), 0.0)

    async def _refuse(self, seconds: float) -> None:
        await self._close()
        self._comeback = asyncio.ensure_future(self._return(seconds))

    async def _return(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._server = await self._listen()

    def release(self) -> None:
        """Closes the connections of requests that hang."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def hang(self, reader: asyncio.StreamReader) -> None:
        """Waits until the client gives up or :meth:`release` is called."""
        if self._released.is_set():
            self._released = asyncio.Event()
        ends = [asyncio.ensure_future(end) for end in (self._released.wait(), reader.read(1))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)

    def __enter__(self) -> FaultProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fault-proxy", daemon=True
        )
        self._thread.start()
        self._server = self._run(self._listen())
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns that runs in the proxy's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _stop(self) -> None:
        await self._close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        """Stops listening, and ends all connections.

        asyncio makes the transport of a connection a turn of the loop after it was accepted; if the
        server is closed in between, nobody ever closes it. So what was accepted begins first.
        """
        assert self._server is not None
        for socket in self._server.sockets:
            self._loop.remove_reader(socket.fileno())
        for _turn in ("transport", "connection made", "accepted"):
            await asyncio.sleep(0)
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)  # the turn that closes their sockets

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=_MAX_HEAD)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(asyncio.CancelledError):  # the proxy stops
            await _Connection(self, reader, writer).serve()
        self._open.discard(writer)

    def decide(self, head: Head) -> tuple[LoggedRequest, int]:
        """Logs a request, and returns its fate and, for an error, the status."""
        faults = self.faults
        key = (head.method, head.path, head.headers.get("range", ""))
        request = (head.method, _NONCE.sub("", head.path), key[2])
        with self._lock:
            times = self._asked[request]
            self._asked[request] += 1
            digest = hashlib.blake2b(
                json.dumps((self.seed, *request, times)).encode(), digest_size=8
            ).digest()
            random = np.random.default_rng(int.from_bytes(digest, "little"))
            fate = faults.fate(random)
            late = faults.latency_s
            status = int(random.choice(faults.error_status))
            if random.random() < faults.spike_rate and head.method in faults.methods:
                late += faults.spike_s
            if head.method not in faults.methods or faults.path_contains not in head.path:
                fate = "ok"
            scripted = next((entry for entry in self._scripted if entry[0] in head.path), None)
            if scripted is not None:
                self._scripted.remove(scripted)
                _, fate, status = scripted
            if head.path.startswith(_SIGN_IN):
                fate = "page"
            if self.down:
                fate = "close"
            if self.away_s and self._outage is not None:
                fate = "reset" if self._outage == "reset" else "error"
                status = int(self._outage) if self._outage.isdecimal() else status
            entry = LoggedRequest(*key, fate=fate, late_s=late)
            self._log.append(entry)
        return entry, status


class _Connection:
    """One client's connection and, behind it, one to the server."""

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_reused = False

    async def serve(self) -> None:
        try:
            while await self._one():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client disconnected
        finally:
            self._writer.close()
            if self._server is not None:
                self._server[1].close()

    async def _one(self) -> bool:
        """Serves one request; whether the connection goes on."""
        head = await read_head(self._reader)
        if head is None:
            return False
        if head.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._writer.drain()
        body = await read_body(self._reader, head, to_end=False)
        entry, status = self._proxy.decide(head)
        entry.reused = self._is_reused
        self._is_reused = True
        if entry.late_s:
            await asyncio.sleep(entry.late_s)
        if entry.fate == "reset":
            socket = self._writer.get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGER)
            self._writer.transport.abort()
            return False
        if entry.fate == "close":
            return False
        if entry.fate == "hang":
            await self._proxy.hang(self._reader)
            return False
        if entry.fate == "error":
            away_s = math.ceil(self._proxy.away_s)
            headers = {"retry-after": str(away_s)} if away_s and status == 429 else {}
            await self._send(
                entry, f"HTTP/1.1 {status} Injected", headers, b"injected fault\n", head.method
            )
            return True
        if entry.fate == "page":
            return await self._send(
                entry, "HTTP/1.1 200 OK", {"content-type": "text/html"}, _PAGE, head.method
            )
        if entry.fate == "redirect":
            return await self._send(
                entry, "HTTP/1.1 302 Found", {"location": _SIGN_IN}, b"", head.method
            )
        if entry.fate == "whole":
            head.headers.pop("range", None)
        try:
            answer, content = await self._ask(head, body)
        except OSError:
            return False  # the server is gone: close the client's connection too
        return await self._send(entry, answer.first_line, answer.headers, content, head.method)

    async def _ask(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        for attempt in range(2):
            fresh = self._server is None
            if self._server is None:
                self._server = await asyncio.open_connection(
                    *self._proxy.server_address, limit=_MAX_HEAD
                )
            reader, writer = self._server
            try:
                writer.write(head.with_length(len(body)).encode() + body)
                await writer.drain()
                answer = await read_head(reader)
                if answer is None:
                    raise ConnectionError
                content = await read_body(reader, answer, to_end=True, answer_to=head.method)
            except (ConnectionError, asyncio.IncompleteReadError):
                writer.close()
                self._server = None
                if fresh or attempt:
                    raise ConnectionError from None
                continue  # it had closed an idle connection
            if answer.headers.get(
                "connection", ""
            ).lower() == "close" or answer.first_line.startswith("HTTP/1.0"):
                writer.close()
                self._server = None
            return answer, content
        raise ConnectionError

    async def _send(
        self,
        entry: LoggedRequest,
        first_line: str,
        headers: dict[str, str],
        content: bytes,
        method: str,
    ) -> bool:
        status = int(first_line.split(" ", 2)[1])
        kept_headers = {
            k: v
            for k, v in headers.items()
            if k not in ("transfer-encoding", "connection", "keep-alive")
        }
        if "location" in kept_headers:
            kept_headers["location"] = kept_headers["location"].replace(
                self._proxy.target.rstrip("/"), self._proxy.url
            )
        if status in (204, 304):  # which have no body
            content = b""
        elif method != "HEAD" and status >= 200:
            kept_headers["content-length"] = str(len(content))
        answer = Head(f"HTTP/1.1 {first_line.split(' ', 1)[1]}", kept_headers).encode()
        entry.status = status
        if entry.fate == "flip" and content:
            content = _flipped(content, entry)
        if entry.fate == "cut":
            content = content[: len(content) // 2]
        if entry.fate == "head" or (entry.fate == "cut" and not content):
            answer = answer[: len(answer) // 2]
            content = b""
        entry.bytes = len(content)  # before the client can ask
        self._writer.write(answer + content)
        with suppress(ConnectionError):
            await self._writer.drain()
        return entry.fate not in ("cut", "head")


def _flipped(content: bytes, entry: LoggedRequest) -> bytes:
    """The content with one bit flipped; the request determines which."""
    digest = hashlib.blake2b(f"{entry.path} {entry.range}".encode(), digest_size=8).digest()
    at, bit = divmod(int.from_bytes(digest, "little") % (8 * len(content)), 8)
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
