"""``headrace run cat``: shows what the model sees at a step, and where every token comes from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    ID_LEAF,
    AsJson,
    ConfigOrRun,
    Decoder,
    IdLeaf,
    Settings,
    open_target,
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
from headrace.errors import ConfigError, did_you_mean, format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.data.provenance import StepRows

_LEAST_TEXT = 24
_ID_WIDTH = 60


def command(
    target: ConfigOrRun,
    settings: Settings = None,
    step: Annotated[int, typer.Option(help="The step, counted from 0.", metavar="S")] = 0,
    row: Annotated[
        list[int] | None,
        typer.Option(help="Show only this row of the batch, in full (repeatable).", metavar="R"),
    ] = None,
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
    from headrace.cli.decoded import say_undecoded
    from headrace.data.dataset import rows_of_step
    from headrace.data.described import described_rows

    with working("finding the rows"):
        resolved, dataset, _ = open_target(target, settings)
        rows = rows_of_step(dataset, dataset.batch_schedule, step, resolved.row_order)
        _check_rows(rows, row or [])
        _check_leaf(rows, id_leaf)
        numbers = row or list(range(len(rows)))
        described = described_rows(rows, numbers, id_leaf, tokenizer, resolved.tokenizer)
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
        say_undecoded(rows.caches[0], tokenizer or resolved.tokenizer)


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


def _check_leaf(rows: StepRows, id_leaf: str) -> None:
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
        console.print(_origin(row), style="dim", soft_wrap=True)
        _show_whole(console, row) if whole else _show_spans(console, row)
        if row["padding"]:
            console.print(f"{format_count(row['padding'], 'token')} of padding", style="dim")


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
        console.print(f"[{_columns(one)}] {_document(one)}", style="cyan", soft_wrap=True)
        if one.get("origin_problem"):
            console.print(
                f"place in the source unknown: {one['origin_problem']}", style="dim", soft_wrap=True
            )
        for name, column in one.get("columns", {}).items():
            console.print(f"{name}: {_column(column)}", style="dim", soft_wrap=True)
        text = marked(one["runs"], console) if "runs" in one else Text(printable(one["text"]))
        console.print(text, soft_wrap=not coloured(console))


def _column(column: dict[str, Any]) -> str:
    """Describes a column in one line."""
    low, mean, high = (_four_digits(column[name]) for name in ("min", "mean", "max"))
    per_token = f", {column['shape'][1]} per token" if column["shape"][1:] else ""
    first = ", ".join(str(_four_digits(value)) for value in column["first"])
    return (
        f"{low} to {high}, mean {mean}{per_token}; begins {first}"
        if low != high
        else f"{low}{per_token}"
    )


def _four_digits(value: Any) -> Any:
    """Rounds numbers, or lists of them, to four digits; whole numbers, which may number something,
    are left as they are.
    """
    if isinstance(value, list):
        return [_four_digits(one) for one in value]
    return value if isinstance(value, int) else float(f"{value:.4g}")


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
    from headrace.data.described import one_of_files

    parts: dict[str, list[str]] = {}
    for one in row["spans"]:  # a span with a known place in the source names its own file
        parts.setdefault(
            one["part"], [] if one.get("origin") else [str(file["path"]) for file in one["files"]]
        )
    texts = [
        " ".join([f"part {name}" if name else "", one_of_files(files)]).strip()
        for name, files in parts.items()
    ]
    return ", ".join([row["cache"], *(s for s in texts if s)])
