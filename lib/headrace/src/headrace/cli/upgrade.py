"""``headrace upgrade``: the ledger in columns beside caches of earlier releases."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.shown import working


def command(
    caches: Annotated[list[str], typer.Argument(help="Folders or URLs of finished caches.", metavar="CACHE...")],
    as_json: AsJson = False,
) -> None:
    """Write ledger.bin, from which a cache of many parts opens at once, beside the ledger of a cache.

    Builds write it themselves: this is for caches of earlier releases, and for a file that was damaged. Data,
    ledger.json and fingerprints stay as they are, and earlier releases read the cache as before.

    For example:

        headrace upgrade caches/web caches/code
    """
    from headrace.store.upgrade import upgrade

    for cache in caches:
        with working("reading the ledger"):
            is_new = upgrade(cache)
        if as_json:
            typer.echo(json.dumps({"path": cache, "written": is_new}))
        else:
            typer.echo(f"{cache}: ledger.bin {'written' if is_new else 'was there, and is sound'}.")
