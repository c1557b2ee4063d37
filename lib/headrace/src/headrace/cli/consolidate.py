"""``headrace consolidate``: one part out of many."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.bars import counting
from headrace.cli.options import AsJson


def command(
    cache: Annotated[str, typer.Argument(help="Folder or URL of the cache.", metavar="CACHE")],
    output: Annotated[str, typer.Argument(help="Folder or URL of the copy, new or empty.", metavar="OUTPUT")],
    as_json: AsJson = False,
) -> None:
    """Copy a token cache into one part: fewer files, and rows that run on where parts ended.

    Reading needs no such copy: a cache of many parts is read as fast. Interrupted, the same command goes on.

    For example:

        headrace consolidate cache cache-in-one
    """
    from headrace.store.cache import TokenCache
    from headrace.store.consolidate import consolidate

    source = TokenCache.open(cache)
    with counting("copying", show=not as_json) as (expect, advance):
        expect(sum(source.leaf(name).num_elements for name in ("input_ids", *source.leaves)))
        copy = consolidate(source, output, advance=advance)
    facts = {
        "path": output,
        "documents": copy.num_documents,
        "tokens": copy.num_tokens,
        "fingerprint": copy.fingerprint,
    }
    parts = len(source.parts)
    typer.echo(
        json.dumps(facts)
        if as_json
        else f"Copied {parts:,} parts of {cache} into one: {output}, {copy.num_documents:,} documents,"
        f" {copy.num_tokens:,} tokens."
    )
