"""``headrace cache consolidate``: copy a cache into one part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, CacheFolder, Format, cache_at
from headrace.cli.shown import counting, say, say_json
from headrace.errors import ConfigError, format_count

if TYPE_CHECKING:
    from headrace.store.cache import TokenCache


def command(
    cache: CacheFolder,
    output: Annotated[
        str, typer.Argument(help="Folder or URL of the copy, new or empty.", metavar="OUTPUT")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "-t",
            help="The tokenizer of a cache that keeps only its name, as Levanter's do. The copy"
            " keeps it.",
            metavar="FILE",
        ),
    ] = None,
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Copy a token cache into one part, for fewer files and rows that continue across the ends of
    parts.

    Caches of many parts can be read as fast without such a copy. If it is interrupted, run it again
    to resume.

    For example:

        headrace cache consolidate cache cache-in-one

        headrace cache consolidate levanter-cache/train cache --tokenizer llama3/
    """
    from headrace.store.consolidate import consolidate as copy_cache

    source = cache_at(cache, format)
    stated = None if tokenizer is None else stated_tokenizer(source, tokenizer)
    with copying("copying", source, show=not as_json) as advance:
        copy = copy_cache(source, output, tokenizer=stated, advance=advance)
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


def stated_tokenizer(cache: TokenCache, path: str) -> tuple[dict[str, Any], bytes | None]:
    """Record and file of the tokenizer that the user names for a cache that does not keep its own.

    Raises:
        ConfigError: the cache keeps its own, or was built with another.
    """
    from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer, named_only

    record = cache.ledger.tokenizer
    if not named_only(record):
        problem = "cannot be stored: the cache keeps its own"
        cure = "Leave --tokenizer out."
        raise ConfigError(problem, field="tokenizer", value=path, cure=cure)
    plain = load_tokenizer(TokenizerConfig(path, bos="none", eos="none"))
    plain.check_same(record, cache.path)
    own_ids = {
        role: record[f"{role}_id"] for role in ("bos", "eos") if record[f"{role}_id"] is not None
    }
    if any(i >= plain.vocab_size for i in own_ids.values()):
        return plain.record(), plain.content
    own = {role: plain.decode([token]) for role, token in own_ids.items()}
    try:
        tokenizer = load_tokenizer(
            TokenizerConfig(path, bos=own.get("bos", "none"), eos=own.get("eos", "none"))
        )
    except ConfigError as error:
        role = str(error.field).rpartition(".")[2]
        verb = {"bos": "begins", "eos": "ends"}[role]
        raise ConfigError(
            f"cannot be the tokenizer of {cache.path}: its first document {verb} with id"
            f" {own_ids[role]}, no special token here",
            field="tokenizer",
            value=path,
            cure=f"Name the one with which it was built ({record.get('path')!r}).",
        ) from error
    return tokenizer.record(), tokenizer.content
