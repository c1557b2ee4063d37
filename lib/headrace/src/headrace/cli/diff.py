"""``headrace cache diff``: compares the ledgers of two caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson, Format, parse_format
from headrace.cli.shown import figures_table, say_json, terminal, working
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
    from headrace.store.joined import open_cache

    with working("comparing"):
        settings = parse_format(format)
        first = open_cache(a, settings=settings)
        second = open_cache(b, settings=settings)
        all_differences = differences(first, second)
    same_content = first.fingerprint == second.fingerprint
    if as_json:
        facts = {"a": a, "b": b, "same": not all_differences, "same_content": same_content}
        say_json({**facts, "differences": [asdict(d) for d in all_differences]})
    else:
        _show_differences(terminal(), a, b, all_differences, same_content)
    if all_differences:
        raise typer.Exit(1)


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
    all_differences: list[Difference] = []

    def compare(what: str, get: Callable[[TokenCache], Any]) -> None:
        x = get(a)
        y = get(b)
        if x != y:
            all_differences.append(Difference(what, x, y))

    compare("documents", lambda c: c.num_documents)
    compare("tokens", lambda c: c.num_tokens)
    all_differences += _fields("tokenizer", a.ledger.tokenizer, b.ledger.tokenizer)
    all_differences += _fields("layout", a.ledger.layout, b.ledger.layout)
    all_differences += _fields(
        "leaf",
        *({str(s["name"]): f"{s['dtype']}, {s['kind']}" for s in c.ledger.leaves} for c in (a, b)),
    )
    all_differences += _fields(
        "source", *({_name(s): _version(s) for s in c.ledger.sources} for c in (a, b))
    )
    compare("snapshots", lambda c: c.snapshots[0].number)
    compare("removed documents", lambda c: c.removed().total)
    compare("digest of removed documents", lambda c: c.removed().digest())
    compare("parts", lambda c: len(c.parts))
    all_differences += _fields(
        "part",
        *({p.name.removeprefix(f"{c.path}/"): _part(p) for p in c.ledger.parts} for c in (a, b)),
    )
    metadata = [c.whole_ledger.metadata for c in (a, b)]
    for name in sorted({name for one in metadata for name in one}):
        all_differences += _fields(f"metadata {name}", *({"": one.get(name)} for one in metadata))
    compare("code version", lambda c: c.ledger.code_version)
    compare("format version", lambda c: c.ledger.format_version)
    return all_differences


def _fields(section: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    """Fields in which two mappings differ; nested mappings are compared field by field."""
    all_differences: list[Difference] = []
    for name in sorted({*a, *b}):
        x = a.get(name)
        y = b.get(name)
        what = f"{section} {name}".strip()
        if isinstance(x, dict) and isinstance(y, dict):
            all_differences += _fields(what, x, y)
        elif x != y:
            all_differences.append(Difference(what, x, y))
    return all_differences


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
    from rich.text import Text

    if not found:
        console.print(Text.assemble(("the same ", "green"), f"{a} and {b}"))
        return
    table = figures_table("", a, b, left=3)
    counts: dict[str, int] = {}
    for d in found:
        section = d.what.split(" ", 1)[0]
        counts[section] = counts.get(section, 0) + 1
        if counts[section] <= _SHOWN_DIFFERENCES:
            table.add_row(Text(d.what), Text(_format_value(d.a)), Text(_format_value(d.b)))
    console.print(table)
    for section, count in counts.items():
        if count > _SHOWN_DIFFERENCES:
            console.print(
                Text(f"{count - _SHOWN_DIFFERENCES:,} more of {section} (all with --json)", "dim")
            )
    content = (
        "The tokens are the same."
        if same_content
        else "The tokens or the boundaries of parts differ."
    )
    console.print(Text(f"{format_count(len(found), 'difference')}. {content}"))


def _format_value(value: Any) -> str:
    return _NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)
