"""``headrace build``: builds a token cache from sources of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import AsJson, named_values, refuse_typed, typed_options
from headrace.cli.shown import say, say_json
from headrace.cli.snapshots import to_use_it
from headrace.errors import ConfigError, command_line, format_count
from headrace.ingest.choices import (
    Engine,
    FormatOrAuto,
    KindOrAuto,
    Mask,
    OnBadLine,
    SpecialTokensInText,
    TokenizerEngine,
)
from headrace.numbers import in_bytes, short

if TYPE_CHECKING:
    from headrace.ingest.build import BuildReport
    from headrace.ingest.shuffle_plan import ReshuffleConfig, ReshuffleCost
    from headrace.ingest.source import SourceConfig


ENCODING = "Encoding"
RECORDS = "Records"
CHATS = "Conversations"
FIM = "Fill-in-the-middle"
STORAGE = "Storage"
WORK = "Building"
"""Panels of the help."""

_TOKENIZERS = "A tokenizer.json, a folder with one, hf://OWNER/NAME on the hub, or `bytes`"
TokenizerOption = Annotated[
    str, typer.Option("--tokenizer", "-t", help=f"{_TOKENIZERS}.", metavar="TOKENIZER")
]
OnBadLineOption = Annotated[
    OnBadLine,
    typer.Option(
        help="For a line that cannot be read: stop and name it, or skip and count it.",
        rich_help_panel=RECORDS,
    ),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        help="Where the work runs: in local processes, in this process, or on Ray (RAY_ADDRESS, or"
        " local).",
        rich_help_panel=WORK,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        help="Parallel workers; by default as many as cores and memory allow.", metavar="N"
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Most memory of each worker of a shuffle, e.g. 4GiB; by default, chosen by the size.",
        metavar="BYTES",
        rich_help_panel=WORK,
    ),
]
RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair", help="Check what is there, and rebuild damaged parts.", rich_help_panel=WORK
    ),
]


def _allow_redirects(hosts: list[str] | None) -> list[str] | None:
    from headrace.store.redirects import allow

    allow(hosts or [])
    return hosts


def command(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders (recursive), globs, braces, URLs; hf://OWNER/NAME?split=SPLIT.",
            metavar="SOURCES",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URL of the cache.", metavar="DIR")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "-t",
            help=f"{_TOKENIZERS}; `ids:N` for token ids below N. With --append, that of the cache.",
            metavar="TOKENIZER",
        ),
    ] = None,
    eos: Annotated[
        str,
        typer.Option(
            help="Token after each document: auto, none, or the token itself.",
            metavar="TOKEN",
            rich_help_panel=ENCODING,
        ),
    ] = "auto",
    bos: Annotated[
        str,
        typer.Option(
            help="Token before each document: none, auto, or the token itself.",
            metavar="TOKEN",
            rich_help_panel=ENCODING,
        ),
    ] = "none",
    tokenizer_engine: Annotated[
        TokenizerEngine,
        typer.Option(
            help="Library that encodes; auto: gigatoken if it gives the same ids. No effect on the"
            " cache.",
            rich_help_panel=ENCODING,
        ),
    ] = "auto",
    text_field: Annotated[
        str, typer.Option(help="Field of a record that holds the text; a.b is b in a.")
    ] = "text",
    on_bad_line: OnBadLineOption = "error",
    max_record_bytes: Annotated[
        int,
        typer.Option(
            help="Most bytes of a JSON line, text file or chat, uncompressed; longer ones"
            " cannot be read.",
            rich_help_panel=RECORDS,
        ),
    ] = 1 << 30,
    special_tokens_in_text: Annotated[
        SpecialTokensInText,
        typer.Option(
            help="How special tokens spelled out in a text are read: as tokens, as text, or as an"
            " error.",
            rich_help_panel=ENCODING,
        ),
    ] = "token",
    format: Annotated[  # noqa: A002
        FormatOrAuto, typer.Option(help="Format of the files; auto: by their names.")
    ] = "auto",
    kind: Annotated[
        KindOrAuto,
        typer.Option(
            help="What records are; auto: tokens if the files hold ids, otherwise text.",
            rich_help_panel=RECORDS,
        ),
    ] = "auto",
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="Use this field instead of the usual one of the kind (repeatable).",
            metavar="NAME=FIELD",
            rich_help_panel=RECORDS,
        ),
    ] = None,
    leaf: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep a field of each document as a leaf; DTYPE is text, any or a number type. For"
            " token ids, add :token for one number per id, :token:K for K of them (repeatable).",
            metavar="NAME=FIELD:DTYPE",
            rich_help_panel=RECORDS,
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="A Jinja template; by default the one beside the tokenizer.",
            metavar="FILE",
            rich_help_panel=CHATS,
        ),
    ] = None,
    chat_variable: Annotated[
        list[str] | None,
        typer.Option(
            help="A variable of the template; strftime_now=2025-01-31 fixes the date that it writes"
            " (repeatable).",
            metavar="NAME=VALUE",
            rich_help_panel=CHATS,
        ),
    ] = None,
    mask: Annotated[
        Mask,
        typer.Option(
            help="Which tokens of a conversation are trained on: those that the template marks with"
            " {% generation %}, the turns of --mask-role, all, or turns by last_assistant_message,"
            " last_assistant_turn, all_assistant_messages, all_messages,"
            " all_user_and_system_messages or customized (those with trainable: true).",
            metavar="RULE",
            rich_help_panel=CHATS,
        ),
    ] = "generation",
    mask_role: Annotated[
        list[str] | None,
        typer.Option(
            help="With --mask roles: a role whose turns are trained on (repeatable).",
            metavar="ROLE",
            rich_help_panel=CHATS,
        ),
    ] = None,
    fim: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            help="Rearrange documents for fill-in-the-middle, with these tokens before prefix,"
            " suffix and middle.",
            metavar="PREFIX SUFFIX MIDDLE",
            rich_help_panel=FIM,
        ),
    ] = None,
    fim_rate: Annotated[
        float,
        typer.Option(
            help="With --fim: share of documents that are rearranged.", rich_help_panel=FIM
        ),
    ] = 0.5,
    fim_spm_rate: Annotated[
        float, typer.Option(help="Share of these that begin with the suffix.", rich_help_panel=FIM)
    ] = 0.5,
    fim_seed: Annotated[
        int,
        typer.Option(help="Seed of the positions at which documents are cut.", rich_help_panel=FIM),
    ] = 0,
    extension: Annotated[
        list[str] | None,
        typer.Option(
            help="Extension of the files to take from folders, e.g. .py (repeatable).",
            metavar=".EXT",
        ),
    ] = None,
    chunk_tokens: Annotated[
        int, typer.Option(help="Tokens in a chunk, the unit of reading.", rich_help_panel=STORAGE)
    ] = 65536,
    compression: Annotated[
        Literal["none", "zstd"],
        typer.Option(help="How chunks are stored.", rich_help_panel=STORAGE),
    ] = "none",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Stored integer type; by default the narrowest that holds the vocabulary.",
            rich_help_panel=STORAGE,
        ),
    ] = None,
    part_bytes: Annotated[
        int,
        typer.Option(
            help="Most source bytes in a part, the unit of work and of resuming; small corpora get"
            " smaller parts.",
            metavar="BYTES",
            rich_help_panel=STORAGE,
        ),
    ] = 64 << 20,
    engine: EngineOption = "auto",
    workers: WorkersOption = None,
    hash_sources: Annotated[
        bool,
        typer.Option(
            "--hash-sources",
            help="Keep a hash of each source file, and detect changed files by it.",
            rich_help_panel=WORK,
        ),
    ] = False,
    redirect_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another host that a web server may redirect to, e.g. cdn.example.org; * is any"
            " (repeatable).",
            metavar="HOST",
            callback=_allow_redirects,
            rich_help_panel=WORK,
        ),
    ] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(
            help="Shuffle the documents after the build, as headrace cache reshuffle does.",
            metavar="SEED",
        ),
    ] = None,
    memory: MemoryOption = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Add SOURCES to the finished cache in DIR, as its next snapshot.",
        ),
    ] = False,
    repair: RepairOption = False,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Delete the contents of DIR first, also a finished cache (another DIR keeps it).",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a token cache from text, token ids, conversations, preference pairs or prompts.

    If it is interrupted, run the same command again to resume; the result is the same, bit for bit.

    For example:

        headrace build corpus/ --output cache --tokenizer tokenizer.json

        headrace build 'dump/*.jsonl.zst' -o cache -t llama3/ --text-field body --on-bad-line skip

        headrace build src/ -o code-cache -t bytes --format text --extension .py --eos none

        headrace build code/ -o fim -t starcoder/ --fim '<fim_prefix>' '<fim_suffix>' '<fim_middle>'

        headrace build 's3://bucket/{000..499}.parquet' -o cache -t llama3/ --leaf id=meta.id

        headrace build chats.jsonl -o chat -t llama3/ --kind chat --mask roles --mask-role assistant

        headrace build 'hf://owner/poems?split=train' -o shuffled -t llama3/ --shuffle 7

        headrace build dump/2026-11/ -o cache --append
    """
    from headrace.ingest.records import parse_leaf
    from headrace.ingest.source import ChatConfig, FimConfig, SourceConfig

    _refuse_without_effect(context)
    variables = _pairs(chat_variable, "chat_variable", "VALUE", "enable=yes")
    source = SourceConfig(
        sources,
        format,
        text_field,
        on_bad_line,
        extension or [],
        kind=kind,
        fields=_pairs(field, "field", "FIELD", "messages=conversation"),
        leaves=dict(map(parse_leaf, leaf or [])),
        chat=ChatConfig(chat_template, mask, mask_role or ["assistant"], variables),
        fim=None if fim is None else FimConfig(*fim, fim_rate, fim_spm_rate, fim_seed),
        max_record_bytes=max_record_bytes,
        special_tokens_in_text=special_tokens_in_text,
    )
    options = {
        "dtype": dtype,
        "chunk_tokens": chunk_tokens,
        "compression": compression,
        "part_bytes": part_bytes,
        "engine": engine,
        "workers": workers,
        "hash_sources": hash_sources,
        "restart": restart,
    }
    encoder = {"path": tokenizer, "bos": bos, "eos": eos, "engine": tokenizer_engine}
    how = shuffle_config(shuffle, memory)
    with kept_when_interrupted():
        if append:
            report = _append(context, source, encoder, output, how, options)
        else:
            report = _build(source, encoder, output, repair, how, options)
    say_json(report.to_dict()) if as_json else say(summary(report))
    if append and not as_json:
        from headrace.store.snapshots import history_of

        say(to_use_it(history_of(output).newest))


