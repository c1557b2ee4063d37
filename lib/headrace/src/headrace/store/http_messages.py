"""As much of HTTP/1.1 as a request to a sampler, or a proxy for tests, needs: heads and bodies on
asyncio streams.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Head:
    """First line and headers of a request or an answer; header names are lower case."""

    first_line: str
    headers: dict[str, str]

    @property
    def method(self) -> str:
        return self.first_line.split(" ", 1)[0]

    @property
    def path(self) -> str:
        return self.first_line.split(" ")[1]

    def with_length(self, length: int) -> Head:
        """The same request with its body sent as one piece of ``length`` bytes."""
        kept_headers = {
            k: v
            for k, v in self.headers.items()
            if k not in ("expect", "transfer-encoding", "connection")
        }
        if length or self.method in ("POST", "PUT", "PATCH"):
            kept_headers["content-length"] = str(length)
        return replace(self, headers=kept_headers)

    def encode(self) -> bytes:
        """As it goes over the wire."""
        lines = [self.first_line, *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next head; None if the other side closed the connection in place of one."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if lines[0].startswith("HTTP/") and lines[0].split(" ", 2)[1] == "100":
        return await read_head(reader)
    return Head(lines[0], headers)


async def read_body(
    reader: asyncio.StreamReader,
    head: Head,
    *,
    to_end: bool,
    answer_to: str = "",
    most: int | None = None,
) -> bytes:
    """The body that belongs to a head. Raises ValueError if it has more than ``most`` bytes; no
    more are read.

    Args:
        reader: Where it comes from.
        head: Its head.
        to_end: With no length given, the body runs to the end of the connection (answers), or there
            is none (requests).
        answer_to: Method of the request, if this is an answer.
        most: Bytes that it may have; None: any number.
    """
    most = sys.maxsize if most is None else most
    status = head.first_line.split(" ", 2)[1] if head.first_line.startswith("HTTP/") else ""
    if answer_to == "HEAD" or status in ("204", "304"):
        return b""
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return await _read_chunked(reader, most)
    if "content-length" in head.headers:
        size = int(head.headers["content-length"])
        _check_size(size, most)
        return await reader.readexactly(size)
    return await _read_to_end(reader, most) if to_end else b""


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"a body of more than {most:,} bytes")


async def _read_to_end(reader: asyncio.StreamReader, most: int) -> bytes:
    body = bytearray()
    while piece := await reader.read(_PIECE_BYTES):
        body += piece
        _check_size(len(body), most)
    return bytes(body)


async def _read_chunked(reader: asyncio.StreamReader, most: int) -> bytes:
    pieces: list[bytes] = []
    allowed = most
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            while (await reader.readline()).strip():
                pass  # trailers
            return b"".join(pieces)
        if size > allowed:
            _check_size(most + 1, most)
        allowed -= size
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
