"""``headrace run cat``: shows what the model sees at a step, and where every token comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    ID_LEAF,
    AsJson,
    ConfigOrRun,
    Decoder,
    IdLeaf,
    SameRun,
    Settings,
    check_run,
    load_of_run,
    lock_at,
)
from headrace.cli.shown import (
    coloured,
    legend,
    marked,
    one_line,
    printable,
    say_json,
    terminal,
    working,
)
from headrace.errors import ConfigError, did_you_mean, format_count, redact

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from headrace.data.provenance import StepRows

_SHOWN_FILES = 2
_LEAST_TEXT = 24
_ID_WIDTH = 60
_SHOWN_VALUES = 4


def command(
    target: ConfigOrRun,
    settings: Settings = None,
    step: Annotated[int, typer.Option(help="The step, counted from 0.", metavar="S")] = 0,
    row: Annotated[
        list[int] | None,
        typer.Option(help="Show only this row of the batch, in full (repeatable).", metavar="R"),
    ] = None,
    run: SameRun = None,
    id_leaf: IdLeaf = ID_LEAF,
    tokenizer: Decoder = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model sees at a step: for each row its component, documents, their files and
    the text.

    The order is a pure function of the config, so this needs no log of the run. Rows are numbered
    as in the loader's batch. With --row, it also shows the line or record of each document in its
    source file, if the file exists.

    For example:

        headrace run cat run.yaml --step 12345

        headrace run cat run.yaml --step 12345 --row 7

        headrace run cat runs/7b --step 12345 --json

        headrace run cat run.yaml --step 0 batch_size=4 seed=1
    """
    from headrace.data.provenance import rows_of_step

    with working("finding the rows"):
        run = target if run is None and lock_at(target) else run
        resolved = load_of_run(target, settings, run)
        dataset = resolved.dataset()
        if run is not None:
            check_run(run, resolved, dataset, step)
        order = "locality" if resolved.row_order == "locality" else "stream"
        rows = rows_of_step(dataset, dataset.batch_schedule, step, order)
        _check_rows(rows, row or [])
        described = described_rows(rows, row or list(range(len(rows))), id_leaf, tokenizer)
        if row:
            _add_origins(rows, described)
    facts = {
        "step": step,
        "batch_size": rows.batch_size,
        "seq_len": rows.seq_len,
        "rows": described,
    }
    if as_json:
        say_json(facts)
    else:
        show_rows(terminal(), facts, whole=bool(row))


def _check_rows(rows: StepRows, asked: list[int]) -> None:
    for one in asked:
        if not 0 <= one < len(rows):
            padding = len(rows) <= one < rows.batch_size
            raise ConfigError(
                "is padding: the last batch is not full"
                if padding
                else "is not a row of this step",
                field="--row",
                value=one,
                cure=f"Its rows are numbered from 0 to {len(rows) - 1}.",
            )


