"""What ``headrace cache inspect`` counts and prints of a finished cache; in huge caches, lengths
and tokens are sampled.

Price: it reads at most 4 Mi lengths and 4 Mi tokens, in 64 evenly spaced stretches, of a thousand
parts, however large the cache is: a second on a local disk. Files are listed for their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace.cli.build import fields_in_words, with_none
from headrace.cli.decoded import Sample
from headrace.cli.shown import (
    BOUNDARY,
    bar,
    coloured,
    facts_table,
    figures_table,
    legend,
    marked,
    one_line,
    printable,
    working,
)
from headrace.data.document_numbers import evenly_spaced, some_lengths
from headrace.errors import errors_at, format_count
from headrace.ingest.tokenize import decode
from headrace.numbers import in_bytes
from headrace.order.intervals import starts
from headrace.store.layout import TOKENS

if TYPE_CHECKING:
    from headrace.data.attributes import AttributeConfig
    from headrace.ingest.tokenize import Tokenizer
    from headrace.store.cache import TokenCache

_SHOWN_NUMBERS = 8
_LEAF_WIDTH = 100
MAX_COUNTED = 1 << 22
WINDOWS = 64
_MAX_VOCABULARY = 1 << 24
_MOST_FREQUENT = 10
_MOST_VALUES = 10
_FIRST_VALUES = 1 << 16
_QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}


def _size(stored_bytes: int | None, tokens: int) -> str:
    if stored_bytes is None:
        return "unknown: a web server lists no files"
    return f"{in_bytes(stored_bytes)} ({stored_bytes / tokens:.2f} bytes per token)"


def show_overview(console: Console, facts: dict[str, Any]) -> None:
    """Prints sizes, layout, tokenizer, parts and leaves, and what only some caches have."""
    layout = facts["layout"]
    tokens = max(facts["tokens"], 1)
    rows = {
        "documents": _documents(facts),
        "tokens": f"{facts['tokens']:,}",
        "on disk": _size(facts["bytes_on_disk"], tokens),
        "layout": f"{layout['dtype']}, chunks of {layout['chunk_elements']:,} tokens,"
        f" compression {layout['compression']}",
        "tokenizer": _tokenizer(facts["tokenizer"]),
        "parts": _parts(facts),
    }
    if facts["text_bytes"]:
        rows["tokens"] += f" ({facts['text_bytes'] / tokens:.2f} bytes of text per token)"
    if facts["leaves"]:
        rows["leaves"] = ", ".join(map(_leaf, facts["leaves"]))
    if facts["trained_tokens"]:
        share = facts["trained_tokens"] / tokens
        none = with_none(facts["untrained_documents"])
        rows["trained on"] = f"{facts['trained_tokens']:,} tokens ({share:.1%}){none}"
    if facts["trained_share"] is not None:
        cure = "" if facts["trained_share"] else "; for all: components.NAME.loss_mask=none"
        rows["trained on"] = f"{facts['trained_share']:.1%} of the tokens{cure}"
    if facts["skipped_lines"]:
        rows["skipped"] = format_count(facts["skipped_lines"], "bad line")
    if facts["unused_fields"]:
        rows["unused fields"] = fields_in_words(facts["unused_fields"])
    if facts["shuffled"]:
        rows["shuffled"] = _shuffled(facts["shuffled"])
    if facts["removed_documents"]:
        rows["removed"] = (
            f"{format_count(facts['removed_documents'], 'document')} with"
            f" {format_count(facts['removed_tokens'], 'token')}"
        )
    if facts["format"]:
        rows["format"] = f"{facts['format']}, read in place"
        rows["not promised"] = "; ".join(facts["limits"])
    console.print(facts["path"], style="bold", soft_wrap=True)
    console.print(facts_table(rows))
    if facts["snapshot"] > 1:
        _show_snapshots(console, facts["snapshots"])


def _show_snapshots(console: Console, snapshots: Sequence[Mapping[str, Any]]) -> None:
    heads = ("appended", "tokens", "removed", "documents")
    table = figures_table("snapshot", *heads, title="Snapshots", left=1)
    for one in snapshots:
        figures = ("appended_documents", "appended_tokens", "removed_documents", "documents")
        table.add_row(str(one["snapshot"]), *(f"{one[name]:,}" for name in figures))
    console.print(table)


def show_lengths(console: Console, lengths: LengthStatistics) -> None:
    """Prints quantiles of the lengths, and a histogram by powers of two."""
    if not lengths.documents:
        return
    of_sample = (
        ""
        if lengths.documents == lengths.of
        else f", of a sample of {format_count(lengths.documents, 'document')}"
    )
    console.print(_rule(f"length in tokens (mean {lengths.mean:,.1f}{of_sample})"))
    console.print("  ".join(f"{name} {value:,}" for name, value in lengths.quantiles.items()))
    table = _table("tokens", "documents", "", "of all tokens")
    most = max(documents for _, _, documents, _ in lengths.histogram)
    total = max(sum(tokens for *_, tokens in lengths.histogram), 1)
    for first, last, documents, tokens in lengths.histogram:
        span = f"{first:,}" if first == last else f"{first:,} - {last:,}"
        table.add_row(span, f"{documents:,}", _bar(documents / most), f"{tokens / total:.1%}")
    console.print(table)


def show_tokens(console: Console, found: TokenStatistics) -> None:
    """Prints how much of the vocabulary occurs, and the most frequent tokens."""
    if not found.tokens:
        return
    of_sample = "" if found.tokens == found.of else f", of a sample of {found.tokens:,} tokens"
    console.print(_rule(f"tokens by frequency{of_sample}"))
    if found.vocab_size is None or found.never_seen is None:
        console.print(format_count(found.distinct, "different token"))
    else:
        distinct = found.vocab_size - found.never_seen
        share = distinct / max(found.vocab_size, 1)
        console.print(
            f"{distinct:,} of the vocabulary's {found.vocab_size:,} occur ({share:.1%}),"
            f" {found.never_seen:,} never"
        )
    if found.outside:
        console.print(
            f"{format_count(found.outside, 'token')} with ids outside the vocabulary",
            style="bold red",
        )
    table = _table("id", "times", "", "of all tokens")
    decoded = any(text != str(number) for number, text, _ in found.most_frequent)
    if decoded:
        table.add_column("text", no_wrap=True, overflow="ellipsis")
    for number, text, times in found.most_frequent:
        cells = (_bar(times / found.most_frequent[0][2]), f"{times / found.tokens:.1%}")
        table.add_row(str(number), f"{times:,}", *cells, *((Text(repr(text)),) if decoded else ()))
    console.print(table)


def show_samples(console: Console, samples: Sequence[Sample]) -> None:
    """Prints decoded documents."""
    if any(s.trained_tokens is not None for s in samples):
        console.print(legend(console))
    for one in samples:
        _show_sample(console, one)


def _show_sample(console: Console, one: Sample) -> None:
    trained = "" if one.trained_tokens is None else f", {one.trained_tokens:,} trained on"
    console.print(_rule(f"document {one.document:,}: {format_count(one.tokens, 'token')}{trained}"))
    if one.leaves:
        console.print(
            "  ".join(f"{name}: {_value(value)}" for name, value in one.leaves.items()), style="dim"
        )
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


def _table(*titles: str) -> Table:
    """A table of figures, and of bars in the columns without a title."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    return table


