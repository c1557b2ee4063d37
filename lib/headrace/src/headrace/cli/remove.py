"""``headrace cache remove``: removes documents from a finished cache, for new runs and for runs in
progress.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson
from headrace.cli.shown import working
from headrace.errors import format_count

if TYPE_CHECKING:
    from headrace.data.documents import DocumentFilter
    from headrace.store.cache import TokenCache


def command(
    cache: Annotated[str, typer.Argument(help="Folder or URL of the cache.", metavar="CACHE")],
    documents: Annotated[
        list[str] | None, typer.Argument(help="Numbers of documents.", metavar="[ID]...")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", help="List of numbers: one per line, or .npy (also a bitmap).", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove documents from a finished cache by writing tombstones beside its ledger. The data does
    not change.

    New runs neither read these documents nor train on them; their other rows stay the same, bit for
    bit. To apply the removal to a run in progress, add the amendment that this command prints.
    Documents are numbered from 0, as in `headrace cache inspect CACHE --document`; `headrace cache
    inspect CACHE --id` finds the number of a document by its id.

    For example:

        headrace cache remove caches/web 17 4711

        headrace cache remove gs://bucket/web --file takedowns.txt
    """
    from headrace.store.joined import open_cache
    from headrace.store.tombstones import remove_documents

    opened = open_cache(cache)
    removal = _listed(opened, documents or [], file)
    numbers = removal.of_numbers_in(opened)
    fresh = 0
    first = 0
    with working("removing"):
        for member in opened.members:
            of_member = numbers.within(first, first + member.num_documents)
            fresh += remove_documents(member, of_member)[1].total if of_member.total else 0
            first += member.num_documents
    counts = {"listed_documents": removal.listed, "new_documents": fresh}
    facts = {"path": cache, **counts, **removal_facts(opened)}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    again = removal.listed - fresh
    newest = facts["generation"]
    already = f" ({again:,} were already removed, or named twice)" if again else ""
    typer.echo(
        f"{cache}: {format_count(fresh, 'document')} removed{already}; generation {newest} of its"
    )
    count, tokens = (int(facts[name]) for name in ("removed_documents", "removed_tokens"))
    typer.echo(
        f"tombstones has {format_count(count, 'document')} with {format_count(tokens, 'token')}."
    )
    if newest not in (0, [0] * len(opened.members)):
        typer.echo(
            "New runs leave them out. For a run in progress, add for each component with this"
            " cache:"
        )
        typer.echo(f"amendments: [{{step: STEP, remove: {{COMPONENT: {newest}}}}}]")


def _listed(cache: TokenCache, documents: list[str], file: str | None) -> DocumentFilter:
    """The requested documents."""
    from headrace.data.documents import DocumentFilter
    from headrace.errors import ConfigError

    if (file is None) == (not documents):
        problem = (
            "names no document" if file is None else "cannot be combined with numbers of documents"
        )
        cure = (
            f"Give either numbers (headrace cache remove {cache.path} 17 4711) or a list: --file"
            " FILE."
        )
        raise ConfigError(
            problem, field="ID" if file is None else "--file", value=file or [], cure=cure
        )
    if file is not None:
        return DocumentFilter.load(file, name="--file")
    for text in documents:
        if not (text.isdecimal() and len(text) < 19 and int(text) < cache.num_documents):
            raise ConfigError(
                f"is not a document: {cache.path} has"
                f" {format_count(cache.num_documents, 'document')}",
                field="ID",
                value=text,
                cure=f"Give numbers from 0 to {cache.num_documents - 1}; headrace cache inspect"
                f" {cache.path} --id ID --json finds one by its id.",
            )
    return DocumentFilter([int(text) for text in documents], name="ID")


def removal_facts(cache: TokenCache) -> dict[str, Any]:
    """What has been removed from a cache, as JSON values; for a cache with generations, lists with
    a value for each.
    """
    from headrace.data.documents import stored_documents, token_ranges
    from headrace.store.tombstones import removed_documents, tombstones_of

    stones = [tombstones_of(member) for member in cache.members]
    counts = [[one.total for one in of_member.generations] for of_member in stones]
    documents = stored_documents(cache, removed_documents(cache))
    return {
        "generation": [len(one) for one in stones] if stones[1:] else len(stones[0]),
        "generations": counts if stones[1:] else counts[0],
        "removed_documents": documents.total,
        "removed_tokens": token_ranges(cache, documents).total,
    }


def removal_line(counts: dict[str, int]) -> str:
    """Describes what a filter does.

    Example:
        >>> removal_line(
        ...     dict(
        ...         listed_documents=5,
        ...         repeated_documents=1,
        ...         not_found_documents=1,
        ...         removed_documents=3,
        ...         removed_tokens=120,
        ...     )
        ... )
        'the filter lists 5 documents (1 repeated, 1 not found) and removes 3 with 120 tokens'
    """
    listed = format_count(counts["listed_documents"], "document")
    return (
        f"the filter lists {listed} ({counts['repeated_documents']:,} repeated,"
        f" {counts['not_found_documents']:,} not found) and removes {counts['removed_documents']:,}"
        f" with {counts['removed_tokens']:,} tokens"
    )
