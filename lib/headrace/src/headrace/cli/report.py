"""``headrace run report``: writes a page about the data of a run, planned and measured."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import host_numbers, refuse_typed
from headrace.cli.shown import say, working
from headrace.errors import ConfigError
from headrace.numbers import in_bytes

if TYPE_CHECKING:
    from headrace.report.facts import ReportFacts

PORT = 8473


def command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help="Folder of a run, or YAML file of an LmDataConfig.", metavar="RUN_FOLDER_OR_CONFIG"
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Another run or config, to compare with; and settings that override the config,"
            " e.g. batch_size=512.",
            metavar="[OTHER] [NAME=VALUE]...",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="File to write.", metavar="FILE")
    ] = "report.html",
    hosts: Annotated[
        str | None,
        typer.Option(
            help="Numbers of hosts to forecast for; by default 1 and that of the run.",
            metavar="N,N,...",
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page on this machine while the run continues.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="Port for --live; 0: any free port.", min=0, max=65535)
    ] = PORT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the contents of the page as JSON; write no page.")
    ] = False,
) -> None:
    """Write an HTML page about a run's data: mixture, epochs, order, reads, waiting, stalls,
    provenance; or about two runs, side by side.

    The plan is computed from the config; the measurements are those that RunLog wrote to the run's
    folder. The page needs no network and no other file.

    For example:

        headrace run report runs/7b

        headrace run report run.yaml num_steps=100000 --output plan.html

        headrace run report runs/7b --hosts 16

        headrace run report runs/7b --live

        headrace run report runs/7b runs/7b-again
    """
    from headrace.report.facts import gather
    from headrace.report.page import LiveReport, write_report

    if not live:
        cure = "Add --live, or leave it out."
        refuse_typed(context, ("port",), "has no effect without --live", cure)
    overrides = [one for one in settings or [] if _is_setting(one)]
    others = [one for one in settings or [] if not _is_setting(one)]
    if others:
        refuse_typed(context, ("live",), "has no effect on two runs")
    if len(others) > 1:
        cure = "Name two at most."
        raise ConfigError("is a third run", field="OTHER", value=others[1], cure=cure)
    of_hosts = host_numbers(hosts)
    with working("looking at the run"):
        facts = gather(target, overrides, hosts=of_hosts, must_exist=not live)
        other = gather(others[0], overrides, hosts=of_hosts) if others else None
    if as_json:
        contents = _as_json(facts) if other is None else _both_as_json(facts, other)
        say(json.dumps(contents, allow_nan=False))
    elif live:
        served = LiveReport(facts, port=port)
        say(f"{served.url} (Ctrl-C stops it)")
        if facts.folder is not None and facts.lock is None and not facts.records.sessions:
            say(f"There is no run in {target} yet: the page waits for one to begin there.")
        with contextlib.suppress(KeyboardInterrupt):
            served.serve()
    else:
        with working("writing the page"):
            written = write_report(facts, output, other=other)
        say(f"{output}: {in_bytes(written)}, needs no network")


def _is_setting(argument: str) -> bool:
    """Whether an argument is ``name=value``, and no path: ``./lr=1`` is one."""
    name, equals, _ = argument.partition("=")
    return bool(equals) and "/" not in name


def _both_as_json(facts: ReportFacts, other: ReportFacts) -> dict[str, Any]:
    """The contents of a page of two runs, as JSON values."""
    from headrace.report.comparison import config_changes

    changes = [change._asdict() for change in config_changes(facts, other)]
    return {"runs": [_as_json(facts), _as_json(other)], "config": changes}


def _as_json(facts: ReportFacts) -> dict[str, Any]:
    """The contents of the page, as JSON values."""
    from headrace.report.blocks import plain
    from headrace.report.page import state

    plan = facts.plan
    records = facts.records
    figures = {
        name: figure
        for section in state(facts)["sections"]
        for name, figure in section["figures"].items()
    }
    measured = {
        "hosts": records.hosts,
        "starts": records.sessions,
        "last_step": records.last_step,
        "waiting_share": records.waiting_share,
        "by_host": {s.host: {name: s.total(name) for name in s.sums} for s in records.series},
        "stalls": [asdict(stall) for stall in records.stalls],
        "left_out_lines": records.left_out,
    }
    return {
        "title": facts.title,
        "folder": facts.folder,
        "plan": None if plan is None else plan.plan.to_dict(),
        "findings": [] if plan is None else [finding.to_dict() for finding in plan.findings],
        "fingerprint": {
            "config": None if plan is None else plan.fingerprint,
            "run": None if facts.lock is None else facts.lock.fingerprint,
        },
        "sources": [] if plan is None else [asdict(source) for source in plan.sources],
        "measured": measured if records.series else None,
        "own": {
            name: dict(zip(s.tolist(), plain(v), strict=True))
            for name, (s, v) in records.figures.items()
        },
        "figures": {name.removeprefix("chart-"): figure for name, figure in figures.items()},
    }
