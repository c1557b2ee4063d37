"""``headrace build``: from sources of all kinds to a token cache."""

from __future__ import annotations

import json
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson

if TYPE_CHECKING:
    from headrace.ingest.build import BuildReport


class Format(StrEnum):
    """How the source files are packed."""

    auto = "auto"
    jsonl = "jsonl"
    text = "text"
    parquet = "parquet"
    arrow = "arrow"
    warc = "warc"
    hf = "hf"
    megatron = "megatron"
    nmoe = "nmoe"
    python = "python"


class Kind(StrEnum):
    """What records become."""

    auto = "auto"
    text = "text"
    tokens = "tokens"
    chat = "chat"
    preference = "preference"
    prompts = "prompts"


class Mask(StrEnum):
    """What of a conversation is trained on."""

    generation = "generation"
    roles = "roles"
    all = "all"
    all_assistant_messages = "all_assistant_messages"
    last_assistant_message = "last_assistant_message"
    last_assistant_turn = "last_assistant_turn"
    all_messages = "all_messages"
    all_user_and_system_messages = "all_user_and_system_messages"
    customized = "customized"


class Engine(StrEnum):
    """Who builds the parts."""

    auto = "auto"
    pool = "pool"
    inline = "inline"
    ray = "ray"


class OnBadLine(StrEnum):
    """What happens to a line that cannot be read."""

    error = "error"
    skip = "skip"


