"""The page of two runs side by side: the four questions, the losses, the mixtures, the progress
through each source, waiting, and the fields of the configs that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import numbers as n
from headrace.config.writing import given_fields
from headrace.report.blocks import Block, Chart, Kind, Section, Table, Text, columns
from headrace.report.charts import axis, lines_chart, mixtures_chart
from headrace.report.facts import PlanFacts, ReportFacts
from headrace.report.run_sections import losses_of, verdicts
from headrace.run.differences import Difference, differing_values


def compared(a: ReportFacts, b: ReportFacts) -> list[Section]:
    """All parts of the page of two runs, in their order."""
    runs = dict(zip(titles(a, b), (a, b), strict=True))
    sections = [
        Section("summary", "Summary", [_questions(runs)]),
        _config_section(runs),
        Section("loss", "Loss", _losses(runs)),
    ]
    plans = {title: facts.plan for title, facts in runs.items() if facts.plan is not None}
    if plans:
        steps_done = {title: facts.records.steps_done for title, facts in runs.items()}
        sections.append(_mixture_section(plans, steps_done))
    return [*sections, Section("waiting", "Measured: waiting and speed", _waiting(runs))]


def titles(a: ReportFacts, b: ReportFacts) -> tuple[str, str]:
    """What two runs are called on their page: their titles, or A and B if these are the same."""
    return (a.title, b.title) if a.title != b.title else ("A", "B")


def config_changes(a: ReportFacts, b: ReportFacts) -> list[Difference]:
    """The fields in which the configs of two runs differ."""
    return differing_values(_config_of(a), _config_of(b), absent="not set")


def _config_of(facts: ReportFacts) -> Mapping[str, Any]:
    if facts.plan is not None:
        return given_fields(facts.plan.plan.original)
    return (facts.lock and facts.lock.config) or {}


def _questions(runs: Mapping[str, ReportFacts]) -> Table:
    rows: list[list[str]] = []
    for answers in zip(*(verdicts(facts) for facts in runs.values()), strict=True):
        question = answers[0][1]
        rows.append([question, *(f"{verdict} ({figures})" for _, _, verdict, figures in answers)])
    return Table(columns("", *runs, left=3), rows)


def _config_section(runs: Mapping[str, ReportFacts]) -> Section:
    changes = config_changes(*runs.values())
    if not changes:
        same = Text("The configs of the two runs are the same.", quiet=True)
        return Section("config", "What differs in the configs", [same])
    heads: list[tuple[str, Kind]] = [("field", "code"), *((title, "code") for title in runs)]
    return Section("config", "What differs in the configs", [Table(heads, changes)])


def _losses(runs: Mapping[str, ReportFacts]) -> list[Block]:
    """A chart for each logged loss, with a line for each run that has it."""
    losses = {title: losses_of(facts.records) for title, facts in runs.items()}
    names = dict.fromkeys(name for points in losses.values() for name in points)
    charts = [
        Chart(
            f"loss-{k}",
            name,
            lines_chart(
                {title: points[name] for title, points in losses.items() if name in points}
            ),
        )
        for k, name in enumerate(names)
    ]
    return [*charts] or [Text("Neither run logged a loss.", quiet=True)]


def _mixture_section(plans: Mapping[str, PlanFacts], steps_done: Mapping[str, int]) -> Section:
    """Shares of rows over steps, and rows, tokens and epochs of each source."""
    solid, *dotted = plans
    caption = f"Share of the rows. Lines: {solid}." + "".join(f" Dots: {t}." for t in dotted)
    chart = Chart(
        "mixture",
        "Mixture",
        mixtures_chart([plan.mixture for plan in plans.values()]),
        f"{caption} Click a source in the legend to hide it; double-click to show it alone.",
    )
    sources = dict.fromkeys(name for plan in plans.values() for name in plan.mixture.names)
    figures = [_by_source(plan, steps_done[title]) for title, plan in plans.items()]
    heads = [f"{what}, {title}" for what in ("rows", "epochs", "so far") for title in plans]
    missing = [n.NOTHING] * 3
    rows: list[list[str]] = []
    for name in sources:
        kinds = zip(*(of_source.get(name, missing) for of_source in figures), strict=True)
        rows.append([name, *(figure for of_runs in kinds for figure in of_runs)])
    table = Table(
        columns("source", *heads, left=1), rows, "Rows and epochs as planned, epochs so far"
    )
    return Section("mixture", "Mixture and progress", [chart, table])


def _by_source(plan: PlanFacts, steps_done: int) -> dict[str, list[str]]:
    """For each source its share of the rows, its epochs, and its epochs so far."""
    drawn = plan.mixture.drawn.sum(axis=0)
    share = drawn / max(int(drawn.sum()), 1)
    passes = plan.passes_until(steps_done)
    return {
        name: [
            n.percent(float(share[d])),
            n.digits(plan.plan.components[d].epochs),
            n.digits(passes[d]),
        ]
        for d, name in enumerate(plan.mixture.names)
    }


def _waiting(runs: Mapping[str, ReportFacts]) -> list[Block]:
    """Waiting and speed of the host of each run that waited longest."""
    hosts = {
        title: max(facts.records.series, key=lambda s: s.total("wait_s"))
        for title, facts in runs.items()
        if facts.records.series
    }
    if not hosts:
        return [Text("Neither run has measurements yet.", quiet=True)]

    def chart(name: str, title: str, counter: str, y: dict[str, Any]) -> Chart:
        lines = {run: (host.step, host.per_second(counter)) for run, host in hosts.items()}
        return Chart(name, title, {**lines_chart(lines), "y": y})

    return [
        chart(
            "waiting",
            "Share of the time that the trainer waited for data",
            "wait_s",
            axis("share of time", "share", zero=True),
        ),
        chart("speed", "Speed", "batches", axis("batches per second", zero=True)),
    ]
