"""What ``headrace inspect`` prints of a finished cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace.cli.shown import BOUNDARY, bar, coloured, in_bytes, legend, marked, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.counts import LengthStatistics, TokenStatistics
    from headrace.cli.decoded import Sample

_SHOWN_NUMBERS = 8
_LEAF_WIDTH = 100
_NARROW = 60


def show_overview(console: Console, facts: dict[str, Any]) -> None:
    """Sizes, layout, tokenizer, parts, leaves."""
    layout, tokenizer = facts["layout"], facts["tokenizer"]
    tokens = max(facts["tokens"], 1)
    text = f" ({facts['text_bytes'] / tokens:.2f} bytes of text a token)" if facts["text_bytes"] else ""
    empty = f" ({facts['empty_documents']:,} without text)" if facts["empty_documents"] else ""
    rows = {
        "documents": f"{facts['documents']:,}{empty}",
        "tokens": f"{facts['tokens']:,}{text}",
        "on disk": f"{in_bytes(facts['bytes_on_disk'])} ({facts['bytes_on_disk'] / tokens:.2f} bytes a token)",
        "layout": f"{layout['dtype']}, chunks of {layout['chunk_elements']:,} tokens,"
        f" compression {layout['compression']}",
        "tokenizer": f"{tokenizer.get('path', 'not known')}, vocabulary {tokenizer['vocab_size']:,},"
        f" bos {_special(tokenizer, 'bos')}, eos {_special(tokenizer, 'eos')}",
        "parts": _parts(facts),
    }
    if facts["leaves"]:
        leaves = (f"{one['name']} ({one['dtype']}, {_per_document(one)})" for one in facts["leaves"])
        rows["leaves"] = ", ".join(leaves)
    if facts["trained_tokens"]:
        none = f"; {facts['untrained_documents']:,} documents with none" if facts["untrained_documents"] else ""
        rows["trained on"] = f"{facts['trained_tokens']:,} tokens ({facts['trained_tokens'] / tokens:.1%}){none}"
    if facts["skipped_lines"]:
        rows["skipped"] = f"{facts['skipped_lines']:,} bad lines"
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(value))
    console.print(Text(facts["path"], "bold"), soft_wrap=True)
    console.print(table)


def show_lengths(console: Console, lengths: LengthStatistics) -> None:
    """Quantiles, and a histogram by powers of two."""
    if not lengths.documents:
        return
    whole = "" if lengths.documents == lengths.of else f", of a sample of {lengths.documents:,} documents"
    console.print(_rule(f"length in tokens (mean {lengths.mean:,.1f}{whole})"))
    console.print(Text("  ".join(f"{name} {value:,}" for name, value in lengths.quantiles.items())))
    table, wide = _table(console, ("tokens", "documents", "", "of all tokens"))
    most = max(documents for _, _, documents, _ in lengths.histogram)
    total = max(sum(tokens for *_, tokens in lengths.histogram), 1)
    for first, last, documents, tokens in lengths.histogram:
        span = f"{first:,}" if first == last else f"{first:,} - {last:,}"
        table.add_row(span, f"{documents:,}", *_bar(documents / most, wide), f"{tokens / total:.1%}")
    console.print(table)


def show_tokens(console: Console, found: TokenStatistics) -> None:
    """How much of the vocabulary comes, and the most frequent tokens."""
    if not found.tokens:
        return
    whole = "" if found.tokens == found.of else f", of a sample of {found.tokens:,} tokens"
    console.print(_rule(f"tokens by frequency{whole}"))
    if found.vocab_size is None or found.never_seen is None:
        console.print(Text(f"{found.distinct:,} different tokens"))
    else:
        seen = found.vocab_size - found.never_seen
        share = seen / max(found.vocab_size, 1)
        console.print(
            Text(f"{seen:,} of the vocabulary's {found.vocab_size:,} come ({share:.1%}), {found.never_seen:,} never")
        )
    if found.outside:
        console.print(Text(f"{found.outside:,} tokens have an id that is not in the vocabulary", "bold red"))
    table, wide = _table(console, ("id", "times", "", "of all tokens"))
    decoded = any(text != str(number) for number, text, _ in found.most_frequent)
    if decoded:
        table.add_column("text", no_wrap=True, overflow="ellipsis")
    for number, text, times in found.most_frequent:
        cells = (*_bar(times / found.most_frequent[0][2], wide), f"{times / found.tokens:.1%}")
        table.add_row(str(number), f"{times:,}", *cells, *((Text(repr(text)),) if decoded else ()))
    console.print(table)


def show_samples(console: Console, samples: Sequence[Sample]) -> None:
    """Decoded documents."""
    if any(s.trained_tokens is not None for s in samples):
        console.print(legend(console))
    for one in samples:
        _show_sample(console, one)


def _show_sample(console: Console, one: Sample) -> None:
    trained = "" if one.trained_tokens is None else f", {one.trained_tokens:,} trained on"
    console.print(_rule(f"document {one.document:,}: {one.tokens:,} tokens{trained}"))
    if one.leaves:
        console.print(Text("  ".join(f"{name}: {_value(value)}" for name, value in one.leaves.items()), "dim"))
    left_out = f" ... {one.left_out:,} tokens ... " if one.left_out else ""
    text = Text.assemble(
        (one.bos or "", "reverse green"),
        marked(one.runs, console) if one.runs else printable(one.text),
        (left_out, "dim italic"),
        marked(one.tail_runs, console) if one.tail_runs else printable(one.tail),
        (one.eos or "", BOUNDARY),
    )
    console.print(text, soft_wrap=not coloured(console))


def _rule(title: str) -> Rule:
    return Rule(Text(title), align="left", style="dim")


def _table(console: Console, titles: Sequence[str]) -> tuple[Table, bool]:
    """A table, and whether there is room for its bars."""
    wide = console.width >= _NARROW
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        if title or wide:
            table.add_column(title, justify="right" if title else "left", no_wrap=True)
    return table, wide


def _bar(share: float, wide: bool) -> tuple[Text, ...]:
    return (Text(bar(share), "cyan"),) if wide else ()


def _parts(facts: dict[str, Any]) -> str:
    sizes = [part["tokens"] for part in facts["part_sizes"]]
    of = f", of {_files(facts['source_files'])} with {in_bytes(facts['source_bytes'])}" if facts["source_files"] else ""
    span = f" ({min(sizes):,} to {max(sizes):,} tokens each)" if len(sizes) > 1 else ""
    return f"{facts['parts']:,}{of}{span}"


def _files(count: int) -> str:
    return f"{count:,} file" + ("" if count == 1 else "s")


def _per_document(leaf: dict[str, Any]) -> str:
    return "one each" if leaf["kind"] == "fixed" else f"{leaf['values']:,} values"


def _special(tokenizer: dict[str, Any], role: str) -> str:
    token = tokenizer.get(role)
    return "none" if token is None else f"{token} ({tokenizer[f'{role}_id']})"


def _value(value: Any) -> str:
    if isinstance(value, list):
        more = f", ... {len(value):,} in all" if len(value) > _SHOWN_NUMBERS else ""
        return f"[{', '.join(map(str, value[:_SHOWN_NUMBERS]))}{more}]"
    return one_line(value, _LEAF_WIDTH) if isinstance(value, str) else str(value)
