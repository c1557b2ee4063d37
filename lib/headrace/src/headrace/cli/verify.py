"""``headrace verify``: is a cache still what was written, and if not, what rebuilds it."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli.bars import counting
from headrace.cli.options import AsJson

if TYPE_CHECKING:
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
    from headrace.store.verify import verify

    with counting("checking", show=not as_json and deep) as (expect, advance):
        report = verify(cache, deep=deep, expect=expect, advance=advance)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        _show(Console(highlight=False, soft_wrap=True), report)
    if report.damages:
        raise typer.Exit(1)


def _show(console: Console, report: VerifyReport) -> None:
    for damage in report.damages:
        console.print(_line(damage))
    unfinished = "" if report.finished else " (unfinished: its complete parts)"
    how = "every chunk read" if report.deep else "names and sizes; --deep reads every chunk"
    what = f"{report.path}{unfinished}: {report.parts:,} parts, {report.elements:,} values ({how})"
    if not report.damages:
        console.print(Text.assemble(("sound ", "green"), what))
        return
    parts = report.damaged_parts
    console.print(Text.assemble(("damaged ", "bold red"), f"{what}: {len(parts):,} parts with damage."))
    if any(d.sources for d in report.damages):
        console.print(
            Text(
                f"To build just these anew: the command it was built with (headrace inspect {shlex.quote(report.path)})"
            )
            + Text(" and --repair.")
        )


def _line(damage: Damage) -> Text:
    where = damage.file or damage.array
    runs = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in damage.chunks)
    chunks = f" (chunks {runs})" if runs else ""
    sources = ", ".join(damage.sources[:_SHOWN_SOURCES])
    more = len(damage.sources) - _SHOWN_SOURCES
    rebuilt = f"; rebuilt from {sources}" + (f" and {more} more" if more > 0 else "") if sources else ""
    return Text.assemble((f"part {damage.part} ", "bold"), f"{where}: {damage.problem}{chunks}{rebuilt}")
