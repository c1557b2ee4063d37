"""The figures of a report, as plotly.js takes them; plain dicts, so that making them needs no plotting library.

Colours of sources are those of Okabe and Ito (2008), which stay apart for colour-blind readers, darkened or lightened
where they would be hard to see on white or on black; where they run out, dashes tell sources apart.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.report.blocks import Figure
from headrace.report.lengths import Fill, Lengths
from headrace.report.mixture_facts import MixtureFacts, largest
from headrace.report.run_records import HostSeries
from headrace.simulate import Forecast
from headrace.stalls import Stall

PALETTE = ("#2a7ab8", "#d97706", "#1a9870", "#c2589c", "#b8860b", "#4aa3d8", "#c8442c", "#7a68c4", "#7c8a3a", "#8a8f98")
_DASHES = ("solid", "dashdot", "longdash")
_LOADER_TIME = (
    ("plan_s", "plans", 3),
    ("read_s", "waits for the store", 0),
    ("gather_s", "gathers rows", 2),
    ("map_s", "runs functions of map", 7),
    ("transfer_s", "hands to devices", 1),
)
MOST_SOURCES = 12
_OTHERS = "others"
GREY = "#8a8f98"


def name_of(text: str) -> str:
    """A name as plotly shows it: it takes some markup, names have none."""
    return html.escape(text, quote=False)


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Axis titles, and what else is special; margins, fonts and colours are the page's."""
    axes: dict[str, Any] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    if x == "step":
        axes["xaxis"]["tickformat"] = ",d"
    for axis in ("xaxis", "yaxis"):
        axes[axis] |= more.pop(axis, {})
    return {**axes, **more}