def _refuse_without_effect(context: typer.Context) -> None:
    """Refuses options that were typed and would have no effect."""
    typed = context.params
    mask = typed["mask"]
    kind = typed["kind"]
    paths = (*typed["sources"], typed["tokenizer"] or "", typed["output"])
    if typed["format"] != "python" and not any("http" in path for path in paths):
        refuse_typed(context, ("redirect_host",), "has no effect without a path on a web server")
    if typed["fim"] is None:
        refuse_typed(
            context,
            ("fim_rate", "fim_spm_rate", "fim_seed"),
            "has no effect without --fim",
            "Add --fim PREFIX SUFFIX MIDDLE.",
        )
    if mask != "roles":
        refuse_typed(
            context, ("mask_role",), f"has no effect with --mask {mask}", "Add --mask roles."
        )
    if kind not in ("auto", "chat", "preference", "prompts"):
        refuse_typed(
            context, ("mask", "chat_template", "chat_variable"), f"has no effect with --kind {kind}"
        )


_SOURCE: dict[str, tuple[str, ...]] = {
    "extensions": ("extension",),
    "fields": ("field",),
    "leaves": ("leaf",),
    "chat": ("chat_template", "chat_variable", "mask", "mask_role"),
    "fim": ("fim", "fim_rate", "fim_spm_rate", "fim_seed"),
}
"""Fields of a source whose parameters of the command have other names than they, and these."""
_TOKENIZER = {"path": "tokenizer", "bos": "bos", "eos": "eos", "engine": "tokenizer_engine"}
_OF_CACHE = ("dtype", "chunk_tokens", "compression", "part_bytes")