def described_rows(
    rows: StepRows, places: Sequence[int], id_leaf: str, tokenizer: str | None = None
) -> list[dict[str, Any]]:
    """Rows as JSON values, with the text of each span; ``tokenizer`` is for caches that do not keep
    theirs.
    """
    import numpy as np

    from headrace.cli.decoded import document_ids, trained_runs
    from headrace.data.columns import MASK
    from headrace.data.provenance import (
        read_columns_of_spans,
        read_spans,
        removed_spans,
        spans_of_rows,
    )
    from headrace.ingest.tokenize import cache_tokenizer, decode

    spans = spans_of_rows(rows, np.unique(np.asarray(places, np.int64)))
    tokens = read_spans(rows, spans)
    columns = read_columns_of_spans(rows, spans)
    decoders = {
        number: cache_tokenizer(rows.caches[number]) for number in set(spans.source.tolist())
    }
    without = [number for number, decoder in decoders.items() if decoder is None] or [*decoders]
    if tokenizer is not None:  # refused if each has its own
        decoders |= {number: cache_tokenizer(rows.caches[number], tokenizer) for number in without}
    leaves = dict.fromkeys(leaf for cache in rows.caches for leaf in cache.leaves)
    if id_leaf not in {ID_LEAF, *leaves}:
        cure = (
            f"{did_you_mean(id_leaf, leaves)} Or leave it out."
            if leaves
            else "Leave it out: these caches keep no ids."
        )
        raise ConfigError(
            "is not a leaf of these caches", field="--id-leaf", value=id_leaf, cure=cure
        )
    ids = {
        number: document_ids(cache, spans.document[spans.source == number].tolist(), id_leaf)
        for number, cache in enumerate(rows.caches)
        if number in decoders
    }
    removed = removed_spans(rows, spans)
    originals = lru_cache(None)(lambda source, document: rows.caches[source].original(document))

    @lru_cache(None)
    def tokens_of(source: int, document: int) -> int:
        cache = rows.caches[source]
        return sum(int(cache.lengths(k, k + 1)[0]) for k in cache.pieces_of(document))

    spans_of_row: dict[int, list[dict[str, Any]]] = {}
    for k, row in enumerate(spans.row.tolist()):
        source = int(spans.source[k])
        document = int(spans.document[k])
        original = originals(source, document)
        one: dict[str, Any] = {
            "column": int(spans.column[k]),
            "tokens": int(spans.size[k]),
            "part": original.part,
            "files": original.files,
            "document": original.number,
            "offset": original.offset + int(spans.offset[k]),
            "document_tokens": tokens_of(source, document),
            "first_token": int(spans.token[k]),
            **({"id": ids[source][document]} if ids[source] else {}),
            "text": decode(decoders[source], tokens[k]),
        }
        mask = columns[k].pop(MASK, None)
        if removed[k]:  # the batch does not contain it
            one |= {"removed": True, "text": ""}
        elif mask is not None:
            mask = mask != 0
            one["trained_tokens"] = int(mask.sum())
            one["runs"] = trained_runs(decoders[source], tokens[k], mask)
        if columns[k] and not removed[k]:
            one["columns"] = {name: described_column(values) for name, values in columns[k].items()}
        spans_of_row.setdefault(row, []).append(one)
    return [_row(rows, row, spans_of_row[row]) for row in places]


def _add_origins(rows: StepRows, described: list[dict[str, Any]]) -> None:
    """Adds to each span the place of its document in the source, or why it is unknown."""
    from headrace.ingest.origins import find_origins

    by_source: dict[int, list[dict[str, Any]]] = {}
    for row in described:
        by_source.setdefault(int(rows.source[row["row"]]), []).extend(row["spans"])
    for source, spans in by_source.items():
        cache = rows.caches[source]
        positions = [int(cache.stored_at([span["document"]])[0]) for span in spans]
        origins = find_origins(cache, positions)
        for span, position in zip(spans, positions, strict=True):
            span |= vars(origins[position])


def described_column(values: np.ndarray) -> dict[str, Any]:
    """A column of a span as JSON values: shape, range, mean, and the values of the first tokens."""
    return {
        "shape": list(values.shape),
        "min": values.min().item(),
        "mean": round(float(values.mean()), 6),
        "max": values.max().item(),
        "first": values[:_SHOWN_VALUES].tolist(),
    }


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
    """Prints the facts of ``headrace run cat --json``: with ``whole`` all text, otherwise one line
    for each span.
    """
    from rich.rule import Rule
    from rich.text import Text

    rows = facts["rows"]
    counts = Counter(row["component"] for row in rows)
    mixed = ", ".join(f"{count:,} of {name}" for name, count in counts.most_common())
    of = f"{format_count(facts['batch_size'], 'row')} of {facts['seq_len']:,} tokens"
    prefix = "" if len(rows) == facts["batch_size"] else "shown: "
    console.print(
        Text.assemble((f"step {facts['step']:,}", "bold"), f"  {of}, {prefix}{mixed}"),
        soft_wrap=True,
    )
    if whole and any("runs" in one for row in rows for one in row["spans"]):
        console.print(legend(console))
    for row in rows:
        draw = f"draw {row['draw']:,}, epoch {row['epoch']:,}, example {row['example']:,}"
        title = Text.assemble(
            (f"row {row['row']:,}", "bold"), f"  {row['component']}  ", (draw, "dim")
        )
        console.print(Rule(title, align="left", style="dim"))
        console.print(Text(_origin(row), "dim"), soft_wrap=True)
        _show_whole(console, row) if whole else _show_spans(console, row)
        if row["padding"]:
            console.print(Text(f"{format_count(row['padding'], 'token')} of padding", "dim"))


