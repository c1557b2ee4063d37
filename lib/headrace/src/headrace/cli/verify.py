"""``headrace verify``: is a cache still what was written, and if not, what rebuilds it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.shown import counting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from headrace.store.verify import Damage, VerifyReport

_SHOWN_SOURCES = 4


def command(
    cache: Annotated[str, typer.Argument(help="Folder or URL of the cache.", metavar="CACHE")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every chunk and compare checksums and digests, not sizes alone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a token cache: every file there and whole, and with `--deep` every byte what was written.

    Names the damaged parts, files and chunks, and the source files that rebuild them. Ends with status 1 if something
    is damaged.

    For example:

        headrace verify cache

        headrace verify gs://bucket/cache --deep
    """
    from rich.console import Console

    from headrace.store.verify import verify

    with counting("checking", show=not as_json and deep) as (expect, advance):
        report = verify(cache, deep=deep, expect=expect, advance=advance)
    repair = _repair_command(cache) if report.damages else ""
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "repair": repair}))
    else:
        _show(Console(highlight=False, soft_wrap=True), report, repair)
    if report.damages:
        raise typer.Exit(1)


def _repair_command(cache: str) -> str:
    """The command that mends what sources are there for; empty if the cache was not built by one."""
    from headrace.cli.inspect import build_command
    from headrace.store.ledger import read_ledger

    ledger = read_ledger(cache)
    if ledger is None or "paths" not in ledger.metadata:
        return ""
    return f"{build_command(cache, ledger)} --repair"


def _show(console: Console, report: VerifyReport, repair: str) -> None:
    from rich.text import Text

    for damage in report.damages:
        console.print(_line(damage))
    unfinished = "" if report.finished else " (unfinished: its complete parts)"
    how = "every chunk read" if report.deep else "names and sizes; --deep reads every chunk"
    what = f"{report.path}{unfinished}: {report.parts:,} parts, {report.elements:,} values ({how})"
    if report.shuffled:
        what += f", shuffled with seed {report.shuffled['seed']} from {report.shuffled['fingerprint']}"
    if not report.damages:
        console.print(Text.assemble(("sound ", "green"), what))
        return
    parts = report.damaged_parts
    console.print(Text.assemble(("damaged ", "bold red"), f"{what}: {len(parts):,} parts with damage."))
    if repair:
        console.print(Text(f"To build just these anew: {repair}"))


def _line(damage: Damage) -> Text:
    from rich.text import Text

    where = damage.file or damage.array
    runs = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in damage.chunks)
    chunks = f" (chunks {runs})" if runs else ""
    sources = ", ".join(damage.sources[:_SHOWN_SOURCES])
    more = len(damage.sources) - _SHOWN_SOURCES
    rebuilt = f"; rebuilt from {sources}" + (f" and {more} more" if more > 0 else "") if sources else ""
    lost = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in damage.documents)
    documents = f", documents {lost}" if lost else ""
    part = f"part {damage.part} " if damage.part else ""
    return Text.assemble((part, "bold"), f"{where}: {damage.problem}{chunks}{documents}{rebuilt}")
