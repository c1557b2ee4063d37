"""A file server whose every answer takes a while: HTTP/1.1 with byte ranges, a thread for each
connection.

    python -m peers.range_server FOLDER MILLISECONDS [MB_PER_S]

A connection carries at most ``MB_PER_S``, 1e6 bytes a second each. Prints its port, serves until
its standard input closes, then prints the number of requests.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of files below ``folder`` after ``latency_s``, and after ``byte_s`` for
    each byte of the body.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else small answers wait for an acknowledgement
    wbufsize = -1

    def __init__(self, folder: Path, latency_s: float, byte_s: float, *args: object) -> None:
        self.folder = folder
        self.latency_s = latency_s
        self.byte_s = byte_s
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.count()
        time.sleep(self.latency_s)
        path = self.folder / unquote(self.path.split("?")[0]).lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        first = 0
        last = size - 1
        ranges = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if ranges:
            first, last = _range(ranges[1], ranges[2], size)
        self.send_response(206 if ranges else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", f'"{size}"')
        self.send_header("Accept-Ranges", "bytes")
        if ranges:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command == "GET":
            time.sleep(self.byte_s * (last + 1 - first))
            with path.open("rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last + 1 - first))

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


class Server(ThreadingHTTPServer):
    """Counts its requests."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, folder: Path, latency_s: float, byte_s: float) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, folder, latency_s, byte_s))
        self.requests = 0
        self._lock = threading.Lock()

    def count(self) -> None:
        with self._lock:
            self.requests += 1


def _range(first: str, last: str, size: int) -> tuple[int, int]:
    """First and last byte of a ``Range`` header; an empty first means the last so many bytes."""
    if not first:
        return max(size - int(last), 0), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def main() -> None:
    byte_s = 1e-6 / float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    server = Server(Path(sys.argv[1]), float(sys.argv[2]) / 1000, byte_s)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    print(server.requests, flush=True)


if __name__ == "__main__":
    main()
