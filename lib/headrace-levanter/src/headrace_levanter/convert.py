"""``headrace cache convert``: copy a cache to Levanter's format, or one of Levanter's to
headrace's.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeAlias

import typer

from headrace.cli.consolidate import copying, stated_tokenizer
from headrace.cli.options import AsJson
from headrace.cli.shown import say
from headrace.errors import ConfigError, format_count

ChunkLayout: TypeAlias = Literal["headrace", "levanter"]


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
    layout: Annotated[ChunkLayout, typer.Option(help="Whose format to write.")] = "levanter",
    form: Annotated[
        Literal["consolidated", "sharded"],
        typer.Option(
            help="For levanter: one array per leaf (any release), or one folder per part (since"
            " May 2026)."
        ),
    ] = "consolidated",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Stored type of the tokens; by default int32 for levanter, otherwise that of the"
            " cache."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "-t",
            help="For headrace: the tokenizer of a Levanter cache, which keeps only its name. The"
            " copy keeps it.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a token cache in Levanter's format, or one of Levanter's in headrace's.

    Levanter's caches can also be read in place; a copy in headrace's format has checksums, digests
    and small chunks. A copy in Levanter's format lacks documents that were removed.

    For example:

        headrace cache convert cache levanter-cache/train --layout levanter

        headrace cache convert theirs/train cache --layout headrace --tokenizer llama3/
    """
    from headrace.store.consolidate import consolidate
    from headrace.store.joined import open_cache
    from headrace.store.layout import TOKENS, CacheLayout
    from headrace_levanter.export import write_levanter

    if dtype is not None:
        CacheLayout(dtype).check_tokens()
    source = open_cache(cache)
    if tokenizer is not None and layout == "levanter":
        problem = "cannot be stored: Levanter's format has no place for it"
        cure = "Leave --tokenizer out."
        raise ConfigError(problem, field="tokenizer", value=tokenizer, cure=cure)
    stated = None if tokenizer is None else stated_tokenizer(source, tokenizer)
    with copying("converting", source, show=not as_json) as advance:
        if layout == "levanter":
            ledger = write_levanter(
                source, output, form=form, dtype=dtype or "int32", advance=advance
            )
            documents = ledger["total_num_rows"]
            tokens = ledger["field_counts"].get(TOKENS, 0)
        else:
            target = CacheLayout(dtype or source.dtype.name)
            copy = consolidate(source, output, layout=target, tokenizer=stated, advance=advance)
            documents = copy.num_originals
            tokens = copy.num_tokens
    facts = {"path": output, "layout": layout, "documents": documents, "tokens": tokens}
    say(
        json.dumps(facts)
        if as_json
        else f"Wrote {output} in {layout}'s format:"
        f" {format_count(documents, 'document')}, {tokens:,} tokens."
    )
