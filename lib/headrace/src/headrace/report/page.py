"""The page: facts to one HTML document that needs nothing else.

Invariant: it loads nothing. Scripts and styles are in it, and its content security policy lets only these scripts run,
by their digest; a page that is served live may ask its own server for new figures.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib
import json
import time
from importlib import resources
from typing import Any

from headrace.errors import ConfigError
from headrace.report import numbers
from headrace.report.blocks import Section
from headrace.report.facts import ReportFacts
from headrace.report.measured_sections import reads_section, stalls_section, waiting_section
from headrace.report.plan_sections import (
    config_section,
    documents_section,
    forecast_section,
    mixture_section,
    order_section,
)
from headrace.report.run_sections import amendments_section, provenance_section, summary_section
from headrace.store import files

GENERATOR = "headrace report"
_MARK = f'<meta name="generator" content="{GENERATOR}">'


def sections(facts: ReportFacts) -> list[Section]:
    """All parts of a report, in their order."""
    plan = facts.plan
    found = [summary_section(facts)]
    if plan is not None:
        found += [mixture_section(plan), order_section(plan), documents_section(plan), forecast_section(plan)]
    found += [reads_section(facts), waiting_section(facts), stalls_section(facts)]
    found += [provenance_section(facts), amendments_section(facts)]
    return [*found, config_section(plan)] if plan is not None else found


def state(facts: ReportFacts) -> dict[str, Any]:
    """What changes while a run goes on, as JSON values: for each section its parts and figures."""
    return {
        "written": numbers.moment(time.time()),
        "sections": [
            {"id": section.name, "parts": section.parts(), "figures": section.figures()} for section in sections(facts)
        ],
    }


def render(facts: ReportFacts, *, live_s: float | None = None) -> str:
    """The page.

    Args:
        facts: What it shows.
        live_s: Seconds after which it asks its server for new figures; None: never.

    Raises:
        ConfigError: plotly is not installed.
    """
    parts = sections(facts)
    figures = {name: figure for section in parts for name, figure in section.figures().items()}
    plotly, script = _plotly(), _file("page.js")
    connect = "'none'" if live_s is None else "'self'"
    policy = (
        f"default-src 'none'; script-src {_digest(plotly)} {_digest(script)}; style-src 'unsafe-inline';"
        f" img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    toc = "".join(f'<li><a href="#{s.name}">{html.escape(s.title)}</a></li>' for s in parts)
    title = html.escape(facts.title)
    body = "".join(
        f'<section id="{s.name}"><h2>{html.escape(s.title)}</h2>'
        + "".join(f'<div class="part" id="{part["id"]}">{part["html"]}</div>' for part in s.parts())
        + "</section>"
        for s in parts
    )
    live = "" if live_s is None else f' data-live="{live_s:g}"'
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
<p class="meta"><span id="written">{written}</span>{_meta(facts)} <span id="live"></span></p>
</header>
<div class="page">
<nav aria-label="Contents"><ol>{toc}</ol></nav>
<main><noscript><p class="quiet">Charts need JavaScript; tables do not.</p></noscript>{body}</main>
</div>
<script id="figures" type="application/json">{_embedded(figures)}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def write_report(facts: ReportFacts, output: str) -> int:
    """Writes the page, in place of an earlier one.

    Args:
        facts: What it shows.
        output: Path or URL of the file.

    Returns:
        Bytes written.

    Raises:
        ConfigError: plotly is not installed, or ``output`` is there and no report.
    """
    _check_replaceable(output)
    page = render(facts).encode()
    files.write_atomic(output, page)
    return len(page)


def _check_replaceable(output: str) -> None:
    held = files.read_bytes(output) if files.exists(output) else None
    if held is not None and _MARK.encode() not in held[:2000]:
        raise ConfigError(
            "exists and is no report of headrace", field="--output", value=output, cure="Choose another file."
        )


def _meta(facts: ReportFacts) -> str:
    said = [facts.config_path, facts.folder]
    return "".join(f" · <code>{html.escape(text)}</code>" for text in said if text is not None)


def _embedded(value: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return resources.files("headrace.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        return str(importlib.import_module("plotly.offline").get_plotlyjs())
    except ImportError as error:
        raise ConfigError("is not installed", field="plotly", cure="pip install 'headrace[report]'") from error
