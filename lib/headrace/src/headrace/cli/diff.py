"""``headrace cache diff``: compares the ledgers of two caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.exits import PROBLEM_FOUND
from headrace.cli.options import AsJson, Format, cache_at
from headrace.cli.shown import figures_table, labelled, say_json, terminal, working
from headrace.errors import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.store.cache import TokenCache

_SHOWN_DIFFERENCES = 8
_NOTHING = "-"


def command(
    a: Annotated[str, typer.Argument(help="Folder or URL of a cache.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Another cache.", metavar="B")],
    format: Format = None,  # noqa: A002 (the option's name)
    as_json: AsJson = False,
) -> None:
    """Compare two token caches by their ledgers: tokenizer, layout, leaves, sources, parts, counts.

    Reads no tokens. Exits with status 1 if they differ.

    For example:

        headrace cache diff cache cache-of-last-week
    """
    with working("comparing"):
        first = cache_at(a, format)
        second = cache_at(b, format)
        all_differences = differences(first, second)
    same_content = first.fingerprint == second.fingerprint
    if as_json:
        facts = {"a": a, "b": b, "same": not all_differences, "same_content": same_content}
        say_json({**facts, "differences": [asdict(d) for d in all_differences]})
    else:
        _show_differences(terminal(), a, b, all_differences, same_content)
    if all_differences:
        raise typer.Exit(PROBLEM_FOUND)


@dataclass(frozen=True)
class Difference:
    """A difference: section and field, and the value in both caches; None: no value."""

    what: str
    a: Any
    b: Any


def differences(a: TokenCache, b: TokenCache) -> list[Difference]:
    """The differences of two caches, most important first.

    Example:
        >>> import headrace.testing
        >>> one, two = (headrace.testing.tiny_cache(documents=n) for n in (5, 6))
        >>> [d.what for d in differences(one, two)][:2]
        ['documents', 'tokens']
    """
    of_a = _facts(a)
    of_b = _facts(b)
    return [one for name in of_a for one in _compared(name, of_a[name], of_b[name])]


def _facts(cache: TokenCache) -> dict[str, Any]:
    """What is compared of a cache, by section."""
    ledger = cache.ledger
    removed = cache.removed()
    return {
        "documents": cache.num_originals,
        "tokens": cache.num_tokens,
        "tokenizer": ledger.tokenizer,
        "layout": ledger.layout,
        "leaf": {str(leaf["name"]): f"{leaf['dtype']}, {leaf['kind']}" for leaf in ledger.leaves},
        "source": {_name(source): _version(source) for source in ledger.sources},
        "snapshots": cache.snapshots[0].number,
        "removed documents": removed.total,
        "digest of removed documents": removed.digest(),
        "parts": len(cache.parts),
        "part": {part.name.removeprefix(f"{cache.path}/"): _part(part) for part in ledger.parts},
        "metadata": cache.whole_ledger.metadata,
        "code version": ledger.code_version,
        "format version": ledger.format_version,
    }


def _compared(what: str, a: Any, b: Any) -> list[Difference]:
    """Whether two values differ; mappings are compared field by field."""
    if isinstance(a, dict) and isinstance(b, dict):
        fields = sorted({*a, *b})
        return [d for name in fields for d in _compared(f"{what} {name}", a.get(name), b.get(name))]
    return [] if a == b else [Difference(what, a, b)]


def _name(source: dict[str, Any]) -> str:
    return " ".join(
        str(v) for k, v in source.items() if k not in ("size", "version", "part", "digest")
    )


def _version(source: dict[str, Any]) -> str:
    return ", ".join(
        f"{k} {source[k]}" for k in ("size", "version", "digest") if source.get(k) is not None
    )


def _part(part: Any) -> str:
    leaves = "".join(f", {name} {leaf.digest[:19]}" for name, leaf in sorted(part.leaves.items()))
    documents = format_count(part.documents, "document")
    tokens = format_count(part.tokens, "token")
    return f"{documents}, {tokens}, {part.digest[:19]}{leaves}"


def _show_differences(
    console: Console, a: str, b: str, found: list[Difference], same_content: bool
) -> None:
    if not found:
        console.print(labelled("the same", "green", f"{a} and {b}"))
        return
    table = figures_table("", a, b, left=3)
    counts = Counter[str]()
    for d in found:
        section = d.what.split(" ", 1)[0]
        counts[section] += 1
        if counts[section] <= _SHOWN_DIFFERENCES:
            table.add_row(d.what, _format_value(d.a), _format_value(d.b))
    console.print(table)
    for section, count in counts.items():
        if count > _SHOWN_DIFFERENCES:
            more = count - _SHOWN_DIFFERENCES
            console.print(f"{more:,} more of {section} (all with --json)", style="dim")
    content = (
        "The tokens are the same."
        if same_content
        else "The tokens or the boundaries of parts differ."
    )
    console.print(f"{format_count(len(found), 'difference')}. {content}")


def _format_value(value: Any) -> str:
    return _NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)
