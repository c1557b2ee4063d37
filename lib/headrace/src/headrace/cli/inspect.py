"""``headrace inspect``: what is in a token cache; of an unfinished one how far it got and how to finish it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli.bars import counting
from headrace.cli.decoded import ID_LEAF
from headrace.cli.inspect_run import SUFFIXES, inspect_run, removal_line
from headrace.cli.options import AsJson, CacheOrConfig, Decoder, IdLeaf, Settings

if TYPE_CHECKING:
    from headrace.store.cache import TokenCache

_SHOWN_MATCHES = 8


def command(
    cache: CacheOrConfig,
    settings: Settings = None,
    samples: Annotated[int, typer.Option(help="Documents to show, drawn at random.", min=0)] = 3,
    document: Annotated[int | None, typer.Option(help="Show just this document, whole.", metavar="I")] = None,
    by_id: Annotated[str | None, typer.Option("--id", help="Show just the documents with this id, whole.")] = None,
    id_leaf: IdLeaf = ID_LEAF,
    seed: Annotated[int, typer.Option(help="Which documents are drawn.")] = 0,
    tokenizer: Decoder = None,
    remove: Annotated[
        str | None, typer.Option(help="Filter file: count what it would leave out.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in a token cache: sizes, lengths, frequent tokens, decoded samples. Of a config: where its tokens
    go.

    Samples show where documents begin and end, and what of them is trained on, if the cache says so. Of huge caches
    lengths and tokens are sampled. Reads Levanter's caches, too.

    For example:

        headrace inspect cache

        headrace inspect gs://bucket/cache --samples 0 --json

        headrace inspect cache --document 17

        headrace inspect cache --id https://example.org/a --id-leaf url

        headrace inspect levanter-cache/train --tokenizer llama3/

        headrace inspect cache --remove duplicates.txt

        headrace inspect run.yaml seq_len=4096
    """
    if cache.endswith(SUFFIXES):
        inspect_run(cache, settings or [], as_json)
        return
    from headrace.cli.counts import length_statistics, token_statistics
    from headrace.cli.decoded import drawn, sample, tokenizer_of
    from headrace.cli.inspect_show import show_lengths, show_overview, show_samples, show_tokens
    from headrace.cli.unfinished import show_unfinished, unfinished
    from headrace.store.cache import TokenCache
    from headrace.store.ledger import read_ledger

    console = Console(highlight=False, soft_wrap=False)
    ledger = read_ledger(cache)
    if ledger is not None and not ledger.finished:
        state = unfinished(cache, ledger)
        typer.echo(json.dumps(state)) if as_json else show_unfinished(console, state)
        return
    opened = TokenCache.open(cache)
    decoder = tokenizer_of(opened, tokenizer)
    chosen = _chosen(opened, document, by_id, id_leaf, quiet=as_json)
    every = chosen is None
    numbers = drawn(opened.num_documents, samples, seed) if chosen is None else chosen[:_SHOWN_MATCHES]
    shown = [sample(opened, decoder, i, whole=not every) for i in numbers]
    removed = None if remove is None else removal(opened, remove)
    facts: dict[str, Any] = overview(opened) if every else {}
    lengths, tokens = (length_statistics(opened), token_statistics(opened, decoder)) if every else (None, None)
    if as_json:
        for name, value in (("lengths", lengths), ("token_frequencies", tokens)):
            facts |= {} if value is None else {name: asdict(value)}
        facts |= {} if removed is None else {"removal": removed}
        facts |= {} if by_id is None else {"documents_with_id": chosen}
        typer.echo(json.dumps({**facts, "samples": [asdict(s) for s in shown]}, ensure_ascii=False))
        return
    if lengths is not None and tokens is not None:
        show_overview(console, facts)
        show_lengths(console, lengths)
        show_tokens(console, tokens)
    if removed is not None:
        console.print(Text(removal_line(removed)), soft_wrap=True)
    show_samples(console, shown)
    if chosen is not None and len(chosen) > len(shown):
        console.print(Text(f"{len(chosen) - len(shown):,} more have this id (all with --json)", "dim"))


def _chosen(
    cache: TokenCache, document: int | None, by_id: str | None, id_leaf: str, *, quiet: bool
) -> list[int] | None:
    """The documents that were asked for by number or id; None if none was."""
    from headrace.cli.search import documents_with_id
    from headrace.errors import ConfigError

    if by_id is not None:
        if document is not None:
            raise ConfigError("goes without --document", field="--id", value=by_id, cure="Give one of them.")
        with counting("searching", show=not quiet) as (expect, advance):
            expect(cache.num_documents)
            found = documents_with_id(cache, by_id, id_leaf, advance)
        if not found:
            raise ConfigError(
                f"no document of {cache.path} has this id",
                field="--id",
                value=by_id,
                cure=f"Ids are compared whole; headrace inspect {cache.path} shows some in leaf {id_leaf!r}.",
            )
        return found
    if document is None:
        return None
    if not 0 <= document < cache.num_documents:
        raise ConfigError(
            f"there is no such document in {cache.path}",
            field="--document",
            value=document,
            cure=f"Their numbers run from 0 to {cache.num_documents - 1}.",
        )
    return [document]


def removal(cache: TokenCache, url: str) -> dict[str, int]:
    """What a filter file would leave out of a cache, counted; numbers that no document has are counted too."""
    from headrace.data.document_filter import DocumentFilter

    found = DocumentFilter.load(url, name="--remove", count_not_found=True).of(cache)
    return {
        "listed_documents": found.listed,
        "repeated_documents": found.repeated,
        "not_found_documents": found.not_found,
        "removed_documents": found.documents.total,
        "removed_tokens": found.tokens.total,
    }


def overview(cache: TokenCache) -> dict[str, Any]:
    """Sizes, layout, tokenizer and counters of a finished cache, as JSON values."""
    from headrace.store import files

    ledger = cache.ledger
    extra = [p.extra for p in ledger.parts]
    source_bytes = {str(s.get("path")): int(s.get("size") or 0) for s in ledger.sources}  # slices name the whole file
    return {
        "path": cache.path,
        "finished": True,
        "documents": cache.num_documents,
        "tokens": cache.num_tokens,
        "bytes_on_disk": files.tree_bytes(cache.path),
        "text_bytes": sum(int(e.get("text_bytes", 0)) for e in extra),
        "empty_documents": sum(int(e.get("empty_documents", 0)) for e in extra),
        "skipped_lines": sum(int(e.get("skipped_lines", 0)) for e in extra),
        "trained_tokens": sum(int(e.get("trained_tokens", 0)) for e in extra),
        "untrained_documents": sum(int(e.get("untrained_documents", 0)) for e in extra),
        "parts": len(ledger.parts),
        "part_sizes": [{"name": p.name, "documents": p.documents, "tokens": p.tokens} for p in ledger.parts],
        "leaves": [{**leaf, "values": cache.leaf(leaf["name"]).num_elements} for leaf in ledger.leaves],
        "source_files": len(source_bytes),
        "source_bytes": sum(source_bytes.values()),
        "layout": ledger.layout,
        "tokenizer": ledger.tokenizer,
        "fingerprint": cache.fingerprint,
    }
