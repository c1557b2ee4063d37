"""``headrace cache reshuffle``: copies a cache with its documents in a shuffled order."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.build import cost_in_words, memory_bytes, repair_parts
from headrace.cli.build_options import MemoryOption, RepairOption
from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import AsJson, Format, parse_format
from headrace.cli.shown import say, say_json
from headrace.errors import format_count
from headrace.ingest.choices import Engine

if TYPE_CHECKING:
    from headrace.ingest.reshuffle import ReshuffleReport


def command(
    cache: Annotated[
        str,
        typer.Argument(
            help="Folder or URL of the cache, headrace's or Levanter's.", metavar="CACHE"
        ),
    ],
    output: Annotated[
        str, typer.Argument(help="Folder or URL to write, new or empty.", metavar="OUTPUT")
    ],
    seed: Annotated[int, typer.Option(help="Seed of the order.")] = 0,
    unit: Annotated[
        int | None,
        typer.Option(
            help="Number of neighbouring documents that stay together; by default 2 for pairs,"
            " otherwise 1.",
            metavar="N",
        ),
    ] = None,
    split: Annotated[
        int | None,
        typer.Option(
            help="Cut documents at multiples of this many tokens, best those of a row, and shuffle"
            " the pieces: rows of one long document are then not neighbours.",
            metavar="TOKENS",
        ),
    ] = None,
    memory: MemoryOption = None,
    part_bytes: Annotated[
        int, typer.Option(help="Approximate stored bytes in a part.", metavar="BYTES")
    ] = 256 << 20,
    engine: Annotated[
        Engine,
        typer.Option(
            help="Where the work runs: in local processes, in this process, or on a Ray cluster."
        ),
    ] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Parallel workers; by default as many as cores and memory allow.", metavar="N"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cost, and do nothing.")
    ] = False,
    repair: RepairOption = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete the contents of OUTPUT and start over.")
    ] = False,
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Copy a token cache with its documents shuffled, so that reading it block by block trains like
    a full shuffle.

    All leaves move with their documents. Filters and hold-outs still refer to documents by their
    numbers in CACHE. If it is interrupted, run the same command again to resume. The result is the
    same, bit for bit, for any memory, engine and workers.

    For example:

        headrace cache reshuffle cache shuffled

        headrace cache reshuffle gs://b/cache gs://b/shuffled --seed 1 --memory 16GiB --engine ray

        headrace cache reshuffle levanter-cache/train shuffled --dry-run

        headrace cache reshuffle cache shuffled --split 4096
    """
    from headrace.ingest.reshuffle import reshuffle
    from headrace.ingest.shuffle_plan import ReshuffleConfig, cost_of
    from headrace.store import files
    from headrace.store.joined import open_cache

    files.check_writable(output)
    source = open_cache(cache, settings=parse_format(format))
    how = ReshuffleConfig(seed, unit, memory_bytes(memory), part_bytes, split)
    cost = cost_of(source, how)
    if dry_run:
        say_json(cost.to_json()) if as_json else say(cost_in_words(cost))
        return
    say(cost_in_words(cost), err=True)
    if repair:
        repair_parts(output)
    with kept_when_interrupted():
        report = reshuffle(source, output, how, engine=engine, workers=workers, restart=restart)
    say_json(report.to_json()) if as_json else say(_summary(report, cache))


def _summary(report: ReshuffleReport, cache: str) -> str:
    cut = f" in {report.pieces:,} pieces" if report.pieces > report.documents else ""
    what = f"{format_count(report.documents, 'document')}{cut}, {report.tokens:,} tokens"
    if not report.parts_built:
        return f"{report.path} is already finished: {what}, shuffled with seed {report.seed}."
    reused = f"; {report.parts_reused:,} were already there" if report.parts_reused else ""
    return (
        f"Shuffled {cache} with seed {report.seed}: {report.path}, {what},"
        f" {format_count(report.parts_built, 'part')} in {report.seconds:.1f} s{reused}.\n"
        f"Next: headrace cache inspect {shlex.quote(report.path)}"
    )
