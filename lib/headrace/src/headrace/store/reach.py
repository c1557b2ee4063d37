"""Whether a store can be connected to at all. A command says soon that it cannot, because its
address may be wrong; a program that trains waits, as for any store that is away
(:mod:`headrace.store.retry`). Slow answers are no matter of this: only connections count.

Commands import it as they start, so it imports little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from headrace.errors import CacheError

_AGAIN_S = 0.5
_reached: set[str] = set()
_within_s: list[float] = []


@contextmanager
def expected(within_s: float) -> Iterator[None]:
    """In this block, a store that does not accept its first connection within so many seconds is
    given up.
    """
    _within_s.append(within_s)
    try:
        yield
    finally:
        _within_s.pop()


def check(store: str, address: Callable[[], str | None]) -> None:
    """Connects to a store, unless this process has before, or nothing is :func:`expected`.

    Args:
        store: The store, as the error names it.
        address: The URL of its server; None if that is not known.

    Raises:
        CacheError: it is given up.
    """
    if not _within_s or store in _reached:
        return
    server = address()
    problem = "" if server is None else _problem(server, _within_s[-1])
    if problem:
        cure = "Check the address and the network."
        raise CacheError(f"cannot be reached ({problem})", field="path", value=store, cure=cure)
    _reached.add(store)


def _problem(server: str, within_s: float) -> str:
    """Why no connection can be made; empty if one can."""
    import asyncio
    import socket

    parts = urlsplit(server if "://" in server else f"http://{server}")
    why = f"no answer in {within_s:g} s"
    end = time.monotonic() + within_s

    def try_on() -> None:
        nonlocal why
        while why and time.monotonic() < end:
            try:
                host = parts.hostname
                port = parts.port or (443 if parts.scheme == "https" else 80)
                socket.getaddrinfo(host, port)  # in asyncio, it would keep the process from ending
                asyncio.run(connect(host, port))
                why = ""
            except (OSError, ValueError) as error:  # no connection, or no address
                why = str(error)
                time.sleep(_AGAIN_S)

    async def connect(host: str | None, port: int) -> None:
        _, writer = await asyncio.open_connection(host, port, happy_eyeballs_delay=0.25)
        writer.close()

    thread = threading.Thread(target=try_on, daemon=True)
    thread.start()
    thread.join(within_s + _AGAIN_S)
    host_port = parts.netloc.rpartition("@")[2]  # a variable may hold a login
    return why and f"{host_port}: {why}"
