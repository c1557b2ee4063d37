"""The sections of a report about the run: its identity and, from its counters, reads, waits and
stalls.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from headrace.errors import format_count
from headrace.report import numbers as n
from headrace.report.blocks import Block, Chart, Kind, Notes, Section, Table, Text, Tiles, columns
from headrace.report.charts import (
    axis,
    loader_time_chart,
    measured_chart,
    stalls_chart,
    waits_chart,
)
from headrace.report.facts import PlanFacts, ReportFacts, Source
from headrace.report.plan_sections import forecast_for, largest_epochs
from headrace.report.run_records import HostSeries, RunRecords

WAITING_BAR = 0.02
"""Share of waiting above which data delays training; see docs/metrics.md."""
MOST_STALLS = 100
MOST_HOSTS = 10
_HELP = {
    "start": "Nothing. It happens once per start.",
    "store": "Use more prefetch_bytes, or a store that is closer.",
    "decode": "Free CPU cores, or use caches without compression.",
    "check": "Use a faster disk, or run fewer readers on it.",
    "budget": "Increase prefetch_bytes.",
    "plan": "Free CPU cores.",
    "gather": "Free CPU cores.",
    "transfer": "Use fewer small devices per process, or a faster link.",
    "dataset": "Make the function faster.",
    "hosts": "Look at the named host; its report shows what it waited for.",
    "trainer ahead": "Run fewer Python threads next to the loader.",
}
_NOT_MEASURED = (
    "There are no measurements yet. In the training loop, RunLog(loader, folder, config=config)"
    " writes the loader's counters into the run's folder; see docs/report.md."
)
_PEAKS = "Triangles mark peaks that are higher than the chart, with their values."
_WHERE: list[tuple[str, Kind]] = [("where", "code"), ("its rows", "code")]


def summary_section(facts: ReportFacts) -> Section:
    """The run at a glance, with notes."""
    plan = facts.plan
    records = facts.records
    tiles: list[tuple[str, str, str]] = []
    if plan is not None:
        tiles += _plan_tiles(plan, facts)
    if records.series:
        tiles += _measured_tiles(records)
    blocks: list[Block] = [Tiles(tiles)] if tiles else []
    if facts.why_no_plan and plan is None:
        blocks.append(Notes([("warning", "", facts.why_no_plan)]))
    blocks.append(Notes(_notes(facts)))
    return Section("summary", "Summary", blocks)


def provenance_section(facts: ReportFacts) -> Section:
    """The data, tokenizer and order of the run."""
    blocks: list[Block] = []
    identity: list[list[str]] = []
    if facts.lock is not None:
        identity.append(["run's lock", facts.lock.fingerprint])
    if facts.plan is not None:
        identity.append(["config", facts.plan.fingerprint or "unknown: a cache is missing"])
    if identity:
        blocks.append(Table([("fingerprint of", "left"), ("value", "code")], identity))
    if facts.plan is not None:
        sources = facts.plan.sources
        heads: list[tuple[str, Kind]] = [
            *columns("source", left=1),
            ("cache", "code"),
            *columns("documents", "tokens"),
            ("content", "code"),
            ("built from", "code"),
            *columns("files"),
            *columns("built by", left=1),
        ]
        blocks.append(Table(heads, [_source_row(s) for s in sources], "Sources"))
        tokenizers = sorted(
            {(s.tokenizer, s.tokenizer_fingerprint, s.vocab_size) for s in sources if s.exists}
        )
        if tokenizers:
            rows = [[path, _digest(mark), n.count(ids)] for path, mark, ids in tokenizers]
            blocks.append(
                Table(
                    [("tokenizer", "code"), ("fingerprint", "code"), ("ids", "right")],
                    rows,
                    "Tokenizer",
                )
            )
    elif facts.lock is not None:
        contents = _contents(facts.lock.plan)
        blocks.append(
            Table(
                [("source", "left"), ("content", "code")],
                [[k, _digest(v)] for k, v in contents],
                "Sources",
            )
        )
    return Section("provenance", "Provenance", blocks)


def _source_row(s: Source) -> list[str]:
    if not s.exists:
        return [s.name, s.cache, n.NOTHING, n.NOTHING, "", "not built yet", n.NOTHING, ""]
    files = n.count(s.files) if s.files else n.NOTHING
    release = s.built_by and f"headrace {s.built_by}"
    counts = (n.count(s.documents), n.count(s.tokens))
    return [s.name, s.cache, *counts, _digest(s.fingerprint), ", ".join(s.paths), files, release]


def amendments_section(facts: ReportFacts) -> Section:
    """Successive mixtures, and which of them were declared during the run."""
    stages, amended = _stages(facts)
    history = facts.lock.history if facts.lock is not None else ()
    blocks: list[Block] = []
    if stages:
        rows = [
            [
                n.count(stage["step"]),
                stage["name"] or n.NOTHING,
                "amendment" if k >= len(stages) - amended else "plan",
                json.dumps(stage["weights"], ensure_ascii=False),
            ]
            for k, stage in enumerate(stages)
        ]
        heads = [*columns("from step"), *columns("name", "declared as", left=2)]
        blocks.append(Table([*heads, ("weights", "code")], rows, "Mixtures"))
    if history:
        rows = [[n.count(h["until_step"]), str(h["fingerprint"])] for h in history]
        blocks.append(
            Table(
                [("until step", "right"), ("fingerprint before", "code")],
                rows,
                "Amendments of this run",
            )
        )
    elif not amended:
        blocks.append(Text("The run was not amended.", quiet=True))
    return Section("amendments", "Amendments", blocks)


def _plan_tiles(plan: PlanFacts, facts: ReportFacts) -> list[tuple[str, str, str]]:
    run = plan.plan
    name = largest_epochs(plan)
    steps = int(plan.mixture.edge[-1])
    last_step = facts.records.last_step
    rows = n.short(float(plan.mixture.drawn.sum()))
    lengths = " → ".join(n.count(length) for _, length in run.phases)
    note = "the config has no num_steps" if plan.assumed_steps else "in the config"
    batch = n.count(run.batch_size)
    if run.largest_batch > run.batch_size:
        batch += f" to {n.count(run.largest_batch)}"
    steps_done = (
        []
        if last_step is None
        else [("Steps done", n.count(last_step + 1), f"of {n.count(steps)}")]
    )
    return [
        ("Planned steps", n.count(steps), note),
        ("Planned tokens", n.short(float(plan.mixture.tokens.sum())), f"{rows} rows of {lengths}"),
        ("Batch", batch, "rows"),
        ("Sources", n.count(len(run.components)), f"most epochs: {n.digits(name[1])}, {name[0]}"),
        *steps_done,
    ]


def _measured_tiles(records: RunRecords) -> list[tuple[str, str, str]]:
    share = records.waiting_share
    rows = sum(s.total("examples_requested") for s in records.series)
    reads = sum(s.total("block_fetches") for s in records.series)
    read = sum(s.total("bytes_read") for s in records.series)
    took = None if records.began is None or records.ended is None else records.ended - records.began
    sessions = (
        "1 process" if records.sessions == 1 else f"{records.sessions} processes in succession"
    )
    if records.hosts > 1:
        sessions = (
            f"{format_count(records.hosts, 'host')}, {format_count(records.sessions, 'start')}"
        )
    return [
        (
            "Waiting",
            n.percent(share),
            "of the time; good below 2%" if share is not None else "unknown so far",
        ),
        (
            "Read",
            n.size(read),
            f"{n.digits(reads / rows) if rows else n.NOTHING} block reads per row",
        ),
        (
            "Stalls",
            n.count(len(records.stalls)),
            n.duration(sum(s.wait_s for s in records.stalls)) + " in total",
        ),
        ("Measured", n.duration(took), sessions),
    ]


def _notes(facts: ReportFacts) -> list[tuple[str, str, str]]:
    plan = facts.plan
    records = facts.records
    notes = list[tuple[str, str, str]]()
    if plan is not None:
        notes += [(f.level, f.field, f"{f.problem}. {f.cure}") for f in plan.findings]
        notes += _mismatch(plan, facts)
    share = records.waiting_share
    if share is not None and share > WAITING_BAR:
        what = (
            f"The trainer waited for data {n.percent(share)} of the time. See the sections on"
            " waiting and stalls."
        )
        notes.append(("warning", "", what))
    if records.left_out:
        cut = (
            f"{n.count(records.left_out)} lines of the log are damaged (was the run killed?) and"
            " were ignored."
        )
        notes.append(("warning", "", cut))
    if not notes:
        notes.append(("good", "", "No problems were found."))
    return notes


def _mismatch(plan: PlanFacts, facts: ReportFacts) -> list[tuple[str, str, str]]:
    if facts.lock is None or plan.lock is None or plan.fingerprint == facts.lock.fingerprint:
        return []
    step = plan.lock.first_difference(facts.lock)
    step = facts.lock.first_difference(plan.lock) if step is None else step
    if step is not None:
        what = (
            f"Config and run differ by an amendment from step {n.count(step)} on. This page shows"
            " the config's plan."
        )
        return [("warning", "", what)]
    what = "This is not the config of the run: their fingerprints differ."
    return [("problem", "", f"{what} The plan on this page is not the plan of the measured run.")]


def _stages(facts: ReportFacts) -> tuple[Sequence[dict[str, Any]], int]:
    """The mixtures in order, and how many of the last are amendments."""
    if facts.plan is not None:
        return facts.plan.plan.stages, facts.plan.amendments
    if facts.lock is None:
        return (), 0
    stages = cast("list[dict[str, Any]]", _first_dataset(facts.lock.plan).get("stages", []))
    trained_until = min((int(h["until_step"]) for h in facts.lock.history), default=None)
    return stages, 0 if trained_until is None else int(
        np.sum([int(s["step"]) >= trained_until for s in stages])
    )


def _first_dataset(resolved: dict[str, Any]) -> dict[str, Any]:
    dataset = resolved.get("dataset", {})
    return dataset["phases"][0]["dataset"] if "phases" in dataset else dataset


def _contents(resolved: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and fingerprints of the caches in a lock."""
    dataset = _first_dataset(resolved)
    parts = dataset.get("components", {"data": dataset})
    return [(name, _fingerprint_in(part)) for name, part in parts.items()]


