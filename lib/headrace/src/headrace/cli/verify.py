"""``headrace cache verify``: checks that a cache is still what was written, and names what rebuilds
it if not.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.options import AsJson, CacheFolder, Format, parse_format
from headrace.cli.shown import counting, labelled, say, say_json, terminal
from headrace.errors import format_count, format_some

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.ingest.repair import RepairReport
    from headrace.store.layouts import FormatConfig
    from headrace.store.verify import Damage, VerifyReport

_SHOWN_SOURCES = 4


def command(
    cache: CacheFolder,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Read every chunk and compare checksums and digests, not only sizes."
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Check as with --deep, and rebuild what is damaged from its sources."
        ),
    ] = False,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Check a cache of Levanter's as with --deep, and take its checksums, with which it"
            " is compared from then on.",
        ),
    ] = False,
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Check a token cache: every file is there and complete; with `--deep`, every byte is what was
    written.

    Names the damaged parts, files and chunks, and the source files that rebuild them. Exits with
    status 1 if something is damaged. `--repair` rebuilds the parts whose sources exist, bit for
    bit, and names the others with the command that builds them; the status is 1 only if there are
    any. If it is interrupted, run it again to resume.

    Levanter's caches have no checksums. `--record` writes them beside the cache, or into the folder
    that the variable `HEADRACE_CHECKSUMS` names, also for later readers.

    For example:

        headrace cache verify cache

        headrace cache verify gs://bucket/cache --deep

        headrace cache verify cache --repair

        HEADRACE_CHECKSUMS=checksums headrace cache verify gs://bucket/levanter/train --record

        headrace cache verify 'megatron/*_text_document' --deep
    """
    from headrace.store import files
    from headrace.store.joined import history_problem
    from headrace.store.snapshots import SNAPSHOTS_NAME, member_path

    settings = parse_format(format)
    members, problem = history_problem(cache, settings)
    checked = [
        _checked(member_path(cache, number), deep, repair, record, as_json, settings)
        for number in range(members)
    ]
    facts, _ = checked[0]
    if problem:
        file = files.join(cache, SNAPSHOTS_NAME)
        facts["damages"].append({"part": "", "problem": problem, "file": file})
        if not as_json:
            say(f"damaged {file}: {problem}")
    if as_json:
        later = [one for one, _ in checked[1:]]
        say_json({**facts, "appended": later} if later else facts)
    if problem or not all(fine for _, fine in checked):
        raise typer.Exit(PROBLEM_FOUND)


def _checked(
    cache: str,
    deep: bool,
    repair: bool,
    record: bool,
    as_json: bool,
    settings: FormatConfig | None,
) -> tuple[dict[str, Any], bool]:
    """Checks one member of a cache, repairs it if requested, and returns the findings and whether
    it is sound.
    """
    from headrace.data.attributes import attribute_findings
    from headrace.data.saved_filters import filter_findings
    from headrace.ingest.repair import repair as repair_cache
    from headrace.pack.plan_file import plan_findings
    from headrace.pack.saved_plans import PLANS_FOLDER
    from headrace.store import files
    from headrace.store.location import Location
    from headrace.store.verify import Damage, verify

    is_long = deep or repair or record
    with counting("checking", show=not as_json and is_long) as (expect, advance):
        report = verify(
            cache,
            deep=is_long,
            record=record,
            settings=settings,
            expect=expect,
            advance=advance,
        )
    beside = [
        *plan_findings(files.join(cache, PLANS_FOLDER)),
        *filter_findings(cache),
        *attribute_findings(cache),
    ]
    saved = [Damage("", problem, file=file) for file, problem in beside]
    report = replace(report, damages=[*report.damages, *saved])
    # Of a sound cache too: a repair that was killed at its end has left files.
    repair_report = repair_cache(cache, report.damages) if repair else None
    repaired = repair_report if report.damages else None
    is_damaged = bool(report.damages) if repaired is None else bool(repaired.left)
    command = _repair_command(cache) if is_damaged else ""
    if not as_json:
        console = terminal(soft_wrap=True)
        shown = command and command + Location.parse(cache).about_writable
        _show(console, report, shown if repaired is None else "")
        if repaired is not None:
            _show_repair(console, repaired, shown)
    return {
        **report.to_dict(),
        "repair": command,
        "repaired": repaired and asdict(repaired),
    }, not is_damaged


def _show_repair(console: Console, done: RepairReport, command: str) -> None:
    repaired = [f"part {name}: rebuilt as it was" for name in done.rebuilt]
    repaired += [f"{file}: rewritten" for file in done.restored]
    repaired += [f"{folder}: deleted; it is written again when needed" for folder in done.dropped]
    for text in repaired:
        console.print(labelled("repaired", "green", text))
    for what, why in done.left.items():
        console.print(labelled("left", "bold red", f"{what}: {why}"))
    if command:
        console.print(f"To rebuild only these, once that is fixed: {command}")


def _repair_command(cache: str) -> str:
    """The command that rebuilds damaged parts; empty if no command made the cache."""
    from headrace.cli.inspect import build_command
    from headrace.store.ledger import SHUFFLED, read_ledger

    ledger = read_ledger(cache)
    if ledger is None:
        return ""
    if "paths" not in ledger.metadata and not ledger.metadata.get(SHUFFLED, {}).get("cache"):
        return ""
    return f"{build_command(cache, ledger).removesuffix(' --repair')} --repair"


def _show(console: Console, report: VerifyReport, repair: str) -> None:
    for damage in report.damages:
        part = f"part {damage.part}" if damage.part else ""
        text = _in_words(damage)
        console.print(labelled(part, "bold", text) if part else text)
    unfinished = "" if report.finished else " (unfinished: its complete parts)"
    how = (
        "every chunk read"
        if report.deep
        else "names, sizes and ends of files checked; --deep reads every chunk"
    )
    sizes = f"{format_count(report.parts, 'part')}, {format_count(report.elements, 'value')}"
    what = f"{report.path}{unfinished}: {sizes} ({how})"
    if report.shuffled:
        what += (
            f", shuffled with seed {report.shuffled['seed']} from {report.shuffled['fingerprint']}"
        )
    if report.recorded:
        console.print(f"its checksums are in {report.recorded}")
    for text in report.unchecked:
        console.print(f"not checked: {text}", style="yellow")
    if not report.damages:
        console.print(labelled("sound", "green", what))
        return
    parts = format_count(len(report.damaged_parts), "part")
    console.print(labelled("damaged", "bold red", f"{what}: {parts} with damage."))
    if repair:
        console.print(f"To rebuild only these: {repair}")


def _in_words(damage: Damage) -> str:
    where = damage.file or damage.array
    chunks = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in damage.chunks)
    text = f"{where}: {damage.problem}" + (f" (chunks {chunks})" if chunks else "")
    lost = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in damage.documents)
    text += f", documents {lost}" if lost else ""
    if damage.sources:
        text += f"; rebuilt from {format_some(damage.sources, _SHOWN_SOURCES)}"
    return text
