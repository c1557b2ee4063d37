"""The rows of a step with all that is known of them, as JSON values; and how they are printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from headrace.cli.decoded import decode, document_ids, tokenizer_of, trained_runs
from headrace.cli.shown import coloured, legend, marked, one_line, printable
from headrace.errors import redact

if TYPE_CHECKING:
    from headrace.data.provenance import StepRows
    from headrace.store.cache import TokenCache

_SHOWN_FILES = 2
_LEAST_TEXT, _ID_WIDTH = 24, 60


def described_rows(
    rows: StepRows, places: Sequence[int], id_leaf: str, tokenizer: str | None = None
) -> list[dict[str, Any]]:
    """Rows as JSON values, with the text of each span.

    Args:
        rows: The step's rows.
        places: Which of them, in this order.
        id_leaf: The leaf that holds ids of documents, in caches that have it.
        tokenizer: For caches that have none of their own.

    Raises:
        ReadError: tokens, offsets or ids cannot be read.
    """
    from headrace.data.provenance import read_masks_of_spans, read_spans, source_files, spans_of_rows

    spans = spans_of_rows(rows, np.unique(np.asarray(places, np.int64)))
    tokens, masks = read_spans(rows, spans), read_masks_of_spans(rows, spans)
    decoders = {number: _decoder(rows.caches[number], tokenizer) for number in set(spans.source.tolist())}
    ids = {
        number: document_ids(cache, spans.document[spans.source == number].tolist(), id_leaf)
        for number, cache in enumerate(rows.caches)
        if number in decoders
    }
    files = lru_cache(None)(lambda source, part: source_files(rows.caches[source], part))
    found: dict[int, list[dict[str, Any]]] = {}
    for k, place in enumerate(spans.row.tolist()):
        source, part, document = int(spans.source[k]), int(spans.part[k]), int(spans.document[k])
        one: dict[str, Any] = {
            "column": int(spans.column[k]),
            "tokens": int(spans.size[k]),
            "part": rows.caches[source].parts[part].record.name,
            "files": files(source, part),
            "document": document,
            "offset": int(spans.offset[k]),
            "document_tokens": int(spans.length[k]),
            "first_token": int(spans.token[k]),
            **({"id": ids[source][document]} if ids[source] else {}),
            "text": decode(decoders[source], tokens[k]),
        }
        mask = masks[k]
        if mask is not None:
            one["trained_tokens"] = int(mask.sum())
            one["runs"] = trained_runs(decoders[source], tokens[k], mask)
        found.setdefault(place, []).append(one)
    return [_row(rows, place, found[place]) for place in places]


def _decoder(cache: TokenCache, instead: str | None) -> Any:
    own = tokenizer_of(cache)
    return own if own is not None or instead is None else tokenizer_of(cache, instead)


def _row(rows: StepRows, place: int, spans: list[dict[str, Any]]) -> dict[str, Any]:
    source = int(rows.source[place])
    return {
        "row": place,
        "example": int(rows.example[place]),
        "component": rows.names[int(rows.component[place])],
        "draw": int(rows.ordinal[place]),
        "epoch": int(rows.epoch[place]),
        "cache": redact(rows.caches[source].path),
        "row_of_source": int(rows.row[place]),
        "padding": rows.seq_len - sum(one["tokens"] for one in spans),
        "spans": spans,
    }


def show_rows(console: Console, facts: dict[str, Any], *, whole: bool) -> None:
    """Prints rows.

    Args:
        console: Where to.
        facts: What ``headrace cat --json`` prints.
        whole: All text of each row; if not, a line for each span.
    """
    rows = facts["rows"]
    counted = Counter(row["component"] for row in rows)
    mixed = ", ".join(f"{count:,} of {name}" for name, count in counted.most_common())
    of = f"{facts['batch_size']:,} rows of {facts['seq_len']:,} tokens"
    shown = "" if len(rows) == facts["batch_size"] else "shown: "
    console.print(Text.assemble((f"step {facts['step']:,}", "bold"), f"  {of}, {shown}{mixed}"), soft_wrap=True)
    if whole and any("runs" in one for row in rows for one in row["spans"]):
        console.print(legend(console))
    for row in rows:
        draw = f"draw {row['draw']:,}, epoch {row['epoch']:,}, example {row['example']:,}"
        title = Text.assemble((f"row {row['row']:,}", "bold"), f"  {row['component']}  ", (draw, "dim"))
        console.print(Rule(title, align="left", style="dim"))
        console.print(Text(_origin(row), "dim"), soft_wrap=True)
        _show_whole(console, row) if whole else _show_spans(console, row)
        if row["padding"]:
            console.print(Text(f"{row['padding']:,} tokens of padding", "dim"))


def _show_spans(console: Console, row: dict[str, Any]) -> None:
    """A line a span: where in the row, which document, how its text begins; two lines where there is no room."""
    places = [_columns(one) for one in row["spans"]]
    documents = [_document(one) for one in row["spans"]]
    place_width, document_width = max(map(len, places)), max(map(len, documents))
    left = console.width - place_width - document_width - 4
    for one, place, document in zip(row["spans"], places, documents, strict=True):
        line = Text.assemble((f"{place:>{place_width}}  ", "dim"), (document, "cyan"))
        if left >= _LEAST_TEXT:
            line.append(" " * (document_width - len(document) + 2) + one_line(one["text"], left))
        else:
            indent = " " * (place_width + 2)
            line.append("\n" + indent + one_line(one["text"], max(console.width - len(indent), _LEAST_TEXT)))
        console.print(line, soft_wrap=True)


def _show_whole(console: Console, row: dict[str, Any]) -> None:
    """All text, with a line before each document."""
    for one in row["spans"]:
        console.print(Text(f"[{_columns(one)}] {_document(one)}", "cyan"), soft_wrap=True)
        text = marked(one["runs"], console) if "runs" in one else Text(printable(one["text"]))
        console.print(text, soft_wrap=not coloured(console))


def _columns(span: dict[str, Any]) -> str:
    return f"{span['column']:,} - {span['column'] + span['tokens'] - 1:,}"


def _document(span: dict[str, Any]) -> str:
    """The document of a span, which tokens of it, and how many of these are trained on if not all."""
    first, size, length = span["offset"], span["tokens"], span["document_tokens"]
    if size == length:
        which = f"all {length:,} tokens"
    else:
        which = f"tokens {first:,} - {first + size - 1:,} of {length:,}"
    called = f" {one_line(str(span['id']), _ID_WIDTH)}" if "id" in span else ""
    trained = f", {span['trained_tokens']:,} of them trained on" if "trained_tokens" in span else ""
    return f"document {span['document']:,}{called}, {which}{trained}"


def _origin(row: dict[str, Any]) -> str:
    """The cache, the part and the files behind a row; rows do not cross parts unless they are packed."""
    parts: dict[str, list[str]] = {}
    for one in row["spans"]:
        parts.setdefault(one["part"], [str(file["path"]) for file in one["files"]])
    said = [f"part {name}{_from(files)}" if name else _from(files).strip() for name, files in parts.items()]
    return ", ".join([row["cache"], *(s for s in said if s)])


def _from(files: list[str]) -> str:
    distinct = list(dict.fromkeys(files))
    if len(distinct) < 2:
        return f" from {distinct[0]}" if distinct else ""
    more = ", ..." if len(distinct) > _SHOWN_FILES else ""
    return f" from one of {len(distinct):,} files: {', '.join(distinct[:_SHOWN_FILES])}{more}"
