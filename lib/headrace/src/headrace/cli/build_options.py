"""The options of ``headrace build``, in the panels of its help; other commands that build share
some of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headrace.ingest.choices import (
    Engine,
    FormatOrAuto,
    KindOrAuto,
    Mask,
    OnBadLine,
    SpecialTokensInText,
    TokenizerEngine,
)

ENCODING = "Encoding"
RECORDS = "Records"
CHATS = "Conversations"
FIM = "Fill-in-the-middle"
STORAGE = "Storage"
WORK = "Building"
"""Panels of the help."""

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Files, folders (recursive), globs, braces, URLs; hf://OWNER/NAME?split=SPLIT.",
        metavar="SOURCES",
    ),
]
_TOKENIZERS = "A tokenizer.json, a folder with one, hf://OWNER/NAME on the hub, or `bytes`"
TOKENIZER = typer.Option(
    "--tokenizer",
    "-t",
    help=f"{_TOKENIZERS}; `ids:N` for token ids below N. With --append, that of the cache.",
    metavar="TOKENIZER",
)
TokenizerOption = Annotated[
    str, typer.Option("--tokenizer", "-t", help=f"{_TOKENIZERS}.", metavar="TOKENIZER")
]
TokenizerEngineOption = Annotated[
    TokenizerEngine,
    typer.Option(
        help="Library that encodes; auto: gigatoken if it gives the same ids. No effect on the"
        " cache.",
        rich_help_panel=ENCODING,
    ),
]
EosOption = Annotated[
    str,
    typer.Option(
        help="Token after each document: auto, none, or the token itself.",
        metavar="TOKEN",
        rich_help_panel=ENCODING,
    ),
]
BosOption = Annotated[
    str,
    typer.Option(
        help="Token before each document: none, auto, or the token itself.",
        metavar="TOKEN",
        rich_help_panel=ENCODING,
    ),
]
OnBadLineOption = Annotated[
    OnBadLine,
    typer.Option(
        help="For a line that cannot be read: stop and name it, or skip and count it.",
        rich_help_panel=RECORDS,
    ),
]
MaxRecordBytesOption = Annotated[
    int,
    typer.Option(
        help="Most bytes of a JSON line, text file or chat, uncompressed; longer ones"
        " cannot be read.",
        rich_help_panel=RECORDS,
    ),
]
SpecialTokensOption = Annotated[
    SpecialTokensInText,
    typer.Option(
        help="How special tokens spelled out in a text are read: as tokens, as text, or as an"
        " error.",
        rich_help_panel=ENCODING,
    ),
]
FormatOption = Annotated[
    FormatOrAuto, typer.Option(help="Format of the files; auto: by their names.")
]
KindOption = Annotated[
    KindOrAuto,
    typer.Option(
        help="What records are; auto: tokens if the files hold ids, otherwise text.",
        rich_help_panel=RECORDS,
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Use this field instead of the usual one of the kind (repeatable).",
        metavar="NAME=FIELD",
        rich_help_panel=RECORDS,
    ),
]
LeafOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Keep a field of each document as a leaf; DTYPE is text, any or a number type. For"
        " token ids, add :token for one number per id, :token:K for K of them (repeatable).",
        metavar="NAME=FIELD:DTYPE",
        rich_help_panel=RECORDS,
    ),
]
ChatTemplateOption = Annotated[
    str | None,
    typer.Option(
        help="A Jinja template; by default the one beside the tokenizer.",
        metavar="FILE",
        rich_help_panel=CHATS,
    ),
]
ChatVariableOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A variable of the template; strftime_now=2025-01-31 fixes the date that it writes"
        " (repeatable).",
        metavar="NAME=VALUE",
        rich_help_panel=CHATS,
    ),
]
MaskOption = Annotated[
    Mask,
    typer.Option(
        help="Which tokens of a conversation are trained on: those that the template marks with {%"
        " generation %}, the"
        " turns of --mask-role, all, or turns by last_assistant_message, last_assistant_turn,"
        " all_assistant_messages,"
        " all_messages, all_user_and_system_messages or customized (those with trainable: true).",
        metavar="RULE",
        rich_help_panel=CHATS,
    ),
]
MaskRoleOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --mask roles: a role whose turns are trained on (repeatable).",
        metavar="ROLE",
        rich_help_panel=CHATS,
    ),
]
FimOption = Annotated[
    tuple[str, str, str] | None,
    typer.Option(
        help="Rearrange documents for fill-in-the-middle, with these tokens before prefix, suffix"
        " and middle.",
        metavar="PREFIX SUFFIX MIDDLE",
        rich_help_panel=FIM,
    ),
]
FimRateOption = Annotated[
    float,
    typer.Option(help="With --fim: share of documents that are rearranged.", rich_help_panel=FIM),
]
FimSpmRateOption = Annotated[
    float, typer.Option(help="Share of these that begin with the suffix.", rich_help_panel=FIM)
]
FimSeedOption = Annotated[
    int, typer.Option(help="Seed of the positions at which documents are cut.", rich_help_panel=FIM)
]
ExtensionOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Extension of the files to take from folders, e.g. .py (repeatable).", metavar=".EXT"
    ),
]
ChunkTokensOption = Annotated[
    int, typer.Option(help="Tokens in a chunk, the unit of reading.", rich_help_panel=STORAGE)
]
CompressionOption = Annotated[
    Literal["none", "zstd"], typer.Option(help="How chunks are stored.", rich_help_panel=STORAGE)
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Stored integer type; by default the narrowest that holds the vocabulary.",
        rich_help_panel=STORAGE,
    ),
]
PartBytesOption = Annotated[
    int,
    typer.Option(
        help="Most source bytes in a part, the unit of work and of resuming; small corpora get"
        " smaller parts.",
        metavar="BYTES",
        rich_help_panel=STORAGE,
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
HashSourcesOption = Annotated[
    bool,
    typer.Option(
        "--hash-sources",
        help="Keep a hash of each source file, and detect changed files by it.",
        rich_help_panel=WORK,
    ),
]


def _allow_redirects(hosts: list[str] | None) -> list[str] | None:
    from headrace.store.redirects import allow

    allow(hosts or [])
    return hosts


RedirectHostOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Another host that a web server may redirect to, e.g. cdn.example.org; * is any"
        " (repeatable).",
        metavar="HOST",
        callback=_allow_redirects,
        rich_help_panel=WORK,
    ),
]
AppendOption = Annotated[
    bool,
    typer.Option(
        "--append",
        help="Add SOURCES to the finished cache in DIR, as its next snapshot.",
    ),
]
RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair", help="Check what is there, and rebuild damaged parts.", rich_help_panel=WORK
    ),
]
ShuffleOption = Annotated[
    int | None,
    typer.Option(
        help="Shuffle the documents after the build, as headrace cache reshuffle does.",
        metavar="SEED",
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
