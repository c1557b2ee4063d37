"""The parts of a report that say what the run is: summary, provenance, amendments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from headrace.report import numbers as n
from headrace.report.blocks import Block, Kind, Notes, Section, Table, Text, Tiles, columns
from headrace.report.facts import PlanFacts, ReportFacts
from headrace.report.measured_sections import WAITING_BAR
from headrace.report.plan_sections import largest_epochs
from headrace.report.run_records import RunRecords


def summary_section(facts: ReportFacts) -> Section:
    """The run at a glance, and what to look at."""
    plan, records = facts.plan, facts.records
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
    """Which data, tokenizer and order."""
    blocks: list[Block] = []
    identity: list[list[str]] = []
    if facts.manifest is not None:
        identity.append(["run's manifest", facts.manifest.fingerprint])
    if facts.plan is not None:
        identity.append(["config", facts.plan.fingerprint or "not known: a cache is missing"])
    if identity:
        blocks.append(Table([("fingerprint of", "left"), ("value", "code")], identity))
    if facts.plan is not None:
        sources = facts.plan.sources
        blocks.append(
            Table(
                [
                    ("source", "left"),
                    ("cache", "code"),
                    ("documents", "right"),
                    ("tokens", "right"),
                    ("content", "code"),
                    ("built from", "code"),
                    ("files", "right"),
                    ("by", "left"),
                ],
                [
                    [
                        s.name,
                        s.cache,
                        n.count(s.documents),
                        n.count(s.tokens),
                        _digest(s.fingerprint),
                        ", ".join(s.paths),
                        n.count(s.files) if s.files else n.NOTHING,
                        s.built_by and f"headrace {s.built_by}",
                    ]
                    if s.exists
                    else [s.name, s.cache, n.NOTHING, n.NOTHING, "", "not built yet", n.NOTHING, ""]
                    for s in sources
                ],
                "Sources",
            )
        )
        tokenizers = sorted({(s.tokenizer, s.tokenizer_fingerprint, s.vocab_size) for s in sources if s.exists})
        if tokenizers:
            blocks.append(
                Table(
                    [("tokenizer", "code"), ("fingerprint", "code"), ("ids", "right")],
                    [[path, _digest(mark), n.count(ids)] for path, mark, ids in tokenizers],
                    "Tokenizer",
                )
            )
    elif facts.manifest is not None:
        found = _contents(facts.manifest.resolved)
        blocks.append(Table([("source", "left"), ("content", "code")], [[k, _digest(v)] for k, v in found], "Sources"))
    return Section("provenance", "Provenance", blocks)


def amendments_section(facts: ReportFacts) -> Section:
    """Mixtures that follow each other, and which of them were declared while the run was under way."""
    stages, amended = _stages(facts)
    history = facts.manifest.history if facts.manifest is not None else ()
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
        heads: list[tuple[str, Kind]] = [
            *columns("from step"),
            *columns("name", "declared as", left=2),
            ("weights", "code"),
        ]
        blocks.append(Table(heads, rows, "Mixtures"))
    if history:
        rows = [[n.count(h["until_step"]), str(h["fingerprint"])] for h in history]
        blocks.append(Table([("until step", "right"), ("fingerprint before", "code")], rows, "Amendments of this run"))
    elif not amended:
        blocks.append(Text("The run was not amended.", quiet=True))
    return Section("amendments", "Amendments", blocks)


def _plan_tiles(plan: PlanFacts, facts: ReportFacts) -> list[tuple[str, str, str]]:
    run, name = plan.plan, largest_epochs(plan)
    steps, done = int(plan.mixture.edge[-1]), facts.records.last_step
    rows = n.short(float(plan.mixture.drawn.sum()))
    lengths = " → ".join(n.count(length) for _, length in run.phases)
    note = "planned" if done is None else f"done, of {n.count(steps)}"
    if plan.assumed_steps:
        note = "shown; the config has no num_steps" if done is None else "done; the config has no num_steps"
    batch = n.count(run.batch_size)
    if run.largest_batch > run.batch_size:
        batch += f" to {n.count(run.largest_batch)}"
    return [
        ("Steps", n.count(steps if done is None else done + 1), note),
        ("Tokens", n.short(float(plan.mixture.tokens.sum())), f"{rows} rows of {lengths}"),
        ("Batch", batch, "rows"),
        ("Sources", n.count(len(run.components)), f"most epochs: {n.digits(name[1])}, {name[0]}"),
    ]


def _measured_tiles(records: RunRecords) -> list[tuple[str, str, str]]:
    share = records.waiting_share
    rows = sum(s.total("examples_requested") for s in records.series)
    reads = sum(s.total("block_fetches") for s in records.series)
    read = sum(s.total("bytes_read") for s in records.series)
    took = None if records.began is None or records.ended is None else records.ended - records.began
    sessions = "1 process" if records.sessions == 1 else f"{records.sessions} processes, one after the other"
    if records.hosts > 1:
        sessions = f"{records.hosts} hosts, {records.sessions} starts"
    return [
        ("Waiting", n.percent(share), "of the time; the bar is 2%" if share is not None else "not known yet"),
        ("Read", n.size(read), f"{n.digits(reads / rows) if rows else n.NOTHING} block reads a row"),
        ("Stalls", n.count(len(records.stalls)), n.duration(sum(s.wait_s for s in records.stalls)) + " together"),
        ("Measured", n.duration(took), sessions),
    ]


def _notes(facts: ReportFacts) -> list[tuple[str, str, str]]:
    plan, records, notes = facts.plan, facts.records, list[tuple[str, str, str]]()
    if plan is not None:
        notes += [(f.level, f.field, f"{f.problem}. {f.cure}") for f in plan.found]
        notes += _mismatch(plan, facts)
    share = records.waiting_share
    if share is not None and share > WAITING_BAR:
        what = f"The trainer waited {n.percent(share)} of the time: the data holds up training. See Waiting and Stalls."
        notes.append(("warning", "", what))
    if records.left_out:
        cut = f"{n.count(records.left_out)} lines of the log are no records (cut off by a kill?) and were left out."
        notes.append(("warning", "", cut))
    if not notes:
        notes.append(("good", "", "Nothing was found that will hurt."))
    return notes


def _mismatch(plan: PlanFacts, facts: ReportFacts) -> list[tuple[str, str, str]]:
    if facts.manifest is None or plan.manifest is None or plan.fingerprint == facts.manifest.fingerprint:
        return []
    step = plan.manifest.amends(facts.manifest)
    step = facts.manifest.amends(plan.manifest) if step is None else step
    if step is not None:
        return [
            (
                "warning",
                "",
                f"Config and run differ by an amendment from step {n.count(step)} on: the plan shown is the config's.",
            )
        ]
    return [
        (
            "problem",
            "",
            "The config is not that of the run: their fingerprints differ. What is planned here is not"
            " what was measured.",
        )
    ]


def _stages(facts: ReportFacts) -> tuple[Sequence[dict[str, Any]], int]:
    """The mixtures in order, and how many of the last are amendments."""
    if facts.plan is not None:
        return facts.plan.plan.stages, facts.plan.amendments
    if facts.manifest is None:
        return (), 0
    dataset = facts.manifest.resolved.get("dataset", {})
    dataset = dataset["phases"][0]["dataset"] if "phases" in dataset else dataset
    stages = cast("list[dict[str, Any]]", dataset.get("stages", []))
    begun = min((int(h["until_step"]) for h in facts.manifest.history), default=None)
    return stages, 0 if begun is None else int(np.sum([int(s["step"]) >= begun for s in stages]))


def _contents(resolved: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and fingerprint of the caches in a manifest."""
    dataset = resolved.get("dataset", {})
    dataset = dataset["phases"][0]["dataset"] if "phases" in dataset else dataset
    parts = dataset.get("components", {"data": dataset})
    return [(name, _fingerprint_in(part)) for name, part in parts.items()]


def _fingerprint_in(part: Any) -> str:
    if not isinstance(part, dict):
        return ""
    known = cast("dict[str, Any]", part)
    for key in ("tokens", "packed"):
        if isinstance(known.get(key), str):
            return known[key]
    return next((mark for value in known.values() if (mark := _fingerprint_in(value))), "")


def _digest(mark: str) -> str:
    """The first digits of a fingerprint: enough to compare by eye."""
    return mark.rpartition(":")[2][:12]