def _append(
    context: typer.Context,
    source: SourceConfig,
    encoder: dict[str, Any],
    output: str,
    how: ReshuffleConfig | None,
    options: dict[str, Any],
) -> BuildReport:
    """Appends to a cache; settings that the command line leaves out are those of the cache."""
    from headrace.ingest.append import append_cache

    cure = (
        "Leave it out: headrace cache verify CACHE --repair repairs a cache and everything"
        " appended to it."
    )
    refuse_typed(context, ("repair",), "cannot be combined with --append", cure)
    typed = typed_options(context)
    reading = {
        field: value
        for field, value in vars(source).items()
        if typed.intersection(_SOURCE.get(field, (field,)))
    }
    tokens = {field: value for field, value in encoder.items() if _TOKENIZER[field] in typed}
    settings = {
        name: value for name, value in options.items() if name in typed or name not in _OF_CACHE
    }
    return append_cache(source.paths, output, source=reading, tokenizer=tokens, how=how, **settings)


def _build(
    source: SourceConfig,
    encoder: dict[str, Any],
    output: str,
    repair: bool,
    how: ReshuffleConfig | None,
    options: dict[str, Any],
) -> BuildReport:
    from headrace.ingest.build import plan_build
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.store.ledger import is_finished

    if encoder["path"] is None:
        cure = (
            "Give a tokenizer.json, hf://OWNER/NAME or bytes; only --append takes the tokenizer of"
            " the cache."
        )
        raise ConfigError("is missing", field="--tokenizer", cure=cure)
    tokenizer = TokenizerConfig(**encoder)
    if repair:
        repair_parts(output)
    if options["restart"] and is_finished(output):
        say(
            f"Once the first look at the sources finds no fault, the finished cache {output} is"
            " deleted. To keep it until the new one is complete, build into another folder.",
            err=True,
        )
    if how is not None:
        say(
            f"Builds {output}/unshuffled, then shuffles it: meanwhile, {output} takes three times"
            " its final size.",
            err=True,
        )
    plan = plan_build(source, tokenizer, output, how=how, **options)
    return plan.build(announce=lambda cost: say(cost_in_words(cost), err=True))


