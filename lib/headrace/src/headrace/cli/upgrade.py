"""``headrace upgrade``: writes the binary ledger of caches of earlier releases."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.options import AsJson
from headrace.cli.shown import working


def command(
    caches: Annotated[
        list[str], typer.Argument(help="Folders or URLs of finished caches.", metavar="CACHE...")
    ],
    as_json: AsJson = False,
) -> None:
    """Write ledger.bin, with which a cache of many parts opens at once, beside the ledger of a cache.

    Builds write it themselves: this command is for caches of earlier releases, and for a damaged file. Data,
    ledger.json and fingerprints do not change, and earlier releases can still read the cache.

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
            typer.echo(
                f"{cache}: ledger.bin {'written' if is_new else 'already there, and sound'}."
            )