def _bar(share: float) -> Text:
    return Text(bar(share), "cyan")


def _documents(facts: dict[str, Any]) -> str:
    text = f"{facts['documents']:,}"
    if facts["empty_documents"]:
        text += f" ({facts['empty_documents']:,} without text)"
    if facts["block_tokens"]:
        ends = facts["tokenizer"].get("eos") or "no known token"
        text += (
            f", blocks of {facts['block_tokens']:,} tokens: split_documents divides them after"
            f" {ends}"
        )
    return text


def _tokenizer(facts: dict[str, Any]) -> str:
    text = f"{facts.get('path', 'unknown')}, vocabulary {facts['vocab_size']:,}"
    for role in ("bos", "eos"):
        token = facts.get(role)
        text += f", {role} none" if token is None else f", {role} {token} ({facts[f'{role}_id']})"
    return text


def _leaf(leaf: dict[str, Any]) -> str:
    if leaf["kind"] == "fixed":
        size = "one per document"
    elif "width" in leaf:
        size = f"{leaf['width']} per token"
    else:
        size = f"{leaf['values']:,} values"
    return f"{leaf['name']} ({leaf['dtype']}, {size})"


def _shuffled(facts: dict[str, Any]) -> str:
    text = f"documents, with seed {facts['seed']}, from {facts['fingerprint']}"
    if split := facts.get("split"):
        text += f", cut each {split:,} tokens"
    if padding := facts.get("padding"):
        text += f", in packs with {padding:,} of padding"
    return text