def shuffle_config(seed: int | None, memory: str | None) -> ReshuffleConfig | None:
    """The shuffle of documents; None if they are not shuffled."""
    from headrace.ingest.shuffle_plan import ReshuffleConfig

    if seed is None:
        if memory is not None:
            cure = "Leave it out, or give --shuffle SEED."
            raise ConfigError(
                "limits the memory of a shuffle, and there is none",
                field="memory",
                value=memory,
                cure=cure,
            )
        return None
    return ReshuffleConfig(seed, memory=memory_bytes(memory))


def _pairs(items: list[str] | None, option: str, value: str, example: str) -> dict[str, str]:
    def filled(text: str) -> str:
        if not text:
            raise ValueError
        return text

    pairs: dict[str, str] = {}
    for item in items or []:  # one by one: a cure is typed behind what it replaces
        pairs |= named_values(
            option, [item], filled, f"is not NAME={value}", f"Write e.g. {example}."
        )
    return pairs


def repair_parts(output: str) -> None:
    """Marks the damaged parts of a cache as incomplete, so that the build rebuilds them."""
    from headrace.store.verify import invalidate, verify

    damaged = verify(output, deep=True).damaged_parts
    invalidate(output, damaged)
    say(f"{output}: {format_count(len(damaged), 'damaged part')}", err=True)


def memory_bytes(text: str | None) -> int | None:
    """A number of bytes, with or without KiB, MiB, GiB, kB, MB or GB after it.

    Example:
        >>> memory_bytes("1.5GiB"), memory_bytes("2000000000")
        (1610612736, 2000000000)
    """
    from headrace.config.wording import number_in

    if text is None:
        return None
    if (size := int(number_in(text) or 0)) > 0:
        return size
    raise ConfigError(
        "must be a positive number of bytes", field="memory", value=text, cure="Write e.g. 4GiB."
    )


def cost_in_words(cost: ReshuffleCost) -> str:
    """Describes the cost of a shuffle in one line."""
    read, written, between = map(
        in_bytes, (cost.bytes_read, cost.bytes_written, cost.temporary_bytes)
    )
    cut = f" in {cost.pieces:,} pieces" if cost.pieces > cost.documents else ""
    return (
        f"Shuffles {format_count(cost.documents, 'document')}{cut}, {cost.tokens:,} tokens,"
        f" into {format_count(cost.parts, 'part')}: reads {read} and writes {written} in two"
        f" passes, {between} of it temporary;"
        f" {in_bytes(cost.memory)} of memory per worker."
    )


