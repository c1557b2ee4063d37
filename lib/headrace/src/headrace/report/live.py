"""The report of a run that goes on, served on this machine only; the page asks for new figures by itself.

The plan is worked out once; what the run has written is read again when it is asked for, at most once a second, and a
long log less often.

Invariant: nothing outside this machine can read it. The server listens on loopback, and answers only requests that name
it so: a web page elsewhere that points its own name here (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.errors import ConfigError, HeadraceError
from headrace.report.facts import ReportFacts
from headrace.report.page import render, state

_LOOPBACK = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost")
_FRESH_S = 1.0
_REST = 20
"""A long log is read again only after so many times the seconds that it took."""


class LiveReport:
    """Serves the report of a run until it is closed.

    Args:
        facts: The report as it is now.
        port: Port to listen on; 0: any that is free.
        every_s: Seconds from one refresh of the page to the next.

    Attributes:
        url: Where it is.

    Raises:
        ConfigError: the port is taken, ``every_s`` is not positive, or plotly is not installed.
    """

    def __init__(self, facts: ReportFacts, *, port: int = 0, every_s: float = 5.0) -> None:
        if every_s <= 0:
            raise ConfigError("must be positive", field="--refresh", value=every_s, cure="In seconds.")
        self._facts, self._every_s, self._due = facts, every_s, time.monotonic() + _FRESH_S
        self._lock = threading.Lock()
        render(facts)  # what is wrong with it is said now
        try:
            self._server = ThreadingHTTPServer((_LOOPBACK, port), self._handler())
        except OSError as error:
            raise ConfigError(
                f"cannot be used ({error.strerror})", field="--port", value=port, cure="Use --port 0: any that is free."
            ) from error
        self._server.daemon_threads = True
        self.url = f"http://{_LOOPBACK}:{self._server.server_address[1]}/"

    def serve(self) -> None:
        """Answers until :meth:`close` is called from another thread, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()

    def facts(self) -> ReportFacts:
        """The report with what the run has written by now."""
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                with contextlib.suppress(
                    OSError, HeadraceError
                ):  # a store that does not answer: the last figures stand
                    self._facts = self._facts.measured_again()
                took = time.monotonic() - began
                self._due = began + max(_FRESH_S, _REST * took)
            return self._facts

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html; charset=utf-8", lambda: render(self.facts(), live_s=self._every_s)),
            "/state": ("application/json", lambda: json.dumps(state(self.facts()), allow_nan=False)),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in _OWN_NAMES:
                    self.send_error(HTTPStatus.FORBIDDEN)
                    return
                found = pages.get(self.path.split("?", 1)[0])
                if found is None:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                kind, make = found
                body = make().encode()
                self.send_response(HTTPStatus.OK)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body)))):
                    self.send_header(name, value)
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing: the terminal belongs to the user."""

        return Handler