def _parts(facts: dict[str, Any]) -> str:
    sizes = [part["tokens"] for part in facts["part_sizes"]]
    of = (
        f", from {format_count(facts['source_files'], 'file')} with"
        f" {in_bytes(facts['source_bytes'])}"
        if facts["source_files"]
        else ""
    )
    span = f" ({min(sizes):,} to {max(sizes):,} tokens each)" if len(sizes) > 1 else ""
    return f"{facts['parts']:,}{of}{span}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        more = f", ... {len(value):,} in all" if len(value) > _SHOWN_NUMBERS else ""
        return f"[{', '.join(map(str, value[:_SHOWN_NUMBERS]))}{more}]"
    return one_line(value, _LEAF_WIDTH) if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class LengthStatistics:
    """Lengths of documents, in tokens: of ``documents`` of the ``of`` documents of a cache."""

    documents: int
    of: int
    mean: float
    quantiles: dict[str, int]  # min, p5, ... max
    histogram: list[tuple[int, int, int, int]]  # first and last length, documents, tokens


def length_statistics(cache: TokenCache) -> LengthStatistics:
    """Lengths of all documents, or of a sample of some millions of them; reads offsets but no
    tokens.
    """
    lengths, documents = some_lengths(cache, MAX_COUNTED, WINDOWS)
    mean = float(lengths.mean()) if lengths.size else 0.0
    return LengthStatistics(
        int(lengths.size),
        documents,
        mean,
        _quantiles(lengths, {**_QUANTILES, "p99": 0.99, "max": 1.0}),
        histogram(lengths),
    )


def _quantiles(values: np.ndarray, shares: Mapping[str, float]) -> dict[str, Any]:
    """Values at shares of all of them, by name; empty if there are none."""
    if not values.size:
        return {}
    quantiles = np.quantile(values, [*shares.values()], method="lower")
    return dict(zip(shares, quantiles.tolist(), strict=True))


def histogram(lengths: np.ndarray) -> list[tuple[int, int, int, int]]:
    """``(first length, last length, documents, tokens)`` by power of two of the length: 0, 1, 2 to
    3, 4 to 7, ...

    Example:
        >>> import numpy as np
        >>> histogram(np.array([1, 2, 3, 3, 9]))
        [(1, 1, 1, 1), (2, 3, 3, 8), (4, 7, 0, 0), (8, 15, 1, 9)]
    """
    # frexp gives the number of bits, exactly up to 2**53.
    bits = np.frexp(lengths.astype(np.float64))[1]
    documents = np.bincount(bits)
    tokens = np.bincount(bits, weights=lengths).astype(np.int64)
    first = int(np.flatnonzero(documents)[0]) if documents.any() else 0
    return [
        ((1 << b) >> 1, max((1 << b) - 1, 0), int(documents[b]), int(tokens[b]))
        for b in range(first, documents.size)
    ]


@dataclass(frozen=True)
class AttributeStatistics:
    """An attribute of documents: its rows, and the values of those of ``documents`` that have one.

    ``values`` are all values with their numbers of documents, if there are few, else none.
    """

    name: str
    documents: int
    rows: int
    not_found: int  # rows of no document
    missing: int  # documents without a value
    quantiles: dict[str, float]
    values: list[tuple[float, int]]


