"""``headrace cache remove``: removes documents from a finished cache, for new runs and for runs in
progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, CacheFolder, cache_at
from headrace.cli.shown import counting, say, say_json, working
from headrace.errors import ConfigError, command_line, format_count

if TYPE_CHECKING:
    from headrace.data.documents import DocumentFilter
    from headrace.store.cache import TokenCache


def command(
    cache: CacheFolder,
    documents: Annotated[
        list[str] | None,
        typer.Argument(help="Numbers of documents, or ids with --id-leaf.", metavar="[ID]..."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", help="List of numbers: one per line, or .npy (also a bitmap).", metavar="FILE"
        ),
    ] = None,
    id_leaf: Annotated[
        str | None,
        typer.Option(
            help="What is listed are ids in this leaf, such as id or url, and no numbers; FILE has"
            " one per line.",
            metavar="NAME",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove documents from a finished cache. This makes its next snapshot; the data does not
    change.

    New runs neither read these documents nor train on them; their other rows stay the same, bit for
    bit. To move a run in progress to it: `headrace run amend RUN CONFIG --newest-caches`, and while
    a job trains it, with --step STEP --live.
    Documents are numbered from 0, as in `headrace cache inspect CACHE --document`; `headrace cache
    inspect CACHE --id` finds the number of a document by its id.

    For example:

        headrace cache remove caches/web 17 4711

        headrace cache remove gs://bucket/web --file takedowns.txt

        headrace cache remove caches/web --id-leaf url --file takedown-urls.txt
    """
    from headrace.cli.snapshots import snapshot_facts, to_use_it
    from headrace.store.snapshots import remove_documents

    opened = cache_at(cache)
    opened.check_own_folder("Leave them out in a config: components.NAME.remove: FILE.")
    _check_listed(opened, documents or [], file)
    facts: dict[str, Any] = {"path": cache}
    if id_leaf is None:
        removal = _listed(opened, documents or [], file)
    else:
        ids = (documents or []) if file is None else _lines(file)
        removal, missing = _with_ids(opened, ids, id_leaf, quiet=as_json)
        facts["ids_not_found"] = missing
    numbers = removal.of_numbers_in(opened)
    with working("removing"):
        fresh = remove_documents(cache, opened.members[0].as_member, numbers)[1].total
    counts = {"listed_documents": removal.listed, "new_documents": fresh}
    facts |= {**counts, **snapshot_facts(cache_at(cache))}
    if as_json:
        say_json(facts)
        return
    again = removal.listed - fresh
    newest = facts["snapshot"]
    already = f" ({again:,} were already removed, or named twice)" if again else ""
    say(f"{cache}: {format_count(fresh, 'document')} removed{already}; in snapshot {newest}.")
    if missing := facts.get("ids_not_found"):
        say(f"{format_count(len(missing), 'id')} of no document, {missing[0]!r} first.")
    count = format_count(facts["removed_documents"], "document")
    tokens = format_count(facts["removed_tokens"], "token")
    say(f"Removed in all: {count} with {tokens}.")
    if newest > 1:
        say(to_use_it(newest))


def _check_listed(cache: TokenCache, documents: list[str], file: str | None) -> None:
    """Raises ConfigError unless documents are given either as arguments or in a file."""
    if (file is None) == (not documents):
        problem = (
            "names no document" if file is None else "cannot be combined with numbers of documents"
        )
        numbers = command_line("cache remove", cache.path, 17, 4711)
        cure = f"Give either a list, --file FILE, or numbers: {numbers}"
        raise ConfigError(
            problem, field="ID" if file is None else "--file", value=file or [], cure=cure
        )


def _lines(file: str) -> list[str]:
    """The ids in a file."""
    from headrace.store import files

    content = files.read_bytes(file)
    if content is None:
        cure = "Give a file with one id per line."
        raise ConfigError("does not exist", field="--file", value=file, cure=cure)
    lines = content.decode(errors="surrogateescape").split("\n")
    return [line.removesuffix("\r") for line in lines]


def _with_ids(
    cache: TokenCache, ids: list[str], leaf: str, *, quiet: bool
) -> tuple[DocumentFilter, list[str]]:
    """The documents with some ids, and the ids that none has."""
    from headrace.cli.decoded import documents_with_ids
    from headrace.data.documents import DocumentFilter

    wanted_ids = dict.fromkeys(text for text in ids if text)
    with counting("searching", show=not quiet) as (expect, advance):
        expect(cache.num_documents)
        positions = documents_with_ids(cache, wanted_ids, leaf, advance, field="ID")
    numbers = cache.originals([one for some in positions.values() for one in some])
    numbers = [*dict.fromkeys(numbers.tolist())]
    missing = [text for text in wanted_ids if text not in positions]
    return DocumentFilter(numbers, name="ID"), missing


def _listed(cache: TokenCache, documents: list[str], file: str | None) -> DocumentFilter:
    """The documents with the requested numbers."""
    from headrace.data.documents import DocumentFilter

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