def mixture_chart(facts: MixtureFacts) -> Figure:
    """Share of each source that is drawn (line) and wanted (dots) over steps; a legend entry is a source."""
    traces: list[dict[str, Any]] = []
    for k, (name, drawn, wanted) in enumerate(_grouped(facts, facts.drawn, facts.wanted)):
        rows = facts.drawn.sum(axis=1), facts.wanted.sum(axis=1)
        common = {"x": facts.middle, "legendgroup": name, "mode": "lines"}
        colour = GREY if name == _OTHERS else PALETTE[k % len(PALETTE)]
        shown = name_of(name)
        dash = _DASHES[k // len(PALETTE) % len(_DASHES)]
        share = _over(drawn, rows[0])
        line = {"color": colour, "width": 2, "dash": dash}
        traces.append({**common, "y": share, "name": shown, "line": line, "hovertemplate": "%{y:.2%}"})
        dots = {**common, "y": _over(wanted, rows[1]), "name": f"{shown}, wanted", "showlegend": False}
        traces.append({**dots, "line": {"color": colour, "width": 1.5, "dash": "dot"}, "hovertemplate": "%{y:.2%}"})
    axis = {"tickformat": ".0%", "rangemode": "tozero"}
    return {"data": traces, "layout": layout("step", "share of rows", yaxis=axis, height=380)}


def epochs_chart(facts: MixtureFacts, row_tokens: Sequence[int]) -> Figure:
    """Passes over each source so far, over steps."""
    traces: list[dict[str, Any]] = []
    size = np.asarray(row_tokens, np.float64)
    passes = facts.tokens.cumsum(axis=0) / np.maximum(size, 1)
    for k, d in enumerate(largest(facts, MOST_SOURCES)):
        colour = PALETTE[k % len(PALETTE)]
        line = {"color": colour, "width": 2, "dash": _DASHES[k // len(PALETTE) % len(_DASHES)]}
        traces.append(
            {
                "x": facts.edge,
                "y": np.concatenate([[0.0], passes[:, d]]),
                "name": name_of(facts.names[d]),
                "mode": "lines",
                "line": line,
                "hovertemplate": "%{y:.3~g}",
            }
        )
    return {"data": traces, "layout": layout("step", "epochs", yaxis={"rangemode": "tozero"})}


def quality_chart(forecast: Forecast) -> Figure:
    """Variance ratios of windows of batches beside 1, a full shuffle."""
    windows, ratios = [*forecast.variance_ratio], [*forecast.variance_ratio.values()]
    bars = {
        "type": "bar",
        "x": windows,
        "y": ratios,
        "marker": {"color": PALETTE[0]},
        "text": [f"{r:.3f}" for r in ratios],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y:.4f}<extra></extra>",
        "name": "this order",
        "width": 0.5,
    }
    reference: dict[str, Any] = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1}
    reference["line"] = {"color": GREY, "dash": "dash", "width": 1.5}
    axis = {"range": [0, max(1.25, 1.15 * max(ratios, default=1.0))]}
    return {
        "data": [bars],
        "layout": layout("window", "variance ratio", yaxis=axis, shapes=[reference], showlegend=False, height=280),
    }


def lengths_chart(lengths: Mapping[str, Lengths]) -> Figure:
    """Share of documents by length, a line of steps a source."""
    traces: list[dict[str, Any]] = []
    for k, (name, found) in enumerate([*lengths.items()][:MOST_SOURCES]):
        if not found.documents.size:
            continue
        traces.append(
            {
                "x": np.maximum(found.edge, 0.7),  # documents of no token, on a logarithmic axis
                "y": np.append(found.documents, found.documents[-1]),
                "name": name_of(name),
                "mode": "lines",
                "line": {"shape": "hv", "color": PALETTE[k % len(PALETTE)], "width": 2},
                "hovertemplate": "%{y:.1%}",
            }
        )
    axis = {"tickformat": ".0%", "rangemode": "tozero"}
    return {
        "data": traces,
        "layout": layout("tokens in a document", "share of documents", xaxis={"type": "log"}, yaxis=axis),
    }


def fill_chart(fills: Mapping[str, Fill]) -> Figure:
    """Share of packs by how full they are."""
    traces: list[dict[str, Any]] = []
    for k, (name, fill) in enumerate([*fills.items()][:MOST_SOURCES]):
        edge = np.arange(fill.share.size) / fill.share.size
        traces.append(
            {
                "type": "bar",
                "x": edge + 0.5 / fill.share.size,
                "y": fill.share,
                "name": name_of(name),
                "marker": {"color": PALETTE[k % len(PALETTE)]},
                "hovertemplate": "%{y:.1%}",
            }
        )
    axis = {"tickformat": ".0%", "range": [0, 1.02]}
    return {
        "data": traces,
        "layout": layout("fill of a pack", "share of packs", xaxis=axis, yaxis={"tickformat": ".0%"}, barmode="group"),
    }


def measured_chart(
    series: Sequence[HostSeries],
    values: Sequence[np.ndarray],
    y: str,
    *,
    expected: tuple[str, float] | None = None,
    **axis: Any,
) -> Figure:
    """A measured figure over steps, a line a host, beside what was forecast.

    Peaks far above the rest, those of cold starts, run out of the frame; who zooms out sees them whole.
    """
    traces: list[dict[str, Any]] = [
        {
            "x": host.step,
            "y": value,
            "name": f"host {host.host}",
            "mode": "lines" if host.step.size > 1 else "markers",
            "line": {"color": PALETTE[k % len(PALETTE)], "width": 1.5},
        }
        for k, (host, value) in enumerate(zip(series, values, strict=True))
    ]
    if expected is not None and series:
        ends = [min(int(h.step[0]) for h in series), max(int(h.step[-1]) for h in series)]
        line = {"color": GREY, "dash": "dash", "width": 1.5}
        traces.append({"x": ends, "y": [expected[1]] * 2, "name": expected[0], "mode": "lines", "line": line})
    framed = _framed(np.concatenate([np.zeros(0), *values]), 0.0 if expected is None else expected[1])
    return {"data": traces, "layout": layout("step", y, yaxis={"rangemode": "tozero", **framed, **axis})}


def _framed(values: np.ndarray, expected: float = 0.0) -> dict[str, Any]:
    """The range of an axis that a few peaks would flatten; empty: all fit."""
    values = values[np.isfinite(values)]
    if values.size < 20:
        return {}
    usual = 2 * max(float(np.quantile(values, 0.9)), expected)
    return {"range": [0, usual]} if 0 < usual < 0.5 * float(values.max()) else {}


def waits_chart(series: HostSeries) -> Figure:
    """Percentiles of the wait for a batch, of one host."""
    traces: list[dict[str, Any]] = []
    for k, (name, label) in enumerate((("wait_p50_s", "p50"), ("wait_p95_s", "p95"), ("wait_p99_s", "p99"))):
        line = {"color": PALETTE[(0, 1, 6)[k]], "width": 1.5}
        milliseconds = np.maximum(series.levels[name] * 1000, 1e-3)
        traces.append({"x": series.step, "y": milliseconds, "name": label, "mode": "lines", "line": line})
    return {"data": traces, "layout": layout("step", "wait for a batch, ms", yaxis={"type": "log", "dtick": 1})}


def loader_time_chart(series: HostSeries) -> Figure:
    """Where the loader's thread spent its time, stacked, in milliseconds a batch, of one host."""
    traces: list[dict[str, Any]] = []
    for name, label, colour in _LOADER_TIME:
        if name == "map_s" and not series.sums[name].any():
            continue  # few runs have such functions
        traces.append(
            {
                "x": series.step,
                "y": series.per_batch(name) * 1000,
                "name": label,
                "mode": "lines",
                "stackgroup": "time",
                "line": {"color": PALETTE[colour], "width": 1},
                "hovertemplate": "%{y:.3~g} ms",
            }
        )
    total = sum((trace["y"] for trace in traces), np.zeros(series.step.size))
    return {"data": traces, "layout": layout("step", "ms a batch", yaxis={"rangemode": "tozero", **_framed(total)})}


def stalls_chart(stalls: Sequence[Stall]) -> Figure:
    """Stalls by step and length, a colour a cause."""
    traces: list[dict[str, Any]] = []
    for k, cause in enumerate(dict.fromkeys(stall.cause for stall in stalls)):
        of = [stall for stall in stalls if stall.cause == cause]
        traces.append(
            {
                "x": [stall.step for stall in of],
                "y": [stall.wait_s * 1000 for stall in of],
                "text": [name_of(f"host {stall.host}") for stall in of],
                "name": name_of(cause),
                "mode": "markers",
                "marker": {"color": PALETTE[k % len(PALETTE)], "size": 8},
                "hovertemplate": "%{y:.3~g} ms, %{text}",
            }
        )
    return {
        "data": traces,
        "layout": layout(
            "step", "ms waited", yaxis={"type": "log", "dtick": "D2"}, showlegend=True, hovermode="closest"
        ),
    }


def _grouped(facts: MixtureFacts, *tables: np.ndarray) -> list[tuple[Any, ...]]:
    """Name and columns of the largest sources, and of all others together."""
    most = largest(facts, MOST_SOURCES if len(facts.names) <= MOST_SOURCES else MOST_SOURCES - 1)
    found: list[tuple[Any, ...]] = [(facts.names[d], *(t[:, d] for t in tables)) for d in most]
    if len(most) < len(facts.names):
        rest = [d for d in range(len(facts.names)) if d not in set(most)]
        found.append((_OTHERS, *(t[:, rest].sum(axis=1) for t in tables)))
    return found


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