class Compression(StrEnum):
    """How chunks are stored."""

    none = "none"
    zstd = "zstd"


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders (recursive), globs, braces, URLs; hf://OWNER/NAME?split=SPLIT.", metavar="SOURCES"
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder or URL of the cache.", metavar="DIR")],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            "-t",
            help="A tokenizer.json, a folder that holds one, or `bytes`; `ids:N` for ready ids below N.",
            metavar="FILE",
        ),
    ],
    eos: Annotated[
        str, typer.Option(help="Token after each document: auto, none, or the token itself.", metavar="TOKEN")
    ] = "auto",
    bos: Annotated[
        str, typer.Option(help="Token before each document: none, auto, or the token itself.", metavar="TOKEN")
    ] = "none",
    text_field: Annotated[str, typer.Option(help="Field of a record that holds the text; a.b is b within a.")] = "text",
    on_bad_line: Annotated[
        OnBadLine, typer.Option(help="A line that cannot be read: stop and name it, or leave it out and count it.")
    ] = OnBadLine.error,
    format: Annotated[Format, typer.Option(help="How the files are packed; auto goes by their names.")] = Format.auto,  # noqa: A002
    kind: Annotated[
        Kind, typer.Option(help="What records become; auto: tokens if the files hold ids, else text.")
    ] = Kind.auto,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Another field than the usual one of the kind (repeatable).", metavar="NAME=FIELD"),
    ] = None,
    leaf: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep a field of each document; DTYPE is text, or that of a number (repeatable).",
            metavar="NAME=FIELD:DTYPE",
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(help="A Jinja template; by default the one beside the tokenizer.", metavar="FILE"),
    ] = None,
    mask: Annotated[
        Mask,
        typer.Option(
            help="What of a conversation is trained on: what the template marks with {% generation %}, the turns of"
            " --mask-role, all, or turns by another rule (customized: those with trainable: true)."
        ),
    ] = Mask.generation,
    mask_role: Annotated[
        list[str] | None, typer.Option(help="With --mask roles, whose turns (repeatable).", metavar="ROLE")
    ] = None,
    fim: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            help="Store documents for filling in the middle: the tokens before prefix, suffix and middle.",
            metavar="PREFIX SUFFIX MIDDLE",
        ),
    ] = None,
    fim_rate: Annotated[float, typer.Option(help="With --fim, the share of the documents that are rearranged.")] = 0.5,
    fim_spm_rate: Annotated[float, typer.Option(help="Share of these that have the suffix first.")] = 0.5,
    fim_seed: Annotated[int, typer.Option(help="Another seed cuts documents elsewhere.")] = 0,
    extension: Annotated[
        list[str] | None,
        typer.Option(help="Ending of the files to take from folders, e.g. .py (repeatable).", metavar=".EXT"),
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Tokens in a chunk, the unit of reading.")] = 65536,
    compression: Annotated[Compression, typer.Option(help="How chunks are stored.")] = Compression.none,
    dtype: Annotated[
        str | None, typer.Option(help="Stored integer type; by default the narrowest that holds the vocabulary.")
    ] = None,
    part_bytes: Annotated[
        int, typer.Option(help="Source bytes in a part, the unit of work and of resuming.", metavar="BYTES")
    ] = 64 << 20,
    engine: Annotated[
        Engine, typer.Option(help="Who builds: processes here, this one, or a Ray cluster (RAY_ADDRESS, or one here).")
    ] = Engine.auto,
    workers: Annotated[
        int | None, typer.Option(help="How many at once; by default as many as cores and memory allow.", metavar="N")
    ] = None,
    hash_sources: Annotated[
        bool,
        typer.Option("--hash-sources", help="Keep a hash of each source file, and tell by it whether one has changed."),
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Read what is there, and build again the parts that are damaged.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Delete what is in DIR and begin anew.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a token cache from text, ready ids, conversations, preference pairs or prompts.

    Interrupted, by whatever, it goes on where it was when the same command is run again, and the result is the same to
    the bit.

    For example:

        headrace build corpus/ --output cache --tokenizer tokenizer.json

        headrace build 'dump/**/*.jsonl.zst' -o gs://bucket/cache -t llama3/ --text-field content --on-bad-line skip

        headrace build src/ -o code-cache -t bytes --format text --extension .py --eos none

        headrace build code/ -o fim-cache -t starcoder/ --fim '<fim_prefix>' '<fim_suffix>' '<fim_middle>'

        headrace build 's3://bucket/web/part-{000..499}.parquet' -o cache -t llama3/ --leaf id=meta.id --engine ray

        headrace build chats.jsonl -o chat-cache -t llama3/ --kind chat --mask roles --mask-role assistant

        headrace build 'hf://owner/poems?split=train' -o cache -t llama3/
    """
    from headrace.ingest.build import build_cache
    from headrace.ingest.leaves import parse_leaf
    from headrace.ingest.source import ChatConfig, FimConfig, SourceConfig
    from headrace.ingest.tokenize import TokenizerConfig

    source = SourceConfig(
        sources,
        format.value,
        text_field,
        on_bad_line.value,
        extension or [],
        kind=kind.value,
        fields=dict(_pair(f) for f in field or []),
        leaves=dict(parse_leaf(one) for one in leaf or []),
        chat=ChatConfig(chat_template, mask.value, mask_role or ["assistant"]),
        fim=None if fim is None else FimConfig(*fim, fim_rate, fim_spm_rate, fim_seed),
    )
    try:
        if repair:
            _repair(output)
        report = build_cache(
            source,
            TokenizerConfig(tokenizer, bos=bos, eos=eos),
            output,
            dtype=dtype,
            chunk_tokens=chunk_tokens,
            compression=compression.value,
            part_bytes=part_bytes,
            engine=engine.value,
            workers=workers,
            hash_sources=hash_sources,
            restart=restart,
        )
    except KeyboardInterrupt:
        typer.echo("interrupted: finished parts are kept; run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    typer.echo(json.dumps(report.to_json()) if as_json else summary(report))


def _pair(text: str) -> tuple[str, str]:
    from headrace.errors import ConfigError

    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError("is no NAME=FIELD", field="field", value=text, cure="Write e.g. messages=conversation.")
    return name, value


def _repair(output: str) -> None:
    """Makes the damaged parts of a cache incomplete, so that the build makes them anew."""
    from headrace.store.lease import lease
    from headrace.store.verify import damaged_parts, invalidate

    damaged = damaged_parts(output, deep=True)
    with lease(output):
        invalidate(output, damaged)
    typer.echo(f"{output}: {_counted(len(damaged), 'damaged part')}", err=True)


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
    if report.ignored_records:
        kinds = ", ".join(f"{n:,} {what}" for what, n in report.ignored_records.items())
        lines.append(f"Records that hold no plain text, left out: {kinds}.")
    if report.trained_tokens is not None:
        share = report.trained_tokens / max(report.tokens, 1)
        none = f"; {_counted(report.untrained_documents, 'document')} with none" if report.untrained_documents else ""
        lines.append(f"{report.trained_tokens:,} tokens are trained on ({share:.1%}){none}.")
    if report.left_out_files:
        endings = ", ".join(f"{n:,} {ending}" for ending, n in report.left_out_files.items())
        lines.append(f"Files of other kinds left out: {endings} (--extension or a glob takes them).")
    if report.skipped_lines:
        lines.append(f"{_counted(report.skipped_lines, 'bad line')} skipped, the first: {report.first_skipped}")
    if report.requests:
        failed = f", {report.failed_requests:,} of them failed and repeated" if report.failed_requests else ""
        lines.append(f"{_counted(report.requests, 'request')} over HTTP{failed}.")
    return "\n".join([*lines, f"Next: headrace inspect {shlex.quote(report.path)}"])


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
