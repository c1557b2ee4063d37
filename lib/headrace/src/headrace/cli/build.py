"""``headrace build``: from text to a token cache."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.ingest.build import BuildReport


class Format(StrEnum):
    """What the source files hold."""

    auto = "auto"
    jsonl = "jsonl"
    text = "text"


class OnBadLine(StrEnum):
    """What happens to a line that cannot be read."""

    error = "error"
    skip = "skip"


class Compression(StrEnum):
    """How chunks are stored."""

    none = "none"
    zstd = "zstd"


def command(
    sources: Annotated[list[str], typer.Argument(help="Files, folders (recursive), globs or URLs.", metavar="SOURCES")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder or URL of the cache.", metavar="DIR")],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", "-t", help="A tokenizer.json, a folder that holds one, or `bytes`.", metavar="FILE"
        ),
    ],
    eos: Annotated[
        str, typer.Option(help="Token after each document: auto, none, or the token itself.", metavar="TOKEN")
    ] = "auto",
    bos: Annotated[
        str, typer.Option(help="Token before each document: none, auto, or the token itself.", metavar="TOKEN")
    ] = "none",
    text_field: Annotated[str, typer.Option(help="Field of a JSONL object that holds the text.")] = "text",
    on_bad_line: Annotated[
        OnBadLine, typer.Option(help="A line that cannot be read: stop and name it, or leave it out and count it.")
    ] = OnBadLine.error,
    format: Annotated[Format, typer.Option(help="What the files hold; auto goes by their names.")] = Format.auto,  # noqa: A002
    extension: Annotated[
        list[str] | None,
        typer.Option(help="Ending of the files to take from folders, e.g. .py (repeatable).", metavar=".EXT"),
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens in a chunk, the unit of reading.")] = 65536,
    compression: Annotated[Compression, typer.Option(help="How chunks are stored.")] = Compression.none,
    dtype: Annotated[
        str | None, typer.Option(help="Stored integer type; by default the narrowest that holds the vocabulary.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Delete what is in DIR and begin anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Build a token cache from text.

    Interrupted, by whatever, it goes on where it was when the same command is run again, and the result is the same to
    the bit.

    For example:

        headrace build corpus/ --output cache --tokenizer tokenizer.json

        headrace build 'dump/**/*.jsonl.zst' -o gs://bucket/cache -t llama3/ --text-field content --on-bad-line skip

        headrace build src/ -o code-cache -t bytes --format text --extension .py --eos none
    """
    from headrace.ingest.build import build_cache
    from headrace.ingest.source import SourceConfig
    from headrace.ingest.tokenize import TokenizerConfig

    try:
        report = build_cache(
            SourceConfig(sources, format.value, text_field, on_bad_line.value, extension or []),
            TokenizerConfig(tokenizer, bos=bos, eos=eos),
            output,
            dtype=dtype,
            chunk_tokens=chunk_tokens,
            compression=compression.value,
            restart=restart,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted: finished parts are kept; run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    typer.echo(json.dumps(report.to_json()) if as_json else summary(report))


def summary(report: BuildReport) -> str:
    """What was done, for a reader: a few lines, the next command last."""
    parts = report.parts_built + report.parts_reused
    if report.parts_built == 0:
        lines = [f"{report.path} is finished already: {report.documents:,} documents, {report.tokens:,} tokens."]
    else:
        tokens, megabytes = (n / report.seconds / 1e6 for n in (report.tokens_built, report.bytes_built))
        rates = f"{tokens:.2f} M tokens/s, {megabytes:.1f} MB/s"
        there = f"; {report.parts_reused:,} were there already" if report.parts_reused else ""
        lines = [
            f"Built {report.path}: {_counted(report.documents, 'document')}, {report.tokens:,} tokens, "
            f"{_counted(parts, 'part')}.",
            f"This run: {_counted(report.parts_built, 'part')} in {report.seconds:.1f} s ({rates}){there}.",
        ]
    if report.empty_documents:
        lines.append(f"{_counted(report.empty_documents, 'document')} without text (kept: special tokens alone).")
    if report.skipped_lines:
        lines.append(f"{_counted(report.skipped_lines, 'bad line')} skipped, the first: {report.first_skipped}")
    return "\n".join([*lines, f"Next: headrace inspect {shlex.quote(report.path)}"])


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