def _show_spans(console: Console, row: dict[str, Any]) -> None:
    """Prints a line for each span (two on a narrow terminal): its place in the row, its document,
    and some text.
    """
    from rich.text import Text

    columns = [_columns(one) for one in row["spans"]]
    documents = [_document(one) for one in row["spans"]]
    place_width = max(map(len, columns))
    document_width = max(map(len, documents))
    width_left = console.width - place_width - document_width - 4
    for one, column, document in zip(row["spans"], columns, documents, strict=True):
        line = Text.assemble((f"{column:>{place_width}}  ", "dim"), (document, "cyan"))
        if width_left >= _LEAST_TEXT:
            line.append(
                " " * (document_width - len(document) + 2) + one_line(one["text"], width_left)
            )
        else:
            indent = " " * (place_width + 2)
            line.append(
                "\n" + indent + one_line(one["text"], max(console.width - len(indent), _LEAST_TEXT))
            )
        console.print(line, soft_wrap=True)


def _show_whole(console: Console, row: dict[str, Any]) -> None:
    """Prints all text, with a line before each document."""
    from rich.text import Text

    for one in row["spans"]:
        console.print(Text(f"[{_columns(one)}] {_document(one)}", "cyan"), soft_wrap=True)
        if one.get("origin_problem"):
            console.print(
                Text(f"place in the source unknown: {one['origin_problem']}", "dim"), soft_wrap=True
            )
        for name, column in one.get("columns", {}).items():
            console.print(Text(f"{name}: {_column(column)}", "dim"), soft_wrap=True)
        text = marked(one["runs"], console) if "runs" in one else Text(printable(one["text"]))
        console.print(text, soft_wrap=not coloured(console))


def _column(column: dict[str, Any]) -> str:
    """Describes a column in one line."""
    low, mean, high = (f"{column[name]:.4g}" for name in ("min", "mean", "max"))
    per_token = f", {column['shape'][1]} per token" if column["shape"][1:] else ""
    first = ", ".join(str(_four_digits(value)) for value in column["first"])
    return (
        f"{low} to {high}, mean {mean}{per_token}; begins {first}"
        if low != high
        else f"{low}{per_token}"
    )


def _four_digits(value: Any) -> Any:
    """Rounds numbers, or lists of them, to four digits."""
    return (
        [_four_digits(one) for one in value] if isinstance(value, list) else float(f"{value:.4g}")
    )


def _columns(span: dict[str, Any]) -> str:
    return f"{span['column']:,} - {span['column'] + span['tokens'] - 1:,}"


def _document(span: dict[str, Any]) -> str:
    """Describes the document of a span, its tokens in the span, and how many of these are trained
    on, if not all.
    """
    first = span["offset"]
    size = span["tokens"]
    length = span["document_tokens"]
    if size == length:
        which = f"all {length:,} tokens"
    else:
        which = f"tokens {first:,} - {first + size - 1:,} of {length:,}"
    called = f" {one_line(str(span['id']), _ID_WIDTH)}" if "id" in span else ""
    origin = f", {printable(span['origin'])}" if span.get("origin") else ""
    trained = f", {span['trained_tokens']:,} of them trained on" if "trained_tokens" in span else ""
    removed = ", removed" if span.get("removed") else ""
    return f"document {span['document']:,}{called}, {which}{trained}{removed}{origin}"


def _origin(row: dict[str, Any]) -> str:
    """The cache, the part and the files of a row; only packed rows cross parts."""
    parts: dict[str, list[str]] = {}
    for one in row["spans"]:  # a span with a known place in the source names its own file
        parts.setdefault(
            one["part"], [] if one.get("origin") else [str(file["path"]) for file in one["files"]]
        )
    texts = [
        f"part {name}{_from(files)}" if name else _from(files).strip()
        for name, files in parts.items()
    ]
    return ", ".join([row["cache"], *(s for s in texts if s)])


def _from(files: list[str]) -> str:
    distinct = list(dict.fromkeys(files))
    if len(distinct) < 2:
        return f" from {distinct[0]}" if distinct else ""
    more = ", ..." if len(distinct) > _SHOWN_FILES else ""
    return f" from one of {len(distinct):,} files: {', '.join(distinct[:_SHOWN_FILES])}{more}"