def _fingerprint_in(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    mapping = cast("dict[str, Any]", part)
    for key in ("tokens", "packed"):
        if isinstance(mapping.get(key), str):
            return mapping[key]
    return next((mark for value in mapping.values() if (mark := _fingerprint_in(value))), "")


def _digest(mark: str) -> str:
    """The first digits of a fingerprint, enough to compare by eye."""
    return mark.rpartition(":")[2][:12]


def reads_section(facts: ReportFacts) -> Section:
    """Measured reads and the forecast."""
    records = facts.records
    if not records.series:
        return Section("reads", "Measured: reads", [Text(_NOT_MEASURED, quiet=True)])
    series = _shown_hosts(records)
    expected = forecast_for(facts.plan, records.hosts)
    hosts = format_count(records.hosts, "host")
    charts = [
        measured_chart(
            series,
            [s.per_batch(name) / unit for s in series],
            axis(title),
            expected=None if expected is None else (f"forecast, {hosts}", expected[k] / unit),
        )
        for k, (name, unit, title) in enumerate(
            (("block_fetches", 1, "block reads per step"), ("bytes_read", 2**20, "MiB per step"))
        )
    ]
    ahead = f"The loader reads ahead, so the first steps after a start read more. {_PEAKS}"
    heads = columns(
        "host",
        "steps",
        "rows",
        "blocks read",
        "read",
        "reads per row",
        "from memory",
        "retries",
        "hedges",
    )
    blocks: list[Block] = [
        *_shown_note(records),
        Chart("fetches", "Blocks read by a host in a step", charts[0], ahead),
        Chart(
            "bytes",
            "Bytes read by a host in a step",
            charts[1],
            "Decoded bytes of the blocks that were read.",
        ),
        Table(heads, [_reads_row(s) for s in records.series], "Total"),
    ]
    return Section("reads", "Measured: reads", blocks)


def waiting_section(facts: ReportFacts) -> Section:
    """How long the trainer waited, and where the loader spent its time."""
    records = facts.records
    if not records.series:
        return Section("waiting", "Measured: waiting", [Text(_NOT_MEASURED, quiet=True)])
    series = _shown_hosts(records)
    worst = max(records.series, key=lambda s: s.total("wait_s"))
    of = f"host {worst.host}, which waited longest" if len(records.series) > 1 else "the only host"
    share = measured_chart(
        series,
        [s.per_second("wait_s") for s in series],
        axis("share of time", "share"),
        expected=(f"{n.percent(WAITING_BAR)}, the threshold", WAITING_BAR),
    )
    speed = measured_chart(
        series, [s.per_second("batches") for s in series], axis("batches per second")
    )
    occupancy = [s.levels["queue_occupancy"] for s in series]
    queue = measured_chart(series, occupancy, axis("ready / room", "share", range=[0, 1.05]))
    blocks: list[Block] = [
        *_shown_note(records),
        Chart(
            "waiting",
            "Share of the time that the trainer waited for data",
            share,
            "Below 2%, a loader without any delay would make training at most a fiftieth faster."
            f" Above it, look at the charts below for the cause. {_PEAKS}",
        ),
        Chart(
            "waits", "Wait for a batch", waits_chart(worst), f"Of the last 10,000 batches of {of}."
        ),
        Chart(
            "loader-time",
            "Where the loader's thread spent its time",
            loader_time_chart(worst),
            f"On {of}. Most of this time overlaps with training. It matters only while the trainer"
            " waits.",
        ),
        Chart("speed", "Speed", speed, "Batches that the trainer received."),
        Chart(
            "queue",
            "Ready batches when the trainer asks",
            queue,
            "Near 100%, the loader is ahead. Near 0%, the trainer waits.",
        ),
    ]
    return Section("waiting", "Measured: waiting", blocks)


def stalls_section(facts: ReportFacts) -> Section:
    """Waits that were much longer than usual, and their causes."""
    stalls = facts.records.stalls
    if not facts.records.series:
        return Section("stalls", "Measured: stalls", [Text(_NOT_MEASURED, quiet=True)])
    if not stalls:
        return Section(
            "stalls", "Measured: stalls", [Text("None. No wait was much longer than usual.")]
        )
    causes = sorted(
        {s.cause for s in stalls},
        key=lambda cause: -sum(s.wait_s for s in stalls if s.cause == cause),
    )
    by_cause = [
        [cause, n.count(len(of)), n.duration(sum(of)), n.duration(max(of)), _HELP.get(cause, "")]
        for cause in causes
        for of in [[s.wait_s for s in stalls if s.cause == cause]]
    ]
    longest = sorted(stalls, key=lambda s: -s.wait_s)[:MOST_STALLS]
    rows = [
        [
            n.count(s.step),
            n.count(s.host),
            n.duration(s.wait_s),
            s.cause,
            "" if s.array is None else f"chunk {s.block} of {s.array}",
            _rows_of(s.step, facts),
            s.detail,
        ]
        for s in sorted(longest, key=lambda s: (s.step, s.host))
    ]
    which = "All recorded stalls"
    if len(stalls) > MOST_STALLS:
        which = f"The {MOST_STALLS} longest of {n.count(len(stalls))}"
    blocks: list[Block] = [
        Chart(
            "stalls",
            "Stalls by step",
            stalls_chart(stalls),
            "A stall is a wait of more than 50 ms and more than five times the median (the"
            " defaults).",
        ),
        Table(
            [*columns("cause", "stalls", "total", "longest", left=1), ("what helps", "prose")],
            by_cause,
            "By cause",
        ),
        Table(
            [
                *columns("step", "host", "waited"),
                *columns("cause", left=1),
                *_WHERE,
                ("detail", "prose"),
            ],
            rows,
            which,
        ),
    ]
    return Section("stalls", "Measured: stalls", blocks)


def _rows_of(step: int, facts: ReportFacts) -> str:
    """The command that shows the rows of a step."""
    run = [] if facts.folder is None else ["--run", facts.folder]
    return shlex.join(
        ["headrace", "run", "cat", facts.config_path or "run.yaml", "--step", str(step), *run]
    )


def _shown_hosts(records: RunRecords) -> tuple[HostSeries, ...]:
    """The hosts that charts show; if there are very many, those that waited longest."""
    if len(records.series) <= MOST_HOSTS:
        return records.series
    worst = sorted(records.series, key=lambda s: -s.total("wait_s"))[:MOST_HOSTS]
    return tuple(sorted(worst, key=lambda s: s.host))


def _shown_note(records: RunRecords) -> list[Block]:
    if len(records.series) <= MOST_HOSTS:
        return []
    return [
        Text(
            f"Charts show the {MOST_HOSTS} hosts of {len(records.series)} that waited longest.",
            quiet=True,
        )
    ]


def _reads_row(s: HostSeries) -> list[str]:
    rows = s.total("examples_requested")
    fetches = s.total("block_fetches")
    hits = s.total("block_hits")
    return [
        n.count(s.host),
        n.count(s.total("batches")),
        n.count(rows),
        n.count(fetches),
        n.size(s.total("bytes_read")),
        n.digits(fetches / rows) if rows else n.NOTHING,
        n.percent(hits / (hits + fetches)) if hits + fetches else n.NOTHING,
        n.count(s.total("retries")),
        n.count(s.total("hedges")),
    ]
