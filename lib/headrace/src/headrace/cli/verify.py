"""``headrace verify``: is a cache still what was written, and if not, what rebuilds it; ``headrace diff``: what differs
between two caches, by their ledgers alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AsJson
from headrace.cli.shown import counting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from headrace.store.cache import TokenCache
    from headrace.store.verify import Damage, VerifyReport

_SHOWN_SOURCES = 4
_SHOWN_DIFFERENCES = 8
_NOTHING = "-"


def command(
    cache: Annotated[str, typer.Argument(help="Folder or URL of the cache.", metavar="CACHE")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every chunk and compare checksums and digests, not sizes alone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a token cache: every file there and whole, and with `--deep` every byte what was written.

    Names the damaged parts, files and chunks, and the source files that rebuild them. Ends with status 1 if something
    is damaged.

    For example:

        headrace verify cache

        headrace verify gs://bucket/cache --deep
    """
    from rich.console import Console

    from headrace.store.verify import verify

    with counting("checking", show=not as_json and deep) as (expect, advance):
        report = verify(cache, deep=deep, expect=expect, advance=advance)
    repair = _repair_command(cache) if report.damages else ""
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "repair": repair}))
    else:
        _show(Console(highlight=False, soft_wrap=True), report, repair)
    if report.damages:
        raise typer.Exit(1)


def _repair_command(cache: str) -> str:
    """The command that mends what sources are there for; empty if the cache was not built by one."""
    from headrace.cli.inspect import build_command
    from headrace.store.ledger import read_ledger

    ledger = read_ledger(cache)
    if ledger is None or "paths" not in ledger.metadata:
        return ""
    return f"{build_command(cache, ledger)} --repair"


def _show(console: Console, report: VerifyReport, repair: str) -> None:
    from rich.text import Text

    for damage in report.damages:
        console.print(_line(damage))
    unfinished = "" if report.finished else " (unfinished: its complete parts)"
    how = "every chunk read" if report.deep else "names and sizes; --deep reads every chunk"
    what = f"{report.path}{unfinished}: {report.parts:,} parts, {report.elements:,} values ({how})"
    if report.shuffled:
        what += f", shuffled with seed {report.shuffled['seed']} from {report.shuffled['fingerprint']}"
    if not report.damages:
        console.print(Text.assemble(("sound ", "green"), what))
        return
    parts = report.damaged_parts
    console.print(Text.assemble(("damaged ", "bold red"), f"{what}: {len(parts):,} parts with damage."))
    if repair:
        console.print(Text(f"To build just these anew: {repair}"))


def _line(damage: Damage) -> Text:
    from rich.text import Text

    where = damage.file or damage.array
    runs = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in damage.chunks)
    chunks = f" (chunks {runs})" if runs else ""
    sources = ", ".join(damage.sources[:_SHOWN_SOURCES])
    more = len(damage.sources) - _SHOWN_SOURCES
    rebuilt = f"; rebuilt from {sources}" + (f" and {more} more" if more > 0 else "") if sources else ""
    lost = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in damage.documents)
    documents = f", documents {lost}" if lost else ""
    part = f"part {damage.part} " if damage.part else ""
    return Text.assemble((part, "bold"), f"{where}: {damage.problem}{chunks}{documents}{rebuilt}")


@dataclass(frozen=True)
class Difference:
    """One thing that differs: section and field, and its value in both caches; None: it has none."""

    what: str
    a: Any
    b: Any