def attribute_statistics(
    cache: TokenCache, name: str, config: AttributeConfig
) -> AttributeStatistics:
    """Joins an attribute to a cache and counts its values.

    Raises:
        ConfigError: as :func:`~headrace.data.attributes.joined_attribute`, named as on the command
            line.
    """
    from headrace.data.attributes import joined_attribute

    with working(f"joining {name}"), errors_at(f"--attributes {name}: "):
        joined = joined_attribute(cache, name, config)
        has_value = np.ones(joined.values.size, bool)
        has_value[joined.without_value] = False
        values = cache.by_number(joined.values)[cache.by_number(has_value)]
    # Few values are few among the first ones, too
    few = np.unique(values[:_FIRST_VALUES]).size <= _MOST_VALUES
    distinct, counts = np.unique(values, return_counts=True) if few else (values[:0], values[:0])
    listed = distinct.size <= _MOST_VALUES
    return AttributeStatistics(
        name=name,
        documents=cache.num_originals,
        rows=joined.rows,
        not_found=joined.not_found,
        missing=joined.missing,
        quantiles=_quantiles(values, {**_QUANTILES, "max": 1.0}),
        values=[*zip(distinct.tolist(), counts.tolist(), strict=True)] if listed else [],
    )


def show_attributes(console: Console, statistics: Sequence[AttributeStatistics]) -> None:
    """Prints the values of attributes: each value if there are few, else quantiles."""
    for one in statistics:
        share = one.missing / max(one.documents, 1)
        console.print(_rule(f"attribute {one.name}"))
        console.print(
            f"{format_count(one.rows, 'row')}, {one.not_found:,} of no document;"
            f" {one.missing:,} of {format_count(one.documents, 'document')} ({share:.2%}) have"
            " no value"
        )
        if not one.values:
            quantiles = (f"{name} {value:,.6g}" for name, value in one.quantiles.items())
            console.print("  ".join(quantiles))
            continue
        table = _table("value", "documents", "")
        most = max(count for _, count in one.values)
        for value, count in one.values:
            table.add_row(f"{value:,.6g}", f"{count:,}", _bar(count / most))
        console.print(table)


@dataclass(frozen=True)
class TokenStatistics:
    """How often tokens occur: in ``tokens`` of the ``of`` tokens of a cache. None: the vocabulary
    is unknown.
    """

    tokens: int
    of: int
    distinct: int
    vocab_size: int | None
    never_seen: int | None
    outside: int  # tokens whose id is not in the vocabulary
    most_frequent: list[tuple[int, str, int]]  # id, its text, its count


def token_statistics(cache: TokenCache, tokenizer: Tokenizer | None) -> TokenStatistics:
    """Frequencies of all tokens, or of a sample of some millions of them.

    Example:
        >>> import headrace.testing
        >>> found = token_statistics(headrace.testing.tiny_cache(documents=500), None)
        >>> (
        ...     found.most_frequent[0][0],
        ...     found.never_seen,
        ...     found.outside,
        ... )  # the end of text; none is missing
        (255, 0, 0)
    """
    first_token = starts(cache.leaf(TOKENS).arrays.lengths)
    tokens = evenly_spaced(cache.tokens, first_token, MAX_COUNTED, WINDOWS)
    ids, counts = np.unique(tokens, return_counts=True)
    counted_size = cache.vocab_size if cache.vocab_size <= _MAX_VOCABULARY else None
    inside = np.ones(ids.size, bool) if counted_size is None else (ids >= 0) & (ids < counted_size)
    most = np.lexsort((ids, -counts))[:_MOST_FREQUENT]
    return TokenStatistics(
        tokens=int(tokens.size),
        of=cache.num_tokens,
        distinct=int(ids.size),
        vocab_size=counted_size,
        never_seen=None if counted_size is None else counted_size - int(inside.sum()),
        outside=int(counts[~inside].sum()),
        most_frequent=[
            (int(ids[k]), decode(tokenizer, ids[k : k + 1]), int(counts[k])) for k in most.tolist()
        ],
    )


def trained_share(cache: TokenCache) -> float | None:
    """Share of the tokens that the mask marks, counted like their frequencies; None: no mask.

    Example:
        >>> import headrace.testing
        >>> trained_share(headrace.testing.tiny_cache()) is None
        True
    """
    mask = cache.mask_leaf("auto")
    if mask is None:
        return None
    most = MAX_COUNTED * cache.num_documents // max(cache.num_tokens, 1)
    leaf = cache.leaf(mask)
    marks = evenly_spaced(leaf.values, leaf.first_document, max(most, WINDOWS), WINDOWS)
    return np.count_nonzero(marks) / max(marks.size, 1)
