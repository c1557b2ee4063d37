"""The page: turns facts into one self-contained HTML document, or serves it live on this machine.

Invariants: the page loads nothing. It contains its scripts and styles, and its content security
policy allows only these scripts, by their digest; a live page may request new figures from its own
server. Nothing outside this machine can read it: the server listens on loopback, and answers only
requests that use its loopback name, so a foreign web page whose name points here (DNS rebinding)
gets nothing.

The plan of a live run is computed once. The run's log is read again on request, at most once a
second, and less often if it is long.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from headrace import numbers
from headrace.errors import ConfigError, HeadraceError
from headrace.report import plan_sections, run_sections
from headrace.report.blocks import Section
from headrace.report.comparison import compared, titles
from headrace.report.facts import ReportFacts
from headrace.store import files
from headrace.store.location import Location

GENERATOR = "headrace report"
_MARK = f'<meta name="generator" content="{GENERATOR}">'
_LOOPBACK = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost")
_FRESH_S = 1.0
_REST = 20
"""A long log is read again only after this many times the duration of the last reading."""


def sections(facts: ReportFacts) -> list[Section]:
    """All parts of a report, in their order."""
    plan = facts.plan
    parts = [run_sections.summary_section(facts), *run_sections.course_sections(facts)]
    if plan is not None:
        parts += [
            plan_sections.mixture_section(plan, facts.records.steps_done),
            plan_sections.order_section(plan),
            plan_sections.documents_section(plan),
            plan_sections.forecast_section(plan),
        ]
    if facts.records.figures:
        parts.append(run_sections.figures_section(facts.records.figures))
    parts += [
        run_sections.reads_section(facts),
        run_sections.waiting_section(facts),
        run_sections.stalls_section(facts),
        run_sections.provenance_section(facts),
        run_sections.amendments_section(facts),
    ]
    if plan is not None:
        parts.append(plan_sections.config_section(plan))
    return parts


def state(facts: ReportFacts) -> dict[str, Any]:
    """The changing content of a live page, as JSON values: for each section its
    parts and figures.
    """
    return {
        "written": numbers.moment(time.time()),
        "sections": [
            {
                "id": section.name,
                "line": section.line,
                "parts": section.parts(),
                "figures": section.figures(),
            }
            for section in sections(facts)
        ],
    }


def render(
    facts: ReportFacts, *, other: ReportFacts | None = None, live_s: float | None = None
) -> str:
    """The page.

    Args:
        facts: The content.
        other: Of another run, to be compared with the first; None: the page has one run.
        live_s: Seconds after which the page requests new figures from its server; None: never.
    """
    parts = sections(facts) if other is None else compared(facts, other)
    figures = {name: figure for section in parts for name, figure in section.figures().items()}
    scripts = [_file("charts.js"), _file("page.js")]
    connect = "'none'" if live_s is None else "'self'"
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts))}; style-src"
        " 'unsafe-inline';"
        f" img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    toc = "".join(f'<li><a href="#{s.name}">{html.escape(s.title)}</a></li>' for s in parts)
    title = html.escape(facts.title if other is None else " and ".join(titles(facts, other)))
    body = "".join(section.to_html() for section in parts)
    live = "" if live_s is None else f' data-live="{live_s:g}"'
    meta = _meta(facts) + ("" if other is None else _meta(other))
    written = f"Written {numbers.moment(time.time())}"
    return f"""<!doctype html>
<html lang="en"{live}>
<head>
<meta charset="utf-8">
{_MARK}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title} – headrace report</title>
<style>{_file("page.css")}</style>
</head>
<body>
<header>
<div class="bar"><div><p class="kind">headrace report</p><h1>{title}</h1></div>
<button id="theme" type="button" aria-label="Switch between light and dark">◐</button></div>
<p class="meta"><span id="written">{written}</span>{meta} <span id="live"></span></p>
</header>
<div class="page">
<nav aria-label="Contents"><ol>{toc}</ol></nav>
<main><noscript><p class="quiet">The charts need JavaScript.</p></noscript>{body}</main>
</div>
<script id="figures" type="application/json">{_embedded(figures)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def write_report(facts: ReportFacts, output: str, *, other: ReportFacts | None = None) -> int:
    """Writes the page, in place of an earlier one.

    Args:
        facts: The content.
        output: Path or URL of the file.
        other: Of another run, to be compared with the first.

    Returns:
        Bytes written.

    Raises:
        ConfigError: ``output`` exists and is not a report.
    """
    _check_replaceable(output)
    page = render(facts, other=other).encode()
    files.write_atomic(output, page)
    return len(page)


def _check_replaceable(output: str) -> None:
    Location.parse(output).check_output_file("--output")
    if files.is_local(output) and files.local_path(output).is_dir():
        cure = f"Give a file: {files.join(output, 'report.html')}."
        raise ConfigError("is a folder", field="--output", value=output, cure=cure)
    content = files.read_bytes(output) if files.exists(output) else None
    if content is not None and _MARK.encode() not in content[:2000]:
        raise ConfigError(
            "exists and is not a headrace report",
            field="--output",
            value=output,
            cure="Choose another file.",
        )


def _meta(facts: ReportFacts) -> str:
    items = [facts.config_path, facts.folder]
    return "".join(f" · <code>{html.escape(text)}</code>" for text in items if text is not None)


def _embedded(value: Any) -> str:
    """JSON that cannot close the HTML element that contains it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return resources.files("headrace.report").joinpath(name).read_text(encoding="utf-8")


class LiveReport:
    """Serves the report of a run until it is closed.

    Args:
        facts: The report as it is now.
        port: Port to listen on; 0: any free port.
        every_s: Seconds between refreshes of the page.

    Attributes:
        url: Address of the page.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(self, facts: ReportFacts, *, port: int = 0, every_s: float = 5.0) -> None:
        self._facts = facts
        self._every_s = every_s
        self._due = time.monotonic() + _FRESH_S
        self._lock = threading.Lock()
        render(facts)  # raises errors at once
        try:
            self._server = ThreadingHTTPServer((_LOOPBACK, port), self._handler())
        except OSError as error:
            raise ConfigError(
                f"cannot be used ({error.strerror})",
                field="--port",
                value=port,
                cure="Use --port 0 for any free port.",
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
        """The report, updated with what the run has written since."""
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                # If a store does not answer, the last figures remain.
                with contextlib.suppress(OSError, HeadraceError):
                    self._facts = self._facts.measured_again()
                took = time.monotonic() - began
                self._due = began + max(_FRESH_S, _REST * took)
            return self._facts

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html; charset=utf-8", lambda: render(self.facts(), live_s=self._every_s)),
            "/state": (
                "application/json",
                lambda: json.dumps(state(self.facts()), allow_nan=False),
            ),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in _OWN_NAMES:
                    self.send_error(HTTPStatus.FORBIDDEN)
                    return
                page = pages.get(self.path.split("?", 1)[0])
                if page is None:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                kind, make = page
                body = make().encode()
                self.send_response(HTTPStatus.OK)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(body)))):
                    self.send_header(name, value)
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Prints nothing: the terminal belongs to the user."""

        return Handler
