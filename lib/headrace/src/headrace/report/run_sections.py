"""The sections of a report about the run: its identity and, from its counters, reads, waits and
stalls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from headrace import numbers as n
from headrace.data.described import one_of_files
from headrace.errors import HeadraceError, command_line, format_count
from headrace.report.blocks import Block, Chart, Kind, Notes, Section, Table, Text, Tiles, columns
from headrace.report.charts import (
    MOST_SOURCES,
    axis,
    lines_chart,
    loader_time_chart,
    measured_chart,
    stalls_chart,
    waits_chart,
)
from headrace.report.facts import PlanFacts, ReportFacts, Source
from headrace.report.plan_sections import forecast_for, mixture_chart_of
from headrace.report.run_records import HostSeries, Points, RunRecords
from headrace.run.differences import first_mixture
from headrace.run.lock import RunLock

WAITING_BAR = 0.02
"""Share of waiting above which data delays training; see docs/metrics.md."""
_LOSS = re.compile(r"(^|/)loss(_by_source/.*)?$")
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
_FIRST_WORDS = 100
MOST_CHARTS = 24
BY_SOURCE = "loss_by_source"
"""Begins the names of figures of sources, which share a chart."""
_LAST_WORD = re.compile(r"_(mean|std|min|max|p\d+)$")
_MOST_COUNTS = 8


def summary_section(facts: ReportFacts) -> Section:
    """Four questions about the run, each with a verdict and a figure, and the notes."""
    blocks: list[Block] = [Tiles(verdicts(facts)), Text(_extent(facts))]
    if facts.why_no_plan and facts.plan is None:
        blocks.append(Notes([("warning", "", facts.why_no_plan)]))
    blocks.append(Notes(_notes(facts)))
    return Section("summary", "Summary", blocks)


def verdicts(facts: ReportFacts) -> list[tuple[str, str, str, str]]:
    """The four questions, as :class:`Tiles` show them."""
    return [_delay(facts.records), _as_asked(facts.plan), _progress(facts), _oddities(facts)]


def _delay(records: RunRecords) -> tuple[str, str, str, str]:
    question = "Does data delay training?"
    share = records.waiting_share
    if share is None:
        return "", question, "Not measured", "no counters of the loader yet"
    waited = n.duration(sum(s.wait_s for s in records.stalls))
    figures = f"{format_count(len(records.stalls), 'stall')}, {waited}; good below 2%"
    if share > WAITING_BAR:
        return "warning", question, f"Yes, {n.percent(share)} of the time", figures
    return "good", question, f"No, {n.percent(share)} of the time", figures


def _as_asked(plan: PlanFacts | None) -> tuple[str, str, str, str]:
    question = "Is the mixture as asked?"
    off = None if plan is None else plan.mixture.off_quota
    if plan is None or off is None:
        return "", question, "Not counted", "without a plan" if plan is None else "only sampled"
    worst = int(np.argmax(off))
    figures = f"largest error: {n.digits(float(off[worst]))} rows, {plan.mixture.names[worst]}"
    if off[worst] >= 1:
        return "warning", question, "No", figures
    return "good", question, "Yes, to less than a row", figures


def _progress(facts: ReportFacts) -> tuple[str, str, str, str]:
    question = "How far through each source?"
    plan = facts.plan
    steps_done = facts.records.steps_done
    if plan is None:
        return "", question, f"{n.count(steps_done)} steps", "epochs are unknown without a plan"
    names = plan.mixture.names
    passes = plan.passes_until(steps_done)
    most = int(np.argmax(passes))
    repeats = zip(plan.repeats_after(steps_done), names, strict=True)
    coming = [(step, name) for step, name in repeats if step is not None]
    following = "no source begins again before the end"
    if coming:
        step, name = min(coming)
        following = f"{name} begins again near step {n.count(step)}"
    steps = n.count(int(plan.mixture.edge[-1]))
    figures = f"step {n.count(steps_done)} of {steps}; {following}"
    return "", question, f"At most {n.digits(passes[most])} epochs, {names[most]}", figures


def _oddities(facts: ReportFacts) -> tuple[str, str, str, str]:
    question = "Is anything odd?"
    odd = [level for level, _, _ in _notes(facts) if level != "good"]
    series = facts.records.series
    retries = sum(s.total("retries") for s in series)
    hedges = sum(s.total("hedges") for s in series)
    figures = f"retries: {n.short(retries)}; hedges: {n.short(hedges)}"
    if odd:
        worst = "problem" if "problem" in odd else "warning"
        return worst, question, f"Yes: {format_count(len(odd), 'note')}", figures
    return "good", question, "No", figures


def _extent(facts: ReportFacts) -> str:
    """One line on the size of the run."""
    parts: list[str] = []
    if facts.plan is not None:
        run = facts.plan.plan
        mixture = facts.plan.mixture
        lengths = " → ".join(n.count(length) for _, length in run.config.phases)
        batch = n.count(run.batch_size)
        if run.largest_batch > run.batch_size:
            batch += f" to {n.count(run.largest_batch)}"
        assumed = " (the config has no num_steps)" if facts.plan.assumed_steps else ""
        parts.append(
            f"Planned: {n.count(int(mixture.edge[-1]))} steps{assumed} of {batch} rows of"
            f" {lengths}, {n.short(float(mixture.tokens.sum()))} tokens from"
            f" {format_count(len(mixture.names), 'source')}."
        )
    records = facts.records
    if records.began is not None and records.ended is not None:
        starts = format_count(records.sessions, "start")
        parts.append(
            f"Measured: {n.duration(records.ended - records.began)} on"
            f" {format_count(records.hosts, 'host')}, {starts}."
        )
    return " ".join(parts)


def course_sections(facts: ReportFacts) -> list[Section]:
    """The losses of the run over its mixture, and how to see the rows of a step."""
    plan = facts.plan
    records = facts.records
    blocks: list[Block] = []
    losses = losses_of(records)
    if losses:
        steps = None if plan is None else int(plan.mixture.edge[-1])
        blocks.append(Chart("loss", "Loss", {**lines_chart(losses, steps), "height": 280}))
    if plan is not None:
        blocks.append(mixture_chart_of(plan))
    sections = [Section("course", "Loss and mixture", blocks)] if blocks else []
    if records.last_step is not None and facts.folder is not None:
        sections.append(_rows_section(facts, records.last_step, losses))
    return sections


def losses_of(records: RunRecords) -> dict[str, Points]:
    """The logged figures that are called loss, those of all data before those of a source."""
    names = [name for name in records.figures if _LOSS.search(name)]
    chosen = sorted(names, key=lambda name: "loss_by_source" in name)[:MOST_SOURCES]
    return {name: records.figures[name] for name in chosen}


def _rows_section(facts: ReportFacts, last: int, losses: Mapping[str, Points]) -> Section:
    """What some steps trained on, each shown on a click; and the command that shows all of it."""
    why = {0: "the first step", last // 2: "half of what was trained", last: "the last step"}
    for name, (steps, values) in [*losses.items()][:1]:
        rises = np.diff(values)
        if rises.size and np.nanmax(rises) > 0:
            why[int(steps[1 + int(np.nanargmax(rises))])] = f"the largest rise of {name}"
    commands = [[n.count(step), why[step], _rows_of(step, facts)] for step in sorted(why)]
    heads: list[tuple[str, Kind]] = [*columns("step"), ("what it is", "left"), ("its rows", "code")]
    blocks: list[Block] = [_some_rows(facts.plan, step, why[step]) for step in sorted(why)]
    if _rows_of(last, facts):
        caption = "The commands that show all rows; a click in a chart adds that of its step"
        blocks.append(Table(heads, commands, caption))
    else:
        why_none = "All rows of a step: give headrace run cat the run's config, a file"
        blocks.append(Text(f"{why_none}. The folder has no lock with one.", quiet=True))
    return Section("rows", "Rows of a step", blocks)


def _some_rows(plan: PlanFacts | None, step: int, why: str) -> Block:
    """Some rows of a step: source, first document, file and first words of each."""
    if plan is None or plan.some_rows is None:
        return Text(f"Step {n.count(step)}: its rows cannot be read without its caches", quiet=True)
    try:
        shown, counts = plan.some_rows(step)
    except (OSError, HeadraceError) as error:
        return Text(f"Step {n.count(step)}: its rows cannot be read now: {error}", quiet=True)
    table_rows: list[list[str]] = []
    for row in shown:
        first, *others = row["spans"]
        document = f"{n.count(first['document'])}{f', and {len(others)} more' if others else ''}"
        came = one_of_files([file["path"] for file in first["files"]]).removeprefix("from ")
        words = " ".join(first["text"].split())[:_FIRST_WORDS]
        table_rows.append([n.count(row["row"]), row["component"], document, words, came])
    largest = [f"{n.count(rows)} of {name}" for name, rows in counts.most_common(_MOST_COUNTS)]
    if len(counts) > _MOST_COUNTS:
        largest.append(f"others of {format_count(len(counts) - _MOST_COUNTS, 'source')}")
    of = format_count(counts.total(), "row")
    caption = f"Step {n.count(step)}, {why}: {of}, {', '.join(largest)}"
    heads: list[tuple[str, Kind]] = [*columns("row"), *columns("source", "document", left=2)]
    return Table(
        [*heads, ("first words", "prose"), ("from", "code")], table_rows, caption, folded=True
    )


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
        contents = _contents(facts.lock)
        blocks.append(
            Table(
                [("source", "left"), ("content", "code")],
                [[k, _digest(v)] for k, v in contents],
                "Sources",
            )
        )
    mark = facts.lock.fingerprint if facts.lock is not None else ""
    line = f"the run's lock is {_digest(mark)}" if mark else "no run has pinned it yet"
    return Section("provenance", "Provenance", blocks, line)


def _source_row(s: Source) -> list[str]:
    if not s.exists:
        return [s.name, s.cache, n.NOTHING, n.NOTHING, "", "not built yet", n.NOTHING, ""]
    files = n.count(s.files) if s.files else n.NOTHING
    release = s.built_by and f"headrace {s.built_by}"
    counts = (n.short(s.documents), n.short(s.tokens))
    return [s.name, s.cache, *counts, _digest(s.fingerprint), ", ".join(s.paths), files, release]


def amendments_section(facts: ReportFacts) -> Section:
    """Successive mixtures, and which of them were declared during the run."""
    stages, amended = _stages(facts)
    history = facts.lock.history if facts.lock is not None else ()
    blocks: list[Block] = []
    learned = _learned(facts)
    if stages:
        rows = [
            [
                n.count(stage["step"]),
                stage["name"] or n.NOTHING,
                "amendment" if k >= len(stages) - amended else "plan",
                json.dumps(stage["weights"], ensure_ascii=False),
            ]
            for k, stage in enumerate(stages)
            if stage["step"] not in learned
        ]
        heads = [*columns("from step"), *columns("name", "declared as", left=2)]
        blocks.append(Table([*heads, ("weights", "code")], rows, "Mixtures"))
    if learned:
        blocks.append(_learned_table(learned, stages[0]["weights"] if stages else {}))
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
    line = f"{n.count(len(history))} since the run began" if history else "none"
    return Section("amendments", "Amendments", blocks, line)


def _learned(facts: ReportFacts) -> dict[int, dict[str, float]]:
    """The shares that a rule decided by the losses of the run, by step."""
    config = {} if facts.lock is None else facts.lock.config or {}
    amendments: list[dict[str, Any]] = config.get("amendments", [])
    return {one["step"]: one["weights"] for one in amendments if one.get("measured")}


def _learned_table(learned: Mapping[int, Mapping[str, float]], planned: Mapping[str, Any]) -> Table:
    """The last shares that were learned, the largest first, beside those of the first mixture; of
    blends and schedules, these are in the table of mixtures only.
    """
    last_step = max(learned)
    numbers = [weight for weight in planned.values() if isinstance(weight, int | float)]
    total = sum(numbers) if len(numbers) == len(planned) else 0
    rows = [
        [
            name,
            n.percent(planned[name] / total) if total and name in planned else n.NOTHING,
            n.percent(share),
        ]
        for name, share in sorted(learned[last_step].items(), key=lambda item: -item[1])
    ]
    decisions = format_count(len(learned), "decision")
    heads = [*columns("source", left=1), *columns("planned", f"learned until step {last_step:,}")]
    return Table(heads, rows, f"Shares that a rule learned in {decisions}")


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
    stages: list[dict[str, Any]] = first_mixture(facts.lock.plan["dataset"]).get("stages", [])
    trained_until = min((int(h["until_step"]) for h in facts.lock.history), default=None)
    return stages, 0 if trained_until is None else int(
        np.sum([int(s["step"]) >= trained_until for s in stages])
    )


def _contents(lock: RunLock) -> list[tuple[str, str]]:
    """Names and fingerprints of the caches in a lock."""
    dataset = first_mixture(lock.plan["dataset"])
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
        return _not_measured("reads")
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
    rows = sum(s.total("examples_requested") for s in records.series)
    reads = sum(s.total("block_fetches") for s in records.series)
    size = n.in_bytes(sum(s.total("bytes_read") for s in records.series))
    line = f"{size}; {n.digits(reads / rows) if rows else n.NOTHING} block reads per row"
    return Section("reads", "Measured: reads", blocks, line)


def waiting_section(facts: ReportFacts) -> Section:
    """How long the trainer waited, and where the loader spent its time."""
    records = facts.records
    if not records.series:
        return _not_measured("waiting")
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
    waited = records.waiting_share
    healthy = waited is None or waited <= WAITING_BAR
    line = f"{n.percent(waited)} of the time"
    return Section("waiting", "Measured: waiting", blocks, line, healthy)


def stalls_section(facts: ReportFacts) -> Section:
    """Waits that were much longer than usual, and their causes."""
    stalls = facts.records.stalls
    if not facts.records.series:
        return _not_measured("stalls")
    if not stalls:
        none = [Text("No wait was much longer than usual.")]
        return Section("stalls", "Measured: stalls", none, "none")
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
                ("where", "code"),
                ("its rows", "code"),
                ("detail", "prose"),
            ],
            rows,
            which,
        ),
    ]
    line = f"{n.count(len(stalls))}, {n.duration(sum(s.wait_s for s in stalls))} in all"
    share = facts.records.waiting_share
    return Section(
        "stalls", "Measured: stalls", blocks, line, share is None or share <= WAITING_BAR
    )


def _not_measured(name: str) -> Section:
    text = [Text(_NOT_MEASURED, quiet=True)]
    return Section(name, f"Measured: {name}", text, "no measurements yet")


def _rows_of(step: int, facts: ReportFacts) -> str:
    """The command that shows the rows of a step; empty: the folder has no lock whose config says
    them.
    """
    if facts.lock is None or facts.lock.config is None:
        return ""
    return command_line("run cat", facts.folder, step=step)


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
        n.short(rows),
        n.short(fetches),
        n.in_bytes(s.total("bytes_read")),
        n.digits(fetches / rows) if rows else n.NOTHING,
        n.percent(hits / (hits + fetches)) if hits + fetches else n.NOTHING,
        n.count(s.total("retries")),
        n.count(s.total("hedges")),
    ]


def figures_section(figures: Mapping[str, Points]) -> Section:
    """Figures that the training program logged in addition to the loader's counters: a chart for
    each family of those that are not always zero, and a table of all.

    ``RunLog(...)(step, rollout=dataset.metrics(step), train=losses)`` writes
    ``rollout/reward_mean``, ``train/entropy`` and so on. Names that differ only in their last word
    (``_mean``, ``_max``, ...) share a chart, as do all shares of a group.
    """
    families: dict[str, dict[str, Points]] = {}
    for name, points in sorted(figures.items()):
        if points[1].any():  # counters that are always zero are only in the table
            families.setdefault(_family_of(name), {})[name] = points
    blocks: list[Block] = [
        Chart(f"own-{k}", family, lines_chart(lines))
        for k, (family, lines) in enumerate([*families.items()][:MOST_CHARTS])
    ]
    if len(families) > MOST_CHARTS:
        blocks.append(
            Text(f"The first {MOST_CHARTS} of {len(families)} charts are shown.", quiet=True)
        )
    heads = columns("figure", "steps", "last", "mean", "smallest", "largest", left=1)
    blocks.append(
        Table(
            heads,
            [_figure_row(name, *points) for name, points in sorted(figures.items())],
            "All, as logged",
        )
    )
    line = format_count(len(figures), "figure")
    return Section("program", "Logged: rollouts and losses", blocks, line)


def _family_of(name: str) -> str:
    """The family of a name: names of one family share a chart.

    Example:
        >>> [_family_of(name) for name in ("train/ratio_max", "train/clip_low_share", "train/kl")]
        ['train/ratio', 'train: shares', 'train/kl']
        >>> _family_of("loss_by_source/web")
        'loss_by_source'
    """
    if name.startswith(f"{BY_SOURCE}/"):
        return BY_SOURCE
    if name.endswith("_share"):
        return f"{name.partition('/')[0]}: shares"
    return _LAST_WORD.sub("", name)


def _figure_row(name: str, steps: np.ndarray, values: np.ndarray) -> list[str]:
    there = values[np.isfinite(values)]
    figures = [there[-1], there.mean(), there.min(), there.max()] if there.size else [None] * 4
    return [
        name,
        n.count(steps.size),
        *(n.digits(None if value is None else float(value)) for value in figures),
    ]
