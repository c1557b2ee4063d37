"""The figures of a report, as ``charts.js`` draws them: plain values, whose colours are the page's.

The colours of sources are those of Okabe and Ito (2008), which colour-blind readers can
distinguish, darkened or lightened by the page to be visible on white and on black. If there are
more sources than colours, dashes distinguish them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.analysis.simulate.forecast import Forecast
from headrace.metrics import Stall
from headrace.report.blocks import Figure
from headrace.report.plan_figures import Fill, Lengths, MixtureFacts, largest
from headrace.report.run_records import HostSeries, Points

COLOURS = 10
DASHES = 3
GREY = -1
_LOADER_TIME = (
    ("plan_s", "plans", 3),
    ("read_s", "waits for the store", 0),
    ("gather_s", "gathers rows", 2),
    ("map_s", "runs functions of map", 7),
    ("transfer_s", "hands to devices", 1),
)
MOST_SOURCES = 12
_OTHERS = "others"
_FLATTENS = 3


def axis(title: str, number_format: str = "number", **more: Any) -> dict[str, Any]:
    """An axis: its title, the format of its numbers (``share``, ``count`` or ``number``) and,
    optionally, ``log``, ``zero`` (it includes zero) and ``range``.
    """
    return {"title": title, "format": number_format, **more}


STEP = axis("step", "count")


def _series(k: int, x: Any, y: Any, name: str, mark: str = "line", **more: Any) -> dict[str, Any]:
    """A series in the ``k``-th colour and dash of many."""
    return {"name": name, "mark": mark, "x": x, "y": y, "colour": k % COLOURS, **more}


def mixture_chart(facts: MixtureFacts) -> Figure:
    """Actual share (line) and target share (dots) of each source over steps; each source has one
    legend entry.
    """
    series: list[dict[str, Any]] = []
    rows = facts.drawn.sum(axis=1), facts.target.sum(axis=1)
    largest_rows = float(facts.drawn.sum(axis=0).max(initial=0.0))
    for k, (name, drawn, planned) in enumerate(_grouped(facts, facts.drawn, facts.target)):
        more: dict[str, Any] = {"group": name}
        if name == _OTHERS:
            more |= {"colour": GREY, "hidden": float(drawn.sum()) > _FLATTENS * largest_rows}
        series.append(_series(k, facts.middle, _over(drawn, rows[0]), name, dash=_dash(k), **more))
        share = _over(planned, rows[1])
        target = {"dash": "dots", "width": 1.5, "legend": False}
        series.append(_series(k, facts.middle, share, f"{name}, target", **target, **more))
    return {
        "series": series,
        "x": {**STEP, "range": [0, int(facts.edge[-1])]},
        "y": axis("share of rows", "share", zero=True),
        "height": 320,
    }


def mixtures_chart(runs: Sequence[MixtureFacts]) -> Figure:
    """Actual share of each source over steps, of the first run as a line and of the second as dots;
    each source has one legend entry.
    """
    series: list[dict[str, Any]] = []
    colours: dict[str, int] = {}
    for facts, width in zip(runs, (2, 1.5), strict=False):
        for name, drawn in _grouped(facts, facts.drawn):
            legend = name not in colours
            k = colours.setdefault(name, len(colours))
            share = _over(drawn, facts.drawn.sum(axis=1))
            dash = _dash(k) if facts is runs[0] else "dots"
            line = _series(k, facts.middle, share, name, group=name, width=width)
            series.append(line | {"dash": dash, "legend": legend})
    y = axis("share of rows", "share", zero=True)
    return {"series": series, "x": STEP, "y": y, "legend": True}


def epochs_chart(facts: MixtureFacts, row_tokens: Sequence[int]) -> Figure:
    """Passes over each source so far, over steps."""
    passes = facts.tokens.cumsum(axis=0) / np.maximum(np.asarray(row_tokens, np.float64), 1)
    series = [
        _series(k, facts.edge, np.concatenate([[0.0], passes[:, d]]), facts.names[d], dash=_dash(k))
        for k, d in enumerate(largest(facts, MOST_SOURCES))
    ]
    return {"series": series, "x": STEP, "y": axis("epochs", zero=True)}


def quality_chart(forecast: Forecast) -> Figure:
    """Variance ratios of windows of batches, compared with 1, a full shuffle."""
    windows = [*forecast.variance_ratio]
    ratios = [*forecast.variance_ratio.values()]
    bars = _series(
        0, windows, ratios, "this order", "bar", text=[f"{ratio:.3f}" for ratio in ratios]
    )
    y = axis("variance ratio", range=[0, max(1.25, 1.15 * max(ratios, default=1.0))])
    return {
        "series": [bars],
        "x": axis("window"),
        "y": y,
        "rule": 1,
        "legend": False,
        "height": 260,
    }


def lengths_chart(lengths: Mapping[str, Lengths]) -> Figure:
    """Share of documents by length, one step line per source."""
    series: list[dict[str, Any]] = []
    for k, (name, histogram) in enumerate([*lengths.items()][:MOST_SOURCES]):
        if histogram.documents.size:
            edge = np.maximum(histogram.edge, 0.7)  # empty documents, on a logarithmic axis
            edge = np.concatenate([edge[:1], edge, edge[-1:]])  # up from the axis, and down to it
            share = np.concatenate([[0.0], histogram.documents, histogram.documents[-1:], [0.0]])
            series.append(_series(k, edge, share, name, "step", dash=_dash(k)))
    y = axis("share of documents", "share", zero=True)
    return {"series": series, "x": axis("tokens in a document", log=True), "y": y}


def fill_chart(fills: Mapping[str, Fill]) -> Figure:
    """Share of packs by how full they are."""
    series = [
        _series(k, (np.arange(fill.share.size) + 0.5) / fill.share.size, fill.share, name, "bar")
        for k, (name, fill) in enumerate([*fills.items()][:MOST_SOURCES])
    ]
    x = axis("fill of a pack", "share", range=[0, 1.02])
    y = axis("share of packs", "share", zero=True)
    return {"series": series, "x": x, "y": y}


def measured_chart(
    series: Sequence[HostSeries],
    values: Sequence[np.ndarray],
    y: dict[str, Any],
    *,
    expected: tuple[str, float] | None = None,
) -> Figure:
    """A measured figure over steps, a line per host, next to the forecast."""
    lines = [
        _series(k, host.step, value, f"host {host.host}", width=1.5)
        for k, (host, value) in enumerate(zip(series, values, strict=True))
    ]
    if expected is not None and series:
        ends = [min(int(h.step[0]) for h in series), max(int(h.step[-1]) for h in series)]
        lines.append(
            _series(0, ends, [expected[1]] * 2, expected[0], colour=GREY, dash=2, width=1.5)
        )
    steps = np.concatenate([np.zeros(0), *(host.step for host in series)])
    peaks, frame = _peaks(
        steps, np.concatenate([np.zeros(0), *values]), 0.0 if expected is None else expected[1]
    )
    return {"series": lines + peaks, "x": STEP, "y": {"zero": True, **frame, **y}}


def lines_chart(lines: Mapping[str, Points], steps: int | None = None) -> Figure:
    """Figures over steps, one line per figure; over all steps of the run, if they are given."""
    series = [
        _series(k, at, values, name, dash=_dash(k))
        for k, (name, (at, values)) in enumerate(lines.items())
    ]
    x = STEP if steps is None else {**STEP, "range": [0, steps]}
    return {"series": series, "x": x, "y": axis(""), "legend": True}


def _peaks(
    steps: np.ndarray, values: np.ndarray, expected: float = 0.0
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Triangles, with their values, for the few peaks that would flatten everything else, and the
    range of the axis below them. Both empty if all values fit.
    """
    usual = (
        2 * max(float(np.nanquantile(values, 0.9)), expected)
        if np.isfinite(values).sum() >= 20
        else 0.0
    )
    if not 0 < usual < 0.5 * float(np.nanmax(values)):
        return [], {}
    high = np.flatnonzero(np.nan_to_num(values) > usual)
    peaks = _series(
        0, steps[high], np.full(high.size, usual), "peak", "peaks", colour=GREY, text=values[high]
    )
    return [peaks], {"range": [0, 1.04 * usual]}