def summary(report: BuildReport) -> str:
    """Describes in a few lines what was built; the last names the next command."""
    from headrace.store.snapshots import cache_of_member

    parts = report.parts_built + report.parts_reused
    documents = format_count(report.documents, "document")
    if report.parts_built == 0:
        lines = [
            f"{report.path} is already finished: {documents},"
            f" {format_count(report.tokens, 'token')}."
        ]
    else:
        tokens, text_bytes = (n / report.seconds for n in (report.tokens_built, report.bytes_built))
        rates = f"{short(tokens)} tokens/s, {in_bytes(text_bytes)}/s"
        there = f"; {report.parts_reused:,} were already there" if report.parts_reused else ""
        lines = [
            f"Built {report.path}: {documents}, {format_count(report.tokens, 'token')},"
            f" {format_count(parts, 'part')}.",
            f"This run: {format_count(report.parts_built, 'part')} in {report.seconds:.1f} s"
            f" ({rates}){there}.",
        ]
    lines += _encoding_in_words(report)
    if report.empty_documents:
        lines.append(
            f"{format_count(report.empty_documents, 'document')} without text (kept, with special"
            " tokens only)."
        )
    if report.ignored_records:
        kinds = ", ".join(f"{n:,} {what}" for what, n in report.ignored_records.items())
        lines.append(f"Records without plain text left out: {kinds}.")
    if report.unused_fields:
        lines.append(
            f"Fields of records that were not used: {fields_in_words(report.unused_fields)}."
        )
    if report.trained_tokens is not None:
        share = report.trained_tokens / max(report.tokens, 1)
        none = with_none(report.untrained_documents)
        lines.append(f"{report.trained_tokens:,} tokens are trained on ({share:.1%}){none}.")
    if report.left_out_files:
        endings = ", ".join(f"{n:,} {ending}" for ending, n in report.left_out_files.items())
        lines.append(
            f"Files of other kinds left out: {endings} (to include them, use --extension or a"
            " glob)."
        )
    if report.skipped_lines:
        lines.append(
            f"{format_count(report.skipped_lines, 'bad line')} skipped, the first:"
            f" {report.first_skipped}"
        )
    if report.requests:
        failed = (
            f", {report.failed_requests:,} of which failed and were repeated"
            if report.failed_requests
            else ""
        )
        lines.append(f"{format_count(report.requests, 'request')} over HTTP{failed}.")
    cache = cache_of_member(report.path) or report.path
    return "\n".join([*lines, f"Next: {command_line('cache inspect', cache)}"])


def with_none(untrained_documents: int) -> str:
    """Says after the tokens that are trained on how many documents have none."""
    if not untrained_documents:
        return ""
    return f"; {format_count(untrained_documents, 'document')} with none"


def fields_in_words(fields: Mapping[str, int]) -> str:
    """Names fields with the number of records that have them.

    Example:
        >>> fields_in_words({"id": 2000, "url": 1})
        'id (2,000 records), url (1 record)'
    """
    return ", ".join(f"{name} ({format_count(n, 'record')})" for name, n in fields.items())


def _encoding_in_words(report: BuildReport) -> list[str]:
    """Names the library that encoded the documents, unless there was little to encode."""
    encoded = report.encoded
    if report.tokenizer_engine != "gigatoken":
        return [f"Encoded by tokenizers: {report.engine_reason}."] if report.engine_reason else []
    slow = (
        f", {encoded.slow:,} of them by tokenizers (other Unicode tables)" if encoded.slow else ""
    )
    documents = format_count(encoded.fast + encoded.slow, "document")
    lines = [
        f"Encoded by gigatoken: {documents}{slow}; {encoded.compared:,} checked against tokenizers."
    ]
    if encoded.differences:
        parts = format_count(len(encoded.differences), "part")
        lines.append(
            f"The encoders differ at {encoded.differences[0]}: {parts} built with tokenizers only."
        )
    return lines
