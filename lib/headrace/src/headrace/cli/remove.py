"""``headrace cache remove``: removes documents from a finished cache, for new runs and for runs in
progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, CacheFolder, cache_at
from headrace.cli.shown import say, say_json, working
from headrace.errors import ConfigError, command_line, format_count

if TYPE_CHECKING:
    from headrace.data.documents import DocumentFilter
    from headrace.store.cache import TokenCache


def command(
    cache: CacheFolder,
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
    """Remove documents from a finished cache. This makes its next snapshot; the data does not
    change.

    New runs neither read these documents nor train on them; their other rows stay the same, bit for
    bit. To move a run in progress to it: `headrace run amend RUN CONFIG --newest-caches`.
    Documents are numbered from 0, as in `headrace cache inspect CACHE --document`; `headrace cache
    inspect CACHE --id` finds the number of a document by its id.

    For example:

        headrace cache remove caches/web 17 4711

        headrace cache remove gs://bucket/web --file takedowns.txt
    """
    from headrace.cli.snapshots import snapshot_facts, to_use_it
    from headrace.store.snapshots import remove_documents

    opened = cache_at(cache)
    opened.check_own_folder("Leave them out in a config: components.NAME.remove: FILE.")
    removal = _listed(opened, documents or [], file)
    numbers = removal.of_numbers_in(opened)
    with working("removing"):
        fresh = remove_documents(cache, opened.members[0].as_member, numbers)[1].total
    counts = {"listed_documents": removal.listed, "new_documents": fresh}
    facts: dict[str, Any] = {"path": cache, **counts, **snapshot_facts(cache_at(cache))}
    if as_json:
        say_json(facts)
        return
    again = removal.listed - fresh
    newest = facts["snapshot"]
    already = f" ({again:,} were already removed, or named twice)" if again else ""
    say(f"{cache}: {format_count(fresh, 'document')} removed{already}; in snapshot {newest}.")
    count = format_count(facts["removed_documents"], "document")
    tokens = format_count(facts["removed_tokens"], "token")
    say(f"Removed in all: {count} with {tokens}.")
    if newest > 1:
        say(to_use_it(newest))


def _listed(cache: TokenCache, documents: list[str], file: str | None) -> DocumentFilter:
    """The requested documents."""
    from headrace.data.documents import DocumentFilter

    if (file is None) == (not documents):
        problem = (
            "names no document" if file is None else "cannot be combined with numbers of documents"
        )
        numbers = command_line("cache remove", cache.path, 17, 4711)
        cure = f"Give either a list, --file FILE, or numbers: {numbers}"
        raise ConfigError(
            problem, field="ID" if file is None else "--file", value=file or [], cure=cure
        )
    if file is not None:
        return DocumentFilter.load(file, name="--file")
    for text in documents:
        if not (text.isdecimal() and len(text) < 19 and int(text) < cache.num_originals):
            raise ConfigError(
                f"is not a document: {cache.path} has"
                f" {format_count(cache.num_originals, 'document')}",
                field="ID",
                value=text,
                cure=f"Give numbers from 0 to {cache.num_originals - 1}; to find one by its id:"
                f" {command_line('cache inspect', cache.path, id='ID', json=True)}",
            )
    return DocumentFilter([int(text) for text in documents], name="ID")


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