def waits_chart(series: HostSeries) -> Figure:
    """Percentiles of the wait for a batch, of one host."""
    lines = [
        _series(colour, series.step, np.maximum(series.levels[name] * 1000, 1e-3), label, width=1.5)
        for name, label, colour in (
            ("wait_p50_s", "p50", 0),
            ("wait_p95_s", "p95", 1),
            ("wait_p99_s", "p99", 6),
        )
    ]
    return {"series": lines, "x": STEP, "y": axis("wait for a batch, ms", log=True)}


def loader_time_chart(series: HostSeries) -> Figure:
    """How the loader's thread spent its time on one host, stacked, in milliseconds per batch."""
    areas = [
        _series(colour, series.step, series.per_batch(name) * 1000, label, "area")
        for name, label, colour in _LOADER_TIME
        if name != "map_s" or series.sums[name].any()  # few runs have functions of map
    ]
    total = sum((area["y"] for area in areas), np.zeros(series.step.size))
    peaks, frame = _peaks(series.step, total)
    return {"series": areas + peaks, "x": STEP, "y": axis("ms per batch", zero=True, **frame)}


def stalls_chart(stalls: Sequence[Stall]) -> Figure:
    """Stalls by step and length, one colour per cause."""
    series: list[dict[str, Any]] = []
    for k, cause in enumerate(dict.fromkeys(stall.cause for stall in stalls)):
        of_cause = [stall for stall in stalls if stall.cause == cause]
        steps = [stall.step for stall in of_cause]
        waits = [stall.wait_s * 1000 for stall in of_cause]
        series.append(
            _series(
                k, steps, waits, cause, "dots", text=[f"host {stall.host}" for stall in of_cause]
            )
        )
    return {"series": series, "x": STEP, "y": axis("ms waited", log=True), "legend": True}


def _dash(k: int) -> int:
    return k // COLOURS % DASHES


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
