"""``headrace cache consolidate``: copy a cache into one part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import AsJson, CacheFolder, Format, cache_at
from headrace.cli.shown import counting, say, say_json
from headrace.errors import format_count

if TYPE_CHECKING:
    from headrace.store.cache import TokenCache


def command(
    cache: CacheFolder,
    output: Annotated[
        str, typer.Argument(help="Folder or URL of the copy, new or empty.", metavar="OUTPUT")
    ],
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Copy a token cache into one part, for fewer files and rows that continue across the ends of
    parts.

    Caches of many parts can be read as fast without such a copy. If it is interrupted, run it again
    to resume.

    For example:

        headrace cache consolidate cache cache-in-one
    """
    from headrace.store.consolidate import consolidate as copy_cache

    source = cache_at(cache, format)
    with copying("copying", source, show=not as_json) as advance:
        copy = copy_cache(source, output, advance=advance)
    counts = {"documents": copy.num_originals, "tokens": copy.num_tokens}
    if as_json:
        say_json({"path": output, **counts, "fingerprint": copy.fingerprint})
        return
    say(
        f"Copied {format_count(len(source.parts), 'part')} of {cache} into one: {output},"
        f" {format_count(copy.num_originals, 'document')}, {copy.num_tokens:,} tokens."
    )


@contextmanager
def copying(what: str, source: TokenCache, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar over all values of a cache."""
    with counting(what, show=show) as (expect, advance):
        expect(sum(source.leaf(name).num_elements for name in ("input_ids", *source.leaves)))
        yield advance
