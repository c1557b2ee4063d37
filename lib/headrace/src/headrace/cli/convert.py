"""``headrace convert``: a cache in another program's form, or another's in headrace's own."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.bars import counting


class Layout(StrEnum):
    """Whose form."""

    levanter = "levanter"
    headrace = "headrace"


class Form(StrEnum):
    """How Levanter's form is put together."""

    consolidated = "consolidated"
    sharded = "sharded"


def command(
    cache: Annotated[
        str, typer.Argument(help="Folder or URL of the cache, headrace's or Levanter's.", metavar="CACHE")
    ],
    output: Annotated[str, typer.Argument(help="Folder or URL to write, new or empty.", metavar="OUTPUT")],
    layout: Annotated[Layout, typer.Option(help="Whose form to write.")] = Layout.levanter,
    form: Annotated[
        Form, typer.Option(help="For levanter: one array a leaf (any release), or a folder a part (since May 2026).")
    ] = Form.consolidated,
    dtype: Annotated[
        str | None, typer.Option(help="Stored type of the tokens: int32 for levanter, else that of the cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Write a token cache in Levanter's form, or one of Levanter's in headrace's.

    Caches of Levanter are read where they are; a copy in headrace's form has checksums, digests and small chunks.

    For example:

        headrace convert cache levanter-cache/train --layout levanter

        headrace convert levanter-cache/train cache --layout headrace --dtype uint16
    """
    from headrace.store.cache import TokenCache
    from headrace.store.consolidate import consolidate
    from headrace.store.layout import CacheLayout
    from headrace.store.levanter_export import write_levanter

    source = TokenCache.open(cache)
    with counting("converting", show=not as_json) as (expect, advance):
        expect(sum(source.leaf(name).num_elements for name in ("input_ids", *source.leaves)))
        if layout is Layout.levanter:
            write_levanter(source, output, form=form.value, dtype=dtype or "int32", advance=advance)
        else:
            target = CacheLayout(dtype or source.dtype.name)
            target.check_tokens()
            consolidate(source, output, layout=target, advance=advance)
    facts = {"path": output, "layout": layout.value, "documents": source.num_documents, "tokens": source.num_tokens}
    typer.echo(
        json.dumps(facts)
        if as_json
        else f"Wrote {output} in the form of {layout.value}: {source.num_documents:,} documents,"
        f" {source.num_tokens:,} tokens."
    )
