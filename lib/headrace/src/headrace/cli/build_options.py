"""The options of ``headrace build``, in the panels of its help; other commands that build take some of them."""

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

ENCODING, RECORDS, CHATS = "Encoding", "Records", "Conversations"
FIM, STORAGE, WORK = "Filling in the middle", "Storage", "How it is built"
"""Panels of the help."""

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Files, folders (recursive), globs, braces, URLs; hf://OWNER/NAME?split=SPLIT.", metavar="SOURCES"
    ),
]
_TOKENIZERS = "A tokenizer.json, a folder that holds one, hf://OWNER/NAME of the hub, or `bytes`"
TOKENIZER = typer.Option(
    "--tokenizer",
    "-t",
    help=f"{_TOKENIZERS}; `ids:N` for ready ids below N. With --append it is that of the cache.",
    metavar="TOKENIZER",
)
TokenizerOption = Annotated[str, typer.Option("--tokenizer", "-t", help=f"{_TOKENIZERS}.", metavar="TOKENIZER")]
TokenizerEngineOption = Annotated[
    TokenizerEngine,
    typer.Option(
        help="Which library encodes: auto takes gigatoken where it gives the same ids. No effect on the cache.",
        rich_help_panel=ENCODING,
    ),
]
EosOption = Annotated[
    str,
    typer.Option(
        help="Token after each document: auto, none, or the token itself.", metavar="TOKEN", rich_help_panel=ENCODING
    ),
]
BosOption = Annotated[
    str,
    typer.Option(
        help="Token before each document: none, auto, or the token itself.", metavar="TOKEN", rich_help_panel=ENCODING
    ),
]
OnBadLineOption = Annotated[
    OnBadLine,
    typer.Option(
        help="A line that cannot be read: stop and name it, or leave it out and count it.", rich_help_panel=RECORDS
    ),
]
MaxRecordBytesOption = Annotated[
    int,
    typer.Option(
        help="A JSON line, a text file or a chat of more bytes, unpacked, is one that cannot be read.",
        rich_help_panel=RECORDS,
    ),
]
SpecialTokensOption = Annotated[
    SpecialTokensInText,
    typer.Option(
        help="Special tokens that a text spells out: read as tokens, as text, or a bad record.",
        rich_help_panel=ENCODING,
    ),
]
FormatOption = Annotated[FormatOrAuto, typer.Option(help="How the files are packed; auto goes by their names.")]
KindOption = Annotated[
    KindOrAuto,
    typer.Option(help="What records become; auto: tokens if the files hold ids, else text.", rich_help_panel=RECORDS),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Another field than the usual one of the kind (repeatable).", metavar="NAME=FIELD", rich_help_panel=RECORDS
    ),
]
LeafOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Keep a field of each document; DTYPE is text, or that of a number; :token of ready ids: one number for"
        " each, :token:K K of them (repeatable).",
        metavar="NAME=FIELD:DTYPE",
        rich_help_panel=RECORDS,
    ),
]
ChatTemplateOption = Annotated[
    str | None,
    typer.Option(
        help="A Jinja template; by default the one beside the tokenizer.", metavar="FILE", rich_help_panel=CHATS
    ),
]
MaskOption = Annotated[
    Mask,
    typer.Option(
        help="What of a conversation is trained on: what the template marks with {% generation %}, the turns of"
        " --mask-role, all, or turns by"
        " last_assistant_message, last_assistant_turn, all_assistant_messages, all_messages,"
        " all_user_and_system_messages or customized (those with trainable: true).",
        metavar="RULE",
        rich_help_panel=CHATS,
    ),
]
MaskRoleOption = Annotated[
    list[str] | None,
    typer.Option(help="With --mask roles, whose turns (repeatable).", metavar="ROLE", rich_help_panel=CHATS),
]
FimOption = Annotated[
    tuple[str, str, str] | None,
    typer.Option(
        help="Store documents for filling in the middle: the tokens before prefix, suffix and middle.",
        metavar="PREFIX SUFFIX MIDDLE",
        rich_help_panel=FIM,
    ),
]
FimRateOption = Annotated[
    float, typer.Option(help="With --fim, the share of the documents that are rearranged.", rich_help_panel=FIM)
]
FimSpmRateOption = Annotated[
    float, typer.Option(help="Share of these that have the suffix first.", rich_help_panel=FIM)
]
FimSeedOption = Annotated[int, typer.Option(help="Another seed cuts documents elsewhere.", rich_help_panel=FIM)]
ExtensionOption = Annotated[
    list[str] | None,
    typer.Option(help="Ending of the files to take from folders, e.g. .py (repeatable).", metavar=".EXT"),
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
        help="Stored integer type; by default the narrowest that holds the vocabulary.", rich_help_panel=STORAGE
    ),
]
PartBytesOption = Annotated[
    int,
    typer.Option(
        help="Most source bytes in a part, the unit of work and of resuming; small corpora have smaller ones.",
        metavar="BYTES",
        rich_help_panel=STORAGE,
    ),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        help="Who builds: processes here, this one, or a Ray cluster (RAY_ADDRESS, or one here).", rich_help_panel=WORK
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option(help="How many at once; by default as many as cores and memory allow.", metavar="N")
]
HashSourcesOption = Annotated[
    bool,
    typer.Option(
        "--hash-sources",
        help="Keep a hash of each source file, and tell by it whether one has changed.",
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
        help="Another host that a web server may send for files, e.g. cdn.example.org; * is any (repeatable).",
        metavar="HOST",
        callback=_allow_redirects,
        rich_help_panel=WORK,
    ),
]
AppendOption = Annotated[
    bool,
    typer.Option(
        "--append",
        help="Add SOURCES to the finished cache in DIR, as its next generation; settings that are not given are"
        " those of the cache.",
    ),
]
RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair", help="Read what is there, and build again the parts that are damaged.", rich_help_panel=WORK
    ),
]
ShuffleOption = Annotated[
    int | None,
    typer.Option(help="Shuffle the documents when all are there, as headrace reshuffle does.", metavar="SEED"),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Memory that each worker of a shuffle may take, e.g. 4GiB; by default what suits the size.",
        metavar="BYTES",
        rich_help_panel=WORK,
    ),
]
