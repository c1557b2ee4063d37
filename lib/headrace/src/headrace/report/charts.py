"""The figures of a report, in the form of plotly.js: plain dicts, so making them needs no plotting library.

The colours of sources are those of Okabe and Ito (2008), which colour-blind readers can distinguish, darkened or
lightened to be visible on white and on black. If there are more sources than colours, dashes distinguish them.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.analysis.simulate.forecast import Forecast
from headrace.report.blocks import Figure
from headrace.report.plan_figures import Fill, Lengths, MixtureFacts, largest
from headrace.report.run_records import HostSeries, Points
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
    """A name escaped for plotly, which interprets some markup."""
    return html.escape(text, quote=False)


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Axis titles and other special settings; margins, fonts and colours are the page's."""
    axes: dict[str, Any] = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    if x == "step":
        axes["xaxis"]["tickformat"] = ",d"
    for axis in ("xaxis", "yaxis"):
        axes[axis] |= more.pop(axis, {})
    return {**axes, **more}


def _line(k: int, x: Any, y: Any, name: str, *, line: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A trace: a line in the ``k``-th colour, unless ``line`` and ``more`` override it."""
    style = {"color": PALETTE[k % len(PALETTE)], "width": 2, **(line or {})}
    return {"x": x, "y": y, "name": name_of(name), "mode": "lines", "line": style, **more}


def _bars(k: int, x: Any, y: Any, name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": x,
        "y": y,
        "name": name_of(name),
        "marker": {"color": PALETTE[k % len(PALETTE)]},
        **more,
    }


def mixture_chart(facts: MixtureFacts) -> Figure:
    """Actual share (line) and target share (dots) of each source over steps; each source has one legend entry."""
    traces: list[dict[str, Any]] = []
    rows = facts.drawn.sum(axis=1), facts.target.sum(axis=1)
    for k, (name, drawn, planned) in enumerate(_grouped(facts, facts.drawn, facts.target)):
        colour = {"color": GREY} if name == _OTHERS else {}
        line, dots = {**colour, "dash": _dash(k)}, {**colour, "width": 1.5, "dash": "dot"}
        more: dict[str, Any] = {"legendgroup": name, "hovertemplate": "%{y:.2%}"}
        traces.append(_line(k, facts.middle, _over(drawn, rows[0]), name, line=line, **more))
        share = _over(planned, rows[1])
        traces.append(_line(k, facts.middle, share, f"{name}, target", line=dots, showlegend=False, **more))
    axis = {"tickformat": ".0%", "rangemode": "tozero"}
    return {"data": traces, "layout": layout("step", "share of rows", yaxis=axis, height=380)}


def epochs_chart(facts: MixtureFacts, row_tokens: Sequence[int]) -> Figure:
    """Passes over each source so far, over steps."""
    passes = facts.tokens.cumsum(axis=0) / np.maximum(np.asarray(row_tokens, np.float64), 1)
    traces = [
        _line(
            k,
            facts.edge,
            np.concatenate([[0.0], passes[:, d]]),
            facts.names[d],
            line={"dash": _dash(k)},
            hovertemplate="%{y:.3~g}",
        )
        for k, d in enumerate(largest(facts, MOST_SOURCES))
    ]
    return {"data": traces, "layout": layout("step", "epochs", yaxis={"rangemode": "tozero"})}


def quality_chart(forecast: Forecast) -> Figure:
    """Variance ratios of windows of batches, compared with 1, a full shuffle."""
    windows, ratios = [*forecast.variance_ratio], [*forecast.variance_ratio.values()]
    texts = {"text": [f"{r:.3f}" for r in ratios], "textposition": "outside", "cliponaxis": False}
    bars = _bars(0, windows, ratios, "this order", **texts, hovertemplate="%{y:.4f}<extra></extra>", width=0.5)
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    reference = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "line": line}
    axis = {"range": [0, max(1.25, 1.15 * max(ratios, default=1.0))]}
    return {
        "data": [bars],
        "layout": layout("window", "variance ratio", yaxis=axis, shapes=[reference], showlegend=False, height=280),
    }


def lengths_chart(lengths: Mapping[str, Lengths]) -> Figure:
    """Share of documents by length, one step line per source."""
    traces: list[dict[str, Any]] = []
    for k, (name, histogram) in enumerate([*lengths.items()][:MOST_SOURCES]):
        if histogram.documents.size:
            edge = np.maximum(histogram.edge, 0.7)  # empty documents, on a logarithmic axis
            share = np.append(histogram.documents, histogram.documents[-1])
            traces.append(_line(k, edge, share, name, line={"shape": "hv"}, hovertemplate="%{y:.1%}"))
    axis = {"tickformat": ".0%", "rangemode": "tozero"}
    return {
        "data": traces,
        "layout": layout("tokens in a document", "share of documents", xaxis={"type": "log"}, yaxis=axis),
    }


def fill_chart(fills: Mapping[str, Fill]) -> Figure:
    """Share of packs by how full they are."""
    traces = [
        _bars(k, (np.arange(fill.share.size) + 0.5) / fill.share.size, fill.share, name, hovertemplate="%{y:.1%}")
        for k, (name, fill) in enumerate([*fills.items()][:MOST_SOURCES])
    ]
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
    """A measured figure over steps, a line per host, next to the forecast."""
    traces = [
        _line(
            k,
            host.step,
            value,
            f"host {host.host}",
            mode="lines" if host.step.size > 1 else "markers",
            line={"width": 1.5},
        )
        for k, (host, value) in enumerate(zip(series, values, strict=True))
    ]
    if expected is not None and series:
        ends = [min(int(h.step[0]) for h in series), max(int(h.step[-1]) for h in series)]
        line = {"color": GREY, "dash": "dash", "width": 1.5}
        traces.append(_line(0, ends, [expected[1]] * 2, expected[0], line=line))
    steps = np.concatenate([np.zeros(0), *(host.step for host in series)])
    peaks, frame = _peaks(steps, np.concatenate([np.zeros(0), *values]), 0.0 if expected is None else expected[1])
    return {"data": traces + peaks, "layout": layout("step", y, yaxis={"rangemode": "tozero", **frame, **axis})}


def lines_chart(lines: Mapping[str, Points]) -> Figure:
    """Figures over steps, one line per figure."""
    traces = [
        _line(k, steps, values, name, mode="lines" if steps.size > 1 else "markers", line={"dash": _dash(k)})
        for k, (name, (steps, values)) in enumerate(lines.items())
    ]
    return {"data": traces, "layout": layout("step", "", showlegend=True)}


def _peaks(steps: np.ndarray, values: np.ndarray, expected: float = 0.0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Triangles, with their values, for the few peaks that would flatten everything else, and the range of the axis
    below them. Both empty if all values fit.
    """
    usual = 2 * max(float(np.nanquantile(values, 0.9)), expected) if np.isfinite(values).sum() >= 20 else 0.0
    if not 0 < usual < 0.5 * float(np.nanmax(values)):
        return [], {}
    high = np.flatnonzero(np.nan_to_num(values) > usual)
    texts = [f"{value:.3g}" for value in values[high]]
    marker = {"symbol": "triangle-up", "color": GREY, "size": 9}
    more: dict[str, Any] = {"mode": "markers+text", "marker": marker, "text": texts, "textposition": "bottom center"}
    triangles = _line(0, steps[high], np.full(high.size, usual), "peak", hovertemplate="%{text}", **more)
    return [triangles], {"range": [0, 1.04 * usual]}


def waits_chart(series: HostSeries) -> Figure:
    """Percentiles of the wait for a batch, of one host."""
    traces = [
        _line(colour, series.step, np.maximum(series.levels[name] * 1000, 1e-3), label, line={"width": 1.5})
        for name, label, colour in (("wait_p50_s", "p50", 0), ("wait_p95_s", "p95", 1), ("wait_p99_s", "p99", 6))
    ]
    return {"data": traces, "layout": layout("step", "wait for a batch, ms", yaxis={"type": "log", "dtick": 1})}


def loader_time_chart(series: HostSeries) -> Figure:
    """How the loader's thread spent its time on one host, stacked, in milliseconds per batch."""
    more: dict[str, Any] = {"stackgroup": "time", "line": {"width": 1}, "hovertemplate": "%{y:.3~g} ms"}
    traces = [
        _line(colour, series.step, series.per_batch(name) * 1000, label, **more)
        for name, label, colour in _LOADER_TIME
        if name != "map_s" or series.sums[name].any()  # few runs have such functions
    ]
    total = sum((trace["y"] for trace in traces), np.zeros(series.step.size))
    peaks, frame = _peaks(series.step, total)
    axis = {"rangemode": "tozero", **frame}
    return {"data": traces + peaks, "layout": layout("step", "ms per batch", yaxis=axis)}


def stalls_chart(stalls: Sequence[Stall]) -> Figure:
    """Stalls by step and length, one colour per cause."""
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
    axis = {"type": "log", "dtick": "D2"}
    return {"data": traces, "layout": layout("step", "ms waited", yaxis=axis, showlegend=True, hovermode="closest")}


def _dash(k: int) -> str:
    return _DASHES[k // len(PALETTE) % len(_DASHES)]


def _grouped(facts: MixtureFacts, *tables: np.ndarray) -> list[tuple[Any, ...]]:
    """Name and columns of the largest sources, and of all others together."""
    most = largest(facts, MOST_SOURCES if len(facts.names) <= MOST_SOURCES else MOST_SOURCES - 1)
    series: list[tuple[Any, ...]] = [(facts.names[d], *(t[:, d] for t in tables)) for d in most]
    if len(most) < len(facts.names):
        rest = [d for d in range(len(facts.names)) if d not in set(most)]
        series.append((_OTHERS, *(t[:, rest].sum(axis=1) for t in tables)))
    return series


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