def diff(
    a: Annotated[str, typer.Argument(help="Folder or URL of a cache.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Folder or URL of another.", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """Compare two token caches by their ledgers: tokenizer, layout, leaves, sources, parts, counts.

    Reads no tokens. Ends with status 1 if they differ.

    For example:

        headrace diff cache cache-of-last-week
    """
    from rich.console import Console

    from headrace.store.cache import TokenCache

    first, second = TokenCache.open(a), TokenCache.open(b)
    found = differences(first, second)
    same_content = first.fingerprint == second.fingerprint
    if as_json:
        facts = {"a": a, "b": b, "same": not found, "same_content": same_content}
        typer.echo(json.dumps({**facts, "differences": [asdict(d) for d in found]}, ensure_ascii=False))
    else:
        _show_differences(Console(highlight=False), a, b, found, same_content)
    if found:
        raise typer.Exit(1)


def differences(a: TokenCache, b: TokenCache) -> list[Difference]:
    """What differs between two caches, in the order in which one would ask.

    Example:
        >>> import headrace.testing
        >>> one, two = (headrace.testing.tiny_cache(documents=n) for n in (5, 6))
        >>> [d.what for d in differences(one, two)][:2]
        ['documents', 'tokens']
    """
    found: list[Difference] = []

    def compare(what: str, get: Callable[[TokenCache], Any]) -> None:
        x, y = get(a), get(b)
        if x != y:
            found.append(Difference(what, x, y))

    compare("documents", lambda c: c.num_documents)
    compare("tokens", lambda c: c.num_tokens)
    found += _fields("tokenizer", a.ledger.tokenizer, b.ledger.tokenizer)
    found += _fields("layout", a.ledger.layout, b.ledger.layout)
    found += _fields("leaf", *({str(s["name"]): f"{s['dtype']}, {s['kind']}" for s in c.ledger.leaves} for c in (a, b)))
    found += _fields("source", *({_name(s): _version(s) for s in c.ledger.sources} for c in (a, b)))
    compare("parts", lambda c: len(c.parts))
    found += _fields("part", *({p.name: _part(p) for p in c.ledger.parts} for c in (a, b)))
    metadata = [c.whole_ledger.metadata for c in (a, b)]
    for name in sorted({name for one in metadata for name in one}):
        found += _fields(f"metadata {name}", *({"": one.get(name)} for one in metadata))
    compare("code version", lambda c: c.ledger.code_version)
    compare("format version", lambda c: c.ledger.format_version)
    return found


def _fields(section: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    """Fields of two mappings that differ; a mapping within is compared by its own."""
    found: list[Difference] = []
    for name in sorted({*a, *b}):
        x, y = a.get(name), b.get(name)
        what = f"{section} {name}".strip()
        if isinstance(x, dict) and isinstance(y, dict):
            found += _fields(what, x, y)
        elif x != y:
            found.append(Difference(what, x, y))
    return found


def _name(source: dict[str, Any]) -> str:
    return " ".join(str(v) for k, v in source.items() if k not in ("size", "version", "part", "digest"))


def _version(source: dict[str, Any]) -> str:
    return ", ".join(f"{k} {source[k]}" for k in ("size", "version", "digest") if source.get(k) is not None)


def _part(part: Any) -> str:
    leaves = "".join(f", {name} {leaf.digest[:19]}" for name, leaf in sorted(part.leaves.items()))
    return f"{part.documents:,} documents, {part.tokens:,} tokens, {part.digest[:19]}{leaves}"


def _show_differences(console: Console, a: str, b: str, found: list[Difference], same_content: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    if not found:
        console.print(Text.assemble(("the same ", "green"), f"{a} and {b}"))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("", a, b):
        table.add_column(title, overflow="fold")
    shown: dict[str, int] = {}
    for d in found:
        section = d.what.split(" ", 1)[0]
        shown[section] = shown.get(section, 0) + 1
        if shown[section] <= _SHOWN_DIFFERENCES:
            table.add_row(Text(d.what), Text(_shown(d.a)), Text(_shown(d.b)))
    console.print(table)
    for section, count in shown.items():
        if count > _SHOWN_DIFFERENCES:
            console.print(Text(f"{count - _SHOWN_DIFFERENCES:,} more of {section} (all with --json)", "dim"))
    content = "The tokens are the same." if same_content else "The tokens differ, or the borders of parts."
    console.print(Text(f"{len(found):,} differences. {content}"))


def _shown(value: Any) -> str:
    return _NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)
